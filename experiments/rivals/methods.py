"""The methods that are compared: ours, and those of other packages through their public API."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from torch import Tensor

import simplexcal as sc

OURS = "simplexcal"
PACKAGES = (OURS, "probmetrics", "netcal", "scikit-learn")

Predict = Callable[[sc.Outputs], Tensor]
Fit = Callable[[sc.Outputs, Tensor], Predict]  # returns what predicts probabilities (N, K)


@dataclass(frozen=True)
class Rival:
    """A method of a package, with its default settings.

    Args:
        package: Name of the package.
        name: Name of the method on the page.
        fit: Fits it.
        max_classes: With more classes it is left out, since a fit takes too long.
        untimed_fit: Gives the same probabilities sooner, where the time does not matter.
    """

    package: str
    name: str
    fit: Fit
    max_classes: int = 10_000
    untimed_fit: Fit | None = None

    @property
    def key(self) -> str:
        """Package and name."""
        return f"{self.package}: {self.name}"


def all_rivals() -> list[Rival]:
    """Return every method, STS first."""
    rivals = [Rival(OURS, "STS", _ours("sts"), untimed_fit=_ours("sts", n_steps=1))]
    others = ("none", "ts", "ets", "iop-diag", "isotonic", "vector")
    rivals += [Rival(OURS, sc.CALIBRATORS[key].abbreviation, _ours(key)) for key in others]
    rivals.append(Rival(OURS, "Dirichlet", _ours("dirichlet"), max_classes=10))
    rivals += [
        Rival("probmetrics", "temperature scaling", _probmetrics("TemperatureScalingCalibrator")),
        Rival("probmetrics", "ETS", _probmetrics("ETSCalibrator")),
        Rival("probmetrics", "vector scaling", _probmetrics("VectorScalingCalibrator"), 100),
        Rival("probmetrics", "SVS", _probmetrics("SVSCalibrator")),
        Rival("probmetrics", "SMS", _probmetrics("SMSCalibrator"), 100),
        Rival("netcal", "temperature scaling", _netcal("scaling", "TemperatureScaling")),
        Rival("netcal", "logistic calibration", _netcal("scaling", "LogisticCalibration"), 10),
        Rival("netcal", "histogram binning", _netcal("binning", "HistogramBinning"), 100),
        Rival("netcal", "isotonic", _netcal("binning", "IsotonicRegression"), 100),
        Rival("netcal", "BBQ", _netcal("binning", "BBQ"), 10),
        Rival("scikit-learn", "temperature", _scikit_learn("temperature")),
        Rival("scikit-learn", "sigmoid", _scikit_learn("sigmoid"), 100),
        Rival("scikit-learn", "isotonic", _scikit_learn("isotonic"), 100),
    ]
    return rivals


def _ours(key: str, **settings: Any) -> Fit:
    """Return the fit of a method of this library.

    The steps of STS train its branch, which gives uncertainties and changes no probability.
    """

    def fit(outputs: sc.Outputs, labels: Tensor) -> Predict:
        calibrator = sc.CALIBRATORS[key](**settings).fit(outputs, labels)

        def predict(test: sc.Outputs) -> Tensor:
            probs: Tensor = calibrator(test).probs
            return probs

        return predict

    return fit


def _probmetrics(name: str) -> Fit:
    """Return the fit of a calibrator of probmetrics, which takes logits."""

    def fit(outputs: sc.Outputs, labels: Tensor) -> Predict:
        calibrators = importlib.import_module("probmetrics.calibrators")
        distributions = importlib.import_module("probmetrics.distributions")
        calibrator = getattr(calibrators, name)()
        calibrator.fit_torch(distributions.CategoricalLogits(outputs.logits), labels)

        def predict(test: sc.Outputs) -> Tensor:
            logits = distributions.CategoricalLogits(test.logits)
            return torch.as_tensor(calibrator.predict_proba_torch(logits).get_probs())

        return predict

    return fit


def _netcal(module: str, name: str) -> Fit:
    """Return the fit of a method of netcal, which takes probabilities; of two classes one."""

    def given(outputs: sc.Outputs) -> Any:
        probs = outputs.logits.softmax(-1).numpy()
        if outputs.n_classes == 2:
            return probs[:, 1]
        return probs

    def fit(outputs: sc.Outputs, labels: Tensor) -> Predict:
        calibrator = getattr(importlib.import_module(f"netcal.{module}"), name)()
        calibrator.fit(given(outputs), labels.numpy())

        def predict(test: sc.Outputs) -> Tensor:
            found = np.asarray(calibrator.transform(given(test)))
            if test.n_classes == 2:
                found = found.reshape(-1)
                found = np.stack([1 - found, found], 1)
            return torch.from_numpy(found)

        return predict

    return fit


class _Logits(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier whose inputs are its logits.

    Args:
        n_classes: Number of classes.
    """

    def __init__(self, n_classes: int = 2) -> None:
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)

    def fit(self, logits: Any, labels: Any) -> Self:
        """Return the classifier as it is.

        Args:
            logits: (N, K).
            labels: True classes, (N,).
        """
        del logits, labels
        return self

    def predict(self, logits: Any) -> Any:
        """Return the predicted classes.

        Args:
            logits: (N, K).
        """
        return logits.argmax(1)

    def decision_function(self, logits: Any) -> Any:
        """Return the logits; of two classes their difference.

        Args:
            logits: (N, K).
        """
        if self.n_classes == 2:
            return logits[:, 1] - logits[:, 0]
        return logits


def _scikit_learn(method: str) -> Fit:
    """Return the fit of CalibratedClassifierCV around a frozen classifier."""

    def fit(outputs: sc.Outputs, labels: Tensor) -> Predict:
        frozen = FrozenEstimator(_Logits(outputs.n_classes))
        model = CalibratedClassifierCV(frozen, method=method, ensemble=False)
        model.fit(outputs.logits.numpy(), labels.numpy())

        def predict(test: sc.Outputs) -> Tensor:
            return torch.from_numpy(model.predict_proba(test.logits.numpy()))

        return predict

    return fit
