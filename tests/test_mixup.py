import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from simplexcal import _validation, mixup
from simplexcal.backbone import Backbone
from simplexcal.concrete import Concrete
from simplexcal.mixup import (
    FeatureMixup,
    InputMixup,
    LogitMixup,
    Mixup,
    log_dirichlet,
    logit_features,
)
from simplexcal.types import Outputs

K, D = 4, 6


class Linear(nn.Module):
    """A backbone whose features are its inputs, flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, K)

    def forward(self, x: Tensor) -> Outputs:
        return Outputs(self.head(x.flatten(1)).detach(), x.flatten(1))


@pytest.fixture
def labels() -> Tensor:
    return torch.tensor([0] * 20 + [1] * 20 + [2] * 3 + [3] * 20)  # class 2 is rare


@pytest.fixture
def inputs(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Inputs (N, 2, 3) that carry their class in the first entry and their row in the second."""
    x = torch.randn(len(labels), 2, 3, generator=generator)
    x[:, 0, 0], x[:, 0, 1] = labels.float(), torch.arange(len(labels)).float()
    return x


def one_hot_inputs(labels: Tensor) -> Tensor:
    return nn.functional.pad(nn.functional.one_hot(labels, K).float(), (0, D - K)).view(-1, 2, 3)


@pytest.mark.parametrize("beta", [0.02, 0.2, 1.0, 5.0])
@pytest.mark.parametrize("k", [2, 10, 1000])
def test_log_weights_are_finite_and_sum_to_one(
    beta: float, k: int, generator: torch.Generator
) -> None:
    log_w = log_dirichlet(beta, 200, k, generator)
    assert log_w.isfinite().all()
    torch.testing.assert_close(
        log_w.logsumexp(-1), torch.zeros(200, dtype=torch.float64), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("beta", [0.2, 1.0, 3.0])
def test_weights_have_the_moments_of_the_dirichlet_distribution(
    beta: float, generator: torch.Generator
) -> None:
    n, k = 100_000, 5
    w = log_dirichlet(beta, n, k, generator).exp()
    variance = (1 / k) * (1 - 1 / k) / (k * beta + 1)
    assert ((w.mean(0) - 1 / k).abs() <= 5 * (variance / n) ** 0.5).all()
    error = 5 * ((w - 1 / k) ** 2).std(0) / n**0.5
    assert ((w.var(0) - variance).abs() <= error).all()


@pytest.mark.parametrize("weights_per_sample", [False, True])
def test_a_mixup_sample_is_the_weighted_sum_of_one_sample_of_each_class(
    weights_per_sample: bool, labels: Tensor, generator: torch.Generator
) -> None:
    backbone = Linear()
    inputs = one_hot_inputs(labels)  # so the mixed input is the weight vector itself
    mixed = InputMixup(backbone, inputs, labels, 3, 5, weights_per_sample).sample(
        0.7, 37, generator
    )
    assert mixed.outputs.features is not None
    torch.testing.assert_close(mixed.outputs.features[:, :K], mixed.log_weights.exp())
    torch.testing.assert_close(mixed.outputs.logits, backbone(mixed.outputs.features).logits)
    assert len(mixed.outputs) == 37


def test_the_papers_scheme_shares_one_weight_vector_in_each_shuffle(
    labels: Tensor, inputs: Tensor
) -> None:
    mixed = InputMixup(Linear(), inputs, labels, per_class=3, n_shuffles=4).sample(1.0, 24)
    runs = mixed.log_weights.view(8, 3, K)
    assert (runs == runs[:, :1]).all()
    assert len(torch.unique(runs[:, 0, 0])) == 8


def test_weights_per_sample_differ_in_each_mixup_sample(labels: Tensor, inputs: Tensor) -> None:
    mixed = InputMixup(
        Linear(), inputs, labels, per_class=3, n_shuffles=4, weights_per_sample=True
    ).sample(1.0, 24)
    assert len(torch.unique(mixed.log_weights[:, 0])) == 24


def test_each_shuffle_uses_each_sample_of_a_batch_once(labels: Tensor, inputs: Tensor) -> None:
    # β → 0 puts all weight on one class: a shuffle then gives the R samples of that class.
    mixed = InputMixup(Linear(), inputs, labels, per_class=5, n_shuffles=6).sample(1e-6, 30)
    assert mixed.outputs.features is not None
    classes, rows = mixed.outputs.features[:, 0].view(6, 5), mixed.outputs.features[:, 1].view(6, 5)
    for c, run in zip(classes, rows, strict=True):
        torch.testing.assert_close(c, c[:1].expand(5))
        assert len(torch.unique(run.round())) == (
            3 if c[0] == 2 else 5
        )  # class 2 has three samples, used again


def test_mixed_features_equal_mixed_inputs_of_a_linear_network(
    labels: Tensor, inputs: Tensor
) -> None:
    backbone = Linear()
    by_input = InputMixup(backbone, inputs, labels, 3, 5).sample(
        0.5, 40, torch.Generator().manual_seed(1)
    )
    by_feature = FeatureMixup(
        backbone.head, backbone(inputs), labels, 3, 5, weights_per_sample=False
    ).sample(0.5, 40, torch.Generator().manual_seed(1))
    assert torch.equal(by_input.log_weights, by_feature.log_weights)
    torch.testing.assert_close(by_input.outputs.logits, by_feature.outputs.logits)


def test_the_same_generator_gives_the_same_mixup_samples(labels: Tensor, inputs: Tensor) -> None:
    source = InputMixup(Linear(), inputs, labels)
    a, b = (source.sample(0.3, 250, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(a.outputs.logits, b.outputs.logits)


def test_memory_is_bounded_by_the_batches_that_are_mixed_at_a_time(
    labels: Tensor, inputs: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simplexcal.mixup.MAX_AT_A_TIME", 1)  # one batch at a time
    sizes: list[int] = []
    source = InputMixup(Linear(), inputs, labels, per_class=2, n_shuffles=3)

    def outputs(mixed: Tensor) -> Outputs:
        sizes.append(len(mixed))
        result: Outputs = Linear()(mixed)
        return result

    monkeypatch.setattr(source, "_outputs", outputs)
    assert len(source.sample(1.0, 20).outputs) == 20
    assert sizes == [6, 6, 6, 6]


def test_with_many_classes_a_batch_has_fewer_samples_of_each(
    labels: Tensor, inputs: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    net = Linear()
    source = FeatureMixup(net.head, net(inputs), labels)
    matrix = mixup._mixing_matrix

    def counted(log_weights: Tensor, generator: torch.Generator | None) -> Tensor:
        made = matrix(log_weights, generator)
        sizes.append(made.numel() // len(made))
        return made

    monkeypatch.setattr(mixup, "_mixing_matrix", counted)
    for largest in (2**24, 1000, 1):
        monkeypatch.setattr(mixup, "MAX_MATRIX", largest)
        assert len(source.sample(1.0, 50).log_weights) == 50
    k, s = Linear().head.out_features, 10
    r = math.isqrt(1000 // (k * s))  # the matrix of a batch is (R·S, K·R)
    assert sorted(set(sizes)) == [k * s, k * s * r**2, k * s * 100**2]


def test_the_number_of_classes_is_known(labels: Tensor, inputs: Tensor) -> None:
    source = InputMixup(Linear(), inputs, labels)
    assert source.n_classes == len(source.members) == K
    assert [len(rows) for rows in source.members] == [20, 20, 3, 20]


# --- missing classes ------------------------------------------------------------------------------


@pytest.fixture
def lacking(labels: Tensor) -> Tensor:
    """Labels without class 2."""
    return torch.where(labels == 2, 3, labels)


@pytest.mark.filterwarnings("ignore:`labels` lack")
@pytest.mark.parametrize("kind", ["inputs", "features", "logits"])
def test_the_classes_that_are_there_are_mixed(
    kind: str, lacking: Tensor, generator: torch.Generator
) -> None:
    backbone = Linear()
    inputs = one_hot_inputs(lacking)
    outputs = backbone(inputs)
    sources: dict[str, Mixup] = {
        "inputs": InputMixup(backbone, inputs, lacking),
        "features": FeatureMixup(backbone.head, outputs, lacking),
        "logits": LogitMixup(outputs, lacking),
    }
    source = sources[kind]
    assert source.n_classes == K
    assert source.classes.tolist() == [0, 1, 3]
    mixed = source.sample(1.0, 50, generator)
    weights = mixed.log_weights.exp()
    assert weights.shape == (50, 3)
    torch.testing.assert_close(weights.sum(-1), torch.ones(50))
    # Every input is its class, one-hot. So the logits are those of the weights.
    w = torch.zeros(50, D).index_copy(1, source.classes, weights)
    expected = backbone.head(w).detach()
    torch.testing.assert_close(
        mixed.outputs.logits.log_softmax(-1), expected[:, source.classes].log_softmax(-1)
    )
    assert mixed.outputs.n_features == {"inputs": D, "features": D, "logits": K}[kind]


def test_missing_classes_are_named_in_one_warning(lacking: Tensor, inputs: Tensor) -> None:
    with warnings.catch_warnings(record=True, action="always") as caught:
        InputMixup(Linear(), inputs, lacking).sample(1.0, 5)
    (warning,) = caught
    assert "`labels` lack 1 class of 4: 2. Multi-Mixup mixes the other" in str(warning.message)
    assert warning.filename == __file__
    outputs = Outputs(torch.randn(4, 30))
    with pytest.warns(UserWarning, match=r"lack 26 classes of 30: 4, 5, 6, .*, 12, 13, …\. Mul"):
        LogitMixup(outputs, torch.arange(4))


@pytest.mark.parametrize("present", [[0, 2], [1, 2, 4]])
def test_some_probabilities_of_a_concrete_vector_over_their_sum_are_concrete_again(
    present: list[int], generator: torch.Generator
) -> None:
    # By their density: the mean of -ln p over samples is the distribution's own entropy.
    logits = torch.tensor([0.5, -1.0, 0.0, 1.5, -0.3], dtype=torch.float64)
    temperature = torch.tensor(0.7, dtype=torch.float64)
    n = 20_000
    noise = -torch.empty(n, 5, dtype=torch.float64).exponential_(generator=generator).log()
    log_pi = ((logits + noise) / temperature).log_softmax(-1)
    part = Concrete(logits[present], temperature)
    surprise = -part.log_prob_from_log(log_pi[:, present].log_softmax(-1))
    error = surprise.std() / n**0.5
    assert (surprise.mean() - part.entropy()).abs() <= 4 * error


def test_one_class_alone_cannot_be_mixed(inputs: Tensor) -> None:
    with pytest.raises(ValueError, match=r"`labels` must hold at least two classes; all 63 are"):
        InputMixup(Linear(), inputs, torch.zeros(len(inputs), dtype=torch.long))


# --- logits ---------------------------------------------------------------------------------------


def test_mixed_logits_equal_mixed_features_of_a_linear_network(
    labels: Tensor, inputs: Tensor
) -> None:
    backbone = Linear()
    outputs = backbone(inputs)
    by_logit = LogitMixup(outputs, labels).sample(0.5, 40, torch.Generator().manual_seed(1))
    by_feature = FeatureMixup(backbone.head, outputs, labels).sample(
        0.5, 40, torch.Generator().manual_seed(1)
    )
    assert torch.equal(by_logit.log_weights, by_feature.log_weights)
    features = logit_features(by_feature.outputs.logits)
    assert by_logit.outputs.features is not None
    torch.testing.assert_close(by_logit.outputs.features, features)


def test_logits_and_features_of_mixed_logits_are_one_tensor(labels: Tensor, inputs: Tensor) -> None:
    mixed = LogitMixup(Linear()(inputs), labels, per_class=2).sample(1.0, 50)
    assert mixed.outputs.features is not None
    assert mixed.outputs.features.data_ptr() == mixed.outputs.logits.data_ptr()


def test_mixed_logits_are_divided_by_the_temperature(labels: Tensor, inputs: Tensor) -> None:
    outputs = Linear()(inputs)
    source = LogitMixup(outputs, labels)
    scaled = LogitMixup(Outputs(1000 * outputs.logits + 7), labels).at_temperature(1000.0)
    mixed, same = (
        made.sample(1.0, 50, torch.Generator().manual_seed(2)) for made in (source, scaled)
    )
    torch.testing.assert_close(mixed.outputs.logits, same.outputs.logits, rtol=0, atol=1e-4)


def test_logits_as_features_need_no_scale_and_no_constant(generator: torch.Generator) -> None:
    logits = 3 * torch.randn(20, 5, generator=generator, dtype=torch.float64)
    features = logit_features(logits)
    torch.testing.assert_close(features, logits - logits.amax(-1, keepdim=True))
    torch.testing.assert_close(features, logit_features(logits.log_softmax(-1)))
    torch.testing.assert_close(features, logit_features(1e6 * logits, 1e6))


def test_very_many_classes_share_features_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixup, "MAX_FEATURES", 2)
    logits = torch.tensor([[0.0, -1.0, -2.0, -4.0, -8.0, -16.0, -32.0]])
    # The signs of the four parts are +, -, - and +.
    expected = torch.tensor([[0.0 + 2.0 + 8.0 - 32.0, -1.0 + 4.0 + 16.0]])
    assert torch.equal(logit_features(logits), expected)
    assert mixup.n_logit_features(7) == 2
    assert mixup.n_logit_features(1) == 1


def test_mixed_logits_come_with_shared_features(
    labels: Tensor, inputs: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixup, "MAX_FEATURES", 2)
    outputs = Outputs(Linear()(inputs).logits)
    source = LogitMixup(outputs, labels)
    drawn = source.sample(1.0, 30, torch.Generator().manual_seed(0)).outputs
    assert drawn.logits.shape[1] == outputs.n_classes
    assert drawn.features is not None
    torch.testing.assert_close(drawn.features, logit_features(drawn.logits))


def test_few_products_are_with_zero(
    labels: Tensor, inputs: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    make = mixup._mixing_matrix

    def recorded(*arguments: Any) -> Tensor:
        matrix = make(*arguments)
        sizes.append(matrix.shape[-1])
        return matrix

    monkeypatch.setattr(mixup, "_mixing_matrix", recorded)
    source = LogitMixup(Linear()(inputs), labels, per_class=4)
    k = source.n_classes
    for most, per_class in ((4 * k * k, 4), (2 * k * k, 2), (1, 1)):
        monkeypatch.setattr(mixup, "MAX_PRODUCTS", most)
        source.sample(1.0, 30)
        assert sizes.pop() == per_class * k


@pytest.mark.parametrize("masked", [-1e4, -1e30, torch.finfo(torch.float32).min, -torch.inf])
@pytest.mark.parametrize("largest", [0.0, 1e10, torch.finfo(torch.float32).max])
def test_logits_of_any_size_give_sane_features(masked: float, largest: float) -> None:
    logits = torch.tensor([[largest, masked, 0.0], [masked, 1.0, largest]])
    features = logit_features(logits)
    assert (features.amax(-1) == 0).all()
    assert (features >= -mixup.MAX_DEPTH).all()
    assert features[0, 1] == features[1, 0] == -mixup.MAX_DEPTH


def test_masked_classes_keep_the_density_finite(labels: Tensor, inputs: Tensor) -> None:
    outputs = Linear()(inputs)
    logits = outputs.logits.clone()
    logits[::2, 1] = -1e30
    logits[1::3, 3] = torch.finfo(torch.float32).min
    mixed = LogitMixup(Outputs(logits), labels).sample(0.2, 200, torch.Generator().manual_seed(3))
    temperature = torch.full((200,), 0.5, requires_grad=True)
    density = Concrete(mixed.outputs.logits, temperature).log_prob_from_log(mixed.log_weights)
    (gradient,) = torch.autograd.grad(density.sum(), temperature)
    assert density.isfinite().all()
    assert gradient.isfinite().all()


# --- wrong arguments ------------------------------------------------------------------------------


def test_inputs_that_cannot_be_mixed_are_rejected(labels: Tensor) -> None:
    tokens = torch.zeros(len(labels), 7, dtype=torch.int64)
    with pytest.raises(
        TypeError, match=r"`inputs` must be a floating-point .*got torch.int64.*use FeatureMixup"
    ):
        InputMixup(Linear(), tokens, labels)


def test_features_are_needed_and_must_fit_the_head(labels: Tensor, inputs: Tensor) -> None:
    outputs = Linear()(inputs)
    with pytest.raises(ValueError, match=r"`outputs` must have features to mix; got logits alone"):
        FeatureMixup(nn.Linear(D, K), Outputs(outputs.logits), labels)
    with pytest.raises(
        ValueError, match=r"`head` must map the 6 features to 4 logits; it maps 5 to 4"
    ):
        FeatureMixup(nn.Linear(5, K), outputs, labels)


class CosineHead(nn.Linear):
    """A subclass that computes more than weight and bias."""

    def forward(self, features: Tensor) -> Tensor:
        unit = nn.functional.normalize(features, dim=-1)
        return 16 * unit @ nn.functional.normalize(self.weight, dim=-1).T


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_head_itself_is_called(dtype: torch.dtype, labels: Tensor, inputs: Tensor) -> None:
    head = CosineHead(D, K)
    features = inputs.flatten(1)
    outputs = Outputs(head(features).detach(), features).to(dtype)
    mixed = FeatureMixup(head, outputs, labels).sample(1.0, 40).outputs
    assert mixed.features is not None
    assert mixed.logits.dtype == dtype
    torch.testing.assert_close(mixed.logits.float(), head(mixed.features.float()).detach())
    assert head.weight.dtype == torch.float32
    assert head.weight.requires_grad


def test_a_parametrized_head_in_training_mode_stays_as_it_is(
    labels: Tensor, inputs: Tensor
) -> None:
    head = nn.Linear(D, K)
    nn.utils.parametrizations.spectral_norm(head).eval()
    features = inputs.flatten(1)
    outputs = Outputs(head(features).detach(), features).to(torch.float64)
    head.train()
    before = {name: value.clone() for name, value in head.state_dict().items()}
    FeatureMixup(head, outputs, labels).sample(1.0, 40)
    assert head.training
    for name, value in head.state_dict().items():
        assert torch.equal(value, before[name]), name


def forget_bias(head: nn.Linear) -> None:
    nn.init.zeros_(head.bias)


def reorder_classes(head: nn.Linear) -> None:
    head.weight.data = head.weight.data.flip(0)


@pytest.mark.parametrize("spoil", [forget_bias, reorder_classes])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_head_that_does_not_give_the_logits_is_rejected(
    spoil: Callable[[nn.Linear], None], scale: float, labels: Tensor, inputs: Tensor
) -> None:
    net = Linear()
    net.head.weight.data *= scale
    net.head.bias.data = scale * torch.tensor([0.5, 0.0, -0.5, 1.0])
    outputs = net(inputs)
    spoil(net.head)
    with pytest.raises(
        ValueError, match=r"`head` must turn the features of `outputs` into their logits; it is off"
    ):
        FeatureMixup(net.head, outputs, labels)


def test_rounded_outputs_and_a_constant_are_no_other_head(labels: Tensor, inputs: Tensor) -> None:
    net = Linear()
    outputs = net(inputs)
    assert outputs.features is not None
    logits = outputs.logits.bfloat16().float()
    rounded = Outputs(logits, outputs.features.bfloat16().float())
    probs = Outputs.from_probs(outputs.logits.softmax(-1), outputs.features)
    confident = Outputs(10 * outputs.logits, 10 * outputs.features)  # Its bias is ten times too.
    FeatureMixup(net.head, rounded, labels)
    FeatureMixup(net.head, probs, labels)
    net.head.bias.data *= 10
    FeatureMixup(net.head, confident, labels)
    half = Outputs.from_probs(confident.logits.softmax(-1).half().float(), confident.features)
    FeatureMixup(net.head, half, labels)


def test_labels_are_checked() -> None:
    with pytest.raises(ValueError, match=r"Your labels start at 1: subtract 1"):
        _validation.check_labels(torch.tensor([1, 2, 3, 4]), 4, 4)


class Normalised(nn.Module):
    """A network with batch normalisation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(D)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(D, K)

    def forward(self, x: Tensor) -> Tensor:
        if x.isnan().any():
            raise FloatingPointError("This network fails on NaN.")
        logits: Tensor = self.head(self.dropout(self.norm(x.flatten(1))))
        return logits


def normalised_network() -> Normalised:
    """Return a network in training mode whose running statistics are far from the inputs'."""
    net = Normalised()
    net.norm.running_mean = torch.linspace(-3, 3, D)
    net.norm.running_var = torch.linspace(0.1, 9, D)
    return net.train()


def states(net: nn.Module) -> list[tuple[int, int, bytes]]:
    """Return where each tensor of a network is, how often it was changed, and its bytes."""
    found = []
    for value in net.state_dict(keep_vars=True).values():
        content = bytes(value.detach().contiguous().view(-1).view(torch.uint8).numpy())
        found.append((value.data_ptr(), value._version, content))
    return found


@pytest.mark.parametrize("n_samples", [24, 20])
def test_batch_statistics_normalise_each_balanced_batch_by_its_own(
    n_samples: int, labels: Tensor, inputs: Tensor
) -> None:
    net = normalised_network()
    source = InputMixup(Backbone(net), inputs, labels, 3, 4, batch_statistics=True)
    found = source.sample(1.0, n_samples, torch.Generator().manual_seed(1)).outputs
    plain = InputMixup(Linear(), inputs, labels, 3, 4)
    mixed = plain.sample(1.0, 24, torch.Generator().manual_seed(1)).outputs.features
    assert mixed is not None
    parts = []
    for batch in mixed.split(12):  # R·S
        centred = batch - batch.mean(0)
        parts.append(centred / (batch.var(0, correction=0) + net.norm.eps).sqrt())
    assert found.features is not None
    torch.testing.assert_close(found.features, torch.cat(parts)[:n_samples])


def test_batch_statistics_change_nothing_of_the_network(labels: Tensor, inputs: Tensor) -> None:
    net = normalised_network()
    before = states(net)
    InputMixup(Backbone(net), inputs, labels, 3, 4, batch_statistics=True).sample(1.0, 24)
    assert states(net) == before
    assert all(module.training for module in net.modules())


def test_batch_statistics_change_nothing_of_a_network_that_fails(
    labels: Tensor, inputs: Tensor
) -> None:
    net = normalised_network()
    before = states(net)
    inputs[1:] = torch.nan  # The first input is only looked at for the number of classes.
    source = InputMixup(Backbone(net), inputs, labels, 3, 4, batch_statistics=True)
    with pytest.raises(FloatingPointError):
        source.sample(1.0, 24)
    assert states(net) == before
    assert all(module.training for module in net.modules())


def test_without_batch_statistics_the_running_ones_normalise(
    labels: Tensor, inputs: Tensor
) -> None:
    net = normalised_network()
    found = InputMixup(Backbone(net), inputs, labels, 3, 4).sample(
        1.0, 24, torch.Generator().manual_seed(1)
    )
    mixed = InputMixup(Linear(), inputs, labels, 3, 4).sample(
        1.0, 24, torch.Generator().manual_seed(1)
    )
    assert found.outputs.features is not None
    torch.testing.assert_close(found.outputs.features, net.eval().norm(mixed.outputs.features))


def test_batch_statistics_need_a_network(labels: Tensor, inputs: Tensor) -> None:
    backbone = Linear()
    with pytest.raises(TypeError, match=r"`backbone` must be a Backbone .*got function\. Pass"):
        InputMixup(lambda x: backbone(x), inputs, labels, batch_statistics=True)


@pytest.mark.parametrize(("beta", "n"), [(0.0, 5), (-1.0, 5), (float("nan"), 5), (1.0, 0)])
def test_sampling_nothing_or_with_no_beta_is_rejected(beta: float, n: int) -> None:
    net, inputs = Linear(), torch.randn(6, D)
    source = FeatureMixup(net.head, net(inputs), torch.arange(6) % K)
    with pytest.raises(
        ValueError, match=rf"`beta` and `n_samples` must be positive; got {beta} and {n}."
    ):
        source.sample(beta, n)
