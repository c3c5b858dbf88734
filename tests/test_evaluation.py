import dataclasses
import math

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

import simplexcal as sc
from simplexcal import metrics
from simplexcal.types import Prediction


def prediction(n: int, k: int = 5, seed: int = 0, sharpness: float = 2.0) -> Prediction:
    generator = torch.Generator().manual_seed(seed)
    probs = (sharpness * torch.randn(n, k, generator=generator)).softmax(-1)
    uncertainty = torch.rand(3, n, generator=generator)
    return Prediction(probs, probs.argmax(-1), *uncertainty)


def drawn(probs: Tensor, seed: int = 1) -> Tensor:
    return torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(seed)).squeeze(-1)


def test_every_number_is_the_metric_of_that_name() -> None:
    p = prediction(400)
    labels = drawn(p.probs)
    e, correct = sc.evaluate(p, labels, n_bins=15), p.label == labels
    assert (e.n, e.n_classes) == (400, 5)
    for name in ("accuracy", "nll", "brier"):
        assert getattr(e, name) == pytest.approx(
            getattr(metrics, name)(p.probs, labels).item(), abs=1e-7
        )
    assert e.classwise_ece == metrics.classwise_ece(p.probs, labels, 15).item()
    for name in ("ece", "adaptive_ece", "mce", "rms_ce"):
        assert getattr(e, name) == getattr(metrics, name)(p.confidence, correct, 15).item()
    assert e.smooth_ece == metrics.smooth_ece(p.confidence, correct).item()
    assert e.aurc == metrics.aurc(p.confidence, correct).item()
    assert (e.ece_floor, e.ece_floor_95) == tuple(
        x.item() for x in metrics.noise_floor(p.confidence, 15)
    )
    assert (e.ece_low, e.ece_high) == tuple(
        x.item() for x in metrics.ece_interval(p.confidence, correct, 15)
    )
    assert e.brier_calibration + e.brier_refinement == pytest.approx(e.brier, abs=1e-6)
    assert e.confidence == pytest.approx(p.confidence.mean().item())
    assert p.aleatoric is not None
    assert e.aleatoric == pytest.approx(p.aleatoric.mean().item())
    assert e.ece_floor < e.ece_floor_95


def test_correct_is_the_class_of_the_network_also_where_probabilities_tie() -> None:
    tied = Prediction(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([1, 1]))
    assert sc.evaluate(tied, torch.tensor([1, 1])).accuracy == 1
    assert metrics.accuracy(tied.probs, torch.tensor([1, 1])) == 0


def test_the_record_is_plain_frozen_and_the_same_each_time() -> None:
    p = prediction(50)
    labels = drawn(p.probs)
    state = torch.get_rng_state()
    e = sc.evaluate(p, labels)
    assert e == sc.evaluate(p, labels)
    assert torch.equal(torch.get_rng_state(), state)
    assert list(e.as_dict()) == [field.name for field in dataclasses.fields(e)]
    assert {type(value) for value in e.as_dict().values()} == {int, float}
    with pytest.raises(dataclasses.FrozenInstanceError):
        e.ece = 0.0  # type: ignore[misc]


def test_a_generator_draws_the_floor_and_the_interval(generator: torch.Generator) -> None:
    p = prediction(50)
    first, second = (sc.evaluate(p, drawn(p.probs), generator=generator) for _ in range(2))
    assert first.ece == second.ece
    assert first.ece_floor != second.ece_floor


def test_what_a_method_does_not_have_is_none() -> None:
    p = prediction(20)
    e = sc.evaluate(Prediction(p.probs, p.label), drawn(p.probs))
    assert e.aleatoric is e.epistemic is None


def test_one_prediction_and_half_precision_are_evaluated_too() -> None:
    for p in (prediction(1), prediction(30, k=2)):
        half = Prediction(p.probs.half(), p.label)
        assert all(
            math.isfinite(value)
            for value in sc.evaluate(half, p.label).as_dict().values()
            if value is not None
        )


def test_labels_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^`labels` must have shape \(3,\)"):
        sc.evaluate(prediction(3), torch.tensor([0, 1]))
    with pytest.raises(
        ValueError, match=r"^`labels` must be in 0..4 for 5 classes; found 5 at position 1\."
    ):
        sc.evaluate(prediction(2), torch.tensor([0, 5]))
    with pytest.raises(TypeError, match=r"^`labels` must be .* numbers; got list\."):
        sc.evaluate(prediction(2), ["cat", "dog"])


def test_probabilities_and_lists_are_evaluated_too() -> None:
    p = prediction(40)
    labels = drawn(p.probs)
    expected = sc.evaluate(Prediction(p.probs, p.label), labels)
    assert sc.evaluate(p.probs, labels) == expected
    assert sc.evaluate(p.probs.numpy(), labels.numpy()) == expected
    assert sc.evaluate(p.probs.tolist(), labels.tolist()) == expected
    with pytest.raises(ValueError, match=r"^`probs` must be between 0 and 1; .* apply softmax"):
        sc.evaluate(10 * p.probs, labels)
    with pytest.raises(TypeError, match=r"^`probs` must be .* numbers; got Outputs\."):
        sc.evaluate(sc.Outputs(p.probs), labels)  # type: ignore[arg-type]


def test_bins_and_generator_are_checked() -> None:
    p = prediction(3)
    with pytest.raises(ValueError, match=r"^`n_bins` must be at least 1; got 0\.$"):
        sc.evaluate(p, p.label, n_bins=0)
    with pytest.raises(TypeError, match=r"^`generator` must be a torch.Generator or None; got int"):
        sc.evaluate(p, p.label, generator=1)  # type: ignore[arg-type]


def test_the_table_by_hand() -> None:
    p = prediction(100)
    e = dataclasses.replace(
        sc.evaluate(p, drawn(p.probs)),
        accuracy=0.5,
        ece=0.0123,
        ece_low=0.0,
        ece_high=0.0234,
        ece_floor=0.01,
        ece_floor_95=0.02,
        smooth_ece=0.011,
        nll=1.5,
        brier=0.25,
        aurc=0.125,
    )
    lines = sc.tabulate({"ts": e, "a longer name": e}).splitlines()
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == (
        ["ts", "50.00", "1.23", "0.00 to 2.34", "2.00", "1.5000", "12.50"]
    )
    assert [cell.strip() for cell in lines[0].strip("|").split("|")][:4] == (
        ["method", "acc. %", "ECE %", "95 % interval"]
    )
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= 80
    assert set(lines[1]) == set("|:- ")


def test_ood_inputs_are_the_positive_class_and_confidence_is_negated() -> None:
    inside, outside = prediction(60, sharpness=4.0), prediction(40, seed=1, sharpness=1.0)
    e = sc.evaluate_ood(inside, outside)
    positive = [0] * 60 + [1] * 40
    assert (e.n_in, e.n_out) == (60, 40)
    assert e.confidence_auroc > 0.7
    for score in ("confidence", "aleatoric", "epistemic", "mutual_information"):
        values = torch.cat([getattr(inside, score), getattr(outside, score)])
        values = -values if score == "confidence" else values
        ours, theirs = e.as_dict()[f"{score}_auroc"], roc_auc_score(positive, values)
        assert ours == pytest.approx(theirs, abs=1e-6)
        assert e.as_dict()[f"{score}_aupr"] == pytest.approx(
            average_precision_score(positive, values), abs=1e-6
        )
        expected = metrics.fpr_at_tpr(values, torch.tensor(positive)).item()
        assert e.as_dict()[f"{score}_fpr_95"] == pytest.approx(expected)


def test_a_score_that_one_side_lacks_is_none() -> None:
    p = prediction(10)
    e = sc.evaluate_ood(p, Prediction(p.probs, p.label, p.aleatoric))
    assert e.aleatoric_auroc == 0.5
    assert e.epistemic_auroc is e.mutual_information_fpr_95 is None


def printed_cells(record: object) -> dict[str, list[str]]:
    table, _ = str(record).split("\n\n")
    lines = table.splitlines()
    assert len(set(map(len, lines))) == 1
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def test_an_evaluation_is_printed_as_a_table() -> None:
    p = prediction(400)
    e = sc.evaluate(p, drawn(p.probs))
    assert max(map(len, str(e).splitlines())) <= 80
    cells = printed_cells(e)
    assert cells["accuracy %"] == [f"{100 * e.accuracy:.2f}"]
    assert cells["confidence %"] == [f"{100 * e.confidence:.2f}"]
    assert cells["ECE %"] == [f"{100 * e.ece:.2f}"]
    assert cells["NLL"] == [f"{e.nll:.4f}"]
    assert cells["Brier"] == [f"{e.brier:.4f}"]
    notes = " ".join(str(e).split("\n\n")[1].split())
    assert notes.startswith("400 inputs of 5 classes.")
    assert f"up to {100 * e.ece_floor_95:.2f} %." in notes
    assert notes.endswith(f" is {100 * e.ece_low:.2f} to {100 * e.ece_high:.2f} %.")
    assert repr(e).startswith("Evaluation(n=400, n_classes=5, accuracy=")


def test_an_ood_evaluation_is_printed_as_a_table_of_the_scores_that_there_are() -> None:
    inside = prediction(300)
    outside = prediction(100, seed=1, sharpness=0.5)
    e = sc.evaluate_ood(inside, outside)
    assert max(map(len, str(e).splitlines())) <= 80
    cells = printed_cells(e)
    for name, title in (("confidence", "confidence"), ("epistemic", "epistemic uncertainty")):
        numbers = [getattr(e, f"{name}_{number}") for number in ("auroc", "aupr", "fpr_95")]
        assert cells[title] == [f"{100 * value:.1f}" for value in numbers]
    assert "AUPR: average precision where OOD inputs are to be found; 25.0 is chance." in " ".join(
        str(e).split()
    )
    bare = sc.evaluate_ood(
        Prediction(inside.probs, inside.label), Prediction(outside.probs, outside.label)
    )
    assert list(printed_cells(bare)) == ["score", ":---------", "confidence"]
