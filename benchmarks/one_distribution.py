"""Aleatoric uncertainty never exceeds the entropy of `probs`, and two seeds rank inputs alike.

usage: python benchmarks/one_distribution.py demo|TEST[,OOD ...] ... [--json]

TEST is a safetensors file with logits, features, labels, head_weight and head_bias of a network's
test images; a file called test.safetensors has the name of its folder. Each OOD is one with logits
and features of out-of-distribution inputs. "demo" is the LeNet-5 of the demo. One half of the test
inputs fits STS, from features and from logits alone, with two seeds; the other half evaluates it.

violations: inputs with aleatoric < 0 or aleatoric > H(probs), less 1e-5 for rounding in float32.
rank: Spearman's correlation of `epistemic` between the two seeds. errors, and the names of OOD
files: AUROC in % of `epistemic` for wrong predictions and for OOD inputs. (ts): the same where the
mean is that of temperature scaling instead of the likelihood head's, with the same λ(x). NLL and
ECE (15 bins, in %) are those of the first seed.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple, cast

import torch
from safetensors.torch import load_file
from torch import Generator, Tensor, nn

import simplexcal as sc
from simplexcal import metrics
from simplexcal.demo import run
from simplexcal.demo.fashion_mnist import calibration_test_split

Fitted = sc.SimplexTemperatureScaling
SEEDS = (0, 1)
ROUNDING = 1e-5


class Network(NamedTuple):
    """A network's outputs.

    Args:
        name: What it is called.
        outputs: Those for the test inputs.
        labels: Their classes.
        head: The last linear layer.
        ood: Those for out-of-distribution inputs, by name.
    """

    name: str
    outputs: sc.Outputs
    labels: Tensor
    head: nn.Linear
    ood: dict[str, sc.Outputs]


def read_network(paths: str) -> Network:
    """Return the network in some files, or that of the demo."""
    if paths == "demo":
        return _demo_network()
    first, *others = map(Path, paths.split(","))
    tensors = load_file(first)
    weight = tensors["head_weight"]
    head = nn.Linear(weight.shape[1], weight.shape[0])
    head.load_state_dict({"weight": weight, "bias": tensors["head_bias"]})
    ood = {path.stem: _outputs(load_file(path)) for path in others}
    name = first.stem
    if name == "test":
        name = first.absolute().parent.name
    return Network(name, _outputs(tensors), tensors["labels"], head, ood)


def measure(network: Network, from_features: bool) -> dict[str, float]:
    """Fit STS with each seed to one half of the inputs, and evaluate it on the other."""
    fit, test = calibration_test_split(len(network.labels))
    fitted = [_fit(network, fit, from_features, seed) for seed in SEEDS]
    outputs = _reduced(network.outputs[test], from_features)
    labels = network.labels[test]
    first, second = [calibrator(outputs) for calibrator in fitted]
    epistemic = _epistemic(first)
    correct = first.label == labels
    found = {
        "violations": float(_violations(first)),
        "rank": _spearman(epistemic, _epistemic(second)),
        "nll": metrics.nll(first.probs, labels).item(),
        "ece": 100 * metrics.ece(first.confidence, correct, 15).item(),
        "errors": 100 * _auroc(epistemic[correct], epistemic[~correct]),
    }
    at_ts = _entropy_at_temperature_scaling(fitted[0], outputs)
    for name, of_network in network.ood.items():
        outside = _reduced(of_network, from_features)
        found[name] = 100 * _auroc(epistemic, _epistemic(fitted[0](outside)))
        outside_at_ts = _entropy_at_temperature_scaling(fitted[0], outside)
        found[f"{name} (ts)"] = 100 * _auroc(at_ts, outside_at_ts)
    return found


def _demo_network() -> Network:
    data = run.prepare()
    return Network("demo", data.outputs, data.labels, data.backbone.head, {})


def _outputs(tensors: dict[str, Tensor]) -> sc.Outputs:
    return sc.Outputs(tensors["logits"], tensors["features"].float())


def _reduced(outputs: sc.Outputs, from_features: bool) -> sc.Outputs:
    """Return the outputs, or the logits alone."""
    if from_features:
        return outputs
    return sc.Outputs(outputs.logits)


def _fit(network: Network, rows: Tensor, from_features: bool, seed: int) -> Fitted:
    outputs = _reduced(network.outputs[rows], from_features)
    labels = network.labels[rows]
    mixup = None
    if from_features:
        mixup = sc.FeatureMixup(network.head, outputs, labels)
    generator = Generator().manual_seed(seed)
    return sc.SimplexTemperatureScaling().fit(outputs, labels, mixup=mixup, generator=generator)


def _entropy_at_temperature_scaling(calibrator: Fitted, outputs: sc.Outputs) -> Tensor:
    """Return the differential entropy where the mean is that of temperature scaling."""
    temperature = cast(float, calibrator.global_temperature)
    mean = (outputs.logits / temperature).softmax(-1)
    spread = calibrator.concrete(outputs).temperature
    return sc.Concrete.from_mean(mean, spread).entropy()


def _epistemic(prediction: sc.Prediction) -> Tensor:
    if prediction.epistemic is None:
        raise ValueError("This version has no uncertainties here.")
    return prediction.epistemic


def _violations(prediction: sc.Prediction) -> int:
    if prediction.aleatoric is None:
        raise ValueError("This version has no uncertainties here.")
    entropy = torch.special.entr(prediction.probs).sum(-1)
    aleatoric = prediction.aleatoric
    return int(((aleatoric < 0) | (aleatoric > entropy + ROUNDING)).sum())


def _auroc(inside: Tensor, outside: Tensor) -> float:
    is_outside = torch.arange(len(inside) + len(outside)) >= len(inside)
    return metrics.auroc(torch.cat([inside, outside]), is_outside).item()


def _spearman(a: Tensor, b: Tensor) -> float:
    ranks = torch.stack([x.argsort().argsort().double() for x in (a, b)])
    return torch.corrcoef(ranks)[0, 1].item()


def main() -> None:
    """Measure each network, from features and from logits alone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="+", metavar="demo|TEST[,OOD ...]")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for paths in arguments.networks:
        network = read_network(paths)
        for source in ("features", "logits"):
            found = measure(network, from_features=source == "features")
            if arguments.json:
                print(json.dumps({"network": network.name, "source": source, **found}))
            else:
                shown = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
                print(f"{network.name}, from {source}: {shown}")


if __name__ == "__main__":
    main()
