"""Calibrated scikit-learn classifiers with unchanged predictions; needs the extra [sklearn]."""

# ruff: noqa: N803, N806
# The inputs are called X, as everywhere in scikit-learn.

from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from simplexcal._validation import warn_caller
from simplexcal.calibrators import CALIBRATORS, Calibrator
from simplexcal.types import Outputs, Prediction, restore_argmax

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
    from sklearn.utils.validation import (
        _check_method_params,
        _check_sample_weight,
        check_is_fitted,
        has_fit_parameter,
    )
except ImportError as error:
    raise ImportError(
        'simplexcal.sklearn needs scikit-learn 1.6. Run pip install "simplexcal[sklearn]".'
    ) from error

# A smaller probability counts as this one: in naive Bayes a logarithm of -1e13 would outweigh all
# others.
SMALLEST = 1e-12

Floats = NDArray[np.float64]
Array = NDArray[Any]


class Uncertainty(NamedTuple):
    """The uncertainties of a `simplexcal.Prediction`, in nats.

    Attributes:
        aleatoric: Expected entropy, (N,).
        epistemic: Differential entropy, (N,).
        mutual_information: Another measure of the epistemic uncertainty, (N,).
    """

    aleatoric: Floats
    epistemic: Floats
    mutual_information: Floats


def _has_uncertainties(classifier: "SimplexCalibratedClassifier") -> bool:
    return _calibrator(classifier.method).has_uncertainties


class SimplexCalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with calibrated probabilities.

    The estimator is fitted to all data. Clones of it, fitted without one fold each, give outputs
    for the samples of this fold. All these outputs together fit one calibrator. The logits are the
    decision function, or else the logarithms of the probabilities.

    `predict` is that of the fitted estimator. In `predict_proba` the class of its largest output
    has the largest probability. These are the same class, unless the estimator's own two methods
    disagree, as SVC's may. With a method that changes predictions, which `fit` warns of, `predict`
    is the class of the largest probability.

    Args:
        estimator: Any classifier with `decision_function` or `predict_proba`; LinearSVC by default.
            A fitted one is passed as `FrozenEstimator(estimator)` and stays as it is. All data
            then calibrate it, and should be new to it.
        method: A key of CALIBRATORS, or a Calibrator. It must need no features.
        cv: The folds, as elsewhere in scikit-learn.
        n_jobs: Number of folds that are fitted in parallel.
        random_state: Source of the calibrator's randomness: a seed, a RandomState, or None for
            numpy's global one. The default gives the same calibrator for the same data.

    Attributes:
        estimator_: The fitted estimator.
        calibrator_: The fitted calibrator.
        classes_: The classes, in the order of the columns.
        floor_: What a probability of 0 counts as; None with a decision function.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str | Calibrator = "sts",
        cv: Any = None,
        n_jobs: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Fit estimator and calibrator.

        Args:
            X: Inputs of the estimator.
            y: Their classes.
            sample_weight: How much each sample counts, for the calibrator and for an estimator
                whose `fit` takes it, as in CalibratedClassifierCV. With metadata routing the
                estimator gets it where it requests it.
            fit_params: Further arguments of the estimator's `fit`. With metadata routing they go
                where they are requested: there, or to the `split` of `cv`.
        """
        calibrator = _calibrator(self.method)
        calibrator.check_takes_weight(sample_weight)
        calibrator.warn_of_changes()
        X, y = indexable(X, _check_targets(y))
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64)
        params = self._route(fit_params, sample_weight)
        estimator = clone(self._unfitted()).fit(X, y, **params.estimator.fit)
        scores, labels, rows = self._held_out(estimator, X, y, params)
        if sample_weight is not None:
            sample_weight = sample_weight[rows]
        floor = None
        if _response(estimator) == "predict_proba":
            floor = _floor(scores)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        self.calibrator_ = calibrator.fit(
            _outputs(scores, floor),
            torch.from_numpy(labels),
            sample_weight=sample_weight,
            generator=Generator().manual_seed(seed),
        )
        self.estimator_ = estimator
        self.classes_ = estimator.classes_
        self.floor_ = floor
        return self

    def predict(self, X: Any) -> Array:
        """Return the estimator's own predictions, unless the method changes them.

        Args:
            X: Inputs of the estimator.
        """
        check_is_fitted(self)
        if not self.calibrator_.keeps_predictions:
            predicted: Array = self.classes_[self.predict_proba(X).argmax(1)]
            return predicted
        return np.asarray(self.estimator_.predict(X))

    def predict_proba(self, X: Any) -> Floats:
        """Return calibrated probabilities (N, K), columns in the order of `classes_`.

        Args:
            X: Inputs of the estimator.
        """
        check_is_fitted(self)
        scores = _scores(self.estimator_, X)
        if not self.calibrator_.keeps_predictions:
            return self._calibrate(scores).probs.numpy()
        label = torch.from_numpy(scores.argmax(1))
        return restore_argmax(label, self._calibrate(scores).probs).numpy()

    @available_if(_has_uncertainties)  # type: ignore[untyped-decorator]
    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Return aleatoric and epistemic uncertainty, for a method that has them.

        Args:
            X: Inputs of the estimator.
        """
        check_is_fitted(self)
        prediction = self._calibrate(_scores(self.estimator_, X))
        return Uncertainty(*(getattr(prediction, name).numpy() for name in Uncertainty._fields))

    @property
    def n_features_in_(self) -> int:
        """Number of features seen in `fit`, where the estimator counts them."""
        return int(self.estimator_.n_features_in_)

    @property
    def feature_names_in_(self) -> Array:
        """Names of the features seen in `fit`, where the estimator knows them."""
        return np.asarray(self.estimator_.feature_names_in_)

    def get_metadata_routing(self) -> MetadataRouter:
        """Return where parameters of `fit` go: to the estimator's `fit`, the splitter's `split`."""
        to_fit = MethodMapping().add(caller="fit", callee="fit")
        to_split = MethodMapping().add(caller="fit", callee="split")
        router = MetadataRouter(owner=self).add_self_request(self)
        router.add(estimator=self._unfitted(), method_mapping=to_fit)
        return router.add(splitter=self.cv, method_mapping=to_split)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self._unfitted()).input_tags
        return tags

    def _unfitted(self) -> Any:
        if self.estimator is None:
            return LinearSVC(random_state=0)
        return self.estimator

    def _route(self, fit_params: dict[str, Any], sample_weight: Array | None) -> Bunch:
        """Return the parameters of `fit` by where they go."""
        given = {name: value for name, value in fit_params.items() if value is not None}
        if get_config()["enable_metadata_routing"]:
            return process_routing(self, "fit", sample_weight=sample_weight, **given)
        if sample_weight is not None and self._estimator_takes_weight():
            given["sample_weight"] = sample_weight
        return Bunch(estimator=Bunch(fit=given), splitter=Bunch(split={}))

    def _estimator_takes_weight(self) -> bool:
        """Return whether the estimator's `fit` takes weights; warn where one does not."""
        estimator = self._unfitted()
        if has_fit_parameter(estimator, "sample_weight"):
            return True
        if not isinstance(estimator, FrozenEstimator):  # which is not fitted
            warn_caller(
                f"The `fit` of {type(estimator).__name__} takes no sample_weight, so that only the "
                "calibrator uses the weights. Pass an estimator that takes them, or None."
            )
        return False

    def _held_out(
        self, estimator: Any, X: Any, y: Array, params: Bunch
    ) -> tuple[Floats, Array, Array]:
        """Return scores (N, K) of samples that are new to their estimator, their columns and rows.

        The column of a sample is that of its class; its row is that in the data.
        """
        if isinstance(estimator, FrozenEstimator):
            return _scores(estimator, X), _positions(y, estimator.classes_), np.arange(len(y))
        if isinstance(self.cv, str) and self.cv == "prefit":
            raise ValueError(
                '`cv` must make folds; got "prefit". '
                "For a fitted one, pass FrozenEstimator(estimator)."
            )
        splits = check_cv(self.cv, y, classifier=True).split(X, y, **params.splitter.split)
        folds = Parallel(n_jobs=self.n_jobs)(
            delayed(_fold)(estimator, X, y, train, test, params.estimator.fit)
            for train, test in splits
        )
        scores, labels, rows = (np.concatenate(parts) for parts in zip(*folds, strict=True))
        if len(np.unique(labels)) < 2:
            raise ValueError(
                "`cv` must hold out classes that stay in the rest of the data too. "
                "Shuffle the samples."
            )
        return scores, labels, rows

    @torch.no_grad()
    def _calibrate(self, scores: Floats) -> Prediction:
        prediction: Prediction = self.calibrator_(_outputs(scores, self.floor_))
        return prediction


def _calibrator(method: str | Calibrator) -> Calibrator:
    """Return a new calibrator, if it is one that needs logits only."""
    possible = ", ".join(key for key, found in CALIBRATORS.items() if not found.needs_features)
    if isinstance(method, Calibrator):
        calibrator = type(method)(**method.settings)
    elif isinstance(method, str) and method in CALIBRATORS:
        calibrator = CALIBRATORS[method]()
    else:
        raise ValueError(f"`method` must be a Calibrator or one of {possible}; got {method!r}.")
    if calibrator.needs_features:
        raise ValueError(
            f"`method` must need logits only; {method!r} needs features. Use one of {possible}."
        )
    return calibrator


def _check_targets(y: Any) -> Array:
    """Return the targets as an array with at least two classes."""
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    classes = np.unique(y)
    if len(classes) < 2:
        raise ValueError(
            f"`y` must hold at least two classes; got one class or none: {classes}. "
            "Pass samples of all."
        )
    return np.asarray(y)


def _fold(
    estimator: Any, X: Any, y: Array, train: Array, test: Array, params: Any
) -> tuple[Floats, Array, Array]:
    """Return scores, labels and rows of a fold's test samples, by a clone fitted to the others.

    A class that the clone has not seen gets the smallest score, and its own samples are left out:
    the estimator, which has seen the class, would do better.
    """
    inputs, targets = _safe_split(estimator, X, y, train)
    fitted = clone(estimator).fit(inputs, targets, **_check_method_params(X, params, train))
    held_out, _ = _safe_split(estimator, X, y, test, train)
    seen = _scores(fitted, held_out)
    if _response(fitted) == "predict_proba":
        least = np.zeros(len(test))
    else:
        least = 2 * seen.min(1) - seen.max(1)
    scores = np.repeat(least[:, None], len(estimator.classes_), 1)
    columns = _positions(fitted.classes_, estimator.classes_)
    scores[:, columns] = seen
    labels = _positions(y[test], estimator.classes_)
    known = np.isin(labels, columns)
    return scores[known], labels[known], np.asarray(test)[known]


def _response(estimator: Any) -> str:
    """Return the name of the method that gives an estimator's outputs."""
    for name in ("decision_function", "predict_proba"):
        if hasattr(estimator, name):
            return name
    raise TypeError(
        f"`estimator` must have decision_function or predict_proba; {type(estimator)} has neither."
    )


def _scores(estimator: Any, X: Any) -> Floats:
    """Return the estimator's outputs (N, K); a binary decision function z becomes [0, z]."""
    name = _response(estimator)
    k = len(estimator.classes_)
    scores = np.array(getattr(estimator, name)(X), dtype=np.float64)
    if scores.ndim == 1:
        scores = np.stack([np.zeros_like(scores), scores], 1)
    shape = getattr(_innermost(estimator), "decision_function_shape", "ovr")
    is_pairwise = k > 2 and shape == "ovo"
    if scores.shape[1] != k or is_pairwise:
        raise ValueError(
            f"`{name}` must have one column for each of the {k} classes, "
            f"not for each pair of them; it has {scores.shape[1]}. "
            'Set decision_function_shape="ovr".'
        )
    return scores


def _innermost(estimator: Any) -> Any:
    """Return the last step of a pipeline, or the best estimator of a search."""
    if hasattr(estimator, "steps"):
        return _innermost(estimator.steps[-1][1])
    if hasattr(estimator, "best_estimator_"):
        return _innermost(estimator.best_estimator_)
    return estimator


def _positions(values: Array, classes: Array) -> Array:
    """Return the position of each value among the classes."""
    order = np.argsort(classes)
    found = np.searchsorted(classes, values, sorter=order)
    positions: Array = order[found.clip(max=len(classes) - 1)]
    unknown = values[classes[positions] != values]
    if len(unknown):
        raise ValueError(
            "`y` must hold classes that the estimator knows; "
            f"found {unknown[:1].tolist()}. Drop such samples."
        )
    return positions


def _floor(probs: Floats) -> float:
    """Return what a probability of 0 counts as: half of the smallest one that is not 0.

    In a forest of 100 trees 0 means less than 1/100. The result stays below 1/K, so that the
    largest probability remains the largest.
    """
    smallest = probs[probs > 0].min()
    return float(np.clip(smallest / 2, SMALLEST, 0.5 / probs.shape[1]))


def _outputs(scores: Floats, floor: float | None) -> Outputs:
    """Return scores as logits; probabilities, which have a floor, by their logarithms."""
    if floor is not None:
        scores = np.log(np.maximum(scores, floor))
    return Outputs(torch.from_numpy(scores))
