"""One job: fit one method to one network's outputs on the validation half, judge it on the test half, record all."""

import math
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

import simplexcal as sc
from experiments.config.methods import METHODS, calibrator
from experiments.config.run_config import Place, device_name, write_json
from experiments.config.settings import ROWS
from experiments.config.studies import STUDIES
from experiments.pretraining.outputs import Halves, read_outputs, read_strangers, training_of
from experiments.running.mixup_sources import mixup
from experiments.running.sampled_scores import judged_by_energy, judged_by_mean, judged_by_samples
from simplexcal.evaluation import evaluate, evaluate_ood
from simplexcal.io import load_calibrator, save_calibrator
from simplexcal.metrics import ece, nll, reliability

Record = dict[str, Any]
BETAS = (
    sc.SimplexTemperatureScaling,
    sc.DirichletTemperatureScaling,
)  # methods that can try several β


class Job(NamedTuple):
    """What to do; ``stranger`` is the data set to detect, where that is asked."""

    study: str
    row: str
    seed: int
    method: str
    stranger: str | None = None

    def path(self, place: Place) -> Path:
        """Return the file of the record."""
        row = self.row if self.stranger is None else f"{self.row}-{self.stranger}"
        return place.results / self.study / row / str(self.seed) / f"{self.method}.json"

    def device(self, place: Place) -> str:
        """Return where to fit: on the run's device if the method gains from it, or if it is to be timed there."""
        return place.device if METHODS[self.method].gpu or STUDIES[self.study].alone else "cpu"

    def __str__(self) -> str:
        stranger = "" if self.stranger is None else f" against {self.stranger}"
        return f"{self.row}{stranger}, seed {self.seed}, {self.method}"


class Fitted(NamedTuple):
    """A fitted calibrator, on its device; no seconds if it comes from the cache."""

    calibrator: sc.Calibrator
    device: str
    seconds: float | None


def run(job: Job, place: Place) -> Record:
    """Do the job, write its record, and return it."""
    data = _data(job, place)
    fitted = _from_cache(job, place) if job.stranger is not None else None
    fitted = fitted or _fit(job, data, place)
    record = {**_about(job, fitted, place), **_judged(job, fitted, data, place)}
    write_json(job.path(place), record)
    return record


def _data(job: Job, place: Place) -> Halves:
    """Return a network's outputs as the method is to have them."""
    method, data = METHODS[job.method], read_outputs(job.row, job.seed, place)
    data = (data.exchanged() if method.exchanged else data).scaled(method.factor)
    return data if method.n_fit is None else data.fewer(method.n_fit, job.seed)


def _fit(job: Job, data: Halves, place: Place) -> Fitted:
    device, mixes = job.device(place), METHODS[job.method].mixes
    outputs, labels = data.fit.to(device), data.fit_labels.to(device)
    source = None if mixes is None else mixup(mixes, job.row, job.seed, outputs, labels, place)
    generator = torch.Generator(device).manual_seed(job.seed)
    with _tensor_cores():
        start = time.perf_counter()
        fitted = calibrator(job.method, place.trial).fit(
            outputs, labels, mixup=source, generator=generator
        )
        _wait(device)
        seconds = time.perf_counter() - start
    path = place.calibrator(job.row, job.seed, job.method)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_calibrator(fitted, path)
    return Fitted(fitted, device, seconds)


def _from_cache(job: Job, place: Place) -> Fitted | None:
    path, device = place.calibrator(job.row, job.seed, job.method), job.device(place)
    return Fitted(load_calibrator(path)[0].to(device), device, None) if path.exists() else None


def _about(job: Job, fitted: Fitted, place: Place) -> Record:
    """Return what was run, with which settings, where and with what."""
    mixes = METHODS[job.method].mixes
    return {
        **job._asdict(),
        "calibrator": type(fitted.calibrator).__name__,
        "settings": fitted.calibrator.settings,
        "mixes": None if mixes is None else mixes._asdict(),
        "mixed_in": _mixed_in(job, fitted.device),
        "n_fit": METHODS[job.method].n_fit,
        "exchanged": METHODS[job.method].exchanged,
        "beta": _beta(fitted.calibrator),
        "training": training_of(job.row, job.seed, place),
        "trial": place.trial,
        "versions": {
            "simplexcal": sc.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "device": device_name(fitted.device),
        "tf32": torch.device(fitted.device).type == "cuda",
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


def _mixed_in(job: Job, device: str) -> str | None:
    """Return what mixed images went through the network in, where the method has any."""
    mixes = METHODS[job.method].mixes
    if mixes is None or mixes.kind != "inputs":
        return None
    return str(ROWS[job.row].dtype(device)).removeprefix("torch.")


def _judged(job: Job, fitted: Fitted, data: Halves, place: Place) -> Record:
    fit, test = data.fit.to(fitted.device), data.test.to(fitted.device)
    start = time.perf_counter()
    answer = fitted.calibrator(test)
    _wait(fitted.device)
    timings = {
        "pretraining": training_of(job.row, job.seed, place)["seconds"],
        "outputs": data.seconds,
        "calibration": fitted.seconds,
        "prediction": time.perf_counter() - start,
    }
    prediction = _on_cpu(answer)
    record: Record = {
        "timings": timings,
        "n_timed": len(data.test),
        "accuracy": (data.test.label == data.test_labels).double().mean().item(),
        "labels_preserved": _preserved(prediction, data.test),
        "metrics": _plain(evaluate(prediction, data.test_labels).as_dict()),
        "validation": _brief(_on_cpu(fitted.calibrator(fit)), data.fit_labels),
        "bins": _bins(prediction, data.test_labels),
        "betas": _each_beta(fitted, data),
    }
    if (
        isinstance(fitted.calibrator, sc.SimplexTemperatureScaling)
        and not fitted.calibrator.likelihood_head
    ):
        record["sampled"] = judged_by_mean(
            fitted.calibrator.concrete(test), data.test_labels, job.seed
        )
    if job.stranger is not None:
        strangers = read_strangers(job.row, job.seed, job.stranger, place)
        unknown = _on_cpu(fitted.calibrator(strangers.to(fitted.device)))
        told_apart = evaluate_ood(prediction, unknown).as_dict()
        record["ood"] = {**_plain(told_apart), **judged_by_energy(data.test, strangers)}
        if isinstance(fitted.calibrator, sc.SimplexTemperatureScaling):
            known, unlike = (
                fitted.calibrator.concrete(outputs)
                for outputs in (test, strangers.to(fitted.device))
            )
            record["ood"]["sampled_entropy_auroc"] = judged_by_samples(known, unlike, job.seed)
    return record


def _each_beta(fitted: Fitted, data: Halves) -> list[Record] | None:
    """Return ECE and NLL on both halves for each β of a fit that tried several."""
    if (
        fitted.seconds is None
        or not isinstance(fitted.calibrator, BETAS)
        or len(fitted.calibrator.betas) == 1
    ):
        return None
    return [
        {
            "beta": beta,
            "validation": _brief(_on_cpu(one(data.fit.to(fitted.device))), data.fit_labels),
            "test": _brief(_on_cpu(one(data.test.to(fitted.device))), data.test_labels),
        }
        for beta, one in fitted.calibrator.each_beta().items()
    ]


def _on_cpu(prediction: sc.Prediction) -> sc.Prediction:
    """Return the prediction where judging it gives the same numbers on every machine."""
    values = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
    moved: dict[str, Any] = {
        name: None if value is None else value.cpu() for name, value in values.items()
    }
    return sc.Prediction(**moved)


def _preserved(prediction: sc.Prediction, outputs: sc.Outputs) -> bool:
    """Return whether each label is the network's, and no other class has a larger probability."""
    largest = prediction.confidence == prediction.probs.amax(-1)
    return bool((largest & (prediction.label == outputs.label)).all())


def _brief(prediction: sc.Prediction, labels: torch.Tensor) -> Record:
    correct = prediction.label == labels
    error, gap = (
        ece(prediction.confidence, correct),
        (prediction.confidence - correct.to(prediction.confidence)).mean(),
    )
    return _plain(
        {"ece": error.item(), "nll": nll(prediction.probs, labels).item(), "gap": gap.item()}
    )


def _bins(prediction: sc.Prediction, labels: torch.Tensor) -> Record:
    """Return the reliability diagram's bins, as lists."""
    bins = reliability(prediction.confidence, prediction.label == labels)
    return {name: [_number(x) for x in values.tolist()] for name, values in bins._asdict().items()}


def _plain(numbers: Any) -> Record:
    return {name: _number(value) for name, value in numbers.items()}


def _number(value: float | None) -> float | None:
    """Return the number, or None for what JSON cannot say."""
    return value if value is None or math.isfinite(value) else None


def _beta(fitted: sc.Calibrator) -> float | None:
    """Return the β that was chosen, as it was given, where there is one."""
    betas = fitted.settings.get("betas", (fitted.settings.get("beta"),))
    chosen = getattr(fitted, "beta", None)
    if chosen is None or not isinstance(betas, tuple):
        return None
    return min((float(b) for b in betas), key=lambda b: abs(b - float(chosen)))


@contextmanager
def _tensor_cores() -> Iterator[None]:
    """Let a GPU round the factors of a branch's float32 products to 11 bits (TF32), which its tensor cores can do."""
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
