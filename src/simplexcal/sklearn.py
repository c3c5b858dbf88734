"""Calibrate a scikit-learn classifier without changing one prediction; needs the extra [sklearn]."""

from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from simplexcal.calibrators import CALIBRATORS, Calibrator, SimplexTemperatureScaling
from simplexcal.calibrators.base import restore_argmax
from simplexcal.types import Outputs, Prediction

try:
    from sklearn import get_config
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import check_cv
    from sklearn.svm import LinearSVC
    from sklearn.utils import (
        Bunch,
        Tags,
        assert_all_finite,
        check_random_state,
        column_or_1d,
        get_tags,
        indexable,
    )
    from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
    from sklearn.utils.metaestimators import _safe_split, available_if
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.parallel import Parallel, delayed
    from sklearn.utils.validation import _check_method_params, check_is_fitted
except ImportError as error:
    raise ImportError(
        'simplexcal.sklearn needs scikit-learn 1.6. Run pip install "simplexcal[sklearn]".'
    ) from error

STS = SimplexTemperatureScaling
NEED_FEATURES = (CALIBRATORS["adats"], CALIBRATORS["dirichlet"])
SMALLEST = 1e-12  # a lesser probability counts as this: its logarithm, -1e13 in naive Bayes, would outweigh all others

Floats = NDArray[np.float64]
Array = NDArray[Any]


class Uncertainty(NamedTuple):
    """The uncertainties (N,) of a ``simplexcal.Prediction``, in nats."""

    aleatoric: Floats
    epistemic: Floats
    mutual_information: Floats


class SimplexCalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Any classifier with ``decision_function`` or ``predict_proba``, with calibrated probabilities.

    The estimator, LinearSVC by default, is fitted to all data. ``cv`` (as elsewhere in scikit-learn) makes the folds in
    which clones of it give outputs for samples that they have not seen, and all of these together fit one calibrator.
    An estimator that is fitted already is passed as ``FrozenEstimator(estimator)`` and stays as it is; all data, which
    should be new to it, calibrate it.

    ``method`` is "none", "ts", "ets", "pts", "sts" or a Calibrator that needs logits only. Its logits are the decision
    function, or else the logarithms of the probabilities. ``random_state`` is the source of its randomness.

    ``predict`` is that of ``estimator_``, always. In ``predict_proba`` the class of its largest output has the largest
    probability: the same class, unless the estimator's own two methods disagree, as SVC's may.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str | Calibrator = "sts",
        cv: Any = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator, self.method, self.cv = estimator, method, cv
        self.n_jobs, self.random_state = n_jobs, random_state

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:
        """Fit estimator and calibrator; ``fit_params`` are for the ``fit`` of the estimator.

        With metadata routing they go where they are requested: there, or to the ``split`` of ``cv``.
        """
        calibrator, params = _calibrator(self.method), self._routed(fit_params)
        X, y = indexable(X, _checked(y))
        estimator = clone(self._unfitted()).fit(X, y, **params.estimator.fit)
        scores, labels = self._held_out(estimator, X, y, params)
        floor = None if _response(estimator) == "decision_function" else _floor(scores)
        generator = Generator().manual_seed(
            check_random_state(self.random_state).randint(2**31 - 1)
        )
        self.calibrator_ = calibrator.fit(
            _outputs(scores, floor), torch.from_numpy(labels), generator=generator
        )
        self.estimator_, self.classes_, self.floor_ = estimator, estimator.classes_, floor
        return self

    def predict(self, X: Any) -> Array:
        """Return the estimator's own predictions."""
        check_is_fitted(self)
        return np.asarray(self.estimator_.predict(X))

    def predict_proba(self, X: Any) -> Floats:
        """Return calibrated probabilities (N, K), columns in the order of ``classes_``."""
        check_is_fitted(self)
        scores = _scores(self.estimator_, X)
        return restore_argmax(
            torch.from_numpy(scores.argmax(1)), self._calibrated(scores).probs
        ).numpy()

    @available_if(lambda self: isinstance(_calibrator(self.method), STS))  # type: ignore[untyped-decorator]
    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Return aleatoric and epistemic uncertainty; STS alone has them."""
        check_is_fitted(self)
        prediction = self._calibrated(_scores(self.estimator_, X))
        return Uncertainty(*(getattr(prediction, name).numpy() for name in Uncertainty._fields))

    @property
    def n_features_in_(self) -> int:
        """Number of features seen in ``fit``, where the estimator counts them."""
        return int(self.estimator_.n_features_in_)

    @property
    def feature_names_in_(self) -> Array:
        """Names of the features seen in ``fit``, where the estimator knows them."""
        return np.asarray(self.estimator_.feature_names_in_)

    def get_metadata_routing(self) -> MetadataRouter:
        """Return where parameters of ``fit`` go: the estimator's ``fit`` and the splitter's ``split``."""
        router, mapping = MetadataRouter(owner=self), MethodMapping
        router.add(
            estimator=self._unfitted(), method_mapping=mapping().add(caller="fit", callee="fit")
        )
        return router.add(
            splitter=self.cv, method_mapping=mapping().add(caller="fit", callee="split")
        )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self._unfitted()).input_tags
        return tags

    def _unfitted(self) -> Any:
        return LinearSVC(random_state=0) if self.estimator is None else self.estimator

    def _routed(self, fit_params: dict[str, Any]) -> Bunch:
        fit_params = {name: value for name, value in fit_params.items() if value is not None}
        if "sample_weight" in fit_params:
            raise ValueError(
                "`sample_weight` must be None, since calibration counts all samples alike; got an array. To weigh them "
                "for the estimator alone, fit it first and pass FrozenEstimator(estimator)."
            )
        if get_config()["enable_metadata_routing"]:
            return process_routing(self, "fit", **fit_params)
        return Bunch(estimator=Bunch(fit=fit_params), splitter=Bunch(split={}))

    def _held_out(self, estimator: Any, X: Any, y: Array, params: Bunch) -> tuple[Floats, Array]:
        """Return scores (N, K) for samples that their estimator has not seen, and the labels as column numbers."""
        if isinstance(estimator, FrozenEstimator):
            return _scores(estimator, X), _positions(y, estimator.classes_)
        if isinstance(self.cv, str) and self.cv == "prefit":
            raise ValueError(
                '`cv` must make folds; got "prefit". For a fitted one, pass FrozenEstimator(estimator).'
            )
        splits = check_cv(self.cv, y, classifier=True).split(X, y, **params.splitter.split)
        folds = Parallel(n_jobs=self.n_jobs)(
            delayed(_fold)(estimator, X, y, train, test, params.estimator.fit)
            for train, test in splits
        )
        scores, labels = (np.concatenate(parts) for parts in zip(*folds, strict=True))
        if len(np.unique(labels)) < 2:
            raise ValueError(
                "`cv` must hold out classes that stay in the rest of the data too. Shuffle the samples."
            )
        return scores, labels

    @torch.no_grad()
    def _calibrated(self, scores: Floats) -> Prediction:
        prediction: Prediction = self.calibrator_(_outputs(scores, self.floor_))
        return prediction


def _calibrator(method: str | Calibrator) -> Calibrator:
    """Return a new calibrator, if it is one that needs logits only."""
    if isinstance(method, Calibrator):
        calibrator = type(method)(**method.settings)
    elif isinstance(method, str) and method in CALIBRATORS:
        calibrator = CALIBRATORS[method]()
    else:
        raise ValueError(
            f"`method` must be a Calibrator or one of none, ts, ets, pts, sts; got {method!r}."
        )
    headless = isinstance(calibrator, STS) and not calibrator.likelihood_head
    if headless or isinstance(calibrator, NEED_FEATURES):
        raise ValueError(
            f"`method` must need logits only; {method!r} needs features. Use none, ts, ets, pts or sts."
        )
    return calibrator


def _checked(y: Any) -> Array:
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    if len(classes := np.unique(y)) < 2:
        raise ValueError(
            f"`y` must hold at least two classes; got one class or none: {classes}. Pass samples of all."
        )
    return np.asarray(y)


def _fold(
    estimator: Any, X: Any, y: Array, train: Array, test: Array, params: Any
) -> tuple[Floats, Array]:
    """Return scores and labels of the test samples, by a clone of the estimator that is fitted to the others.

    A class that is not among the others gets the least score, and its own samples are left out: the estimator, which
    knows it, would do better.
    """
    fitted = clone(estimator).fit(
        *_safe_split(estimator, X, y, train), **_check_method_params(X, params, train)
    )
    seen = _scores(fitted, _safe_split(estimator, X, y, test, train)[0])
    least = (
        np.zeros(len(test))
        if _response(fitted) == "predict_proba"
        else 2 * seen.min(1) - seen.max(1)
    )
    scores = np.repeat(least[:, None], len(estimator.classes_), 1)
    columns, labels = (
        _positions(fitted.classes_, estimator.classes_),
        _positions(y[test], estimator.classes_),
    )
    scores[:, columns] = seen
    known = np.isin(labels, columns)
    return scores[known], labels[known]


def _response(estimator: Any) -> str:
    for name in ("decision_function", "predict_proba"):
        if hasattr(estimator, name):
            return name
    raise TypeError(
        f"`estimator` must have decision_function or predict_proba; {type(estimator)} has neither."
    )


def _scores(estimator: Any, X: Any) -> Floats:
    """Return the estimator's outputs (N, K); a binary decision function z becomes [0, z]."""
    name, k = _response(estimator), len(estimator.classes_)
    scores = np.array(getattr(estimator, name)(X), dtype=np.float64)
    if scores.ndim == 1:
        scores = np.stack([np.zeros_like(scores), scores], 1)
    if scores.shape[1] != k or (
        k > 2 and getattr(_last(estimator), "decision_function_shape", "ovr") == "ovo"
    ):
        raise ValueError(
            f"`{name}` must have one column for each of the {k} classes, not for each pair of them; it has "
            f'{scores.shape[1]}. Set decision_function_shape="ovr".'
        )
    return scores


def _last(estimator: Any) -> Any:  # of a pipeline, or in a search
    inner = (
        estimator.steps[-1][1]
        if hasattr(estimator, "steps")
        else getattr(estimator, "best_estimator_", None)
    )
    return estimator if inner is None else _last(inner)


def _positions(values: Array, classes: Array) -> Array:
    order = np.argsort(classes)
    at: Array = order[np.searchsorted(classes, values, sorter=order).clip(max=len(classes) - 1)]
    if len(unknown := values[classes[at] != values]):
        raise ValueError(
            f"`y` must hold classes that the estimator knows; found {unknown[:1].tolist()}. Drop such samples."
        )
    return at


def _floor(probs: Floats) -> float:
    """Return what a probability of 0 stands for: half of the smallest one that the estimator seems able to say.

    In a forest of 100 trees 0 means less than 1/100. It stays below 1/K, so that the largest one remains the largest.
    """
    return float(np.clip(probs[probs > 0].min() / 2, SMALLEST, 0.5 / probs.shape[1]))


def _outputs(scores: Floats, floor: float | None) -> Outputs:
    return Outputs(torch.from_numpy(scores if floor is None else np.log(np.maximum(scores, floor))))
