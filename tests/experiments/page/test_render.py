"""From records to the page: the paper's rule for bold, tables and sentences by hand."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from experiments.config import paper
from experiments.config.paper import Number, best
from experiments.config.run_config import write_json
from experiments.config.studies import STUDIES
from experiments.page import figures, others, render, table1
from experiments.page.numbers import number, read, shown
from experiments.running.sampled_scores import MARGINS

SCORES: dict[str, float | None] = {
    f"{score}_{metric}": None if score == "mutual_information" else 0.9
    for score in (
        "confidence",
        "expected_entropy",
        "differential_entropy",
        "mutual_information",
        "energy",
    )
    for metric in ("auroc", "aupr", "fpr_95")
}


def record(
    study: str, row: str, seed: int, method: str, ece: float, nll: float, **more: Any
) -> dict[str, Any]:
    """Return a record with what the page reads."""
    return {
        "study": study,
        "row": row,
        "seed": seed,
        "method": method,
        "stranger": None,
        "trial": False,
        "beta": None,
        "accuracy": 0.9,
        "labels_preserved": True,
        "device": "cpu",
        "threads": 1,
        "training": {"at_once": 2, "seconds": 7.0, "device": "cpu"},
        "versions": {"torch": "2"},
        "timings": {"calibration": 1.5, "prediction": 0.25, "outputs": 0.5},
        "metrics": {
            "ece": ece,
            "nll": nll,
            "brier": nll / 2,
            "ece_floor": 0.005,
            "ece_floor_95": 0.01,
            "confidence": 0.8,
        },
        "validation": {"ece": ece / 2},
        "bins": {
            "edges": [0.0, 0.3, 0.6, 0.9, 1.0],
            "count": [0, 30, 10, 60],
            "confidence": [None, 0.5, 0.7, 0.95],
            "accuracy": [None, 0.4, 0.8, 0.99],
        },
        **more,
    }


def write(results: Path, made: dict[str, Any]) -> None:
    row = made["row"] if made["stranger"] is None else f"{made['row']}-{made['stranger']}"
    write_json(results / made["study"] / row / str(made["seed"]) / f"{made['method']}.json", made)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a folder with two seeds of Table 1's first row."""
    for method, errors, likelihoods in (
        ("none", (0.04, 0.05), (0.5, 0.4)),
        ("ts", (0.008, 0.012), (0.3, 0.19)),
        ("sts-paper", (0.0091, 0.0091), (0.31, 0.2)),
        ("sts", (0.010, 0.012), (0.29, 0.21)),
    ):
        for seed, (ece, nll) in enumerate(zip(errors, likelihoods, strict=True)):
            write(tmp_path, record("table1", "fmnist-lenet5", seed, method, ece, nll))
    return tmp_path


BOLD = {  # as the paper prints it
    "fmnist-lenet5": {"pts", "adats", "sts-paper"},
    "fmnist-resnet18": {"adats", "sts-paper"},
    "cifar10-vgg16-bn": {"sts-paper"},
    "cifar10-resnet18": {"pts", "adats", "sts-paper"},
    "cifar100-resnet50": {"adats", "sts-paper"},
    "cifar100-densenet121": {"sts-paper"},
    "stl10-vgg16-bn": {"sts-paper"},
    "stl10-resnet18": {"sts-paper"},
}


@pytest.mark.parametrize("row", BOLD)
def test_the_rule_for_bold_gives_the_papers_table(row: str) -> None:
    errors = {name: n for name, n in paper.TABLE1[row].items() if name != "accuracy"}
    assert best(errors) == BOLD[row]


@pytest.mark.parametrize(
    ("row", "stranger", "metric", "bold"),
    [
        ("fmnist-resnet18", "notmnist", "aupr", {4}),
        ("fmnist-resnet18", "notmnist", "auroc", {3, 4}),
        ("cifar10-resnet18", "svhn", "aupr", {0, 1, 2, 3, 4}),
        ("cifar10-resnet18", "svhn", "auroc", {0, 1, 2, 3, 4}),
        ("cifar10-resnet18", "lsun", "aupr", {4}),
        ("cifar10-resnet18", "lsun", "auroc", {4}),
    ],
)
def test_the_rule_for_bold_gives_the_papers_detection(
    row: str, stranger: str, metric: str, bold: set[int]
) -> None:
    columns = {str(i): Number(*n) for i, n in enumerate(paper.OOD[row, stranger][metric])}
    assert best(columns, largest=True) == {str(i) for i in bold}


def test_mean_and_deviation_by_hand(results: Path) -> None:
    group = read("table1", results)["fmnist-lenet5"]
    assert number(group["none"], "metrics", "ece", factor=100) == pytest.approx((4.5, 0.5**0.5))
    alone = number(group["none"][:1], "metrics", "ece")
    assert alone.mean == 0.04
    assert math.isnan(alone.std)  # not 0, which would say that networks agree
    assert shown(alone, bold=True) == "**0.04**"
    assert best({"a": alone, "b": Number(0.04, 0.0), "c": Number(0.05, 1.0)}) == {"a", "b"}


def test_a_row_by_hand(results: Path) -> None:
    lines = table1.row_table("fmnist-lenet5", read("table1", results)["fmnist-lenet5"]).splitlines()
    cells = {line.split(" | ")[0][2:]: line.split(" | ")[1:5] for line in lines[2:]}
    assert cells == {
        "pre-trained": ["2", "4.50 ± 0.71", "3.52 ± 0.15", "0.50, 1.00"],
        "TS": ["2", "1.00 ± 0.28", "", "0.50, 1.00"],  # 0.09 above the best, whose deviation is 0
        "STS, paper": ["2", "**0.91 ± 0.00**", "**0.91 ± 0.15**", "0.50, 1.00"],
        "STS, default": ["2", "1.10 ± 0.14", "", "0.50, 1.00"],
    }


def test_the_summary_by_hand(results: Path) -> None:
    write(
        results, record("table1", "cifar10-resnet18", 0, "ts", 0.02, 0.25)
    )  # a row without the default
    lines = table1.summary(dict(sorted(read("table1", results).items(), reverse=True))).splitlines()
    assert lines[0] == "| ECE % | pre-trained | TS | STS, paper | STS, default |"
    assert (
        lines[2]
        == "| Fashion-MNIST, LeNet-5 | 4.50 ± 0.71 | 1.00 ± 0.28 | **0.91 ± 0.00** | 1.10 ± 0.14 |"
    )
    assert lines[3] == "| CIFAR-10, ResNet-18 (one network) |  | **2.00** |  |  |"
    assert lines[7].endswith("| **0.2450 ± 0.0778** | **0.2550 ± 0.0778** | **0.2500 ± 0.0566** |")
    assert lines[-1] == "Of these 2 networks, the default has the lowest NLL of all methods for 1."


def test_gaps_between_confidence_and_accuracy_are_said_where_several_are_on_record(
    results: Path,
) -> None:
    row, halves = "fmnist-lenet5", {"ece": 0.01, "gap": 0.02}
    for method in ("ts", "sts"):
        assert "Mean confidence less accuracy" not in " ".join(
            table1.sentences(row, read("table1", results)[row])
        )
        for seed in (0, 1):  # confidence 0.8 and accuracy 0.9 on the test half
            write(results, record("table1", row, seed, method, 0.01, 0.3, validation=halves))
    said = " ".join(table1.sentences(row, read("table1", results)[row]))
    assert (
        "on the validation half and on the test half: TS +2.00 and -10.00, STS, default +2.00 and -10.00."
        in said
    )


def test_what_ets_gains_by_its_own_measure_is_said(results: Path) -> None:
    for seed, nll in (
        (0, 0.2),
        (1, 0.5),
    ):  # TS has 0.3 and 0.19, and Brier scores are half of these here
        write(results, record("table1", "fmnist-lenet5", seed, "ets", 0.01, nll))
    said = " ".join(table1.sentences("fmnist-lenet5", read("table1", results)["fmnist-lenet5"]))
    assert "its Brier score less that of TS is +0.0525, and lower for 1 of 2." in said


def test_what_is_said_follows_from_the_records(results: Path) -> None:
    said = " ".join(table1.sentences("fmnist-lenet5", read("table1", results)["fmnist-lenet5"]))
    assert "an accuracy of 90.00 ± 0.00 % (the paper's: 91.2 ± 0.17)" in said
    assert "STS, paper: an ECE of 0.91 ± 0.00 where the paper has 0.91 ± 0.15" in said
    assert (
        "below its 95 % floor, and so no proof of any error: pre-trained 0, TS 1, STS, paper 2, STS, default 1"
        in said
    )
    assert "pre-trained -0.2000 (2 of 2), TS +0.0050 (1 of 2), STS, paper -0.0050 (1 of 2)" in said
    assert (
        "with a confidence up to 0.9 and of the others: TS +5.0 and -4.0, STS, paper +5.0 and -4.0"
        in said
    )
    assert (
        "The default's mean ECE is 1.10; smaller are those of TS (1.00), STS, paper (0.91)." in said
    )


def betas_of(error: float) -> list[dict[str, Any]]:
    """Return the errors of three β: the second has ``error``, the smallest, on the test half; the third diverged."""
    halves = ((0.5, 0.01, 2 * error), (0.6, 0.02, error), (0.7, None, None))
    return [{"beta": b, "validation": {"ece": v}, "test": {"ece": t}} for b, v, t in halves]


def test_the_halves_exchanged_are_shown_alone_and_with_table_1(tmp_path: Path) -> None:
    for seed in range(2):
        for method, nll in (("ts", 0.3), ("ets", 0.25), ("sts", 0.2 + 0.2 * seed)):
            write(tmp_path, record("table1", "cifar10-resnet18", seed, method, 0.01, nll))
            exchanged = record(
                "exchanged",
                "cifar10-resnet18",
                seed,
                f"{method}-exchanged",
                0.02 + seed / 50,
                nll - 0.1,
            )
            write(tmp_path, exchanged)
        write(tmp_path, record("table1", "cifar10-resnet18", seed, "none", 0.05, 0.4))
    page = render.render(tmp_path)
    alone, both = page.split("### Not in the paper: the halves exchanged")[1].split(
        "The mean of both ways"
    )
    for text, error, likelihoods in (
        (alone, "3.00 ± 1.41", "0.2000 ± 0.0000 | **0.1500 ± 0.0000** | 0.2000 ± 0.1414"),
        (both, "2.00 ± 0.71", "0.2500 ± 0.0000 | **0.2000 ± 0.0000** | 0.2500 ± 0.1414"),
    ):
        assert "| ECE % | TS | ETS | STS, default |" in text
        assert f"| CIFAR-10, ResNet-18 |{f' **{error}** |' * 3}" in text
        assert f"| CIFAR-10, ResNet-18 | {likelihoods} |" in text
        assert "Of these 2 networks, the default has the lowest NLL of all methods for 1." in text


def test_a_study_of_several_rows_does_not_say_again_how_each_was_trained(tmp_path: Path) -> None:
    for row in ("cifar10-resnet18", "cifar10-vgg16-bn"):
        write(tmp_path, record("table1", row, 0, "none", 0.05, 0.4))
        write(tmp_path, record("variants", row, 0, "ets-nll", 0.01, 0.2))
    page = render.render(tmp_path)
    assert (
        page.count(
            "Pre-trained on cpu, 2 at once in 7 s; calibrated on cpu (1 thread); PyTorch 2.\n"
        )
        == 2
    )
    assert page.count("\nNetworks of Table 1; calibrated on cpu (1 thread); PyTorch 2.\n") == 1


def test_the_page_has_every_study_that_has_records(results: Path) -> None:
    row = "cifar10-resnet18"
    together = {
        "at_once": 3,
        "rows": ["stl10-resnet18-strided", "stl10-vgg16-bn"],
        "seconds": 9.0,
        "device": "cpu",
    }
    assert "Not run yet: Section 5.5 and Appendix D (`run dirichlet`)" in render.render(results)
    for seed in (0, 1):
        write(
            results,
            record("dirichlet", row, seed, "dirichlet", 0.6, 1.0, beta=0.5, betas=betas_of(0.3)),
        )
        write(results, record("table1", row, seed, "none", 0.03, 0.2))
        write(results, record("table1", row, seed, "sts-paper", 0.01, 0.2, betas=betas_of(0.01)))
        write(results, record("time", row, seed, "pts", 0.01, 0.2))
        write(results, record("mixes", row, seed, "sts-r20-s5", 0.01, 0.2))
        write(results, record("branch", row, seed, "sts-small", 0.01, 0.2, mixed_in="bfloat16"))
        write(results, record("fresh", row, seed, "sts-fresh", 0.01, 0.2))
        write(results, record("steps", row, seed, "sts-steps-3000", 0.01, 0.2))
        write(results, record("variants", row, seed, "ets-nll", 0.01, 0.2))
        of_samples = {"ece": 0.02, "changed": 0.003}
        write(results, record("variants", row, seed, "sts-features", 0.01, 0.2, sampled=of_samples))
        for method, nll in (("ts", 0.3), ("ets", 0.25), ("sts", 0.2 + 0.2 * seed)):
            write(results, record("few", row, seed, f"{method}-of-500", 0.01, nll))
        write(results, record("table1", "stl10-resnet18", seed, "none", 0.04, 0.5))
        for method in ("none", "sts-paper"):
            write(
                results,
                record(
                    "forms", "stl10-resnet18-strided", seed, method, 0.02, 0.5, training=together
                ),
            )
        strange = {"stranger": "svhn", "ood": SCORES}
        write(results, record("ood", row, seed, "sts-paper", 0.01, 0.2, **strange))
        write(results, record("uncertainty", row, seed, "none", 0.01, 0.2, **strange))
        margins = {"sampled_entropy_auroc": {f"{margin:g}": 0.5 + margin for margin in MARGINS}}
        write(
            results,
            record(
                "uncertainty",
                row,
                seed,
                "sts-features-4",
                0.01,
                0.2,
                stranger="svhn",
                ood={**SCORES, **margins},
            ),
        )
    assert "fitted by an earlier version" not in render.render(results)
    write(results, record("ood", row, 1, "sts-paper", 0.01, 0.3, stranger="svhn", ood=SCORES))
    page = render.render(results)
    assert (
        "- STS, paper on CIFAR-10, ResNet-18 in Appendix F was fitted by an earlier version than in Table 1."
        in page
    )
    assert (
        "| CIFAR-10, ResNet-18 | 2 | 60.00 ± 0.00 | 67.49 ± 3.84 | 80.00 ± 0.00 | 0.5 | 30.00 (β = 0.6) to 60"
        in page
    )
    assert "| 0.6 | 1.00 ± 0.00 |" in page
    assert "| 0.7 | diverged |" in page
    assert "| smallest, validation | β = 0.5 |" in page
    assert "| smallest, test | β = 0.6 |" in page
    assert "| smallest, paper | β = 0.6 |" in page
    assert "| CIFAR-10, ResNet-18 | PTS | cpu (1 thread) | 1.5 | 26142.5 | 0.75 | 18.4 |" in page
    assert "| STS, paper, R = 20, S = 5 | 2 | 1.00 ± 0.00 | 1.06 ± 0.34 | 1.10 ± 0.24 |" in page
    assert "| STS, paper, branch 512 → 256 | 2 | 1.00 ± 0.00 | 1.11 ± 0.16 | 1.10 ± 0.24 |" in page
    assert "| STS, paper, fresh mixes | 2 | 0.50 ± 0.00 | 1.00 ± 0.00 |" in page
    assert "| STS, paper, 3000 steps | 2 | 0.50 ± 0.00 | 1.00 ± 0.00 |" in page
    assert "| CIFAR-10, ResNet-18 | ETS, by likelihood | 2 | 0.50 ± 0.00 | 1.00 ± 0.00 |" in page
    assert "mixed features | 1.00 ± 0.00 | 2.00 ± 0.00 | 0.30 ± 0.00 |" in page
    likelihoods = "0.3000 ± 0.0000 | 0.2500 ± 0.0000 | 0.3000 ± 0.1414"
    assert f"| CIFAR-10, ResNet-18 | 500 |{' 1.00 ± 0.00 |' * 3} {likelihoods} | 1 of 2 |" in page
    assert "Lower in all: 1 of 2 with 500 labels." in page
    assert (
        "Pre-trained on cpu, 3 at once beside STL-10, VGG16-BN in 9 s; calibrated on cpu (1 thread)"
        in page
    )
    usual, form = "| STL-10, ResNet-18 |", "| STL-10, ResNet-18, 7 × 7 stem pooled to a quarter |"
    accuracy, likelihood = "2 | 90.00 ± 0.00 | 77.80 ± 0.83", "0.5000 ± 0.0000 |  |"
    assert (
        f"{usual} pre-trained | {accuracy} | 4.00 ± 0.00 | 12.88 ± 0.55 | {likelihood}\n"
        f"{form} pre-trained | {accuracy} | 2.00 ± 0.00 | 12.88 ± 0.55 | {likelihood}\n"
        f"{form} STS, paper | {accuracy} | 2.00 ± 0.00 | 1.48 ± 0.29 | {likelihood}\n" in page
    )
    ninety = "90.00 ± 0.00"
    energies = f"| CIFAR-10, ResNet-18, svhn | pre-trained | 2 | {ninety} | {ninety} | {ninety} |  | {ninety} |"
    assert energies in page  # of the network: beside its own line only
    assert f"svhn | STS, mixed features, β = 4 | 2 | {ninety} | {ninety} | {ninety} |  |  |" in page
    sampled = "50.00 ± 0.00 | 50.00 ± 0.00 | 50.00 ± 0.00 | 50.10 ± 0.00"
    assert (
        f"| CIFAR-10, ResNet-18, svhn | STS, mixed features, β = 4 | {ninety} | {sampled} |" in page
    )
    assert "| CIFAR-10, ResNet-18, svhn | STS, paper |" in page
    assert (
        "| differential entropy | 90.00 ± 0.00 | 95.68 ± 1.70 | 90.00 ± 0.00 | 98.93 ± 0.34 |"
        in page
    )
    in_bfloat16 = "in bfloat16: CIFAR-10, ResNet-18 (STS, paper, branch 512 → 256), seeds 0 1. All others in float32"
    assert in_bfloat16 in page.replace("\n ", "")
    assert "SVHN: digits cut out of the full-number images" in page
    assert "Not run yet:" not in page
    assert "CIFAR-10, ResNet-18 (TS, ETS, PTS, AdaTS, STS, default)" in page.replace("\n", " ")
    assert all(STUDIES[name].source in page for name in (*others.TABLES, "forms"))


def test_a_changed_label_is_shouted(results: Path) -> None:
    write(results, record("table1", "fmnist-lenet5", 2, "ts", 0.01, 0.2, labels_preserved=False))
    assert "IN 1 OF 9 RUNS A LABEL CHANGED." in render.render(results)


def test_a_trial_is_no_result(results: Path) -> None:
    write(results, record("table1", "fmnist-lenet5", 2, "ts", 0.01, 0.2, trial=True))
    with pytest.raises(ValueError, match=r"ts\.json' is of a trial run, not a result"):
        read("table1", results)


def test_figures_are_drawn(results: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        error = 0.01 + seed
        write(
            results,
            record(
                "table1", "cifar10-resnet18", seed, "sts-paper", error, 0.2, betas=betas_of(error)
            ),
        )
    figures.reliability(read("table1", results)["fmnist-lenet5"], tmp_path / "a.svg")
    figures.reliability(read("table1", results)["fmnist-lenet5"], tmp_path / "b.svg")
    figures.sensitivity(others.searched(read("table1", results)), tmp_path / "c.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "STS, default" in (tmp_path / "a.svg").read_text()
    assert "CIFAR-10, ResNet-18" in (tmp_path / "c.svg").read_text()


def test_a_record_is_written_whole_and_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    write_json(path, {"a": 1, "b": {"c": [0.1, None]}})
    assert json.loads(path.read_text()) == {"a": 1, "b": {"c": [0.1, None]}}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text())["a"] == 1
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_the_records_of_the_repository_are_whole() -> None:
    for rows in map(read, STUDIES):
        for group in rows.values():
            seeds = [[r["seed"] for r in records] for records in group.values()]
            assert all(found == sorted(set(found)) for found in seeds)


def test_the_results_page_is_what_the_records_say() -> None:
    assert render.PAGE.read_text() == render.render()
    assert render.README.read_text() == render.readme(render.README.read_text())
    for path in re.findall(r"\]\((figures/[^)]*)\)", render.render()):
        assert (render.PAGE.parent / path).is_file()
