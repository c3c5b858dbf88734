"""Dense outputs: rows and maps, labels that count, and the sample of positions."""

import math

import pytest
import torch
from torch import Tensor

from simplexcal import Outputs, Prediction, Uncalibrated
from simplexcal.dense import (
    DenseOutputs,
    PositionSample,
    ignored_labels,
    position_labels,
    prediction_maps,
    stratified_keys,
    to_maps,
    to_rows,
)

K = 3


def dense_outputs(shape: tuple[int, ...], features: int = 0) -> DenseOutputs:
    """Return outputs whose first logit is the number of the position."""
    n = math.prod(shape)
    logits = torch.randn(n, K, generator=torch.Generator().manual_seed(0))
    logits[:, 0] = torch.arange(n)
    columns = None
    if features:
        columns = torch.arange(n).view(-1, 1).expand(-1, features).float()
    return DenseOutputs(logits, columns, shape)


# --- rows and maps ---


@pytest.mark.parametrize("shape", [(2, 5), (2, 4, 5), (2, 3, 4, 5)])
def test_rows_are_positions_in_the_order_of_the_labels(shape: tuple[int, ...]) -> None:
    rows = torch.randn(math.prod(shape), K)
    maps = to_maps(rows, shape)
    classes_last = len(shape) == 2
    assert maps.shape == ((*shape, K) if classes_last else (shape[0], K, *shape[1:]))
    assert torch.equal(to_rows(maps), rows)
    assert torch.equal(maps.argmax(-1 if classes_last else 1).flatten(), rows.argmax(-1))


def test_a_prediction_of_maps_has_the_confidence_of_its_rows() -> None:
    rows = Uncalibrated().fit(torch.randn(60, K), torch.arange(60) % K)(torch.randn(60, K))
    for shape in ((4, 15), (3, 4, 5)):
        maps = prediction_maps(rows, shape)
        assert maps.label.shape == shape
        assert torch.equal(maps.confidence.flatten(), rows.confidence)
        assert len(maps) == shape[0]
        assert len(maps[:2]) == 2
        assert f"{shape[0]} inputs, {K} classes" in repr(maps)
        both = Prediction.cat([maps, maps])
        assert torch.equal(both.probs[shape[0] :], maps.probs)


def test_dense_outputs_are_outputs_of_rows() -> None:
    outputs = dense_outputs((2, 3, 4), features=5)
    assert len(outputs) == 24
    assert type(outputs[:7]) is Outputs
    assert outputs.to(torch.float64).shape == (2, 3, 4)
    assert outputs.to(torch.float64).logits.dtype == torch.float64
    assert len(Outputs.cat([outputs, outputs])) == 48
    assert "24 inputs" in repr(outputs)


# --- which positions count ---


def test_by_default_minus_100_is_ignored_and_255_where_it_is_no_class() -> None:
    assert ignored_labels(None, 21) == (-100, 255)
    assert ignored_labels(None, 256) == (-100,)
    assert ignored_labels(11, 11) == (11,)
    assert ignored_labels([0, 7], 11) == (0, 7)


def test_ignored_labels_and_masked_tokens_do_not_count() -> None:
    outputs = dense_outputs((2, 4))
    labels = torch.tensor([[0, 1, -100, 2], [255, 1, 1, 7]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    found, counts = position_labels(labels, outputs, None, mask)
    assert counts.tolist() == [True, True, False, True, False, True, True, False]
    assert found[counts].tolist() == [0, 1, 2, 1, 1]


def test_labels_of_images_may_have_a_channel_and_any_integer_type() -> None:
    outputs = dense_outputs((2, 2, 2))
    labels = torch.tensor([0, 1, 2, 255, 0, 1, 2, 255], dtype=torch.uint8).view(2, 1, 2, 2)
    found, counts = position_labels(labels.numpy(), outputs)
    assert found[counts].tolist() == [0, 1, 2, 0, 1, 2]


def test_labels_of_another_size_say_what_to_do() -> None:
    outputs = dense_outputs((2, 2, 2))
    with pytest.raises(ValueError, match=r"shape \(2, 2, 2\).*got \(2, 8, 8\).*interpolate"):
        position_labels(torch.zeros(2, 8, 8, dtype=torch.long), outputs)
    with pytest.raises(ValueError, match=r"for positions; got \(2,\)"):
        position_labels(torch.zeros(2, dtype=torch.long), outputs)


def test_a_label_that_is_no_class_is_an_error() -> None:
    outputs = dense_outputs((1, 3))
    with pytest.raises(ValueError, match=r"0\.\.2 for 3 classes; found 3"):
        position_labels(torch.tensor([[0, 1, 3]]), outputs)


# --- the sample ---


def sample(shape: tuple[int, ...], labels: Tensor, n: int, batch: int) -> PositionSample:
    kept = PositionSample(n)
    outputs = dense_outputs(shape, features=2)
    size = len(outputs) // shape[0]
    for start in range(0, shape[0], batch):
        rows = slice(start * size, (start + batch) * size)
        part = DenseOutputs(outputs[rows].logits, outputs[rows].features, (batch, *shape[1:]))
        kept.add(part, *position_labels(labels[start : start + batch], part))
    return kept


def test_keys_lie_one_in_each_nth_of_a_stratum() -> None:
    strata = torch.randint(5, (400,), generator=torch.Generator().manual_seed(1))
    keys = stratified_keys(strata, torch.Generator().manual_seed(2))
    for stratum in range(5):
        own = keys[strata == stratum].sort().values
        assert torch.equal((own * len(own)).floor(), torch.arange(len(own), dtype=torch.float64))


def test_each_class_of_each_image_gives_its_share() -> None:
    n_images = 20
    labels = (torch.arange(300) % 10 == 0).long().repeat(n_images, 1).view(n_images, 15, 20)
    kept = sample(labels.shape, labels, 1000, batch=4)
    logits, _, found = kept.columns()
    assert (kept.n_inputs, kept.n_positions) == (n_images, 6000)
    assert len(found) == 1000
    position = logits[:, 0].long()
    assert torch.equal(labels.flatten()[position], found)
    assert torch.equal(position, position.sort().values)
    for image in range(n_images):
        own = found[position // 300 == image]
        # 1000 / 6000 of 30 and of 270 positions are 5 and 45.
        assert abs(int((own == 1).sum()) - 5) <= 1
        assert abs(int((own == 0).sum()) - 45) <= 1


def test_a_sample_represents_all_positions_and_does_not_depend_on_chance() -> None:
    labels = torch.randint(K, (10, 200), generator=torch.Generator().manual_seed(3))
    first = sample(labels.shape, labels, 500, batch=2).columns()
    again = sample(labels.shape, labels, 500, batch=2).columns()
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    # The mean of a stratified sample of a linear trend; its error is below that of a simple one.
    mean = first[0][:, 0].mean().item()
    assert abs(mean - 999.5) < 5 * 2000 / 12**0.5 / 500**0.5


def test_a_small_data_set_is_kept_whole() -> None:
    labels = torch.tensor([[0, 1, 2, -100], [2, 1, 0, 0]])
    logits, features, found = sample(labels.shape, labels, 100, batch=1).columns()
    assert logits[:, 0].tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert features[:, 0].tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert found.tolist() == [0, 1, 2, 2, 1, 0, 0]


def test_without_a_position_that_counts_there_is_no_sample() -> None:
    labels = torch.full((2, 4), -100)
    with pytest.raises(ValueError, match="no position that counts"):
        sample(labels.shape, labels, 100, batch=1).columns()
