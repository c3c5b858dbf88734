"""The comparison with other packages: scores by hand, paired intervals, and the page."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments.page import rivals as page
from experiments.rivals import benchmark
from experiments.rivals.cases import Case, Split, _estimator_outputs, _scikit_learn_cases
from experiments.rivals.methods import Predict, Rival, all_rivals
from experiments.rivals.records import Difference, RivalRecord, read_records, write_records
from sklearn.ensemble import RandomForestClassifier
from torch import Generator, Tensor

import simplexcal as sc


def simulate(n: int, k: int = 4, seed: int = 0) -> tuple[sc.Outputs, Tensor]:
    g = Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=g, dtype=torch.float64)
    labels = (logits / 2).softmax(-1).multinomial(1, generator=g).squeeze(1)
    return sc.Outputs(logits), labels


def make_split(seed: int) -> Split:
    outputs, labels = simulate(600)
    order = torch.randperm(600, generator=Generator().manual_seed(seed))
    pool, test = order.chunk(2)
    return Split(outputs[pool], labels[pool], outputs[test], labels[test], test)


def named(package: str, name: str) -> Rival:
    return next(x for x in all_rivals() if (x.package, x.name) == (package, name))


def fixed(outputs: sc.Outputs, labels: Tensor) -> Predict:
    """Return the fit of a method that always gives the same probabilities."""
    del outputs, labels
    probs = torch.tensor([0.7, 0.3, 0.0, 0.0])
    return lambda test: probs.expand(len(test), -1)


def failing(outputs: sc.Outputs, labels: Tensor) -> Predict:
    raise RuntimeError(f"no fit of {len(labels)}\n inputs of {outputs.n_classes} classes")


def test_scores_by_hand() -> None:
    outputs = sc.Outputs(torch.tensor([[2.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]))
    labels = torch.tensor([0, 2])
    split = Split(outputs, labels, outputs, labels, torch.arange(2))
    found = benchmark.score(fixed, split, 2)
    assert found.nll.tolist() == pytest.approx([-math.log(0.7), 52 * math.log(2)])
    assert found.brier.tolist() == pytest.approx([0.3**2 + 0.3**2, 0.7**2 + 0.3**2 + 1])
    assert found.numbers["accuracy"] == 0.5
    assert found.numbers["ece"] == pytest.approx(0.2)
    assert found.numbers["changed"] == 0.5


def test_an_interval_is_that_of_numpys_draws_of_inputs() -> None:
    g = Generator().manual_seed(0)
    ids = [torch.arange(60), torch.arange(30, 90)]
    values = [torch.randn(60, generator=g, dtype=torch.float64) + 0.2 for _ in ids]
    found = benchmark.bootstrap(values, ids)
    total = np.zeros(90)
    count = np.zeros(90)
    for value, rows in zip(values, ids, strict=True):
        total[rows.numpy()] += value.numpy()
        count[rows.numpy()] += 1
    rng = np.random.default_rng(0)
    drawn = rng.integers(90, size=(20_000, 90))
    means = total[drawn].sum(1) / count[drawn].sum(1)
    assert found.mean == pytest.approx(np.concatenate([v.numpy() for v in values]).mean())
    spread = means.std()
    expected = np.quantile(means, [0.025, 0.975])
    # A quantile of 1000 draws has a standard error of about 0.08 spreads.
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=0.4 * spread)


def test_a_method_that_fails_in_a_split_has_no_score() -> None:
    rivals = [Rival("simplexcal", "STS", named("simplexcal", "TS").fit)]
    rivals += [Rival("a", "fails", failing), Rival("a", "for three", fixed, max_classes=3)]
    rivals += [Rival("a", "fixed", fixed)]
    case = Case("name", "group", make_split)
    reference, failed, other = benchmark.compare(case, rivals, 2, 100, {})
    assert failed.failures == ["RuntimeError: no fit of 100 inputs of 4 classes"]
    assert failed.nll is None
    assert failed.nll_difference is None
    assert reference.nll_difference == Difference(0.0, 0.0, 0.0)
    assert reference.changed == 0
    assert other.method == "fixed"
    assert other.nll is not None
    assert reference.nll is not None
    assert other.nll_difference is not None
    assert other.nll_difference.mean == pytest.approx(other.nll - reference.nll)
    assert other.nll_difference.low > 0
    assert (other.n, other.n_splits, other.n_test, other.n_classes) == (100, 2, 300, 4)


def test_splits_after_the_first_may_be_fitted_in_a_quicker_way() -> None:
    seen = []

    def fit(name: str) -> Rival:
        def record(outputs: sc.Outputs, labels: Tensor) -> Predict:
            seen.append(name)
            return fixed(outputs, labels)

        return Rival("simplexcal", "STS", record)

    rival = replace(fit("whole"), untimed_fit=fit("quick").fit)
    list(benchmark.compare(Case("name", "group", make_split), [rival], 3, 100, {}))
    assert seen == ["whole", "quick", "quick"]


def test_the_quick_fit_of_sts_gives_the_same_probabilities() -> None:
    split = make_split(0)
    sts = named("simplexcal", "STS")
    assert sts.untimed_fit is not None
    quick = sts.untimed_fit(split.pool, split.pool_labels)(split.test)
    whole = sc.SimplexTemperatureScaling(n_steps=20).fit(split.pool, split.pool_labels)(split.test)
    assert torch.equal(quick, whole.probs)


@pytest.mark.parametrize("k", [2, 4])
def test_scikit_learn_gets_the_logits(k: int) -> None:
    outputs, labels = simulate(400, k)
    theirs = named("scikit-learn", "temperature").fit(outputs, labels)(outputs)
    ours = named("simplexcal", "TS").fit(outputs, labels)(outputs)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=2e-3)


def test_a_forest_has_no_probability_of_zero() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 3)), np.arange(90) % 3
    forest = RandomForestClassifier(10, random_state=0).fit(x, y)
    probs = _estimator_outputs(forest, x).logits.exp()
    assert probs.min().item() == pytest.approx(0.05)
    assert probs.max().item() == 1


def test_the_parts_of_a_small_data_set_do_not_overlap() -> None:
    case = next(case for case in _scikit_learn_cases() if case.name == "digits, naive Bayes")
    split = case.split(0)
    assert len(split.pool_labels) == 500
    assert len(split.test_labels) == len(split.test_ids.unique()) == 897
    assert max(case.sizes) == 500


def made(method: str, n: int, low: float, changed: float = 0.0) -> RivalRecord:
    difference = Difference(low + 0.05, low, low + 0.1)
    if method == "STS":
        difference = Difference(0.0, 0.0, 0.0)
    return RivalRecord(
        case="case",
        group="group",
        n_classes=3,
        package="simplexcal" if method == "STS" else "other",
        method=method,
        n=n,
        n_splits=2,
        n_test=50,
        failures=[],
        accuracy=0.9,
        nll=0.3 + difference.mean,
        brier=0.2,
        ece=0.0123,
        smooth_ece=0.02,
        changed=changed,
        fit_seconds=4.0 if method == "STS" else 1.0,
        predict_seconds=2.0,
        nll_difference=difference,
        brier_difference=difference,
        versions={"other": "1.2"},
    )


def test_the_tables_by_hand() -> None:
    records = [made("STS", n, 0.0) for n in (100, 500)]
    records += [made("better", 100, -0.2, 0.25), made("better", 500, 0.01)]
    records += [made("equal", 100, -0.05), replace(made("equal", 500, 0), nll=None, failures=["E"])]
    records[-1] = replace(records[-1], nll_difference=None, brier_difference=None)
    others = records[2:]
    assert page.totals_table(others).rows == [
        ["other: better", "2", "1", "0", "1", "1", "0", "1", "0"],
        ["other: equal", "2", "0", "1", "0", "0", "1", "0", "1"],
    ]
    assert page.size_table(records, [100, 500]).rows == [
        ["STS", "NLL 0.3000", "NLL 0.3000"],
        ["other: better", "-0.1500 (0:1)", "+0.0600 (1:0)"],
        ["other: equal", "+0.0000 (0:0)", "failed 1 of 1"],
    ]
    assert page.wins_table(others).rows == [
        ["case", "100", "other: better", "-0.1500", "-0.2000 to -0.1000", "25.00"]
    ]
    at_500 = [record for record in records if record.n == 500]
    better = page.score_table(at_500).rows[1]
    assert better[1:] == ["0.3600", "0.2000", "1.23", "2.00", "90.00", "0.00", "0.25", "1"]
    assert page.failures_table(others).rows == [["other: equal", "`E`", "1"]]


def test_records_are_written_and_read(tmp_path: Path) -> None:
    records = [made("STS", 100, 0.0), made("better", 100, -0.2)]
    write_records(records, tmp_path / "new" / "rivals.jsonl")
    assert read_records(tmp_path / "new" / "rivals.jsonl") == records
    assert read_records(tmp_path / "none.jsonl") == []
