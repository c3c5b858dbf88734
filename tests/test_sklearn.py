# ruff: noqa: N803
# The inputs are called X, as everywhere in scikit-learn.

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import pytest
import sklearn
import torch
from helpers.quick_branches import quick_branches
from hypothesis import given
from hypothesis.extra.numpy import arrays
from hypothesis.strategies import floats, integers, sampled_from, tuples
from joblib import parallel_config  # type: ignore[import-untyped]
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, load_iris, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, ShuffleSplit
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import simplexcal as sc
from simplexcal.sklearn import SimplexCalibratedClassifier, Uncertainty

Array = NDArray[Any]

SHORT: dict[
    str, str | sc.Calibrator
] = {  # every method that applies, in a form that fits in a moment; STS is shortened by a fixture
    "none": "none",
    "ts": "ts",
    "ets": sc.EnsembleTemperatureScaling("nll"),
    "pts": sc.ParameterizedTemperatureScaling(n_steps=20, learning_rate=1e-3),
    "sts": "sts",
}


@pytest.fixture(autouse=True, scope="module")
def _short_head() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        quick_branches(patch, 20)
        yield


class Fixed(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The scores are the inputs, or for two classes the difference of the inputs."""

    def fit(self, X: Array, y: Array) -> Self:
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X: Array) -> Array:
        return X[:, 1] - X[:, 0] if len(self.classes_) == 2 else X

    def predict(self, X: Array) -> Array:
        scores = self.decision_function(X)
        label = scores > 0 if scores.ndim == 1 else scores.argmax(1)
        return np.asarray(self.classes_[label.astype(int)])


class FixedProbs(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The probabilities are the inputs."""

    def fit(self, X: Array, y: Array | None = None) -> Self:
        self.classes_ = np.arange(X.shape[1])
        return self

    def predict_proba(self, X: Array) -> Array:
        return X

    def predict(self, X: Array) -> Array:
        return np.asarray(X.argmax(1))


@pytest.fixture(scope="module")
def digits() -> tuple[Array, Array, Array, Array]:
    inputs, labels = load_digits(return_X_y=True)
    names = np.array([f"digit {k}" for k in range(10)])[labels]
    return inputs[:600] / 16, names[:600], inputs[600:] / 16, names[600:]


@pytest.fixture(scope="module")
def blobs() -> tuple[Array, Array]:
    inputs, labels = make_classification(
        400, n_informative=6, n_classes=3, flip_y=0.2, random_state=0
    )
    return inputs, labels


def mean_of_probability(scores: Array, labels: Array, new: Array) -> Array:
    """Return what temperature scaling, fitted to scores and labels, makes of new scores."""
    fitted = sc.TemperatureScaling().fit(sc.Outputs(torch.tensor(scores)), torch.tensor(labels))
    return np.asarray(fitted(sc.Outputs(torch.tensor(new))).probs)


# scikit-learn's own checks. A warning that data without any signal do not determine T is right.
def expected_failures(estimator: Any) -> dict[str, str]:
    """Return the checks that cannot pass, as scikit-learn does for its CalibratedClassifierCV."""
    reason = "Repeated rows make other folds, and are more evidence to STS than a weight is."
    if isinstance(estimator.estimator, LogisticRegression):
        return {}
    names = ("dense_data", "sparse_data")
    return {f"check_sample_weight_equivalence_on_{name}": reason for name in names}


@pytest.mark.filterwarnings(
    "ignore:.*T is not determined",
    "ignore:All .* inputs are classified correctly",
    "ignore:Of .* inputs .* are classified correctly",
    "ignore:The squared error is smallest at the bound",
    "ignore:The `fit` of KNeighborsClassifier takes no sample_weight",
)
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        SimplexCalibratedClassifier(),
        SimplexCalibratedClassifier(LogisticRegression(), method="ts"),
        SimplexCalibratedClassifier(
            KNeighborsClassifier(), method=sc.EnsembleTemperatureScaling(), cv=3
        ),
    ],
    expected_failed_checks=expected_failures,
)
def test_passes_every_estimator_check(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


ESTIMATORS = [
    LinearSVC(random_state=0),
    LogisticRegression(max_iter=1000),
    RandomForestClassifier(10, random_state=0),
    DecisionTreeClassifier(random_state=0),
    GaussianNB(),
    KNeighborsClassifier(),
    SVC(break_ties=True),
]


@pytest.mark.parametrize("n_classes", [2, 10])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_predicts_what_the_estimator_predicts(
    estimator: Any, n_classes: int, digits: tuple[Array, Array, Array, Array]
) -> None:
    inputs, labels, new, _ = digits
    rows = np.isin(labels, [f"digit {k}" for k in (range(10) if n_classes == 10 else (3, 8))])
    alone = clone(estimator).fit(inputs[rows], labels[rows])
    for method in ("ts", "sts"):
        model = SimplexCalibratedClassifier(estimator, method=method, cv=3, random_state=0)
        model.fit(inputs[rows], labels[rows])
        probs = model.predict_proba(new)
        assert (model.predict(new) == alone.predict(new)).all()
        assert (model.classes_[probs.argmax(1)] == alone.predict(new)).all()
        assert probs.dtype == np.float64
        np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-9)


def test_predicts_with_a_svc_whose_own_scores_disagree_with_it() -> None:
    inputs, labels = make_classification(300, n_informative=8, n_classes=5, random_state=1)
    alone = SVC(C=0.1).fit(inputs, labels)
    assert (
        alone.predict(inputs) != alone.decision_function(inputs).argmax(1)
    ).any()  # break_ties=False
    model = SimplexCalibratedClassifier(SVC(C=0.1), method="ts").fit(inputs, labels)
    assert (model.predict(inputs) == alone.predict(inputs)).all()
    assert (
        model.predict_proba(inputs).argmax(1) == alone.decision_function(inputs).argmax(1)
    ).all()


fitted: dict[tuple[str, type, int], SimplexCalibratedClassifier] = {}


def calibrated(method: str, kind: type, k: int) -> SimplexCalibratedClassifier:
    if (method, kind, k) not in fitted:
        rng = np.random.default_rng(0)
        scores = 2 * rng.standard_normal((120, k))
        probs = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        labels = (probs.cumsum(1) > rng.random((120, 1))).argmax(1)
        inputs = scores if kind is Fixed else probs
        model = SimplexCalibratedClassifier(kind(), method=SHORT[method], random_state=0)
        fitted[method, kind, k] = model.fit(inputs, labels)
    return fitted[method, kind, k]


@given(
    method=sampled_from(list(SHORT)),
    scores=tuples(integers(1, 4), integers(2, 6)).flatmap(
        lambda shape: arrays(
            np.float64,
            shape,
            elements=floats(-1e6, 1e6) | sampled_from([0.0, 5e-324, 1.0, 1 + 2e-16]),
        )
    ),
)
def test_the_largest_score_has_the_largest_probability(method: str, scores: Array) -> None:
    model = calibrated(method, Fixed, scores.shape[1])
    probs = model.predict_proba(scores)
    assert (model.classes_[probs.argmax(1)] == model.estimator_.predict(scores)).all()
    assert (model.predict(scores) == model.estimator_.predict(scores)).all()
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-8)


@given(
    method=sampled_from(list(SHORT)),
    k=integers(2, 6),
    near=sampled_from([0.0, 1e-300, 5e-324, 1e-17, 0.25]),
    first=integers(0, 5),
    second=integers(0, 5),
)
def test_probabilities_that_differ_in_the_last_bit_keep_their_order(
    method: str, k: int, near: float, first: int, second: int
) -> None:
    probs = np.full((1, k), near / k)
    for at in (first % k, second % k):
        probs[0, at] = 0.3
    probs[0, second % k] = np.nextafter(0.3, 1)  # whose logarithm is the same
    model = calibrated(method, FixedProbs, k)
    assert model.predict_proba(probs).argmax(1) == model.predict(probs) == second % k


def test_temperature_scaling_agrees_with_scikit_learn(blobs: tuple[Array, Array]) -> None:
    inputs, labels = blobs
    for kept in ([0, 1], [0, 1, 2]):
        x, y = inputs[np.isin(labels, kept)], labels[np.isin(labels, kept)]
        for estimator in (
            LinearSVC(random_state=0),
            LogisticRegression(),
            GaussianNB(var_smoothing=1),
        ):
            theirs = CalibratedClassifierCV(estimator, method="temperature", ensemble=False).fit(
                x, y
            )
            ours = SimplexCalibratedClassifier(estimator, method="ts").fit(x, y)
            np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), atol=1e-4)


def test_scores_become_logits_by_hand() -> None:
    inputs, labels = (
        np.array([[1.0, 3.0], [2.0, 1.0], [0.0, 0.0], [0.0, 1.0]]),
        np.array(["a", "b", "a", "b"]),
    )
    binary = SimplexCalibratedClassifier(
        FrozenEstimator(Fixed().fit(inputs, labels)), method="none"
    ).fit(inputs, labels)
    np.testing.assert_allclose(
        binary.predict_proba(inputs)[:, 1], 1 / (1 + np.exp([-2.0, 1.0, 0.0, -1.0]))
    )
    probs = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    three = SimplexCalibratedClassifier(FrozenEstimator(FixedProbs().fit(probs)), method="none")
    np.testing.assert_allclose(three.fit(probs, [0, 2]).predict_proba(probs), probs)


@pytest.mark.parametrize(
    ("probs", "floor"),
    [
        ([[0.9, 0.1, 0.0], [0.25, 0.75, 0.0], [0.3, 0.3, 0.4]], 0.05),  # half of 0.1
        (
            [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]],
            1 / 6,
        ),  # half of 1 would be above 1/3
        ([[1.0, 1e-30, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]], 1e-12),
    ],
)
def test_a_probability_of_zero_stands_for_less_than_the_smallest(
    probs: list[list[float]], floor: float
) -> None:
    estimator = FrozenEstimator(FixedProbs().fit(np.array(probs)))
    model = SimplexCalibratedClassifier(estimator, method="none").fit(probs, [0, 1, 2])
    assert model.floor_ == pytest.approx(floor)
    floored = np.maximum(probs[0], floor)
    np.testing.assert_allclose(model.predict_proba(np.array(probs))[0], floored / floored.sum())


def test_a_probability_of_zero_is_not_what_it_is_in_scikit_learn() -> None:
    """They add 1e-12, so one sample whose class had probability 0 outweighs a hundred others."""
    probs = np.array([[0.99, 0.01], [0.01, 0.99]] * 50 + [[1.0, 0.0]])
    labels = np.array([0, 1] * 50 + [1])
    estimator = FrozenEstimator(FixedProbs().fit(probs))
    theirs = CalibratedClassifierCV(estimator, method="temperature").fit(probs, labels)
    ours = SimplexCalibratedClassifier(estimator, method="ts").fit(probs, labels)
    # All of the hundred are correct. Both temperatures are those of scipy's minimize_scalar.
    assert theirs.predict_proba(probs)[0, 0] == pytest.approx(0.939869, abs=1e-5)
    assert ours.predict_proba(probs)[0, 0] == pytest.approx(0.988537, abs=1e-5)


def test_a_frozen_estimator_is_calibrated_as_it_is(
    digits: tuple[Array, Array, Array, Array],
) -> None:
    inputs, labels, new, new_labels = digits
    estimator = LinearSVC(random_state=0).fit(inputs, labels)
    before = estimator.coef_.copy()
    model = SimplexCalibratedClassifier(FrozenEstimator(estimator), method="ts").fit(
        new, new_labels
    )
    assert np.array_equal(estimator.coef_, before)
    assert model.estimator_.estimator is estimator
    expected = mean_of_probability(
        estimator.decision_function(new),
        np.searchsorted(estimator.classes_, new_labels),
        estimator.decision_function(inputs),
    )
    np.testing.assert_allclose(model.predict_proba(inputs), expected, rtol=1e-12)


def test_a_frozen_estimator_may_know_more_classes_than_the_data(
    digits: tuple[Array, Array, Array, Array],
) -> None:
    inputs, labels, new, new_labels = digits
    some = np.isin(new_labels, ["digit 3", "digit 8", "digit 9"])
    estimator = FrozenEstimator(GaussianNB(var_smoothing=0.1).fit(inputs, labels))
    model = SimplexCalibratedClassifier(estimator, method="ts").fit(new[some], new_labels[some])
    assert model.predict_proba(new).shape == (len(new), 10)
    assert list(model.classes_) == list(estimator.classes_)


def test_learns_from_samples_that_the_estimator_has_not_seen() -> None:
    rng = np.random.default_rng(0)
    inputs, labels = rng.standard_normal((1000, 2)), rng.integers(4, size=1000)
    model = SimplexCalibratedClassifier(
        DecisionTreeClassifier(random_state=0), method=sc.EnsembleTemperatureScaling("nll")
    )
    model.fit(inputs, labels)
    assert (
        model.score(inputs, labels) == 1
    )  # the tree knows its samples by heart, and nothing else:
    confidence = model.predict_proba(inputs).max(1).mean()
    assert abs(confidence - 0.25) < 5 * (0.25 * 0.75 / 1000) ** 0.5


def test_folds_are_pooled_for_one_calibrator(blobs: tuple[Array, Array]) -> None:
    inputs, labels = blobs
    splits = list(ShuffleSplit(3, random_state=0).split(inputs))  # overlapping test sets will do
    scores = [
        LogisticRegression().fit(inputs[a], labels[a]).decision_function(inputs[b])
        for a, b in splits
    ]
    final = LogisticRegression().fit(inputs, labels).decision_function(inputs)
    expected = mean_of_probability(
        np.concatenate(scores), np.concatenate([labels[b] for _, b in splits]), final
    )
    for cv in (splits, ShuffleSplit(3, random_state=0)):
        model = SimplexCalibratedClassifier(LogisticRegression(), method="ts", cv=cv).fit(
            inputs, labels
        )
        np.testing.assert_allclose(model.predict_proba(inputs), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "estimator", [LinearSVC(random_state=0), GaussianNB()], ids=lambda e: type(e).__name__
)
def test_a_class_may_be_missing_in_a_fold(estimator: Any, blobs: tuple[Array, Array]) -> None:
    inputs, labels = blobs
    names = np.array(["a", "b", "c", "only one"])[np.where(np.arange(400) == 7, 3, labels)]
    with pytest.warns(UserWarning, match="least populated class"):
        model = SimplexCalibratedClassifier(estimator, method="ts").fit(inputs, names)
    probs = model.predict_proba(inputs)
    assert list(model.classes_) == ["a", "b", "c", "only one"]
    assert (
        model.classes_[probs.argmax(1)] == clone(estimator).fit(inputs, names).predict(inputs)
    ).all()


def test_a_missing_class_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def fit(
        self: sc.Calibrator, outputs: sc.Outputs, labels: torch.Tensor, **_: Any
    ) -> sc.Calibrator:
        seen.update(logits=outputs.logits.tolist(), labels=labels.tolist())
        return self

    monkeypatch.setattr(sc.Calibrator, "fit", fit)
    inputs = np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 1.0], [1.0, 0.0, 5.0], [1.0, 4.0, 2.0]])
    splits = [([0, 1], [2, 3]), ([2, 3, 0], [0])]  # the first fold has never seen class 2
    SimplexCalibratedClassifier(Fixed(), method="ts", cv=splits).fit(inputs, [0, 1, 2, 1])
    # sample 2 is left out; of sample 3 the first fold gives [0, 4 - 1], so the least score is 0 - 3
    assert seen == {"logits": [[0.0, 3.0, -3.0], [3.0, 1.0, 0.0]], "labels": [1, 0]}


def test_a_grid_search_in_a_pipeline(digits: tuple[Array, Array, Array, Array]) -> None:
    inputs, labels, new, new_labels = digits
    pipeline = make_pipeline(
        StandardScaler(), SimplexCalibratedClassifier(LinearSVC(random_state=0), cv=2)
    )
    prefix = "simplexcalibratedclassifier"
    grid = {
        f"{prefix}__method": ["none", "ts", sc.TemperatureScaling()],
        f"{prefix}__estimator__C": [1e-4, 1e-2],
    }
    search = GridSearchCV(pipeline, grid, scoring="neg_log_loss", cv=2).fit(inputs, labels)
    assert search.best_params_[f"{prefix}__method"] != "none"
    assert search.score(new, new_labels) > -0.5
    scores = search.cv_results_["mean_test_score"].reshape(
        2, 3
    )  # for each C: none, and ts by name and as an object
    assert (scores[:, 1] == scores[:, 2]).all()


def test_a_method_given_as_an_object_is_not_fitted_itself(blobs: tuple[Array, Array]) -> None:
    method = sc.TemperatureScaling()
    model = SimplexCalibratedClassifier(LogisticRegression(), method=method).fit(*blobs)
    assert method.n_classes is None
    assert model.calibrator_.n_classes == 3


def test_text_is_passed_through() -> None:
    texts = ["good film", "very good", "bad film", "very bad", "good bad film", "so bad"] * 5
    labels = ["up", "up", "down", "down", "up", "down"] * 5
    model = SimplexCalibratedClassifier(
        make_pipeline(CountVectorizer(), MultinomialNB()), method="none"
    ).fit(texts, labels)
    assert list(model.predict(["good", "so bad"])) == ["up", "down"]
    assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_are_passed_through(library: str, blobs: tuple[Array, Array]) -> None:
    frames = pytest.importorskip(library)
    inputs, labels = blobs
    names = [f"x{i}" for i in range(inputs.shape[1])]
    frame = frames.DataFrame(dict(zip(names, inputs.T, strict=True)))
    series = frames.Series(np.array(["a", "b", "c"])[labels])
    model = SimplexCalibratedClassifier(LogisticRegression(), method="ts").fit(frame, series)
    assert list(model.feature_names_in_) == names
    plain = SimplexCalibratedClassifier(LogisticRegression(), method="ts").fit(inputs, labels)
    np.testing.assert_allclose(model.predict_proba(frame), plain.predict_proba(inputs), rtol=1e-12)
    assert model.n_features_in_ == plain.n_features_in_ == inputs.shape[1]
    assert not hasattr(model.fit(inputs, labels), "feature_names_in_")  # of the fit before


def test_a_precomputed_kernel_is_cut_in_rows_and_columns(blobs: tuple[Array, Array]) -> None:
    inputs, labels = blobs
    plain = SimplexCalibratedClassifier(SVC(kernel="linear"), method="ts").fit(inputs, labels)
    kernel = SimplexCalibratedClassifier(SVC(kernel="precomputed"), method="ts").fit(
        inputs @ inputs.T, labels
    )
    np.testing.assert_allclose(
        kernel.predict_proba(inputs @ inputs.T), plain.predict_proba(inputs), rtol=1e-6
    )


class Weighed(LogisticRegression):  # type: ignore[misc]
    """Cannot be fitted without one mark for each sample, equal to its first feature."""

    def fit(self, X: Array, y: Array, marks: Array | None = None) -> Self:
        np.testing.assert_array_equal(X[:, 0], marks)
        super().fit(X, y)
        return self


def test_parameters_of_fit_are_cut_for_each_fold(blobs: tuple[Array, Array]) -> None:
    inputs, labels = blobs
    SimplexCalibratedClassifier(Weighed(), method="ts").fit(inputs, labels, marks=inputs[:, 0])
    with sklearn.config_context(enable_metadata_routing=True):
        groups = np.arange(400) % 7
        model = SimplexCalibratedClassifier(
            Weighed().set_fit_request(marks=True), method="ts", cv=GroupKFold(7)
        )
        model.fit(inputs, labels, marks=inputs[:, 0], groups=groups)
    splits = list(GroupKFold(7).split(inputs, groups=groups))
    expected = SimplexCalibratedClassifier(LogisticRegression(), method="ts", cv=splits).fit(
        inputs, labels
    )
    assert model.calibrator_.temperature == expected.calibrator_.temperature


@pytest.mark.parametrize("method", ["ts", "ets", "sts"])
def test_weights_reach_the_estimator_and_the_calibrator_in_every_fold(
    method: str, blobs: tuple[Array, Array]
) -> None:
    inputs, labels = blobs
    weights = np.linspace(0.1, 3, 400)
    splits = list(ShuffleSplit(3, random_state=0).split(inputs))
    parts = [
        LogisticRegression()
        .fit(inputs[a], labels[a], sample_weight=weights[a])
        .decision_function(inputs[b])
        for a, b in splits
    ]
    held_out = np.concatenate([b for _, b in splits])
    scores = torch.from_numpy(np.concatenate(parts))
    if scores.dim() == 1:
        scores = torch.stack([torch.zeros_like(scores), scores], 1)
    seed = np.random.RandomState(0).randint(2**31 - 1)
    expected = sc.CALIBRATORS[method]().fit(
        scores,
        labels[held_out],
        sample_weight=weights[held_out],
        generator=torch.Generator().manual_seed(seed),
    )
    model = SimplexCalibratedClassifier(LogisticRegression(), method=method, cv=splits)
    model.fit(inputs, labels, weights)
    final = LogisticRegression().fit(inputs, labels, weights)
    np.testing.assert_array_equal(model.estimator_.coef_, final.coef_)
    found = model.calibrator_.state_dict()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found[name], value, msg=name)


def test_an_estimator_that_takes_no_weights_is_fitted_without(
    blobs: tuple[Array, Array],
) -> None:
    inputs, labels = blobs
    weights = np.linspace(0.1, 3, 400)
    model = SimplexCalibratedClassifier(KNeighborsClassifier(), method="ts")
    plain = clone(model).fit(inputs, labels)
    with pytest.warns(UserWarning, match="The `fit` of KNeighborsClassifier takes no sample_wei"):
        model.fit(inputs, labels, weights)
    assert model.calibrator_.temperature != plain.calibrator_.temperature
    frozen = FrozenEstimator(KNeighborsClassifier().fit(inputs, labels))
    SimplexCalibratedClassifier(frozen, method="ts").fit(inputs, labels, weights)  # no warning


def test_weights_are_routed_where_they_are_requested(blobs: tuple[Array, Array]) -> None:
    inputs, labels = blobs
    weights = np.linspace(0.1, 3, 400)
    plain = SimplexCalibratedClassifier(LogisticRegression(), method="ts")
    plain.fit(inputs, labels, sample_weight=weights)
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = LogisticRegression().set_fit_request(sample_weight=True)
        model = SimplexCalibratedClassifier(estimator, method="ts")
        model.fit(inputs, labels, sample_weight=weights)
        assert model.calibrator_.temperature == plain.calibrator_.temperature
        unweighted = LogisticRegression().set_fit_request(sample_weight=False)
        model = SimplexCalibratedClassifier(unweighted, method="ts")
        model.fit(inputs, labels, sample_weight=weights)
    final = LogisticRegression().fit(inputs, labels)
    np.testing.assert_array_equal(model.estimator_.coef_, final.coef_)
    assert model.calibrator_.temperature != plain.calibrator_.temperature


def test_the_same_random_state_gives_the_same_bits(blobs: tuple[Array, Array]) -> None:
    inputs, labels = blobs
    before = torch.get_rng_state()
    models = [SimplexCalibratedClassifier(random_state=s) for s in (3, np.random.RandomState(3), 4)]
    one, two, other = (model.fit(inputs, labels).calibrator_.state_dict() for model in models)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(torch.get_rng_state(), before)


def test_by_default_the_same_data_give_the_same_calibrator(blobs: tuple[Array, Array]) -> None:
    states = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002 - numpy's global state does not matter.
        states.append(SimplexCalibratedClassifier().fit(*blobs).calibrator_.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_threads_change_nothing(blobs: tuple[Array, Array]) -> None:
    one = SimplexCalibratedClassifier(LogisticRegression(), method="ts").fit(*blobs)
    with parallel_config(backend="threading"):
        two = SimplexCalibratedClassifier(LogisticRegression(), method="ts", n_jobs=2).fit(*blobs)
    assert np.array_equal(one.predict_proba(blobs[0]), two.predict_proba(blobs[0]))


def test_uncertainties_are_those_of_the_calibrator(blobs: tuple[Array, Array]) -> None:
    inputs, labels = blobs
    model = SimplexCalibratedClassifier(LogisticRegression(), random_state=0).fit(inputs, labels)
    found = model.predict_uncertainty(inputs)
    prediction = model.calibrator_(
        sc.Outputs(torch.tensor(model.estimator_.decision_function(inputs)))
    )
    for name in Uncertainty._fields:
        np.testing.assert_array_equal(getattr(found, name), getattr(prediction, name))
        assert getattr(found, name).dtype == np.float64
    assert not hasattr(SimplexCalibratedClassifier(method="ts"), "predict_uncertainty")


def test_likelihood_improves_on_the_margins_of_an_svm(
    digits: tuple[Array, Array, Array, Array],
) -> None:
    inputs, labels, new, new_labels = digits
    models = {
        m: SimplexCalibratedClassifier(method=m, random_state=0).fit(inputs, labels)
        for m in ("none", "ts", "sts")
    }
    loss = {
        m: sklearn.metrics.log_loss(new_labels, model.predict_proba(new))
        for m, model in models.items()
    }
    assert loss["ts"] < 0.7 * loss["none"]
    assert loss["sts"] < 0.7 * loss["none"]


IRIS = load_iris(return_X_y=True)
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "sample weights": (
        lambda: SimplexCalibratedClassifier(method="pts").fit(IRIS[0], IRIS[1], np.ones(150)),
        "`sample_weight` must be None: this ParameterizedTemperatureScaling counts all inputs ",
    ),
    "prefit": (
        lambda: SimplexCalibratedClassifier(cv="prefit").fit(*IRIS),
        r"pass FrozenEstimator\(estimator\)",
    ),
    "unknown method": (
        lambda: SimplexCalibratedClassifier(method="magic").fit(*IRIS),
        "none, ts, ets, pts, sts.*; got 'magic'",
    ),
    "features": (
        lambda: SimplexCalibratedClassifier(method="adats").fit(*IRIS),
        "'adats' needs features",
    ),
    "mixup samples": (
        lambda: SimplexCalibratedClassifier(method="dirichlet-ts").fit(*IRIS),
        "'dirichlet-ts' needs features",
    ),
    "paper": (
        lambda: SimplexCalibratedClassifier(method=sc.SimplexTemperatureScaling.paper()).fit(*IRIS),
        "needs features",
    ),
    "pairs of three classes": (
        lambda: SimplexCalibratedClassifier(make_pipeline(SVC(decision_function_shape="ovo"))).fit(
            *IRIS
        ),
        'it has 3. Set decision_function_shape="ovr"',
    ),
    "pairs of three classes in a search": (
        lambda: SimplexCalibratedClassifier(
            GridSearchCV(SVC(decision_function_shape="ovo"), {"C": [1]})
        ).fit(*IRIS),
        'it has 3. Set decision_function_shape="ovr"',
    ),
    "one class": (
        lambda: SimplexCalibratedClassifier().fit(IRIS[0][:50], IRIS[1][:50]),
        r"got one class or none: \[0\]",
    ),
    "unknown class": (
        lambda: SimplexCalibratedClassifier(
            FrozenEstimator(GaussianNB().fit(IRIS[0][:100], IRIS[1][:100]))
        ).fit(*IRIS),
        r"classes that the estimator knows; found \[2\]",
    ),
    "sorted folds": (
        lambda: SimplexCalibratedClassifier(GaussianNB(), cv=KFold(3)).fit(*IRIS),
        "Shuffle the samples",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_sentence(mistake: str) -> None:
    call, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        call()


def test_the_message_lists_every_method_that_needs_no_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class New(sc.TemperatureScaling):
        key = "new"

    monkeypatch.setitem(sc.CALIBRATORS, "new", New)
    with pytest.raises(
        ValueError, match=r"needs features\. Use one of none, ts, ets, pts, sts, .*new\."
    ):
        SimplexCalibratedClassifier(method="adats").fit(*IRIS)
    model = SimplexCalibratedClassifier(LogisticRegression(max_iter=1000), method="new").fit(*IRIS)
    assert type(model.calibrator_) is New


def test_an_estimator_without_scores_is_rejected() -> None:
    class Silent(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        def fit(self, X: Array, y: Array) -> Self:
            self.classes_ = np.unique(y)
            return self

    with pytest.raises(TypeError, match="must have decision_function or predict_proba"):
        SimplexCalibratedClassifier(Silent()).fit(*IRIS)


def test_without_scikit_learn_one_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['sklearn'] = None; import simplexcal; import simplexcal.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'Run pip install "simplexcal[sklearn]".' in done.stderr.splitlines()[-1]
