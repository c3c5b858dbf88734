"""Each number of the paper beside ours."""

from pathlib import Path

import pytest
from experiments.config.paper import TABLE1, Number
from experiments.page.groups import read_results
from experiments.page.paper_items import Row, context, default_above
from helpers.records import record
from test_render import write


def test_a_row_has_the_difference_with_its_sign() -> None:
    row = Row("a network", Number(3.52, 0.15), Number(4.2, 0.24), 5)
    assert row.cells() == ["a network", "3.52 ± 0.15", "4.20 ± 0.24", "5", "+0.68"]


@pytest.mark.parametrize(("error", "expected"), [(0.001, []), (0.05, ["Fashion-MNIST, LeNet-5"])])
def test_the_rows_in_which_the_default_is_behind_are_named(
    tmp_path: Path, error: float, expected: list[str]
) -> None:
    for seed in range(2):
        write(tmp_path, record("table1", "fmnist-lenet5", seed, "sts", error, 0.3))
    results = read_results(tmp_path)
    assert default_above(results.settings("table1")) == expected


def test_the_paper_is_beside_the_networks_on_record(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path, record("table1", "fmnist-lenet5", seed, "sts-paper", 0.02, 0.3))
    table = context(read_results(tmp_path))["table1"]
    paper = TABLE1["fmnist-lenet5"]["sts-paper"].mean
    assert f"| {paper:.2f} ± 0.15 | 2.00 ± 0.00 | 3 | {2 - paper:+.2f} |" in str(table)
