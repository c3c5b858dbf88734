"""Corrupted images: calibration by severity, the estimate of the accuracy, and the monitor.

usage: python benchmarks/shift.py

The network is the demo's LeNet-5. Methods are fitted on the clean calibration half of the test
images of Fashion-MNIST; the other half is corrupted by _corruptions.py. The corrupted half is cut
into batches of 1000. `monitor` compares STS's predictions for each with those for the calibration
half, and the accuracy of each is estimated. Labels of corrupted images only evaluate.
The record goes to benchmarks/records; `python benchmarks/render_shift.py` writes
docs/results/shift.md from it.
"""

from pathlib import Path
from typing import Any

import torch
from _corruptions import CORRUPTIONS, SEVERITIES, corrupt
from _measured import versions, write_record
from torch import Tensor

import simplexcal as sc
from simplexcal.accuracy_estimation import make_reference
from simplexcal.demo.lenet5 import normalise
from simplexcal.demo.run import METHODS, prepare
from simplexcal.io.scored_rows import ScoredRows
from simplexcal.metrics import aurc, ece, nll
from simplexcal.monitoring import TOLERANCE, decide, find_drifts

BATCH = 1000
LEVEL = 0.95
# STS fitted again with the first precisions of its likelihood head, which no round changes. Then
# also without the function m of the logits, or without the terms of the classes: precisions this
# high leave them out. So it shows which of them an effect comes from.
REFITS: dict[str, dict[str, float]] = {
    "sts-first": {"n_rounds": 0},
    "sts-straight": {"curve": 1e9, "margin": 1e9, "n_rounds": 0},
    "sts-classless": {"bias": 1e9, "confusion": 1e9, "slope": 1e9, "n_rounds": 0},
}
DIVIDED = ("ts", "sts", *REFITS)

Row = dict[str, Any]


def scores_of(prediction: sc.Prediction, labels: Tensor) -> Row:
    """Return ECE, NLL, AURC and accuracy of a prediction."""
    correct = prediction.label == labels
    return {
        "ece": float(ece(prediction.confidence, correct)),
        "nll": float(nll(prediction.probs, labels)),
        "aurc": float(aurc(prediction.confidence, correct)),
        "accuracy": float(correct.double().mean()),
        "confidence": float(prediction.confidence.double().mean()),
    }


def divided_scores(prediction: sc.Prediction, labels: Tensor) -> Row:
    """Return the parts of the NLL, and the ECE.

    The parts are whether the prediction is right, and which other class is where it is not.
    -ln p_y is -ln c where the prediction is right, and -ln (1 - c) - ln (p_y / (1 - c)) where it is
    not, with the confidence c. The second part is the last term, summed over the errors. Both are
    divided by the number of all inputs.

    Args:
        prediction: The predictions.
        labels: The true classes, (N,).
    """
    probs = prediction.probs.double()
    wrong = prediction.label != labels
    predicted = prediction.label.unsqueeze(-1)
    others = probs.scatter(-1, predicted, 0.0).sum(-1)[wrong].log()
    of_label = probs[wrong].gather(-1, labels[wrong].unsqueeze(-1)).squeeze(-1).log()
    confidence = probs[~wrong].gather(-1, predicted[~wrong]).log()
    n = len(labels)
    return {
        "right_or_wrong": -float(confidence.sum() + others.sum()) / n,
        "which_other": -float((of_label - others).sum()) / n,
        "ece": float(ece(prediction.confidence, ~wrong)),
    }


def make_method(key: str) -> sc.Calibrator:
    """Return a method, not fitted yet.

    Args:
        key: A key of ``sc.CALIBRATORS`` or of ``REFITS``.
    """
    if key in REFITS:
        return sc.SimplexTemperatureScaling(head_settings=REFITS[key])
    return sc.CALIBRATORS[key]()


def monitored(known: tuple[sc.Prediction, Tensor], new: sc.Prediction, labels: Tensor) -> Row:
    """Return verdict, distances and estimates of one set of images, batch by batch."""
    reference = ScoredRows.of(known[0])
    verdicts = []
    largest = []
    estimates = []
    for start in range(0, len(labels), BATCH):
        rows = slice(start, start + BATCH)
        drifts = find_drifts(reference, ScoredRows.of(new[rows]), LEVEL)
        verdicts.append(decide(drifts, TOLERANCE))
        drift = max(drifts, key=lambda drift: drift.distance)
        largest.append({"score": drift.score, "distance": drift.distance})
        estimates.append(_estimates(known, new[rows], labels[rows]))
    return {"verdicts": verdicts, "largest": largest, "estimates": estimates}


def _estimates(known: tuple[sc.Prediction, Tensor], new: sc.Prediction, labels: Tensor) -> Row:
    """Return the true accuracy of a batch and its estimates."""
    found: Row = {"accuracy": float((new.label == labels).double().mean())}
    shift_aware = sc.estimate_accuracy(new, reference=known)
    found["shift-aware"] = shift_aware.estimate
    found["interval"] = shift_aware.interval
    for part in ("atc", "confidence"):
        found[part] = shift_aware.components[part]
    found["reference"] = float(make_reference(*known).correct.double().mean())
    return found


def main() -> None:
    """Measure and write the record."""
    data = prepare()
    fitted = (data.fit, data.fit_labels)
    models = {}
    for key in (*METHODS, *REFITS):
        mixup = sc.FeatureMixup(data.backbone.head, *fitted)
        generator = torch.Generator().manual_seed(0)
        models[key] = make_method(key).fit(*fitted, mixup=mixup, generator=generator)
    known = (models["sts"](data.fit), data.fit_labels)
    labels = data.test_labels
    sets = [("none", 0)]
    sets += [(name, severity) for name in CORRUPTIONS for severity in SEVERITIES]
    rows = []
    for name, severity in sets:
        images = data.test_images
        if severity > 0:
            images = corrupt(name, images, severity)
        outputs, _ = sc.extract(data.backbone, (normalise(images), labels))
        predictions = {key: model(outputs) for key, model in models.items()}
        row: Row = {"corruption": name, "severity": severity}
        row["methods"] = {key: scores_of(predictions[key], labels) for key in METHODS}
        row["divided"] = {key: divided_scores(predictions[key], labels) for key in DIVIDED}
        row |= monitored(known, predictions["sts"], labels)
        rows.append(row)
        print(name, severity, row["methods"]["sts"], row["verdicts"], flush=True)
    record: Row = {"batch": BATCH, "level": LEVEL, "tolerance": TOLERANCE, "n": len(labels)}
    record |= {"n_reference": len(data.fit_labels), "rows": rows, "versions": versions()}
    write_record(Path(__file__).stem, record)


if __name__ == "__main__":
    main()
