"""How mixed images are normalised, and what it does to the paper's method.

usage: python -m experiments.running.normalisation_study SETTING SEED --data DATA --cache CACHE
           [--results RESULTS] [--device DEVICE] [--steps STEPS] [--dry-run]

The branch of the paper's method is trained on mixed images that a network with batch-norm layers
has seen. There are three modes. "frozen": the training's running statistics normalise everything.
"batch": each batch of 100 mixed images is normalised by its own statistics, and evaluation uses the
running ones as they were. "moving": the same branch, but evaluation uses running statistics that
the mixed images of its β have moved, as they do if calibration leaves a network in training mode.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import interpolate

import simplexcal as sc
from experiments.config.methods import DRY_RUN_SETTINGS, MixupScheme, paper_sts
from experiments.config.run_config import RESULTS, RunConfig, device_name, log
from experiments.config.settings import SETTINGS
from experiments.datasets.loading import calibration_test_split, load, load_ood
from experiments.datasets.normalisation import NORMALISATION, normalise
from experiments.pretraining.architectures import Classifier
from experiments.pretraining.learner import set_memory_format
from experiments.pretraining.network_id import NetworkId
from experiments.pretraining.outputs import (
    SplitOutputs,
    trained_network,
    training_metadata,
)
from experiments.running.evaluation import Fitted, ood_metrics, split_metrics
from experiments.running.graphed_network import GraphedNetwork
from experiments.running.job import plain_settings, tensor_cores, used_versions
from experiments.running.normalisation_records import (
    NormalisationBeta,
    NormalisationRecord,
    OodDetection,
    write_record,
)
from experiments.running.records import Mixup, Training

# Each step of the published experiments mixes 100 images of each class, with a weight vector for
# each of the 100 mixes.
SCHEME = MixupScheme("inputs", 100, 1, weights_per_sample=True)
N_STEPS = 25_000
N_MOVING_BATCHES = 300  # With momentum 0.1, less than 1e-13 of the first statistics is left.
EVALUATION_BATCH = 1000
N_OOD = 10_000  # images of each out-of-distribution data set, the first ones
OOD_SETS = {
    "fmnist-resnet18": ("notmnist",),
    "cifar10-resnet18": ("svhn", "tinyimagenet", "cifar100"),
    "cifar10-vgg16-bn": ("svhn", "tinyimagenet", "cifar100"),
    "stl10-resnet18": ("svhn", "tinyimagenet"),
    "stl10-vgg16-bn": ("svhn", "tinyimagenet"),
}


class Images(NamedTuple):
    """The images of a setting, normalised bytes being made when they are needed.

    Args:
        dataset: The data set, which decides the normalisation.
        test: Bytes of all test images, on the device.
        labels: Their classes, on the CPU.
        ood: Bytes of the out-of-distribution images, on the device, by name.
    """

    dataset: str
    test: Tensor
    labels: Tensor
    ood: dict[str, Tensor]


class NetworkOutputs(NamedTuple):
    """A network's outputs, on the CPU.

    Args:
        splits: Those on the two splits.
        ood: Those on out-of-distribution images, by name.
    """

    splits: SplitOutputs
    ood: dict[str, sc.Outputs]


class FittedMode(NamedTuple):
    """A calibrator fitted in one mode.

    Args:
        fitted: The calibrator.
        seconds: The time of the fit.
    """

    fitted: Fitted
    seconds: float


def run(network: NetworkId, config: RunConfig, n_steps: int = N_STEPS) -> None:
    """Do the study with one network of the cache, and write a record for each mode.

    Args:
        network: The network.
        config: Folders and device of the run.
        n_steps: Steps of the branch.
    """
    net = read_network(network, config)
    images = read_images(network.setting, config)
    before = _outputs(net, images)
    fit = _fit(net, images, before, network, config, "frozen", n_steps)
    betas = [_evaluate(one, before, before, network.seed) for one in _each_beta(fit.fitted)]
    _write(network, config, "frozen", fit, betas, before)
    fit = _fit(net, images, before, network, config, "batch", n_steps)
    betas = [_evaluate(one, before, before, network.seed) for one in _each_beta(fit.fitted)]
    _write(network, config, "batch", fit, betas, before)
    betas = []
    moving = MovingNetwork(net, images, network, config)
    for one in _each_beta(fit.fitted):
        moving.move(_only_beta(one))
        betas.append(_evaluate(one, moving.outputs(), before, network.seed))
    _write(network, config, "moving", fit, betas, before)


def read_network(network: NetworkId, config: RunConfig) -> Classifier:
    """Return a trained network, on the device of the run.

    Args:
        network: Its setting and seed.
        config: Folders and device of the run.
    """
    net = cast(Classifier, trained_network(*network, config)).to(config.device)
    set_memory_format(net, torch.channels_last)
    return net


def read_images(setting: str, config: RunConfig) -> Images:
    """Return the images of a setting, on the device of the run.

    Args:
        setting: The setting.
        config: Folders and device of the run.
    """
    dataset = SETTINGS[setting].dataset
    loaded = load(dataset, config.data)
    side = loaded.test_images.shape[-1]
    ood = {}
    for name in OOD_SETS[setting]:
        found = load_ood(name, config.data)[:N_OOD]
        ood[name] = _resized(found, side).to(config.device)
    return Images(dataset, loaded.test_images.to(config.device), loaded.test_labels, ood)


def _resized(images: Tensor, side: int) -> Tensor:
    """Return bytes of this height and width; 32 × 32 images are enlarged for STL-10."""
    if images.shape[-1] == side:
        return images
    parts = []
    for part in images.split(EVALUATION_BATCH):
        enlarged = interpolate(part.float(), size=(side, side), mode="bilinear")
        parts.append(enlarged.round().clamp(0, 255).to(torch.uint8))
    return torch.cat(parts)


def _outputs(net: Classifier, images: Images) -> NetworkOutputs:
    """Return the outputs in evaluation mode, and in float32 as in the other studies."""
    calibration, test = calibration_test_split(len(images.test))
    outputs = _outputs_of(net, images.test, images.dataset)
    splits = SplitOutputs(
        outputs[calibration],
        images.labels[calibration],
        outputs[test],
        images.labels[test],
        seconds=0.0,
    )
    ood = {name: _outputs_of(net, found, images.dataset) for name, found in images.ood.items()}
    return NetworkOutputs(splits, ood)


@torch.no_grad()
def _outputs_of(net: Classifier, images: Tensor, dataset: str) -> sc.Outputs:
    normalisation = NORMALISATION[dataset]
    parts = images.split(EVALUATION_BATCH)
    joined = torch.cat([net.body(normalise(part, normalisation)) for part in parts])
    return sc.Outputs(net.head(joined), joined).to("cpu")


def _source(
    net: Classifier, images: Images, network: NetworkId, config: RunConfig, batch_statistics: bool
) -> sc.InputMixup:
    """Return mixup samples of the calibration images, run through the network."""
    calibration, _ = calibration_test_split(len(images.test))
    inputs = normalise(
        images.test[calibration.to(images.test.device)], NORMALISATION[images.dataset]
    )
    graphed = GraphedNetwork(net, SETTINGS[network.setting].dtype(config.device))
    return sc.InputMixup(
        graphed,
        inputs,
        images.labels[calibration],
        SCHEME.per_class,
        SCHEME.n_shuffles,
        SCHEME.weights_per_sample,
        batch_statistics,
    )


def _fit(
    net: Classifier,
    images: Images,
    outputs: NetworkOutputs,
    network: NetworkId,
    config: RunConfig,
    mode: str,
    n_steps: int,
) -> FittedMode:
    """Return the paper's method, fitted to mixes that are the same in every mode."""
    source = _source(net, images, network, config, mode != "frozen")
    generator = torch.Generator(config.device).manual_seed(network.seed)
    calibrator = paper_sts(n_steps=n_steps)()
    if config.dry_run:
        settings = {**calibrator.settings, "widths": DRY_RUN_SETTINGS["widths"]}
        settings["pool_size"] = DRY_RUN_SETTINGS["pool_size"]
        calibrator = type(calibrator)(**settings)
    data = outputs.splits
    log(f"{network}: {mode}, fitting")
    with tensor_cores():
        start = time.perf_counter()
        calibrator.fit(
            data.calibration.to(config.device),
            data.calibration_labels.to(config.device),
            mixup=source,
            generator=generator,
        )
        seconds = time.perf_counter() - start
    log(f"{network}: {mode}, fitted in {seconds:.1f} s")
    return FittedMode(Fitted(calibrator, config.device, seconds), seconds)


def _each_beta(fitted: Fitted) -> Iterator[Fitted]:
    """Yield the calibrator of each β."""
    calibrator = cast(sc.SimplexTemperatureScaling, fitted.calibrator)
    for one in calibrator.each_beta().values():
        yield fitted._replace(calibrator=one)


def _only_beta(fitted: Fitted) -> float:
    calibrator = cast(sc.SimplexTemperatureScaling, fitted.calibrator)
    return calibrator.betas[0]


class MovingNetwork:
    """A copy of a network in training mode, whose statistics mixed images move.

    Args:
        net: The network, which stays as it is.
        images: The images of its setting.
        network: Its setting and seed.
        config: Folders and device of the run.
    """

    def __init__(
        self, net: Classifier, images: Images, network: NetworkId, config: RunConfig
    ) -> None:
        self.original = net
        self.net = deepcopy(net).train()
        self.images = images
        self.seed = network.seed
        self.config = config
        self.source = _source(self.net, images, network, config, batch_statistics=False)

    def move(self, beta: float) -> None:
        """Start from the original statistics, and run the copy on batches of mixes.

        Args:
            beta: Their Dirichlet concentration.
        """
        self.net.load_state_dict(self.original.state_dict())
        generator = torch.Generator(self.config.device).manual_seed(self.seed)
        for _ in range(moving_batches(self.config)):
            self.source.sample(beta, SCHEME.per_class * SCHEME.n_shuffles, generator)

    def outputs(self) -> NetworkOutputs:
        """Return the copy's outputs in evaluation mode."""
        found = _outputs(self.net.eval(), self.images)
        self.net.train()
        return found


def moving_batches(config: RunConfig) -> int:
    """Return how many batches of mixed images move the statistics.

    Args:
        config: A dry run takes few.
    """
    if config.dry_run:
        return 2
    return N_MOVING_BATCHES


def _evaluate(
    fitted: Fitted, outputs: NetworkOutputs, before: NetworkOutputs, seed: int
) -> NormalisationBeta:
    """Return what is recorded of the calibrator of one β."""
    data = outputs.splits
    prediction = fitted.predict(data.test)
    calibration = fitted.predict(data.calibration)
    changed = data.test.label != before.splits.test.label
    detections = []
    for name, ood in outputs.ood.items():
        metrics = ood_metrics(fitted, data.test, prediction, ood, seed)
        detections.append(OodDetection(name, metrics))
    return NormalisationBeta(
        beta=_only_beta(fitted),
        accuracy=_accuracy(data),
        changed=changed.double().mean().item(),
        calibration=split_metrics(calibration, data.calibration_labels),
        test=split_metrics(prediction, data.test_labels),
        ood=detections,
    )


def _accuracy(data: SplitOutputs) -> float:
    correct = data.test.label == data.test_labels
    return correct.double().mean().item()


def _write(
    network: NetworkId,
    config: RunConfig,
    mode: str,
    fit: FittedMode,
    betas: list[NormalisationBeta],
    before: NetworkOutputs,
) -> None:
    n_moving = None
    if mode == "moving":
        n_moving = moving_batches(config)
    training = training_metadata(*network, config)
    dtype = SETTINGS[network.setting].dtype(config.device)
    record = NormalisationRecord(
        setting=network.setting,
        seed=network.seed,
        mode=mode,
        calibrator_settings=plain_settings(fit.fitted.calibrator),
        mixup=Mixup(**SCHEME._asdict()),
        moving_batches=n_moving,
        mixup_dtype=str(dtype).removeprefix("torch."),
        training=Training.from_json(training, f"The training of {network}"),
        dry_run=config.dry_run,
        versions=used_versions(),
        device=device_name(config.device),
        seconds=fit.seconds,
        accuracy=_accuracy(before.splits),
        betas=betas,
        beta=_chosen_beta(betas),
    )
    write_record(config.results, record)
    log(f"{network}: {mode}, {_summary(record)}")


def _chosen_beta(betas: Sequence[NormalisationBeta]) -> float | None:
    """Return the β with the smallest ECE on the calibration split, the paper's rule."""
    errors = {one.beta: one.calibration.ece for one in betas if one.calibration.ece is not None}
    if not errors:
        return None
    return min(errors, key=lambda beta: errors[beta])


def _summary(record: NormalisationRecord) -> str:
    chosen = record.chosen
    if chosen is None or chosen.test.ece is None:
        return "no β is finite"
    parts = [f"β {chosen.beta:g}, ECE {100 * chosen.test.ece:.2f} %"]
    parts.append(f"accuracy {100 * chosen.accuracy:.2f} %, changed {100 * chosen.changed:.2f} %")
    for one in chosen.ood:
        auroc = one.metrics.epistemic_auroc
        if auroc is not None:
            parts.append(f"{one.ood_set} {100 * auroc:.1f} %")
    return ", ".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        arguments: The arguments; None means those of the process.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("setting", choices=OOD_SETS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=N_STEPS)
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args(arguments)
    config = RunConfig(args.data, args.cache, args.results, args.device, args.dry_run)
    run(NetworkId(args.setting, args.seed), config, args.steps)


if __name__ == "__main__":
    main()
