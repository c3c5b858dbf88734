"""CIFAR-10-C or CIFAR-100-C: calibration by severity, estimates of the accuracy, and the monitor.

usage: python benchmarks/shift_cifar.py DATASET FOLDER WEIGHTS

FOLDER and WEIGHTS are those of cifar_c_outputs.py, which makes the outputs. Methods are fitted on
the clean calibration half of the test images, and kept in FOLDER/models. Every set that evaluates
has 1000 images of the other half: five batches of clean ones, and the first 1000 at each severity
of each corruption. As in shift.py, labels of corrupted images only evaluate. The record goes to
benchmarks/records; `python benchmarks/render_shift.py` writes docs/results/shift.md from it.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from _corruptions import SEVERITIES
from _measured import versions, write_record
from cifar_c_outputs import load_network
from safetensors.torch import load_file
from shift import (
    BATCH,
    DIVIDED,
    LEVEL,
    REFITS,
    Row,
    divided_scores,
    make_method,
    monitored,
    scores_of,
)
from torch import Tensor, nn

import simplexcal as sc
from simplexcal.calibrators._likelihood_head import N_CELLS
from simplexcal.metrics.ece_inference import noise_floor
from simplexcal.monitoring import TOLERANCE

# The paper's counter-example, the only one that cannot do without mixup samples, is left out.
METHODS = {key: method for key, method in sc.CALIBRATORS.items() if not method.needs_mixup}
CLEAN = "none"


class Images(NamedTuple):
    """The network's outputs for images that are evaluated together.

    Attributes:
        corruption: Name of the corruption, or "none".
        severity: 1 to 5; 0 without corruption.
        outputs: The network's outputs.
        labels: The true classes, (N,).
    """

    corruption: str
    severity: int
    outputs: sc.Outputs
    labels: Tensor


def read_outputs(path: Path) -> tuple[sc.Outputs, Tensor]:
    """Return the outputs and labels of a file of cifar_c_outputs.py.

    Args:
        path: The file.
    """
    tensors = load_file(path)
    return sc.Outputs(tensors["logits"], tensors["features"]), tensors["labels"]


def join_outputs(parts: list[sc.Outputs]) -> sc.Outputs:
    """Return outputs one after the other.

    Args:
        parts: Outputs with features.
    """
    features = [part.features for part in parts if part.features is not None]
    return sc.Outputs(torch.cat([part.logits for part in parts]), torch.cat(features))


def clean_batches(folder: Path) -> Iterator[Images]:
    """Yield the test half, clean, batch by batch.

    Args:
        folder: The folder of the outputs.
    """
    outputs, labels = read_outputs(folder / "test.safetensors")
    for start in range(0, len(labels), BATCH):
        rows = slice(start, start + BATCH)
        yield Images(CLEAN, 0, outputs[rows], labels[rows])


def corrupted_sets(folder: Path, corruption: str) -> Iterator[Images]:
    """Yield the images of a corruption, severity by severity.

    Args:
        folder: The folder of the outputs.
        corruption: Name of the corruption.
    """
    parts = [read_outputs(path) for path in sorted(folder.glob(f"{corruption}-*.safetensors"))]
    for severity in SEVERITIES:
        found = []
        labels = []
        for outputs, part_labels in parts:
            n = len(part_labels) // len(SEVERITIES)
            rows = slice((severity - 1) * n, severity * n)
            found.append(outputs[rows])
            labels.append(part_labels[rows])
        yield Images(corruption, severity, join_outputs(found), torch.cat(labels))


def fit_all(
    head: nn.Linear, outputs: sc.Outputs, labels: Tensor, folder: Path
) -> dict[str, sc.Calibrator]:
    """Return the fitted methods by key; those that the folder has are read.

    Args:
        head: The network's last layer.
        outputs: The network's outputs for the calibration half.
        labels: The true classes, (N,).
        folder: Where fitted methods are kept.
    """
    folder.mkdir(exist_ok=True)
    models = {}
    for key in (*METHODS, *REFITS):
        path = folder / f"{key}.safetensors"
        if not path.exists():
            mixup = sc.FeatureMixup(head, outputs, labels)
            generator = torch.Generator().manual_seed(0)
            make_method(key).fit(outputs, labels, mixup=mixup, generator=generator).save(path)
            print("fitted", key, flush=True)
        models[key] = sc.load_calibrator(path)
    return models


def evaluate(images: Images, predictions: dict[str, sc.Prediction]) -> Row:
    """Return the scores of each method, and the ECE that a calibrated STS would have.

    Args:
        images: The images.
        predictions: Each method's predictions for them.
    """
    row: Row = {"corruption": images.corruption, "severity": images.severity}
    row["methods"] = {key: scores_of(predictions[key], images.labels) for key in METHODS}
    row["divided"] = {key: divided_scores(predictions[key], images.labels) for key in DIVIDED}
    row["noise_floor"] = float(noise_floor(predictions["sts"].confidence).mean)
    row["runner_up"] = runner_up_share(images)
    return row


def runner_up_share(images: Images) -> float:
    """Return the share of the errors whose true class has the second largest logit.

    Args:
        images: The images.
    """
    second = images.outputs.logits.topk(2).indices[:, 1]
    wrong = images.outputs.label != images.labels
    return float((second == images.labels)[wrong].double().mean())


def slopes_of(model: sc.Calibrator) -> list[float]:
    """Return the first and the last slope of the function m of a likelihood head.

    Args:
        model: A fitted SimplexTemperatureScaling.
    """
    assert isinstance(model, sc.SimplexTemperatureScaling)
    assert model.head_network is not None
    slopes = model.head_network.table[:N_CELLS, 1]  # at the smallest margin
    return [float(slopes[0]), float(slopes[-1])]


def pooled(images: list[Images], models: dict[str, sc.Calibrator]) -> Row:
    """Return the scores of each method on all images of a corruption together.

    Args:
        images: The images of each severity.
        models: The fitted methods.
    """
    labels = torch.cat([part.labels for part in images])
    found = {}
    for key in METHODS:
        prediction = sc.Prediction.cat([models[key](part.outputs) for part in images])
        found[key] = scores_of(prediction, labels)
    return {"corruption": images[0].corruption, "n": len(labels), "methods": found}


def main(dataset: str, folder: Path, weights: Path) -> None:
    """Measure and write the record.

    Args:
        dataset: "cifar10" or "cifar100".
        folder: The folder that holds the outputs.
        weights: The network's parameters.
    """
    outputs, labels = read_outputs(folder / "outputs" / "calibration.safetensors")
    models = fit_all(load_network(weights).head, outputs, labels, folder / "models")
    known = (models["sts"](outputs), labels)
    corruptions = sorted(path.stem for path in (folder / "corrupted").glob("*.npy"))
    sets = list(clean_batches(folder / "outputs"))
    rows = []
    together = []
    for name in corruptions:
        found = list(corrupted_sets(folder / "outputs", name))
        together.append(pooled(found, models))
        sets += found
    for images in sets:
        predictions = {key: model(images.outputs) for key, model in models.items()}
        row = evaluate(images, predictions)
        row |= monitored(known, predictions["sts"], images.labels)
        rows.append(row)
        print(images.corruption, images.severity, row["methods"]["sts"], flush=True)
    record: Row = {"batch": BATCH, "level": LEVEL, "tolerance": TOLERANCE}
    record |= {"n_reference": len(labels), "rows": rows, "pooled": together}
    record["slopes"] = slopes_of(models["sts"])
    record["keeps_predictions"] = {key: models[key].keeps_predictions for key in METHODS}
    write_record(f"shift_{dataset}", record | {"versions": versions()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", choices=("cifar10", "cifar100"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("weights", type=Path)
    options = parser.parse_args()
    main(options.dataset, options.folder, options.weights)
