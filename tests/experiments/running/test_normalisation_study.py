"""The study of the normalisation of mixed images, from tiny data and a small network to records."""

import json
from functools import partial

import pytest
import torch
from experiments.config.methods import paper_sts
from experiments.config.run_config import RunConfig
from experiments.config.settings import SETTINGS
from experiments.pretraining import architectures
from experiments.pretraining.network_id import NetworkId
from experiments.pretraining.outputs import untrained_network
from experiments.running import normalisation_study
from experiments.running.normalisation_records import NormalisationRecord, read_records
from helpers import tiny
from safetensors.torch import save_file
from torch import Tensor, nn

NETWORK = NetworkId("fmnist-resnet18", 0)


def small(n_channels: int, n_classes: int) -> nn.Module:
    layers = [nn.Conv2d(n_channels, 8, 5, stride=4), nn.BatchNorm2d(8), nn.ReLU()]
    return architectures.Classifier(layers, 8, n_classes)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """Return a run whose cache has a small network, with statistics that its images do not have."""
    folder = tmp_path_factory.mktemp("study")
    tiny.write_fashion_mnist(folder)
    tiny.write_ood_datasets(folder)
    run = RunConfig(folder, folder, folder / "results", dry_run=True)
    training = {
        "epochs": 1,
        "augmentation": SETTINGS[NETWORK.setting].augmentation._asdict(),
        "concurrent": 1,
        "settings": [NETWORK.setting],
        "compiled": False,
        "seconds": 1.0,
        "device": "cpu",
    }
    path = run.network_path(*NETWORK)
    path.parent.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(architectures.NETWORKS, SETTINGS[NETWORK.setting].network, small)
        state = untrained_network(*NETWORK).state_dict()
        state["body.1.running_mean"] = torch.linspace(-2, 2, 8)
        save_file(state, path, {"training": json.dumps(training)})
        patch.setattr(normalisation_study, "N_OOD", 7)
        patch.setattr(normalisation_study, "paper_sts", partial(paper_sts, betas=(0.3, 1.0)))
        normalisation_study.run(NETWORK, run, n_steps=2)
    return run


@pytest.fixture
def records(config: RunConfig) -> dict[str, NormalisationRecord]:
    return {record.mode: record for record in read_records(config.results, NETWORK.setting)}


def test_each_mode_has_a_record_with_every_beta(records: dict[str, NormalisationRecord]) -> None:
    assert set(records) == {"frozen", "batch", "moving"}
    for record in records.values():
        assert [one.beta for one in record.betas] == record.calibrator_settings["betas"]
        errors = [one.calibration.ece for one in record.betas if one.calibration.ece is not None]
        assert record.chosen is not None
        assert record.chosen.calibration.ece == min(errors)
        for one in record.betas:
            assert [(ood.ood_set, ood.metrics.n_out) for ood in one.ood] == [("notmnist", 7)]


def test_only_moving_statistics_change_the_network(records: dict[str, NormalisationRecord]) -> None:
    for mode in ("frozen", "batch"):
        assert {one.changed for one in records[mode].betas} == {0.0}
        assert {one.accuracy for one in records[mode].betas} == {records[mode].accuracy}
    likelihoods = {one.test.nll for one in records["moving"].betas}
    assert likelihoods.isdisjoint({one.test.nll for one in records["batch"].betas})


def test_the_modes_differ(records: dict[str, NormalisationRecord]) -> None:
    found = set()
    for record in records.values():
        found.add(tuple(one.test.nll for one in record.betas))
    assert len(found) == 3


def test_moved_statistics_are_the_moving_average_of_those_of_the_batches(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(architectures.NETWORKS, SETTINGS[NETWORK.setting].network, small)
    net = normalisation_study.read_network(NETWORK, config)
    images = normalisation_study.read_images(NETWORK.setting, config)
    norm = net.get_submodule("body.1")
    before = norm.get_buffer("running_mean").clone()
    means: list[Tensor] = []
    moved = normalisation_study.MovingNetwork(net, images, NETWORK, config)
    moved.net.get_submodule("body.0").register_forward_hook(
        lambda layer, args, output: means.append(output.mean((0, 2, 3)))
    )
    moved.move(0.5)
    assert len(means) == normalisation_study.moving_batches(config)
    expected = before
    for mean in means:
        expected = 0.9 * expected + 0.1 * mean
    found = moved.net.get_submodule("body.1").get_buffer("running_mean")
    torch.testing.assert_close(found, expected)
    assert torch.equal(norm.get_buffer("running_mean"), before)
