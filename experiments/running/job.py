"""One job: fit one method to one network's calibration split, and evaluate it on the test split."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import Any, NamedTuple

import torch

import simplexcal as sc
from experiments.config.methods import METHODS, Method, make_calibrator
from experiments.config.run_config import RunConfig, device_name
from experiments.config.settings import SETTINGS
from experiments.config.studies import STUDIES
from experiments.pretraining.network_id import NetworkId
from experiments.pretraining.outputs import SplitOutputs, read_outputs, training_metadata
from experiments.running.evaluation import Fitted, evaluate_fit
from experiments.running.mixup_sources import mixup_source
from experiments.running.records import (
    SCHEMA_VERSION,
    Mixup,
    Record,
    RecordKey,
    Training,
    Versions,
)
from simplexcal.io import load_calibrator, save_calibrator


class Job(NamedTuple):
    """What to do.

    Args:
        study: The study.
        setting: The network's setting.
        seed: The network's seed, and that of the fit.
        method: The method to fit.
        ood_set: The out-of-distribution data set to detect, if any.
    """

    study: str
    setting: str
    seed: int
    method: str
    ood_set: str | None = None

    @property
    def network(self) -> NetworkId:
        """The network to calibrate."""
        return NetworkId(self.setting, self.seed)

    @property
    def key(self) -> RecordKey:
        """The key of the job's record."""
        return RecordKey(self.method, self.seed, self.ood_set or "")

    def device(self, config: RunConfig) -> str:
        """Return where to fit.

        Args:
            config: Its device is taken if the method gains from it, or if the study measures time.
        """
        if METHODS[self.method].gpu or STUDIES[self.study].sequential:
            return config.device
        return "cpu"

    def __str__(self) -> str:
        against = ""
        if self.ood_set is not None:
            against = f" against {self.ood_set}"
        return f"{self.setting}{against}, seed {self.seed}, {self.method}"


def run(job: Job, config: RunConfig) -> Record:
    """Do the job, and return its record.

    Args:
        job: What to do.
        config: Folders and device of the run.
    """
    outputs = _outputs(job, config)
    fitted = _fitted_before(job, config)
    if fitted is None:
        fitted = _fit(job, outputs, config)
    return _record(job, fitted, outputs, config)


def _outputs(job: Job, config: RunConfig) -> SplitOutputs:
    """Return a network's outputs as the method takes them."""
    method = METHODS[job.method]
    outputs = read_outputs(*job.network, config)
    if method.swapped:
        outputs = outputs.swapped()
    outputs = outputs.scaled(method.logit_scale)
    if method.n_calibration is not None:
        outputs = outputs.subsampled(method.n_calibration, job.seed)
    return outputs


def _fitted_before(job: Job, config: RunConfig) -> Fitted | None:
    """Return the calibrator of another study, if an OOD data set is all that is new."""
    path = config.calibrator_path(*job.network, job.method)
    if job.ood_set is None or not path.exists():
        return None
    device = job.device(config)
    calibrator, _ = load_calibrator(path)
    return Fitted(calibrator.to(device), device, None)


def _fit(job: Job, data: SplitOutputs, config: RunConfig) -> Fitted:
    device = job.device(config)
    scheme = METHODS[job.method].mixup
    outputs = data.calibration.to(device)
    labels = data.calibration_labels.to(device)
    source = None
    if scheme is not None:
        source = mixup_source(scheme, job.network, outputs, labels, config)
    generator = torch.Generator(device).manual_seed(job.seed)
    calibrator = make_calibrator(job.method, config.dry_run)
    with tensor_cores():
        start = time.perf_counter()
        fitted = calibrator.fit(outputs, labels, mixup=source, generator=generator)
        _synchronize(device)
        seconds = time.perf_counter() - start
    path = config.calibrator_path(*job.network, job.method)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_calibrator(fitted, path)
    return Fitted(fitted, device, seconds)


def _record(job: Job, fitted: Fitted, data: SplitOutputs, config: RunConfig) -> Record:
    method = METHODS[job.method]
    training = training_metadata(*job.network, config)
    evaluated = evaluate_fit(fitted, data, job.network, job.ood_set, config)
    return Record(
        schema_version=SCHEMA_VERSION,
        study=job.study,
        setting=job.setting,
        network=SETTINGS[job.setting].network,
        seed=job.seed,
        method=job.method,
        ood_set=job.ood_set,
        calibrator=type(fitted.calibrator).__name__,
        calibrator_settings=plain_settings(fitted.calibrator),
        mixup=_mixup(method),
        mixup_dtype=_mixup_dtype(job, fitted.device),
        n_calibration=method.n_calibration,
        swapped=method.swapped,
        beta=_chosen_beta(fitted.calibrator),
        training=Training.from_json(training, f"The training of {job.network}"),
        dry_run=config.dry_run,
        versions=used_versions(),
        device=device_name(fitted.device),
        tf32=torch.device(fitted.device).type == "cuda",
        threads=torch.get_num_threads(),
        cores=os.cpu_count(),
        **evaluated._asdict(),
    )


def plain_settings(calibrator: sc.Calibrator) -> dict[str, Any]:
    """Return a calibrator's settings as JSON takes them.

    Args:
        calibrator: The calibrator.
    """
    settings: dict[str, Any] = {}
    for key, value in calibrator.settings.items():
        if is_dataclass(value) and not isinstance(value, type):
            settings[key] = asdict(value)
        else:
            settings[key] = value
    return settings


def _mixup(method: Method) -> Mixup | None:
    if method.mixup is None:
        return None
    return Mixup(**method.mixup._asdict())


def _mixup_dtype(job: Job, device: str) -> str | None:
    """Return in what mixed images went through the network, if there were any."""
    scheme = METHODS[job.method].mixup
    if scheme is None or scheme.kind != "inputs":
        return None
    return str(SETTINGS[job.setting].dtype(device)).removeprefix("torch.")


def used_versions() -> Versions:
    """Return the versions of what this process uses."""
    return Versions(
        simplexcal=sc.__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
    )


def _chosen_beta(calibrator: sc.Calibrator) -> float | None:
    """Return the β that was chosen, as the settings spell it, if there is one."""
    betas = calibrator.settings.get("betas", (calibrator.settings.get("beta"),))
    chosen = getattr(calibrator, "beta", None)
    if chosen is None or not isinstance(betas, tuple):
        return None
    return min([float(beta) for beta in betas], key=lambda beta: abs(beta - float(chosen)))


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Let a GPU round the factors of a branch's float32 products to 11 bits (TF32)."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
