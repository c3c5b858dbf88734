import math

import pytest
import torch
from torch import Tensor, nn

from simplexcal import _validation, mixup
from simplexcal.backbone import Backbone
from simplexcal.mixup import FeatureMixup, InputMixup, log_dirichlet
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
    source, matrix = FeatureMixup(Linear().head, Linear()(inputs), labels), mixup._mixing_matrix

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


def test_a_missing_class_is_named(labels: Tensor, inputs: Tensor) -> None:
    labels = torch.where(labels == 2, 3, labels)
    with pytest.raises(
        ValueError, match=r"`labels` must hold every class, .* missing: 2\. Add such samples"
    ):
        InputMixup(Linear(), inputs, labels)


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
