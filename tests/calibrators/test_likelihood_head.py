"""The likelihood head: what it keeps, and that its fit is the most likely one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from
from torch import Generator, Tensor

from simplexcal.calibrators import _likelihood_head_fit
from simplexcal.calibrators._likelihood_head import (
    HeadSettings,
    LikelihoodHead,
    keep_prediction,
    margin_of,
    ramps,
    shifted,
)
from simplexcal.calibrators._likelihood_head_fit import (
    Curvature,
    Knots,
    Likelihood,
    changes_of_slopes,
    find_knots,
    fit_head,
    group_bounds,
    make_columns,
    weighted_quantiles,
    write,
)
from simplexcal.calibrators._weights import normalise
from simplexcal.calibrators.temperature import fit_log_temperature, jeffreys_weight

ONE = torch.tensor(1.0)
EACH = {"curve": 2.0, "margin": 3.0, "top": 3.5, "bias": 4.0, "confusion": 5.0, "slope": 6.0}
NONE = dict.fromkeys(EACH, 0.0)


def simulate(n: int, k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits that overstate some classes, and labels."""
    g = Generator().manual_seed(seed)
    truth = 2 * torch.randn(n, k, generator=g)
    labels = truth.softmax(-1).multinomial(1, generator=g).squeeze(1)
    return 1.5 * truth + torch.linspace(-1, 1, k), labels


def nll(probs: Tensor, labels: Tensor) -> float:
    return float(-probs.gather(1, labels.unsqueeze(1)).log().mean())


def fitted(logits: Tensor, labels: Tensor, **settings: Any) -> LikelihoodHead:
    head = LikelihoodHead(logits.shape[1], HeadSettings(**settings))
    fit_head(head, logits, ONE, labels, None)
    return head


def likelihood_of(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None, **settings: Any
) -> tuple[Likelihood, Knots]:
    chosen = HeadSettings(**settings)
    columns = make_columns(logits, ONE, labels, weights, chosen)
    knots = find_knots(columns, chosen)
    return Likelihood(columns, knots, logits.shape[1], chosen), knots


def random_theta(likelihood: Likelihood, scale: float = 0.1) -> Tensor:
    n = sum(likelihood.sizes.values())
    return scale * torch.randn(n, generator=Generator().manual_seed(1), dtype=torch.float64)


# --- predictions ---


def test_without_a_fit_it_is_the_softmax() -> None:
    logits, _ = simulate(50, 6)
    found = LikelihoodHead(6, HeadSettings())(logits, logits.argmax(-1))
    torch.testing.assert_close(found, logits.softmax(-1))


def test_x_is_measured_from_the_mean_of_the_lower_half() -> None:
    # The mean of 0, 1, 2 and 9 is 3; that of 0, 1, 2 and 3 is 1.5.
    z = torch.tensor([[0.0, 1.0, 2.0, 9.0, -1e9]])
    masked = torch.tensor([[False, False, False, False, True]])
    expected = torch.tensor([[-1.5, -0.5, 0.5, 7.5, 0.0]])
    torch.testing.assert_close(shifted(z, masked), expected)


def test_the_margin_of_a_tie_is_0() -> None:
    depth = torch.tensor([[0.0, 0.0, 3.0], [2.0, 0.0, 5.0]])
    predicted = torch.tensor([[0], [1]])
    assert torch.equal(margin_of(depth, predicted), torch.tensor([0.0, 2.0]))


def test_lengths_inside_segments_by_hand() -> None:
    found = ramps(torch.tensor([0.5, 1.5, 9.0]), torch.tensor([0.0, 1.0, 3.0])).double()
    lengths = found @ changes_of_slopes(3)
    expected = torch.tensor([[0.5, 0.0, 0.0], [1.0, 0.5, 0.0], [1.0, 2.0, 6.0]])
    torch.testing.assert_close(lengths, expected.double())


def test_the_prediction_is_kept_by_hand() -> None:
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.6, 0.3], [0.3, 0.4, 0.3]])
    predicted = torch.tensor([[0], [0], [1]])
    # The larger one and the predicted one meet half-way: the sum of the two stays.
    expected = torch.tensor([[0.35, 0.35, 0.3], [0.35, 0.35, 0.3], [0.3, 0.4, 0.3]])
    torch.testing.assert_close(keep_prediction(probs, predicted), expected)
    assert torch.equal(keep_prediction(probs, predicted)[2], probs[2])


@given(seed=integers(0, 2**31), k=integers(2, 8))
def test_no_others_that_keep_the_prediction_are_closer(seed: int, k: int) -> None:
    g = Generator().manual_seed(seed)
    p = (2 * torch.randn(5, k, generator=g, dtype=torch.float64)).softmax(-1)
    predicted = torch.randint(k, (5, 1), generator=g)
    found = keep_prediction(p, predicted)
    torch.testing.assert_close(found.sum(-1), torch.ones(5).double())
    own = found.gather(-1, predicted)
    assert bool((own >= found).all())
    # The divergence is convex: a smaller one would show next to the minimum.
    other = torch.rand(100, 5, k, generator=g, dtype=torch.float64)
    other = other.scatter(-1, predicted.expand(100, 5, 1), other.amax(-1, keepdim=True))
    other = other / other.sum(-1, keepdim=True)
    near = found + 1e-3 * (other - found)
    assert bool(((p * near.log()).sum(-1) <= (p * found.log()).sum(-1) + 1e-12).all())


@given(
    seed=integers(0, 2**31),
    k=integers(2, 12),
    scale=sampled_from([1e-6, 1.0, 1e4]),
    size=floats(0, 5),
)
def test_no_parameters_change_the_prediction(seed: int, k: int, scale: float, size: float) -> None:
    g = Generator().manual_seed(seed)
    head = LikelihoodHead(k, HeadSettings())
    terms = (head.top_changes, head.bias, head.confusion, head.class_slope, head.predicted_slope)
    for buffer in terms:
        buffer.copy_(size * torch.randn(buffer.shape, generator=g))
    logits = scale * torch.randint(-3, 4, (20, k), generator=g).float()  # with many ties
    label = logits.argmax(-1)
    probs = head(logits, label)
    own = probs.gather(1, label.unsqueeze(1)).squeeze(1)
    assert bool((own >= probs.amax(-1)).all())
    torch.testing.assert_close(probs.sum(-1), torch.ones(20))


def test_masked_classes_have_no_influence() -> None:
    logits, labels = simulate(400, 4)
    head = fitted(logits, labels)
    wide = LikelihoodHead(6, HeadSettings())
    state = head.state_dict()
    state["bias"] = torch.cat([head.bias, torch.tensor([7.0, 9.0])])
    for name in ("class_slope", "predicted_slope"):
        state[name] = torch.cat([state[name], torch.tensor([5.0, 5.0])])
    state["confusion"] = torch.nn.functional.pad(head.confusion, (0, 2, 0, 2), value=3.0)
    wide.load_state_dict(state)
    expected = head(logits, logits.argmax(-1))
    for ruled_out in (-1e4, -torch.inf, torch.finfo(torch.float32).min):
        masked = torch.nn.functional.pad(logits, (0, 2), value=ruled_out)
        found = wide(masked, logits.argmax(-1))
        torch.testing.assert_close(found[:, :4], expected)
        assert not found[:, 4:].any()


# --- the likelihood ---


@pytest.mark.parametrize(("k", "max_classes"), [(2, 256), (5, 256), (40, 10)])
def test_the_gradient_is_that_of_autograd_and_finite_differences(k: int, max_classes: int) -> None:
    logits, labels = simulate(60, k)
    likelihood, _ = likelihood_of(logits, labels, max_classes=max_classes, n_exact=4)
    theta = random_theta(likelihood)
    _, gradient = likelihood(theta, EACH)
    g = Generator().manual_seed(2)
    for _ in range(5):
        direction = torch.randn(len(theta), generator=g, dtype=torch.float64)
        ahead = likelihood(theta + 1e-5 * direction, EACH)[0]
        behind = likelihood(theta - 1e-5 * direction, EACH)[0]
        slope = torch.dot(gradient, direction).item()
        assert (ahead - behind) / 2e-5 == pytest.approx(slope, rel=1e-5, abs=1e-5)


def test_the_likelihood_is_that_of_the_predictions() -> None:
    logits, labels = simulate(300, 5)
    likelihood, knots = likelihood_of(logits, labels)
    theta = random_theta(likelihood, 0.02)
    head = LikelihoodHead(5, HeadSettings()).double()
    write(head, theta, knots, likelihood)
    values, _ = likelihood.probabilities(likelihood.values(theta))
    found = head(logits.double(), logits.argmax(-1))
    free = (values.argmax(0) == logits.argmax(-1)).nonzero().squeeze(1)  # nothing was to keep
    assert len(free) > 250
    torch.testing.assert_close(found[free], values.T[free], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("k", [4, 30])
def test_the_curvature_of_the_functions_is_their_hessian(k: int) -> None:
    logits, labels = simulate(40, k)
    likelihood, _ = likelihood_of(logits, labels, max_classes=10, n_exact=4, n_segments=5)
    theta = random_theta(likelihood)
    found = Curvature(likelihood, theta, EACH)
    n = likelihood.n_functions
    steps = 1e-5 * torch.eye(len(theta), dtype=torch.float64)
    hessian = torch.stack(
        [likelihood(theta + e, EACH)[1] - likelihood(theta - e, EACH)[1] for e in steps]
    )
    hessian /= 2e-5
    block = torch.linalg.inv(torch.cholesky_inverse(found.factor))
    torch.testing.assert_close(block, hessian[:n, :n], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.diagonal, hessian.diagonal()[n:], rtol=1e-4, atol=1e-3)


def test_an_integer_weight_is_a_repeated_row(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = simulate(80, 5)
    times = torch.arange(80) % 4 + 1
    monkeypatch.setattr(_likelihood_head_fit, "jeffreys_weight", lambda n, k: 0.01)
    weighted, knots = likelihood_of(logits, labels, normalise(times.double()))
    rows = (logits.repeat_interleave(times, 0), labels.repeat_interleave(times))
    repeated, other_knots = likelihood_of(*rows)
    for one, other in zip(
        (knots.x, knots.margins, knots.top),
        (other_knots.x, other_knots.margins, other_knots.top),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    theta = random_theta(weighted)
    a, slope = weighted(theta, NONE)
    b, other_slope = repeated(theta, NONE)
    assert a / weighted.n == pytest.approx(b / repeated.n, rel=1e-12)
    torch.testing.assert_close(slope / weighted.n, other_slope / repeated.n)


def test_quantiles_by_hand() -> None:
    values = torch.tensor([3.0, 1.0, 2.0])
    weight = torch.tensor([1.0, 1.0, 2.0])
    shares = torch.tensor([0.0, 0.2, 0.26, 0.7, 0.8, 1.0])
    expected = torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    assert torch.equal(weighted_quantiles(values, weight, shares), expected)


# --- many classes ---


def test_groups_grow_by_a_quarter_and_end_with_the_last_class() -> None:
    bounds = group_bounds(30, 4)
    assert bounds == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 30]
    assert len(group_bounds(21841, 16)) < 55
    assert group_bounds(3, 16) == [0, 1, 2, 3]


@given(seed=integers(0, 2**31), k=integers(20, 60), has_ties=sampled_from([False, True]))
def test_groups_hold_each_class_once(seed: int, k: int, has_ties: bool) -> None:
    logits, labels = simulate(30, k, seed)
    if has_ties:
        logits = logits.round()
    grouped = make_columns(logits, ONE, labels, None, HeadSettings(max_classes=10, n_exact=4))
    alone = make_columns(logits, ONE, labels, None, HeadSettings())
    torch.testing.assert_close(grouped.offset.exp().sum(0), torch.full((30,), k).double())
    own = alone.x.gather(0, alone.label.unsqueeze(0))
    torch.testing.assert_close(grouped.x.gather(0, grouped.label.unsqueeze(0)), own)
    top = alone.x.gather(0, alone.top.unsqueeze(0))
    torch.testing.assert_close(grouped.x.gather(0, grouped.top.unsqueeze(0)), top)
    assert not grouped.offset.gather(0, grouped.top.unsqueeze(0)).any()  # a class of its own
    # The sum of e^x is exact up to the float32 in which x is sorted.
    total = (grouped.x + grouped.offset).logsumexp(0)
    torch.testing.assert_close(total, alone.x.logsumexp(0), rtol=1e-6, atol=1e-6)


def test_a_fit_to_groups_is_the_fit_to_all_classes() -> None:
    logits, labels = simulate(400, 300)
    label = logits.argmax(-1)
    grouped = fitted(logits, labels)(logits, label)
    alone = fitted(logits, labels, n_exact=300)(logits, label)
    assert nll(grouped, labels) == pytest.approx(nll(alone, labels), abs=2e-3)
    assert nll(grouped, labels) < nll(logits.softmax(-1), labels) - 0.05


# --- the fit ---


def test_the_fit_is_the_most_likely_one(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = simulate(500, 4)
    seen: list[tuple[Likelihood, Tensor, dict[str, float]]] = []
    original = _likelihood_head_fit._minimise

    def recorded(likelihood: Likelihood, start: Tensor, curvature: Curvature, *rest: Any) -> Tensor:
        found = original(likelihood, start, curvature, *rest)
        seen.append((likelihood, found, curvature.precisions))
        return found

    monkeypatch.setattr(_likelihood_head_fit, "_minimise", recorded)
    fitted(logits, labels)
    likelihood, theta, precisions = seen[-1]
    value, _ = likelihood(theta, precisions)
    g = Generator().manual_seed(0)
    for size in (1e-3, 1e-2, 1e-1):
        for _ in range(20):
            step = size * torch.randn(len(theta), generator=g, dtype=torch.float64)
            assert likelihood(theta + step, precisions)[0] > value - 1e-4


@pytest.mark.parametrize("seed", [0, 1])
def test_classes_that_are_overstated_are_put_right(seed: int) -> None:
    logits, labels = simulate(8000, 6, seed)
    fit = slice(0, 4000)
    test = slice(4000, None)
    t = fit_log_temperature(logits[fit], labels[fit], jeffreys_weight(4000, 6))
    z = logits / torch.tensor(t).exp()
    head = fitted(z[fit], labels[fit])
    truth = ((logits - torch.linspace(-1, 1, 6)) / 1.5).softmax(-1)
    best = nll(truth[test], labels[test])
    plain = nll(z[test].softmax(-1), labels[test])
    ours = nll(head(z[test], z[test].argmax(-1)), labels[test])
    assert plain - best > 0.02
    assert ours - best < 0.5 * (plain - best)  # The prediction itself must stay.


def test_a_margin_that_is_overstated_is_put_right() -> None:
    g = Generator().manual_seed(0)
    truth = 2 * torch.randn(8000, 6, generator=g)
    labels = truth.softmax(-1).multinomial(1, generator=g).squeeze(1)
    values, classes = truth.topk(2, -1)
    wider = values[:, :1] + values[:, :1] - values[:, 1:]
    logits = truth.scatter(-1, classes[:, :1], wider)
    fit = slice(0, 4000)
    test = slice(4000, None)
    best = nll(truth[test].softmax(-1), labels[test])
    plain = nll(logits[test].softmax(-1), labels[test])
    found = fitted(logits[fit], labels[fit])(logits[test], logits[test].argmax(-1))
    assert plain - best > 0.1
    assert nll(found, labels[test]) - best < 0.05 * (plain - best)


def test_labels_that_follow_the_softmax_leave_it_nearly_unchanged() -> None:
    g = Generator().manual_seed(3)
    losses = []
    for n in (50, 200, 800):
        z = 2 * torch.randn(n + 5000, 5, generator=g)
        labels = z.softmax(-1).multinomial(1, generator=g).squeeze(1)
        head = fitted(z[:n], labels[:n])
        found = nll(head(z[n:], z[n:].argmax(-1)), labels[n:])
        losses.append(found - nll(z[n:].softmax(-1), labels[n:]))
    assert losses[0] < 0.06
    assert losses[1] < 0.02
    assert losses[2] < 0.01


@given(seed=integers(0, 2**31), strength=floats(0.01, 100), scale=floats(0.001, 1))
def test_a_precision_lies_between_the_expected_one_and_that_of_the_labels(
    seed: int, strength: float, scale: float
) -> None:
    logits, labels = simulate(60, 4, seed)
    likelihood, _ = likelihood_of(logits, labels)
    theta = random_theta(likelihood, scale)
    expected = {name: float(getattr(likelihood.settings, name)) for name in likelihood.sizes}

    def updated(prior_parameters: float) -> dict[str, float]:
        settings = replace(likelihood.settings, prior_parameters=prior_parameters)
        likelihood.settings = settings
        return Curvature(likelihood, theta, expected).updated_precisions(theta)

    of_labels = updated(0.0)
    found = updated(strength)
    for name, value in found.items():
        low, high = sorted([expected[name], of_labels[name]])
        assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9)


def test_labels_that_determine_nothing_leave_the_precisions_as_expected() -> None:
    labels = torch.arange(12) % 3
    likelihood, _ = likelihood_of(1e3 * torch.eye(3)[labels], labels, max_depth=1e4)
    theta = random_theta(likelihood, 0.0)
    expected = {name: float(getattr(likelihood.settings, name)) for name in likelihood.sizes}
    found = Curvature(likelihood, theta, expected).updated_precisions(theta)
    assert found == pytest.approx(expected, rel=1e-3)


def typical_head(logits: Tensor, generator: Generator) -> LikelihoodHead:
    """Return a head whose parameters are drawn from their prior.

    Args:
        logits: Logits, which the knots depend on, (N, K).
        generator: Random numbers.
    """
    n, k = logits.shape
    likelihood, knots = likelihood_of(logits, torch.zeros(n, dtype=torch.long))
    parts = []
    for name, size in likelihood.sizes.items():
        penalty = likelihood.penalties.get(name, torch.eye(size, dtype=torch.float64))
        root = torch.linalg.cholesky(getattr(likelihood.settings, name) * penalty)
        noise = torch.randn(size, 1, generator=generator, dtype=torch.float64)
        parts.append(torch.linalg.solve_triangular(root.T, noise, upper=True).squeeze(1))
    head = LikelihoodHead(k, likelihood.settings)
    write(head, torch.cat(parts), knots, likelihood)
    return head


def test_with_few_labels_the_expected_precisions_help_where_they_are_right() -> None:
    def draw(n: int) -> Tensor:
        z = 2 * torch.randn(n, 10, generator=g)
        return z + 7 * torch.nn.functional.one_hot(torch.randint(10, (n,), generator=g), 10)

    gains = []
    for seed in range(40):
        g = Generator().manual_seed(seed)
        test = draw(1000)
        truth = typical_head(test, g)
        expected = truth(test, test.argmax(-1))
        z = draw(250)
        labels = truth(z, z.argmax(-1)).multinomial(1, generator=g).squeeze(1)
        losses = []
        for prior_parameters in (1.0, 0.0):
            head = fitted(z, labels, prior_parameters=prior_parameters, n_rounds=5)
            found = head(test, test.argmax(-1))
            losses.append(-(expected * found.log()).sum(-1).mean())
        gains.append(losses[1] - losses[0])
    gain = torch.stack(gains)
    standard_error = gain.std() / len(gain) ** 0.5
    assert gain.mean() > 2 * standard_error


def test_the_fit_is_deterministic_and_leaves_torchs_seed_alone() -> None:
    logits, labels = simulate(300, 5)
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        states.append(fitted(logits, labels).state_dict())
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize("n", [1, 11])
def test_with_fewer_inputs_than_the_smallest_number_it_is_the_softmax(n: int) -> None:
    logits, labels = simulate(n, 3)
    found = fitted(logits, labels)(logits, logits.argmax(-1))
    torch.testing.assert_close(found, logits.softmax(-1))


@pytest.mark.parametrize(
    "change",
    [
        lambda z: torch.zeros_like(z),
        lambda z: z.round(),
        lambda z: 1e-6 * z,
        lambda z: 1e5 * z,
        lambda z: z + torch.tensor([-1e9, 0.0, 0.0]),
        lambda z: 100.0 * torch.nn.functional.one_hot(z.argmax(-1), 3).float(),
    ],
)
@pytest.mark.parametrize("n", [12, 100])
def test_unusual_logits_give_finite_probabilities(
    change: Callable[[Tensor], Tensor], n: int
) -> None:
    logits, labels = simulate(n, 3)
    logits = change(logits)
    probs = fitted(logits, labels)(logits, logits.argmax(-1))
    assert probs.isfinite().all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(n))


def test_of_very_many_inputs_evenly_spaced_ones_are_used() -> None:
    logits, labels = simulate(300, 3)
    most = fitted(logits, labels, max_inputs=100)
    every_third = fitted(logits[::3], labels[::3])
    assert torch.equal(most.table, every_third.table)
    by_values = fitted(logits, labels, max_values=300)
    assert torch.equal(by_values.table, every_third.table)


@pytest.mark.parametrize("k", [2, 3, 10, 100])
def test_rows_that_keep_their_prediction_are_left_as_they_are(k: int) -> None:
    g = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(300, k, generator=g)).softmax(-1)
    probs[3] = torch.nan
    predicted = torch.randint(k, (300, 1), generator=g)
    predicted[:200] = probs[:200].argmax(-1, keepdim=True)
    found = keep_prediction(probs, predicted)
    every_row = keep_prediction(probs.clone().requires_grad_(), predicted).detach()
    assert torch.equal(found.nan_to_num(-1), every_row.nan_to_num(-1))
    assert torch.equal(found[:200].nan_to_num(-1), probs[:200].nan_to_num(-1))
