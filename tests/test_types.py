import numpy as np
import pandas as pd
import pytest
import torch

from simplexcal import Outputs, Prediction


def test_the_label_is_the_largest_logit() -> None:
    assert Outputs(torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]])).label.tolist() == [1, 0]


def test_rows_can_be_taken_and_moved_together() -> None:
    outputs = Outputs(torch.randn(5, 3), torch.randn(5, 2))
    part = outputs[torch.tensor([4, 0])].to(torch.float64)
    assert len(part) == 2
    assert part.features is not None
    assert part.features.dtype == part.logits.dtype == torch.float64
    assert (outputs.n_classes, outputs.n_features, Outputs(outputs.logits).n_features) == (
        3,
        2,
        None,
    )


def test_half_precision_becomes_float32() -> None:
    outputs = Outputs(
        torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(2, 4, dtype=torch.float16)
    )
    assert outputs.features is not None
    assert outputs.logits.dtype == outputs.features.dtype == torch.float32


def test_probabilities_are_taken_only_when_they_are_called_so() -> None:
    probs = torch.tensor([[0.7, 0.3], [1.0, 0.0]])
    torch.testing.assert_close(Outputs.from_probs(probs).logits.softmax(-1), probs)


def test_probabilities_may_be_as_inexact_as_their_dtype(generator: torch.Generator) -> None:
    logits = 2 * torch.randn(1000, 10, generator=generator)
    for dtype in (torch.bfloat16, torch.float16):
        assert len(Outputs.from_probs(logits.to(dtype).softmax(-1))) == 1000
    assert len(Outputs.from_probs(torch.tensor([[1.0000001, 0.0]]))) == 1


def test_the_label_is_the_largest_probability_where_logarithms_round_to_one_number(
    generator: torch.Generator,
) -> None:
    probs = torch.full((2000, 3), 0.3)
    probs[:, 1] += 0.1 * torch.rand(2000, generator=generator)
    probs[:, 0] = torch.nextafter(probs[:, 1], torch.zeros(()))
    probs[:, 2] = 1 - probs[:, 0] - probs[:, 1]
    for given in (probs, probs.flip(-1), probs.double()):
        assert torch.equal(Outputs.from_probs(given).label, given.argmax(-1))


def test_a_probability_of_zero_is_the_same_in_every_dtype() -> None:
    probs = torch.tensor([[0.7, 0.3], [1.0, 0.0]])
    torch.testing.assert_close(
        Outputs.from_probs(probs).logits, Outputs.from_probs(probs.double()).logits.float()
    )


@pytest.mark.parametrize("logits", [torch.tensor([[2.0, -1.0]]), torch.tensor([[0.4, 0.4]])])
def test_logits_where_probabilities_are_meant_are_rejected(logits: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"`probs` must be .*If these are logits, apply softmax"):
        Outputs.from_probs(logits)


def test_shapes_are_checked() -> None:
    with pytest.raises(
        ValueError, match=r"`logits` must have shape \(N, K\) with K >= 2 classes; got \(5,\)"
    ):
        Outputs(torch.zeros(5))
    with pytest.raises(
        ValueError, match=r"`features` must have shape \(N, D\) with N = 5 .* got \(5, 2, 2\)"
    ):
        Outputs(torch.zeros(5, 3), torch.zeros(5, 2, 2))


def test_confidence_is_the_probability_of_the_label() -> None:
    prediction = Prediction(torch.tensor([[0.5, 0.5], [0.1, 0.9]]), torch.tensor([1, 1]))
    assert prediction.confidence.tolist() == pytest.approx([0.5, 0.9])
    assert len(prediction) == 2


def prediction(n: int, generator: torch.Generator) -> Prediction:
    probs = torch.randn(n, 3, generator=generator).softmax(-1)
    return Prediction(probs, probs.argmax(-1), torch.rand(n, generator=generator))


def equal(one: Prediction | Outputs, other: Prediction | Outputs) -> bool:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(x is y is None or torch.equal(x, y) for x, y in pairs)


def test_records_are_joined_again_after_they_were_cut(generator: torch.Generator) -> None:
    outputs = Outputs(torch.randn(7, 3, generator=generator), torch.zeros(7, 2))
    for record in (prediction(7, generator), outputs, Outputs(outputs.logits)):
        parts = [record[:2], record[2:3], record[3:3], record[3:]]
        joined = type(record).cat(parts)  # type: ignore[arg-type]
        assert type(joined) is type(record)
        assert equal(joined, record)
        assert type(record).cat([record]) is record  # type: ignore[list-item]


def test_nothing_cannot_be_joined() -> None:
    for kind in (Outputs, Prediction):
        with pytest.raises(ValueError, match=r"^`parts` is empty\. Pass at least one\.$"):
            kind.cat([])


def test_a_prediction_moves_with_what_it_has(generator: torch.Generator) -> None:
    moved = prediction(4, generator).to("meta")
    assert moved.aleatoric is not None
    assert {x.device.type for x in (moved.probs, moved.label, moved.aleatoric)} == {"meta"}
    assert moved.epistemic is None


def test_outputs_take_arrays_and_lists() -> None:
    logits = [[0.5, 1.5], [2.5, 0.25]]
    for given in (logits, np.array(logits), pd.DataFrame(logits)):
        outputs = Outputs(given, np.ones((2, 3)))  # type: ignore[arg-type]
        assert torch.equal(outputs.logits.float(), torch.tensor(logits))
        assert outputs.n_features == 3
    assert torch.equal(
        Outputs.from_probs([[0.25, 0.75]]).logits.exp(), torch.tensor([[0.25, 0.75]])
    )


def test_many_inputs_are_printed_in_one_line() -> None:
    outputs = Outputs(torch.zeros(3000, 4), torch.zeros(3000, 8))
    assert repr(outputs) == "Outputs(3000 inputs, 4 classes: logits, features)"
    assert repr(Outputs(outputs.logits)) == "Outputs(3000 inputs, 4 classes: logits)"
    prediction = Prediction(outputs.logits.softmax(-1), outputs.label, aleatoric=torch.zeros(3000))
    assert repr(prediction) == "Prediction(3000 inputs, 4 classes: probs, label, aleatoric)"


def test_outputs_leave_the_graph_of_the_network_behind() -> None:
    net = torch.nn.Linear(3, 2)
    features = torch.ones(4, 3)
    outputs = Outputs(net(features), features * net.weight.sum())
    assert outputs.features is not None
    assert not outputs.logits.requires_grad
    assert not outputs.features.requires_grad
    leaf = torch.zeros(4, 2, requires_grad=True)
    assert Outputs(leaf).logits is leaf


@pytest.mark.parametrize("row", [2, -1, np.int64(2), torch.tensor(2)])
def test_one_input_is_a_record_of_one(row: int, generator: torch.Generator) -> None:
    many = prediction(3, generator)
    one = many[row]
    assert repr(one) == "Prediction(1 input, 3 classes: probs, label, aleatoric)"
    assert torch.equal(one.probs, many.probs[2:])
    assert len(Outputs(many.probs)[row]) == 1
    assert [len(record) for record in many] == [1, 1, 1]  # type: ignore[attr-defined]
    with pytest.raises(IndexError):
        many[3]


def test_rows_are_chosen_by_lists_and_arrays_too(generator: torch.Generator) -> None:
    many = prediction(3, generator)
    for rows in ([0, 2], np.array([0, 2]), np.array([True, False, True])):
        assert torch.equal(many[rows].probs, many.probs[[0, 2]])  # type: ignore[index]
