import math
from typing import Any

import pytest
import torch
from helpers.quick_branches import quick_branches
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from simplexcal import (
    Concrete,
    FeatureMixup,
    Outputs,
    SimplexTemperatureScaling,
    TemperatureScaling,
)
from simplexcal.calibrators import _branch_network
from simplexcal.calibrators._branch_network import Branch, MemberBatch, negative_log_density
from simplexcal.calibrators.base import Task
from simplexcal.calibrators.temperature import fit_log_temperature, jeffreys_weight
from simplexcal.metrics import ece
from simplexcal.mixup import LogitMixup, Mixup

SMALL: dict[str, Any] = {"widths": (8,), "n_steps": 30, "pool_size": 300, "batch_size": 50}


def synthetic(
    n: int, k: int, seed: int = 0, sharpness: float = 2.0
) -> tuple[nn.Linear, Outputs, Tensor]:
    """Features, a head, and labels drawn from a softmax that the head's logits overstate by
    ``sharpness``."""
    g = torch.Generator().manual_seed(seed)
    head = nn.Linear(2 * k, k)
    nn.init.normal_(head.weight, std=2 * (2 * k) ** -0.5, generator=g)
    nn.init.zeros_(head.bias)
    features = torch.randn(n, 2 * k, generator=g)
    logits = head(features).detach()
    labels = torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1)
    labels[:k] = torch.arange(k)
    head.weight.data *= sharpness
    return head, Outputs(sharpness * logits, features), labels


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps for the branch, where its quality does not matter."""
    quick_branches(monkeypatch, 20)


def nll(probs: Tensor, labels: Tensor) -> float:
    return float(-probs.gather(1, labels[:, None]).log().mean())


# --- the branch -----------------------------------------------------------------------------------


def test_the_loss_is_the_papers_formula() -> None:
    # eq. (9) as it is printed, on numbers where it does not overflow
    g = torch.Generator().manual_seed(0)
    branch = Branch(1, 3, (4,))
    branch.initialise(g)
    logits, features = torch.randn(1, 5, 3, generator=g), torch.randn(1, 5, 3, generator=g)
    pi = torch.rand(1, 5, 3, generator=g).softmax(-1)
    lam, alpha, k = branch(features)[:, 0].unsqueeze(-1), logits.exp(), 3
    printed = (
        -(k - 1) * lam.log().squeeze(-1)
        - alpha.log().sum(-1)
        + ((lam + 1) * pi.log()).sum(-1)
        + k * (alpha * pi**-lam).sum(-1).log()
    ).mean(-1)
    ours = negative_log_density(branch, MemberBatch(logits, features, pi.log()))
    torch.testing.assert_close(
        ours, printed - torch.tensor(3.0).lgamma()
    )  # the paper drops ln Γ(K)


def test_members_trained_together_do_not_see_each_other() -> None:
    g = torch.Generator().manual_seed(0)
    branch = Branch(3, 5, (7, 4))
    branch.initialise(g)
    features = torch.randn(6, 5, generator=g)
    for i in range(3):
        alone = Branch(1, 5, (7, 4))
        alone.load_state_dict(branch.member_state(i))
        torch.testing.assert_close(alone(features)[0], branch(features)[i])


def test_the_branch_is_the_one_of_the_paper() -> None:
    branch = Branch(1, 512, SimplexTemperatureScaling.paper().widths)
    assert [tuple(w.shape[1:]) for w in branch.weights] == [
        (512, 1024),
        (1024, 1024),
        (1024, 512),
        (512, 256),
        (256, 1),
    ]


@pytest.mark.parametrize("beta", [0.02, 0.2, 2.0])
@pytest.mark.parametrize("k", [2, 10, 100, 1000])
def test_training_stays_finite(beta: float, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    head, outputs, labels = synthetic(2 * k, k)
    losses: list[Tensor] = []

    def recorded(branch: Branch, batch: MemberBatch) -> Tensor:
        losses.append(negative_log_density(branch, batch).detach())
        return negative_log_density(branch, batch)

    monkeypatch.setattr("simplexcal.calibrators.simplex.negative_log_density", recorded)
    sts = SimplexTemperatureScaling(betas=(beta,), likelihood_head=False, **SMALL)
    sts.fit(outputs, labels, mixup=FeatureMixup(head, outputs, labels, per_class=2))
    assert len(losses) == 30
    assert torch.stack(losses).isfinite().all()
    assert sts(outputs).probs.isfinite().all()


def test_training_lowers_the_loss() -> None:
    head, outputs, labels = synthetic(400, 5)
    mixup = FeatureMixup(head, outputs, labels)
    batch = _branch_network._sample(mixup, [1.0], 2000, torch.Generator().manual_seed(9))
    sts = SimplexTemperatureScaling(betas=(1.0,), likelihood_head=False, n_steps=300)
    sts.fit(outputs, labels, mixup=mixup, generator=torch.Generator().manual_seed(1))
    untrained = Branch(1, 10, sts.widths, sts.n_networks)
    untrained.initialise(torch.Generator().manual_seed(1))
    assert negative_log_density(sts.branch, batch) < negative_log_density(untrained, batch)


@pytest.mark.parametrize(
    ("method", "decayed"),
    [(SimplexTemperatureScaling(), True), (SimplexTemperatureScaling.paper(), False)],
)
def test_the_rate_of_the_default_goes_to_0_and_the_papers_is_fixed(
    method: SimplexTemperatureScaling, decayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    step = torch.optim.Adam.step

    def recorded(optimiser: torch.optim.Adam, *args: Any) -> Any:
        rates.append(optimiser.param_groups[0]["lr"])
        return step(optimiser, *args)

    monkeypatch.setattr(torch.optim.Adam, "step", recorded)
    head, outputs, labels = synthetic(100, 3)
    small = {**method.settings, **SMALL, "betas": (1.0,), "likelihood_head": False}
    SimplexTemperatureScaling(**small).fit(
        outputs, labels, mixup=FeatureMixup(head, outputs, labels)
    )
    cosine = [0.0005 * (1 + math.cos(math.pi * i / 30)) for i in range(30)]
    assert rates == pytest.approx(cosine if decayed else [0.001] * 30)


def test_beta_is_the_one_with_the_smallest_ece() -> None:
    _, outputs, labels = synthetic(500, 4)
    members = Branch(
        3, 8, ()
    )  # one layer with zero weights: λ is softplus of the bias, whatever the input
    members.biases[0].data[:, 0, 0] = torch.tensor([-3.0, 2.0, 20.0])
    temperatures = (
        torch.nn.functional.softplus(members.biases[0].detach().flatten())
        + _branch_network.SMALLEST
    )
    correct = outputs.label == labels
    errors = [
        float(ece(Concrete(outputs.logits, float(t)).mean.amax(-1), correct, 10))
        for t in temperatures
    ]
    chosen = SimplexTemperatureScaling(likelihood_head=False)._smallest_ece(
        members, Task(outputs, labels, None, torch.Generator(), False)
    )
    assert chosen == errors.index(min(errors)) == 1


def test_each_beta_has_its_own_calibrator_and_the_chosen_one_is_the_calibrator_itself() -> None:
    head, outputs, labels = synthetic(300, 4)
    mixup, betas = FeatureMixup(head, outputs, labels), (0.3, 1.0, 3.0)
    sts = SimplexTemperatureScaling(betas, likelihood_head=False, **SMALL)
    sts.fit(outputs, labels, mixup=mixup, generator=torch.Generator().manual_seed(1))
    found = sts.each_beta()
    assert tuple(found) == betas
    correct = outputs.label == labels
    errors = {beta: float(ece(one(outputs).confidence, correct, 10)) for beta, one in found.items()}
    best = min(errors, key=lambda beta: errors[beta])
    assert float(sts.beta) == pytest.approx(best)
    assert torch.equal(found[best](outputs).probs, sts(outputs).probs)
    assert all(
        one.betas == (beta,) and float(one.beta) == pytest.approx(beta)
        for beta, one in found.items()
    )
    assert len({float(one(outputs).probs.sum(0)[0]) for one in found.values()}) == 3
    assert torch.equal(found[0.3].each_beta()[0.3](outputs).probs, found[0.3](outputs).probs)


@pytest.mark.usefixtures("quick")
def test_each_beta_needs_a_fit() -> None:
    with pytest.raises(
        ValueError, match=r"^There is no ensemble member for each β: .* Fit again.$"
    ):
        SimplexTemperatureScaling().each_beta()


# --- the head -------------------------------------------------------------------------------------


def test_the_default_has_a_better_likelihood_than_one_temperature() -> None:
    # half of the inputs are far over-confident, half are right: no single T mends both
    _, outputs, labels = synthetic(4000, 6, sharpness=1.0)
    wild = outputs.logits.amax(-1) > outputs.logits.amax(-1).median()
    outputs = Outputs(torch.where(wild[:, None], 4 * outputs.logits, outputs.logits))
    train, test = slice(0, 2000), slice(2000, None)
    sts = SimplexTemperatureScaling().fit(
        outputs[train], labels[train], generator=torch.Generator().manual_seed(0)
    )
    ts = TemperatureScaling().fit(outputs[train], labels[train])
    gain = nll(ts(outputs[test]).probs, labels[test]) - nll(sts(outputs[test]).probs, labels[test])
    assert gain > 0.05


@pytest.mark.parametrize("factor", [0.3, 10.0])
def test_the_scale_of_the_logits_does_not_matter(factor: float) -> None:
    _, outputs, labels = synthetic(600, 5)
    scaled = Outputs(outputs.logits * factor)
    a, b = (
        SimplexTemperatureScaling().fit(o, labels, generator=torch.Generator().manual_seed(0))(o)
        for o in (Outputs(outputs.logits), scaled)
    )
    torch.testing.assert_close(a.probs, b.probs, rtol=0, atol=2e-3)


def test_an_underconfident_network_is_sharpened() -> None:
    _, outputs, labels = synthetic(2000, 5, sharpness=0.3)
    sts = SimplexTemperatureScaling().fit(
        outputs, labels, generator=torch.Generator().manual_seed(0)
    )
    assert sts(outputs).confidence.mean() > outputs.logits.softmax(-1).amax(-1).mean() + 0.1
    assert nll(sts(outputs).probs, labels) < nll(outputs.logits.softmax(-1), labels)


def test_a_confidence_that_is_wrong_by_itself_is_put_right() -> None:
    # the margin is overstated, all else is right: no temperature can mend the one without spoiling
    # the other
    g = torch.Generator().manual_seed(0)
    truth = 2 * torch.randn(8000, 6, generator=g)
    labels = torch.multinomial(truth.softmax(-1), 1, generator=g).squeeze(1)
    values, classes = truth.topk(2, -1)
    margin = values[:, :1] - values[:, 1:]
    outputs = Outputs(truth.scatter(-1, classes[:, :1], values[:, 1:] + 2 * margin))
    fit, test = slice(0, 4000), slice(4000, None)
    sts = SimplexTemperatureScaling().fit(
        outputs[fit], labels[fit], generator=torch.Generator().manual_seed(0)
    )
    ts = TemperatureScaling().fit(outputs[fit], labels[fit])
    best, ours, theirs = (
        nll(p, labels[test])
        for p in (truth[test].softmax(-1), sts(outputs[test]).probs, ts(outputs[test]).probs)
    )
    assert theirs - best > 0.02
    assert ours - best < 0.2 * (theirs - best)
    prediction = sts(outputs[test])
    gap = prediction.confidence.mean() - (prediction.label == labels[test]).float().mean()
    assert gap.abs() < 4 * 0.5 / 4000**0.5  # four standard errors, at most


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings(
    "ignore:The logits say nothing", "ignore:Of .* inputs", "ignore:All .* inputs"
)
@pytest.mark.parametrize(("n", "k"), [(3, 2), (10, 3), (40, 2)])
def test_few_samples_do_not_break_the_fit(n: int, k: int) -> None:
    _, outputs, labels = synthetic(n, k)
    sts = SimplexTemperatureScaling().fit(Outputs(outputs.logits), labels)
    assert sts(outputs).probs.isfinite().all()


@pytest.mark.usefixtures("quick")
def test_separable_data_warn_and_stay_finite() -> None:
    _, outputs, _ = synthetic(100, 3)
    with pytest.warns(UserWarning, match="classified correctly"):
        sts = SimplexTemperatureScaling().fit(Outputs(outputs.logits), outputs.label)
    assert sts(outputs).probs.isfinite().all()
    assert sts.log_temperature > -3  # without a prior -16, the bound


@pytest.mark.parametrize(
    ("n", "k", "expected"), [(10, 2, 0.1), (100, 3, 0.0075), (5000, 10, 1 / 9000)]
)
def test_half_an_error_by_hand(n: int, k: int, expected: float) -> None:
    assert jeffreys_weight(n, k) == pytest.approx(expected, rel=1e-12)
    wrong = torch.arange(k).repeat(n) != torch.zeros(
        n * k
    )  # each input in every class, against any one prediction
    assert jeffreys_weight(n, k) / k * wrong.sum().item() == pytest.approx(0.5, rel=1e-12)


@pytest.mark.usefixtures("quick")
def test_the_temperature_is_fitted_with_half_an_error_more() -> None:
    _, outputs, labels = synthetic(100, 3)
    sts = SimplexTemperatureScaling().fit(Outputs(outputs.logits), labels)
    expected = fit_log_temperature(outputs.logits, labels, prior_weight=3 / 4 / 100)
    assert float(sts.log_temperature) == pytest.approx(expected, abs=1e-6)


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("ignore:All 60 inputs")
def test_inputs_that_are_all_right_leave_temperature_scaling() -> None:
    # 60 inputs alike: T with half an error more is the best there is.
    labels = torch.arange(60) % 3
    outputs = Outputs(2.0 * one_hot(labels))
    sts = SimplexTemperatureScaling().fit(outputs, labels)
    scaled = (outputs.logits / sts.log_temperature.exp()).softmax(-1)
    torch.testing.assert_close(sts(outputs).probs, scaled, rtol=0, atol=1e-3)


# --- the calibrator -------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("with_features", [True, False])
def test_one_distribution_gives_probabilities_and_uncertainties(with_features: bool) -> None:
    head, outputs, labels = synthetic(300, 4)
    mixup: Mixup = LogitMixup(outputs, labels)
    if with_features:
        mixup = FeatureMixup(head, outputs, labels)
    sts = SimplexTemperatureScaling(**SMALL).fit(outputs, labels, mixup=mixup)
    prediction = sts(outputs)
    d = sts.concrete(outputs)
    found = Concrete(d.logits.double(), d.temperature.double()).moments()
    assert prediction.aleatoric is not None
    assert prediction.epistemic is not None
    assert prediction.mutual_information is not None
    close: dict[str, Any] = {"check_dtype": False, "atol": 1e-5, "rtol": 1e-4}
    torch.testing.assert_close(prediction.probs, found.mean, check_dtype=False, atol=1e-6, rtol=0)
    torch.testing.assert_close(prediction.aleatoric, found.expected_entropy, **close)
    torch.testing.assert_close(prediction.epistemic, found.entropy, **close)
    torch.testing.assert_close(prediction.mutual_information, found.mutual_information, **close)
    total = -torch.special.xlogy(prediction.probs, prediction.probs).sum(-1)
    torch.testing.assert_close(prediction.aleatoric + prediction.mutual_information, total)
    assert ((prediction.aleatoric >= 0) & (prediction.aleatoric <= total + 1e-6)).all()


@pytest.mark.usefixtures("quick")
def test_the_probabilities_are_those_of_the_head_alone() -> None:
    head, outputs, labels = synthetic(300, 4)
    with_features = SimplexTemperatureScaling(**SMALL)
    with_features.fit(outputs, labels, mixup=FeatureMixup(head, outputs, labels))
    from_logits = SimplexTemperatureScaling(**SMALL).fit(outputs, labels)
    assert torch.equal(with_features(outputs).probs, from_logits(outputs).probs)


def test_a_branch_is_the_geometric_mean_of_its_networks() -> None:
    g = torch.Generator().manual_seed(0)
    outputs = Outputs(torch.randn(6, 3, generator=g), torch.randn(6, 5, generator=g))
    branch = Branch(2, 5, (7,), n_networks=3)
    branch.initialise(g)
    each = branch(outputs.features)
    assert each.shape == (2, 3, 6)
    expected = each.prod(1) ** (1 / 3)
    torch.testing.assert_close(branch.temperatures(outputs), expected)
    alone = Branch(1, 5, (7,), n_networks=3)
    alone.load_state_dict(branch.member_state(1))
    torch.testing.assert_close(alone.temperatures(outputs)[0], expected[1])


@pytest.mark.usefixtures("quick")
def test_masked_classes_give_finite_uncertainties() -> None:
    _, outputs, labels = synthetic(300, 4)
    masked = torch.cat([outputs.logits, torch.full((300, 2), -1e9)], 1)
    sts = SimplexTemperatureScaling(**SMALL)
    with pytest.warns(UserWarning, match="4, 5"):
        sts.fit(Outputs(masked), labels)
    prediction = sts(Outputs(masked))
    for name in ("aleatoric", "epistemic", "mutual_information"):
        assert getattr(prediction, name).isfinite().all()


def test_the_papers_probabilities_are_the_mean_of_the_branchs_distribution() -> None:
    head, outputs, labels = synthetic(300, 4)
    sts = SimplexTemperatureScaling(likelihood_head=False, **SMALL)
    sts.fit(outputs, labels, mixup=FeatureMixup(head, outputs, labels))
    assert outputs.features is not None
    d = Concrete(outputs.logits, sts.branch.temperatures(outputs)[0])
    torch.testing.assert_close(sts(outputs).probs, d.mean)


@pytest.mark.usefixtures("quick")
def test_the_prediction_is_the_networks_with_ties_and_saturated_logits() -> None:
    head, outputs, labels = synthetic(300, 4)
    sts = SimplexTemperatureScaling(**SMALL).fit(
        outputs, labels, mixup=FeatureMixup(head, outputs, labels)
    )
    logits = torch.tensor(
        [[3.0, 3.0, 3.0, 3.0], [1e4, 1e4, 0.0, -1e4], [0.0, 800.0, 799.99994, 1.0]]
    )
    prediction = sts(Outputs(logits, torch.zeros(3, 8)))
    assert torch.equal(prediction.label, logits.argmax(-1))
    assert (prediction.confidence >= prediction.probs.amax(-1)).all()


@pytest.mark.usefixtures("quick")
def test_the_same_generator_gives_the_same_fit_and_a_second_fit_forgets_the_first() -> None:
    head, outputs, labels = synthetic(300, 4)
    mixup = FeatureMixup(head, outputs, labels)
    fits = [SimplexTemperatureScaling(**SMALL) for _ in range(2)]
    fits[1].fit(outputs[:100], labels[:100])
    for sts in fits:
        sts.fit(outputs, labels, mixup=mixup, generator=torch.Generator().manual_seed(7))
    assert torch.equal(fits[0](outputs).probs, fits[1](outputs).probs)
    states = [sts.state_dict() for sts in fits]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.usefixtures("quick")
def test_gradients_of_a_prediction_reach_the_logits() -> None:
    _, outputs, labels = synthetic(200, 4)
    sts = SimplexTemperatureScaling().fit(Outputs(outputs.logits), labels)
    logits = outputs.logits.clone().requires_grad_()
    cross_entropy(sts(Outputs(logits)).probs.log(), labels).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.usefixtures("quick")
def test_the_paper_needs_mixes_and_features() -> None:
    head, outputs, labels = synthetic(100, 3)
    with pytest.raises(
        ValueError,
        match=r"`mixup` must be given: this SimplexTemperatureScaling learns from mixup samples",
    ):
        SimplexTemperatureScaling(likelihood_head=False, **SMALL).fit(outputs, labels)
    mixup = FeatureMixup(head, outputs, labels)
    with pytest.raises(ValueError, match=r"`outputs` must have features"):
        SimplexTemperatureScaling(**SMALL).fit(Outputs(outputs.logits), labels, mixup=mixup)


@pytest.mark.usefixtures("quick")
def test_features_must_be_those_of_the_fit() -> None:
    head, outputs, labels = synthetic(100, 3)
    sts = SimplexTemperatureScaling(**SMALL).fit(
        outputs, labels, mixup=FeatureMixup(head, outputs, labels)
    )
    with pytest.raises(
        ValueError, match=r"`features` must have the 6 columns of the fit; got None"
    ):
        sts(Outputs(outputs.logits))


def test_betas_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"`betas` must be positive numbers; got \(1.0, 0.0\)"):
        SimplexTemperatureScaling(betas=(1.0, 0.0))


@pytest.mark.parametrize("ruled_out", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_classes_that_the_network_rules_out_do_not_matter(
    ruled_out: float, generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_branches(monkeypatch, 50)
    logits = 2 * torch.randn(300, 4, generator=generator)
    labels = (logits / 1.5).softmax(-1).multinomial(1, generator=generator).squeeze(1)
    out = (torch.rand(300, 4, generator=generator) < 0.2).scatter(1, labels.unsqueeze(1), False)
    losses = []
    for value in (-1e3, ruled_out):
        outputs = Outputs(logits.masked_fill(out, value))
        fitted = SimplexTemperatureScaling().fit(
            outputs, labels, generator=Generator().manual_seed(0)
        )
        losses.append(cross_entropy(fitted(outputs).probs.log(), labels))
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-5)


def test_a_class_at_minus_infinity_has_no_probability(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_branches(monkeypatch, 50)
    logits = 2 * torch.randn(300, 4, generator=generator)
    labels = (logits / 1.5).softmax(-1).multinomial(1, generator=generator).squeeze(1)
    fitted = SimplexTemperatureScaling().fit(Outputs(logits), labels, generator=generator)
    fewer = torch.tensor([[1.0, 0.0, 0.5, -torch.inf], [1.0, -torch.inf, -torch.inf, -torch.inf]])
    probs = fitted(Outputs(fewer)).probs
    assert (probs[fewer == -torch.inf] == 0).all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(2))
