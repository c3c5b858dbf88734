"""Fits to a few inputs: what they warn of, and that STS is then temperature scaling."""

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from helpers.methods import METHODS
from helpers.quick_branches import quick_branches
from hypothesis import example, given, settings
from hypothesis.strategies import integers, sampled_from
from scipy.stats import binomtest
from torch import Generator, Tensor

from simplexcal import (
    Calibrator,
    EnsembleTemperatureScaling,
    FeatureMixup,
    Outputs,
    SimplexTemperatureScaling,
    TemperatureScaling,
)
from simplexcal.calibrators.temperature import (
    _masked_depth,
    fit_log_temperature,
    jeffreys_weight,
)
from simplexcal.thresholds import accuracy_interval

LEARNERS = ["ts", "ets", "pts", "adats", "sts", "isotonic", "vector"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_branches(monkeypatch, 10)


def simulate(n: int, k: int, seed: int, n_test: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits of a random scale, and labels that follow a softmax of theirs."""
    g = Generator().manual_seed(seed)
    scale, temperature = (4 ** (2 * torch.rand(2, generator=g) - 1)).tolist()
    logits = 2 * torch.randn(n + n_test, k, generator=g)
    labels = (logits / temperature).softmax(-1).multinomial(1, generator=g).squeeze(1)
    if (labels[:n] == labels[0]).all():
        labels[0] = (labels[0] + 1) % k
    return scale * logits, labels


def with_right(n: int, right: int) -> tuple[Outputs, Tensor]:
    """Return outputs of two classes, of which so many are classified correctly."""
    labels = torch.arange(n) % 2
    predicted = labels.where(torch.arange(n) < right, 1 - labels)
    logits = 2 * torch.nn.functional.one_hot(predicted, 2).float()
    return Outputs(logits + torch.arange(n).unsqueeze(1) / n, logits), labels


# --- warnings ---


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (3, 5), (5, 5), (90, 100), (1000, 1000)])
def test_the_interval_of_the_accuracy_is_scipys(right: int, n: int) -> None:
    expected = binomtest(right, n).proportion_ci(0.95, method="exact")
    found = accuracy_interval(right, n)
    assert found == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("method", LEARNERS)
def test_five_inputs_are_a_warning_that_says_what_is_known(method: str) -> None:
    outputs, labels = with_right(5, 3)
    known = r"^Of 5 inputs 3 are classified correctly, .* between 15% and 95% \(a 95 % interval\)"
    with pytest.warns(UserWarning, match=f"{known}.*cannot be told from so few.*Calibrate on more"):
        METHODS[method]().fit(outputs, labels)


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("ignore:The squared error is smallest at the bound")
@pytest.mark.parametrize("method", LEARNERS)
def test_enough_inputs_are_no_warning(method: str) -> None:
    METHODS[method]().fit(*with_right(17, 9))  # 28 % to 77 %, less than half of all


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("method", LEARNERS)
@pytest.mark.parametrize("n", [3, 60])
def test_every_method_warns_once_where_every_label_is_predicted(method: str, n: int) -> None:
    with pytest.warns(UserWarning, match=f"^All {n} inputs are classified correctly") as found:
        METHODS[method]().fit(*with_right(n, n))
    assert len(found) == 1
    has_prior = METHODS[method]().has_prior
    assert ("set by the prior" in str(found[0].message)) == has_prior
    assert ("has no prior" in str(found[0].message)) != has_prior


def test_the_ensemble_with_the_squared_error_has_no_prior() -> None:
    with pytest.warns(UserWarning, match="^All 9 inputs .* ETS has no prior") as found:
        EnsembleTemperatureScaling().fit(*with_right(9, 9))
    assert len(found) == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("make", [METHODS["none"], METHODS["dirichlet-ts"]])
def test_methods_that_learn_nothing_from_labels_do_not_warn(
    make: Callable[[], Calibrator],
) -> None:
    outputs, labels = with_right(5, 5)
    head = torch.nn.Linear(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.eye(2))
        head.bias.zero_()
    assert outputs.features is not None
    outputs = Outputs(outputs.features, outputs.features)
    make().fit(outputs, labels, mixup=FeatureMixup(head, outputs, labels))


# --- temperature scaling ---


@example(seed=140, n=2, k=10)  # The margins are so small that other classes count as masked.
@given(seed=integers(0, 2**31), n=integers(2, 20), k=sampled_from([2, 3, 10]))
def test_temperature_scaling_is_the_most_likely_one_as_soon_as_there_is_one(
    seed: int, n: int, k: int
) -> None:
    logits, labels = simulate(n, k, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log_t = fit_log_temperature(logits, labels)
        with_prior = fit_log_temperature(logits, labels, jeffreys_weight(n, k))
        # The slope of the likelihood in ln T is 0 there, or the bound is reached.
        scaled = logits.double() / math.exp(log_t)
        probs = scaled.softmax(-1)
    own = scaled.gather(1, labels.unsqueeze(1)).squeeze(1)
    slope = ((probs * scaled).sum(-1) - own).mean().item()
    if bool((logits.argmax(-1) == labels).all()):
        assert log_t == with_prior
    elif abs(log_t) < 15.9:
        assert abs(slope) < 1e-6
        depth = (logits.amax(-1, keepdim=True) - logits).max()
        if depth <= _masked_depth(logits, 100.0):  # The prior takes no class for a masked one.
            assert log_t < with_prior + 1e-9


# --- simplex temperature scaling ---


@settings(max_examples=25)
@given(seed=integers(0, 2**31), n=integers(2, 11), k=sampled_from([2, 3, 10]))
def test_with_folds_too_small_for_a_standard_error_sts_is_temperature_scaling_with_the_prior(
    seed: int, n: int, k: int
) -> None:
    logits, labels = simulate(n, k, seed)
    sts = SimplexTemperatureScaling(n_steps=1, pool_size=100, widths=(4,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sts.fit(logits, labels)
        log_t = fit_log_temperature(logits, labels, jeffreys_weight(n, k))
    expected = (logits / math.exp(log_t)).softmax(-1)
    # λ = e^-6 stands for 0.
    torch.testing.assert_close(sts(logits).probs, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_on_few_inputs_sts_is_no_worse_than_temperature_scaling() -> None:
    differences = []
    for seed in range(60):
        n = 2 + seed % 10
        logits, labels = simulate(n, (2, 3, 10)[seed % 3], seed, n_test=500)
        losses = []
        sts = SimplexTemperatureScaling(n_steps=1, pool_size=100, widths=(4,))
        for calibrator in (TemperatureScaling(), sts):
            calibrator.fit(logits[:n], labels[:n])
            probs = calibrator(logits[n:]).probs
            losses.append(-probs.gather(1, labels[n:].unsqueeze(1)).log().mean().item())
        differences.append(losses[1] - losses[0])
    found = torch.tensor(differences)
    assert found.mean() <= 5 * found.std() / 60**0.5
    assert found.max() < 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_head_is_fitted_from_twelve_inputs_on() -> None:
    fitted = []
    for n in (11, 12):
        logits, labels = simulate(n, 3, 1)
        sts = SimplexTemperatureScaling(n_steps=1, pool_size=100, widths=(4,))
        sts.fit(logits, labels)
        assert sts.head_network is not None
        fitted.append(bool(sts.head_network.bias.any()))
    assert fitted == [False, True]
