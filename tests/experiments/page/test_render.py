"""From records to the pages: the paper's rule for bold, tables and sentences by hand."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from experiments.config import paper
from experiments.config.paper import Number, best
from experiments.page import figures, mixup, render, table1
from experiments.page.groups import Group, ece_percent, mean_of, read_results, shown
from experiments.pretraining.lenet5_variants import VARIANTS
from experiments.running.records import Record, RecordStore, SampledMetrics, SplitMetrics
from helpers.records import OOD, SAMPLED_OOD, TRAINING, betas, record


def write(results: Path, made: Record) -> None:
    RecordStore(results).write(made)


def lenet5(results: Path) -> Group:
    return read_results(results).settings("table1")["fmnist-lenet5"]


def table1_page(results: Path) -> str:
    return render.render_pages(results)["table1.md"]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a folder with two seeds of Table 1's first setting."""
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


@pytest.mark.parametrize("setting", BOLD)
def test_the_rule_for_bold_gives_the_papers_table(setting: str) -> None:
    errors = {name: n for name, n in paper.TABLE1[setting].items() if name != "accuracy"}
    assert best(errors) == BOLD[setting]


@pytest.mark.parametrize(
    ("setting", "ood_set", "metric", "bold"),
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
    setting: str, ood_set: str, metric: str, bold: set[int]
) -> None:
    columns = {str(i): Number(*n) for i, n in enumerate(paper.OOD[setting, ood_set][metric])}
    assert best(columns, largest=True) == {str(i) for i in bold}


def test_mean_and_deviation_by_hand(results: Path) -> None:
    group = lenet5(results)
    assert ece_percent(group["none"]) == pytest.approx((4.5, 0.5**0.5))
    single = mean_of(group["none"][:1], lambda made: made.metrics.ece)
    assert single.mean == 0.04
    assert math.isnan(single.std)  # not 0, which would mean that networks agree
    assert shown(single, bold=True) == "**0.04**"
    assert best({"a": single, "b": Number(0.04, 0.0), "c": Number(0.05, 1.0)}) == {"a", "b"}


def test_a_number_that_is_not_on_record_is_no_number(results: Path) -> None:
    (made, *_) = lenet5(results)["none"]
    diverged = replace(made, metrics=replace(made.metrics, ece=None))
    with pytest.raises(ValueError, match="lacks a number that the pages show"):
        ece_percent([diverged])


def test_a_setting_by_hand(results: Path) -> None:
    rows = table1.setting_table("fmnist-lenet5", lenet5(results)).rows
    assert {row[0]: list(row[1:5]) for row in rows} == {
        "pre-trained": ["2", "4.50 ± 0.71", "3.52 ± 0.15", "0.50, 1.00"],
        "TS": ["2", "1.00 ± 0.28", "", "0.50, 1.00"],  # 0.09 above the best, whose deviation is 0
        "STS, paper": ["2", "**0.91 ± 0.00**", "**0.91 ± 0.15**", "0.50, 1.00"],
        "STS, default": ["2", "1.10 ± 0.14", "", "0.50, 1.00"],
    }


def test_the_summary_by_hand(results: Path) -> None:
    # a setting without the default
    write(results, record("table1", "cifar10-resnet18", 0, "ts", 0.02, 0.25))
    summary = table1.summarise(read_results(results).settings("table1"))
    ece, nll = (str(table).splitlines() for table in summary.tables)
    assert ece[0] == "| ECE % | pre-trained | TS | STS, paper | STS, default |"
    errors = "4.50 ± 0.71 | 1.00 ± 0.28 | **0.91 ± 0.00** | 1.10 ± 0.14"
    assert ece[2] == f"| Fashion-MNIST, LeNet-5 | {errors} |"
    assert ece[3] == "| CIFAR-10, ResNet-18 (one network) |  | **2.00** |  |  |"
    assert nll[2].endswith("| **0.2450 ± 0.0778** | **0.2550 ± 0.0778** | **0.2500 ± 0.0566** |")
    assert (summary.n_networks, summary.n_lowest) == (2, 1)


def test_overconfidence_is_shown_where_several_methods_have_it_on_record(results: Path) -> None:
    setting = "fmnist-lenet5"
    calibration = SplitMetrics(0.01, 0.3, 0.02)
    for method in ("ts", "sts"):
        assert "Mean confidence minus accuracy" not in table1_page(results)
        for seed in (0, 1):  # confidence 0.8 and accuracy 0.9 on the test split
            made = record("table1", setting, seed, method, 0.01, 0.3, calibration=calibration)
            write(results, made)
    numbers = "TS +2.00 and -10.00, STS, default +2.00 and -10.00."
    assert f"on the calibration split and on the test split: {numbers}" in table1_page(results)


def test_what_ets_gains_by_its_own_loss_is_shown(results: Path) -> None:
    # TS has 0.3 and 0.19, and Brier scores are half of these here.
    for seed, nll in ((0, 0.2), (1, 0.5)):
        write(results, record("table1", "fmnist-lenet5", seed, "ets", 0.01, nll))
    gain = "Its Brier score minus that of TS is +0.0525; it is lower for 1 of 2 networks."
    assert gain in table1_page(results)


def test_what_is_said_follows_from_the_records(results: Path) -> None:
    page = table1_page(results)
    assert "an accuracy of 90.00 ± 0.00 % (paper: 91.2 ± 0.17)" in page
    assert "STS, paper has an ECE of 0.91 ± 0.00, in the paper 0.91 ± 0.15." in page
    below = "pre-trained 0, TS 1, STS, paper 2, STS, default 1"
    assert f"below the 95 % noise floor, so that it shows no miscalibration: {below}." in page
    assert "pre-trained -0.2000 (2 of 2), TS +0.0050 (1 of 2), STS, paper -0.0050 (1 of 2)" in page
    tilted = "TS +5.0 and -4.0, STS, paper +5.0 and -4.0"
    assert f"with a confidence up to 0.9 and for the others: {tilted}" in page
    smaller = "Smaller are those of TS (1.00), STS, paper (0.91)."
    assert f"The default's mean ECE is 1.10. {smaller}" in page


def test_swapped_splits_are_shown_on_their_own_and_with_table_1(tmp_path: Path) -> None:
    setting = "cifar10-resnet18"
    for seed in range(2):
        for method, nll in (("ts", 0.3), ("ets", 0.25), ("sts", 0.2 + 0.2 * seed)):
            write(tmp_path, record("table1", setting, seed, method, 0.01, nll))
            name = f"{method}-swapped"
            swapped = record("swapped", setting, seed, name, 0.02 + seed / 50, nll - 0.1)
            write(tmp_path, swapped)
        write(tmp_path, record("table1", setting, seed, "none", 0.05, 0.4))
    page = render.render_pages(tmp_path)["swapped.md"]
    own, both = page.split("## The mean of both ways")
    for text, error, likelihoods in (
        (own, "3.00 ± 1.41", "0.2000 ± 0.0000 | **0.1500 ± 0.0000** | 0.2000 ± 0.1414"),
        (both, "2.00 ± 0.71", "0.2500 ± 0.0000 | **0.2000 ± 0.0000** | 0.2500 ± 0.1414"),
    ):
        assert "| ECE % | TS | ETS | STS, default |" in text
        assert f"| CIFAR-10, ResNet-18 |{f' **{error}** |' * 3}" in text
        assert f"| CIFAR-10, ResNet-18 | {likelihoods} |" in text
        assert "Of these 2 networks, the default has the lowest NLL of all methods for 1." in text


def test_how_networks_of_table_1_were_trained_is_said_once(tmp_path: Path) -> None:
    for setting in ("cifar10-resnet18", "cifar10-vgg16-bn"):
        write(tmp_path, record("table1", setting, 0, "none", 0.05, 0.4))
        write(tmp_path, record("variants", setting, 0, "ets-nll", 0.01, 0.2))
    pages = render.render_pages(tmp_path)
    fitted = "Calibrated on cpu (1 thread) with PyTorch 2.\n"
    trained = f"Pre-trained on cpu: 2 networks concurrently in 7 s. {fitted}"
    assert "".join(pages.values()).count(trained) == 2
    known = f"\nThe networks are those of [Table 1](table1.md). {fitted}"
    assert known in pages["variants.md"]


@pytest.fixture
def all_studies(results: Path) -> Path:
    """Return a folder with two seeds of every study."""
    setting = "cifar10-resnet18"
    variant = "stl10-resnet18-strided"
    together = replace(TRAINING, concurrent=3, settings=[variant, "stl10-vgg16-bn"], seconds=9.0)
    sampled = SampledMetrics(ece=0.02, accuracy=0.9, changed=0.003)
    for seed in (0, 1):

        def add(
            study: str, method: str, ece: float = 0.01, nll: float = 0.2, **more: object
        ) -> None:
            write(results, record(study, setting, seed, method, ece, nll, **more))  # noqa: B023

        add("dirichlet", "dirichlet-ts", 0.6, 1.0, beta=0.5, betas=betas(0.3))
        add("table1", "none", 0.03)
        add("table1", "sts-paper", betas=betas(0.01))
        add("time", "pts")
        add("mixup", "sts-r20-s5")
        add("branch", "sts-small", mixup_dtype="bfloat16")
        add("resampled", "sts-resampled")
        add("steps", "sts-steps-3000")
        add("variants", "ets-nll")
        add("variants", "sts-features", sampled=sampled)
        for method, nll in (("ts", 0.3), ("ets", 0.25), ("sts", 0.2 + 0.2 * seed)):
            add("few-labels", f"{method}-500-labels", nll=nll)
        add("ood", "sts-paper", ood_set="svhn", ood=OOD)
        add("uncertainty", "none", ood_set="svhn", ood=OOD)
        add("uncertainty", "sts-features-4", ood_set="svhn", ood=SAMPLED_OOD)
        write(results, record("table1", "stl10-resnet18", seed, "none", 0.04, 0.5))
        for method in ("none", "sts-paper"):
            made = record("architectures", variant, seed, method, 0.02, 0.5, training=together)
            write(results, made)
    return results


def test_mixup_and_its_training_by_hand(all_studies: Path) -> None:
    page = render.render_pages(all_studies)["mixup.md"]
    dirichlet = "60.00 ± 0.00 | 67.49 ± 3.84 | 80.00 ± 0.00 | 0.5 | 30.00 (β = 0.6) to 60"
    assert f"| CIFAR-10, ResNet-18 | 2 | {dirichlet}" in page
    assert "| 0.6 | 1.00 ± 0.00 |" in page
    assert "| 0.7 | diverged |" in page
    assert "| smallest, calibration | β = 0.5 |" in page
    assert "| smallest, test | β = 0.6 |" in page
    assert "| smallest, paper | β = 0.6 |" in page
    assert "| STS, paper, R = 20, S = 5 | 2 | 1.00 ± 0.00 | 1.06 ± 0.34 | 1.10 ± 0.24 |" in page
    assert "| STS, paper, branch 512 → 256 | 2 | 1.00 ± 0.00 | 1.11 ± 0.16 | 1.10 ± 0.24 |" in page
    assert "| STS, paper, resampled mixup | 2 | 0.50 ± 0.00 | 1.00 ± 0.00 |" in page
    assert "| STS, paper, 3000 steps | 2 | 0.50 ± 0.00 | 1.00 ± 0.00 |" in page


def test_comparisons_by_hand(all_studies: Path) -> None:
    pages = render.render_pages(all_studies)
    seconds = "cpu (1 thread) | 1.5 | 26142.5 | 0.75 | 18.4 |"
    assert f"| CIFAR-10, ResNet-18 | PTS | {seconds}" in pages["time.md"]
    nll_fit = "| CIFAR-10, ResNet-18 | ETS, fitted by NLL | 2 | 0.50 ± 0.00 | 1.00 ± 0.00 |"
    assert nll_fit in pages["variants.md"]
    assert "feature mixup | 1.00 ± 0.00 | 2.00 ± 0.00 | 0.30 ± 0.00 |" in pages["variants.md"]
    few = pages["few-labels.md"]
    likelihoods = "0.3000 ± 0.0000 | 0.2500 ± 0.0000 | 0.3000 ± 0.1414"
    assert f"| CIFAR-10, ResNet-18 | 500 |{' 1.00 ± 0.00 |' * 3} {likelihoods} | 1 of 2 |" in few
    assert "STS has a lower NLL than TS for 1 of 2 networks with 500 labels." in few
    variants = pages["architectures.md"]
    trained = "3 networks concurrently, also of STL-10, VGG16-BN, in 9 s."
    assert f"Pre-trained on cpu: {trained} Calibrated on cpu (1 thread)" in variants
    usual, variant = (
        "| STL-10, ResNet-18 |",
        "| STL-10, ResNet-18, 7 × 7 stem pooled to a quarter |",
    )
    accuracy, nll = "2 | 90.00 ± 0.00 | 77.80 ± 0.83", "0.5000 ± 0.0000 |  |"
    assert (
        f"{usual} pre-trained | {accuracy} | 4.00 ± 0.00 | 12.88 ± 0.55 | {nll}\n"
        f"{variant} pre-trained | {accuracy} | 2.00 ± 0.00 | 12.88 ± 0.55 | {nll}\n"
        f"{variant} STS, paper | {accuracy} | 2.00 ± 0.00 | 1.48 ± 0.29 | {nll}\n"
    ) in variants


def test_detection_by_hand(all_studies: Path) -> None:
    page = render.render_pages(all_studies)["ood.md"]
    area = "90.00 ± 0.00"
    svhn = "| CIFAR-10, ResNet-18, svhn |"
    # The energy is the network's: it stands beside its own line only.
    assert f"{svhn} pre-trained | 2 | {area} | {area} | {area} |  | {area} |" in page
    assert f"{svhn} STS, feature mixup, β = 4 | 2 | {area} | {area} | {area} |  |  |" in page
    sampled = "50.00 ± 0.00 | 50.00 ± 0.00 | 50.00 ± 0.00 | 50.10 ± 0.00"
    assert f"{svhn} STS, feature mixup, β = 4 | {area} | {sampled} |" in page
    assert f"{svhn} STS, paper |" in page
    assert f"| differential entropy | {area} | 95.68 ± 1.70 | {area} | 98.93 ± 0.34 |" in page


def test_differences_follow_from_the_records(all_studies: Path) -> None:
    page = render.render_pages(all_studies)["differences.md"]
    assert "fitted by an earlier version" not in page
    assert "are still of the architecture" not in page
    fits = "CIFAR-10, ResNet-18 (STS, paper, branch 512 → 256), seeds 0 1."
    assert f"in bfloat16 in these fits: {fits} In all others" in page
    assert "SVHN: the digits were cut out of the full-number images" in page
    assert "notMNIST" not in page
    other = {"ood_set": "svhn", "ood": OOD, "network": "resnet50"}
    write(all_studies, record("ood", "cifar10-resnet18", 1, "sts-paper", 0.01, 0.3, **other))
    page = render.render_pages(all_studies)["differences.md"]
    assert (
        "- STS, paper on CIFAR-10, ResNet-18 in [ood.md](ood.md) was fitted by an earlier" in page
    )
    networks = "still of the architecture `resnet50`, not of `resnet18`."
    assert f"- The records of CIFAR-10, ResNet-18 are {networks}" in page


def test_the_index_lists_what_has_no_records(results: Path, all_studies: Path) -> None:
    index = render.render_pages(all_studies)["index.md"]
    assert "Studies of the paper" not in index
    assert "CIFAR-10, ResNet-18 (TS, ETS, PTS, AdaTS, STS, default)" in index
    assert "Settings of Table 1: Fashion-MNIST, ResNet-18; CIFAR-10, VGG16-BN; CIFAR-100" in index
    for path in (results / "dirichlet").iterdir():
        path.unlink()
    missing = "Section 5.5 and Appendix D (`run dirichlet`)"
    assert f"Studies of the paper: {missing}." in render.render_pages(results)["index.md"]


def test_a_changed_label_is_shouted(results: Path) -> None:
    made = record("table1", "fmnist-lenet5", 2, "ts", 0.01, 0.2, labels_preserved=False)
    write(results, made)
    assert "IN 1 OF 9 RUNS A LABEL CHANGED." in table1_page(results)


def test_a_dry_run_is_no_result(results: Path) -> None:
    write(results, record("table1", "fmnist-lenet5", 2, "ts", 0.01, 0.2, dry_run=True))
    with pytest.raises(ValueError, match=r"fmnist-lenet5\.jsonl' has a record of a dry run"):
        read_results(results)


def test_every_variant_of_lenet5_is_shown(results: Path) -> None:
    page = render.render_pages(results)["lenet5.md"]
    assert all(f"\n| {name} | " in page for name in VARIANTS)


def test_figures_are_drawn(results: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        error = 0.01 + seed
        more = {"betas": betas(error)}
        write(results, record("table1", "cifar10-resnet18", seed, "sts-paper", error, 0.2, **more))
    settings = read_results(results).settings("table1")
    figures.draw_reliability(settings["fmnist-lenet5"], tmp_path / "a.svg")
    figures.draw_reliability(settings["fmnist-lenet5"], tmp_path / "b.svg")
    figures.draw_sensitivity(mixup.searched_betas(settings), tmp_path / "c.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "STS, default" in (tmp_path / "a.svg").read_text()
    assert "CIFAR-10, ResNet-18" in (tmp_path / "c.svg").read_text()


def test_the_pages_are_what_the_records_say() -> None:
    pages = render.render_pages()
    written = {path.name: path.read_text() for path in render.PAGES_FOLDER.iterdir()}
    by_hand = {name: written.pop(name) for name in render.WRITTEN_BY_HAND}
    assert written == pages
    for path in re.findall(r"\]\((\.\./figures/[^)]*)\)", "".join(pages.values())):
        assert (render.PAGES_FOLDER / path).is_file()
    for name in re.findall(r"\]\(([\w-]+\.md)[#)]", "".join(pages.values())):
        assert name in {**pages, **by_hand}


def test_each_page_begins_with_what_it_shows() -> None:
    for text in render.render_pages().values():
        title, empty, first, *_ = text.splitlines()
        assert title.startswith("# ")
        assert not empty
        sentences = re.findall(r"\.(?= |$)", first)
        assert len(sentences) == 3, first
