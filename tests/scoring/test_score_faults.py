import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers.parquet_rows import K, columns, fitted, outputs, read, save, write
from safetensors.torch import save_file
from torch import nn

from simplexcal._validation import ROUNDING
from simplexcal.calibrators import TemperatureScaling
from simplexcal.io import save_calibrator
from simplexcal.network_spec import NetworkSpec
from simplexcal.scoring import score
from simplexcal.scoring.worker import Worker
from simplexcal.types import Outputs

nan = float("nan")
inf = float("inf")


def with_faults() -> dict[str, Any]:
    """Return 20 rows of which 5 are bad, each in another way."""
    content: dict[str, Any] = {name: list(x) for name, x in columns(20).items()}
    content["logit_1"][2] = nan
    content["feature_5"][4] = None
    content["logit_0"][6], content["feature_0"][6] = -inf, nan
    content["id"][8] = None
    content["logit_3"][19] = None
    return content


def test_bad_rows_go_to_the_side_file_and_the_run_goes_on(tmp_path: Path) -> None:
    data = write(tmp_path / "x.parquet", with_faults(), group=6)
    summary = score(save(tmp_path, "sts"), data, tmp_path / "y.parquet", batch_size=2)
    ids = columns(20)["id"]
    assert read(tmp_path / "y.rejected.parquet") == {
        "id": [ids[2], ids[4], ids[6], None, ids[19]],
        "row_number": [2, 4, 6, 8, 19],
        "reason": [
            "`logit_1` is NaN",
            "`feature_5` is null",
            "`logit_0` is infinite",
            "`id` is null",
            "`logit_3` is null",
        ],
    }
    good = [i for i in range(20) if i not in (2, 4, 6, 8, 19)]
    rows, expected = read(tmp_path / "y.parquet"), fitted("sts")(outputs(20)[torch.tensor(good)])
    assert rows["id"] == [ids[i] for i in good]
    torch.testing.assert_close(
        torch.tensor(rows["epistemic"]), expected.epistemic, atol=1e-5, rtol=1e-5
    )
    assert (summary.rows, summary.n_rejected, summary.rejected) == (
        15,
        5,
        tmp_path / "y.rejected.parquet",
    )


def test_bad_lists_go_to_the_side_file(tmp_path: Path) -> None:
    lists: list[Any] = outputs(6).logits.tolist()
    lists[0], lists[2], lists[3], lists[5] = None, [1.0] * (K - 1), [], [1.0, None, nan, 2.0]
    score(
        save(tmp_path, "ts"),
        write(tmp_path / "x.parquet", {"logits": lists}),
        tmp_path / "y.parquet",
    )
    assert read(tmp_path / "y.rejected.parquet")["reason"] == [
        "`logits` is null",
        f"`logits` has {K - 1} values, not {K}",
        f"`logits` has 0 values, not {K}",
        "`logits` at position 1 is null",
    ]
    assert read(tmp_path / "y.parquet")["row_number"] == [1, 4]


def test_what_is_no_distribution_goes_to_the_side_file(tmp_path: Path) -> None:
    probs = [[0.25] * 4, [0.5, 0.5, 0.5, -0.5], [3.0, 1.0, -2.0, 0.5], [0.25, 0.25, 0.25, 0.26]]
    score(
        save(tmp_path, "ts"),
        write(tmp_path / "x.parquet", {"probs": probs}),
        tmp_path / "y.parquet",
    )
    assert read(tmp_path / "y.parquet")["row_number"] == [0]
    assert read(tmp_path / "y.rejected.parquet")["reason"] == [
        "`probs` are no probabilities: from -0.5 to 0.5, with sum 1",
        "`probs` are no probabilities: from -2 to 3, with sum 2.5",
        "`probs` are no probabilities: from 0.25 to 0.26, with sum 1.01",
    ]


def test_probabilities_may_be_as_inexact_as_check_probs_allows(tmp_path: Path) -> None:
    for kind in (np.float32, np.float64):
        largest = kind(1 + ROUNDING)
        above = np.nextafter(largest, kind(2))
        probs = np.array([[1.0000001, 0, 0, 0], [largest, 0, 0, 0], [above, 0, 0, 0]], kind)
        rows = {f"prob_{i}": probs[:, i] for i in range(K)}
        data = write(tmp_path / "x.parquet", rows)
        score(save(tmp_path, "ts"), data, tmp_path / "y.parquet")
        assert read(tmp_path / "y.parquet")["row_number"] == [0, 1]
        assert len(Outputs.from_probs(torch.from_numpy(probs[:2]))) == 2


def test_a_file_of_bad_rows_alone_gives_an_empty_output(tmp_path: Path) -> None:
    rows = {f"logit_{i}": [nan, nan] for i in range(K)}
    summary = score(
        save(tmp_path, "ts"), write(tmp_path / "x.parquet", rows), tmp_path / "y.parquet"
    )
    table = pq.read_table(tmp_path / "y.parquet")
    assert (summary.rows, summary.n_rejected, table.num_rows) == (0, 2, 0)
    assert table.schema.names[:3] == ["row_number", "predicted", "confidence"]


def test_what_overflows_goes_to_the_side_file(tmp_path: Path) -> None:
    sharp = TemperatureScaling()
    sharp.build(K, None)
    sharp.log_temperature.data.fill_(-1.0)
    save_calibrator(sharp, tmp_path / "c.safetensors")
    rows = {f"logit_{i}": np.array([i, 3e38 * (-1) ** i], np.float32) for i in range(K)}
    score(tmp_path / "c.safetensors", write(tmp_path / "x.parquet", rows), tmp_path / "y.parquet")
    assert read(tmp_path / "y.parquet")["row_number"] == [0]
    reason = "the confidence is not finite: logits or features are too large"
    assert read(tmp_path / "y.rejected.parquet") == {"row_number": [1], "reason": [reason]}


def test_a_side_file_of_an_earlier_run_does_not_stay(tmp_path: Path) -> None:
    calibrator, output = save(tmp_path, "sts"), tmp_path / "y.parquet"
    score(calibrator, write(tmp_path / "x.parquet", with_faults()), output)
    score(calibrator, write(tmp_path / "x.parquet", columns(20)), output)
    assert not (tmp_path / "y.rejected.parquet").exists()


def without(*stems: str) -> dict[str, Any]:
    return {name: x for name, x in columns(5).items() if not name.startswith(stems)}


def lists(width: int) -> list[list[float]]:
    return np.ones((5, width)).tolist()


WHOLE: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "no logits": (
        without("logit"),
        {},
        ValueError,
        "must hold columns logit_0, logit_1, … or prob_0, …; found 'id', 'feature_0' to",
    ),
    "no logits but asked for": (
        without("logit"),
        {"kind": "logits"},
        ValueError,
        "must hold columns logit_0, logit_1, … or a column `logits` of lists",
    ),
    "labels of text": (
        {**columns(5), "y": ["cat"] * 5},
        {"names": {"labels": "y"}},
        TypeError,
        "column 'y' must hold whole numbers",
    ),
    "keys in the place of labels": (
        {**columns(5), "label": list(range(5))},
        {"names": {"labels": "id", "id": "label"}},
        ValueError,
        "which is the column of keys too",
    ),
    "a gap": (without("logit_1"), {}, ValueError, "logit_1 is missing. Number them from 0"),
    "text": (
        {**columns(5), "logit_2": ["a"] * 5},
        {},
        TypeError,
        "'logit_2' must hold numbers; it holds .*'string'",
    ),
    "text in lists": (
        {"logits": [["a"] * K]},
        {},
        TypeError,
        "column 'logits' must hold numbers; it holds .*'string'",
    ),
    "no lists": (
        {"logits": [1.0]},
        {},
        TypeError,
        "must hold lists of numbers; it holds values of type 'double'",
    ),
    "too few classes": (
        without("logit_3"),
        {},
        ValueError,
        "has 3 logits in a row; '.*' is for 4 classes",
    ),
    "too many in lists": (
        {"logits": lists(9), "features": lists(6)},
        {},
        ValueError,
        "has 9 logits in a row; '.*' is for 4 classes",
    ),
    "no features": (
        without("feature"),
        {},
        ValueError,
        "feature_0, … or a column `features` of lists, 6 in a row",
    ),
    "other features": (
        without("feature_5"),
        {},
        ValueError,
        "has 5 features in a row; '.*' needs 6",
    ),
    "both kinds": (
        {**columns(5), "probs": lists(K)},
        {},
        ValueError,
        "holds `logits` and `probs`. Say which",
    ),
    "other kind": (columns(5), {"kind": "probs"}, ValueError, "holds `logits` and no `probs`"),
    "no such kind": (
        columns(5),
        {"kind": "odds"},
        ValueError,
        '`kind` must be "logits" or "probs"',
    ),
    "both spellings": (
        {**columns(5), "logits": lists(K)},
        {},
        ValueError,
        "must hold `logits` once",
    ),
    "inputs alone": ({"inputs": lists(3)}, {}, ValueError, "Pass `network`"),
    "no key": (
        columns(5),
        {"names": {"id": "name"}},
        ValueError,
        r"`names\[\"id\"\]` is 'name', which '.*' does not hold; it holds 'id', 'logit_0' to ",
    ),
    "predictions": (
        {"probs": lists(K), "predicted": [0] * 5},
        {},
        ValueError,
        'holds predictions.* Pass `kind="probs"`',
    ),
    "a key of floats": (
        columns(5),
        {"names": {"id": "logit_0"}},
        TypeError,
        "'logit_0' must hold integers, text or times",
    ),
    "a key in the way": (
        {**columns(5), "predicted": [1] * 5},
        {"names": {"id": "predicted"}},
        ValueError,
        "must not be 'pred",
    ),
    "no batch": (
        columns(5),
        {"batch_size": 0},
        ValueError,
        "`batch_size` must be at least 1; got 0",
    ),
    "no engine": (columns(5), {"engine": "spark"}, ValueError, '`engine` must be "local" or "ray"'),
    "an address": (columns(5), {"address": "1.2.3.4:5"}, ValueError, 'Pass `engine` as "ray" too'),
    "kind and model": (
        columns(5),
        {"kind": "logits", "network": NetworkSpec("a:b")},
        ValueError,
        "Pass one of the two",
    ),
}


@pytest.mark.parametrize("case", WHOLE)
def test_what_is_wrong_as_a_whole_is_said_before_work_starts(case: str, tmp_path: Path) -> None:
    content, options, kind, text = WHOLE[case]
    calibrator, data = save(tmp_path, "sts"), write(tmp_path / "x.parquet", content)
    with pytest.raises(kind, match=text) as caught:
        score(calibrator, data, tmp_path / "y.parquet", **options)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sts.safetensors", "x.parquet"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def tamper(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def replace_calibrator(path: Path) -> None:
    save_file({"weight": torch.ones(2)}, path)


def twice(path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1.0])] * 2, names=["logit_0", "logit_0"]), path)


def empty_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


BROKEN: dict[str, tuple[str, Callable[[Path], None], type[Exception], str]] = {
    "cut short": ("x.parquet", cut, ValueError, "x.parquet' cannot be read as .parquet"),
    "missing": ("x.parquet", Path.unlink, FileNotFoundError, "x.parquet' does not exist"),
    "twice": ("x.parquet", twice, ValueError, "holds the column 'logit_0' more than once"),
    "no files": ("x.parquet", empty_folder, ValueError, "holds no .parquet file"),
    "tampered": ("sts.safetensors", tamper, ValueError, "its checksum is wrong"),
    "truncated": ("sts.safetensors", cut, ValueError, "is not a whole safetensors file"),
    "foreign": ("sts.safetensors", replace_calibrator, ValueError, "was not written by simplexcal"),
    "no calibrator": ("sts.safetensors", Path.unlink, FileNotFoundError, "sts.safetensors"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_sentence(case: str, tmp_path: Path) -> None:
    name, spoil, kind, text = BROKEN[case]
    calibrator, data = save(tmp_path, "sts"), write(tmp_path / "x.parquet", columns(5))
    spoil(tmp_path / name)
    with pytest.raises(kind, match=text) as caught:
        score(calibrator, data, tmp_path / "y.parquet")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "y.parquet.shards").exists()


def test_a_calibrator_of_another_network_is_refused(tmp_path: Path) -> None:
    data = write(
        tmp_path / "x.parquet", {"inputs": np.ones((3, 1, 3, 3)).astype(np.float32).tolist()}
    )
    with pytest.raises(ValueError, match="was calibrated for another network"):
        score(
            save(tmp_path, "ts", "0" * 64),
            data,
            tmp_path / "y.parquet",
            network=NetworkSpec("test_score:make_network"),
        )


def test_inputs_that_the_network_cannot_take_are_said_to_be_such(tmp_path: Path) -> None:
    data = write(tmp_path / "x.parquet", {"inputs": np.ones((3, 5)).astype(np.float32).tolist()})
    with pytest.raises(ValueError, match="The network cannot take the `inputs`"):
        score(
            save(tmp_path, "ts"),
            data,
            tmp_path / "y.parquet",
            network=NetworkSpec("test_score:make_network"),
        )


def test_files_must_be_alike(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.parquet", columns(5))
    write(tmp_path / "in" / "b.parquet", {**columns(5), "logit_1": [1] * 5})
    with pytest.raises(
        ValueError, match=r"'logit_1' is 'float' in '.*a.parquet' and 'int64' in '.*b.parquet'"
    ):
        score(save(tmp_path, "ts"), tmp_path / "in", tmp_path / "y.parquet")


def test_the_output_must_not_be_input(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data, calibrator = write(tmp_path / "in" / "a.parquet", columns(5)), save(tmp_path, "ts")
    for source, output in ((data, data), (tmp_path / "in", tmp_path / "in" / "y.parquet")):
        with pytest.raises(ValueError, match="would be read as input the next time"):
            score(calibrator, source, output)
    with pytest.raises(ValueError, match=r"`output` must end in .parquet"):
        score(calibrator, data, tmp_path / "y.csv")
    with pytest.raises(FileNotFoundError, match=r"`output`: '.*out' is no folder"):
        score(calibrator, data, tmp_path / "out" / "y.parquet")


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_an_output_that_a_link_in_the_input_leads_to_is_not_overwritten(
    link: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    calibrator = save(tmp_path, "ts")
    for name in ("y.parquet", "y.rejected.parquet"):
        data = write(tmp_path / name, columns(5))
        link(tmp_path / "in" / name, data)
        before = data.read_bytes()
        with pytest.raises(ValueError, match=rf"'.*{name}'.* is read as input"):
            score(calibrator, tmp_path / "in", tmp_path / "y.parquet")
        assert data.read_bytes() == before
        (tmp_path / "in" / name).unlink()
        data.unlink()


def test_a_file_that_score_did_not_write_is_not_taken_for_rejected_rows(tmp_path: Path) -> None:
    data, calibrator = write(tmp_path / "x.parquet", columns(5)), save(tmp_path, "ts")
    foreign = write(tmp_path / "y.rejected.parquet", {"of": ["somebody"]})
    with pytest.raises(ValueError, match=r"'.*y.rejected.parquet'.* was not written by `score`"):
        score(calibrator, data, tmp_path / "y.parquet")
    assert read(foreign) == {"of": ["somebody"]}
    assert not (tmp_path / "y.parquet").exists()
    foreign.write_text("no Parquet")
    with pytest.raises(ValueError, match=r"'.*y.rejected.parquet'.* was not written by `score`"):
        score(calibrator, data, tmp_path / "y.parquet")
    assert foreign.read_text() == "no Parquet"


def test_a_name_too_long_for_the_files_beside_it_is_said_before_work_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, calibrator = write(tmp_path / "x.parquet", with_faults()), save(tmp_path, "ts")
    longest = os.pathconf(tmp_path, "PC_NAME_MAX") - len(".rejected")
    assert score(calibrator, data, tmp_path / f"{'y' * (longest - 8)}.parquet").n_rejected
    monkeypatch.setattr(Worker, "__call__", None)
    with pytest.raises(ValueError, match=r"The name of '.*rejected.parquet' has \d+ bytes"):
        score(calibrator, data, tmp_path / f"{'y' * (longest - 7)}.parquet")


def test_neither_the_input_nor_a_folder_is_overwritten(tmp_path: Path) -> None:
    data, calibrator = write(tmp_path / "y.rejected.parquet", columns(5)), save(tmp_path, "ts")
    with pytest.raises(
        ValueError,
        match=r"'.*y.rejected.parquet', where rejected rows go, is the input. Give `output`",
    ):
        score(calibrator, data, tmp_path / "y.parquet")
    assert data.exists()
    (tmp_path / "z.parquet").mkdir()
    with pytest.raises(
        IsADirectoryError, match=r"`output`: '.*z.parquet' is a folder. Give the name of a file."
    ):
        score(calibrator, data, tmp_path / "z.parquet")


def test_damage_in_mid_file_names_the_file_and_keeps_what_was_done(tmp_path: Path) -> None:
    data = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns(4000)), data, row_group_size=500, write_page_checksum=True)
    whole = Path(shutil.copy(data, tmp_path / "whole.parquet"))
    content = bytearray(data.read_bytes())
    content[pq.read_metadata(data).row_group(6).column(1).data_page_offset + 60] ^= 0xFF
    data.write_bytes(content)
    with pytest.raises(ValueError, match=r"x.parquet' cannot be read as .parquet"):
        score(save(tmp_path, "ts"), data, tmp_path / "y.parquet", batch_size=25)
    assert len(list((tmp_path / "y.parquet.shards").glob("0*.parquet"))) >= 20
    assert not (tmp_path / "y.parquet").exists()
    with pytest.raises(
        ValueError, match=r"an unfinished run with other input files. Pass `restart=True`"
    ):
        score(save(tmp_path, "ts"), whole, tmp_path / "y.parquet", batch_size=25)


WORDS = NetworkSpec("test_score_faults:make_words")


def make_words() -> nn.Module:
    """Return a network that takes lists of numbers below 50, of any length."""
    return nn.Sequential(nn.EmbeddingBag(50, 6), nn.Linear(6, K))


def test_a_row_that_the_network_cannot_take_goes_to_the_side_file(tmp_path: Path) -> None:
    rows = [[i % 50, 3, 7] for i in range(40)]
    rows[0], rows[25], rows[33] = [1, 2, 50], [-1, 0, 0], [7, 8]
    data = write(tmp_path / "x.parquet", {"inputs": rows})
    summary = score(save(tmp_path, "ts"), data, tmp_path / "y.parquet", network=WORDS, batch_size=8)
    assert (summary.rows, summary.n_rejected) == (37, 3)
    rejected = read(tmp_path / "y.rejected.parquet")
    assert rejected["row_number"] == [0, 25, 33]
    assert [reason.split(":")[0] for reason in rejected["reason"]] == [
        "the network cannot take it",
        "the network cannot take it",
        "`inputs` has 2 values, not 3",
    ]


def test_the_first_row_does_not_decide_what_the_others_must_be(tmp_path: Path) -> None:
    data = write(tmp_path / "x.parquet", {"inputs": [[1, 2], *([i, 3, 7] for i in range(9))]})
    score(save(tmp_path, "ts"), data, tmp_path / "y.parquet", network=WORDS)
    assert read(tmp_path / "y.parquet")["row_number"] == list(range(1, 10))


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "in" / "a.parquet", columns(5))
    write(tmp_path / "elsewhere" / "b.parquet", columns(5))
    (tmp_path / "in" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "in")
    assert score(save(tmp_path, "ts"), tmp_path / "in", tmp_path / "y.parquet").rows == 10
    write(tmp_path / "3f2a", {"inputs": [[1, 2, 3]] * 4})
    save_file(make_words().state_dict(), tmp_path / "9c1b")
    (tmp_path / "x.parquet").symlink_to(tmp_path / "3f2a")
    (tmp_path / "w.safetensors").symlink_to(tmp_path / "9c1b")
    network = WORDS._replace(weights=tmp_path / "w.safetensors")
    assert (
        score(
            save(tmp_path, "ts"), tmp_path / "x.parquet", tmp_path / "z.parquet", network=network
        ).rows
        == 4
    )


def test_rejected_rows_of_files_that_differ_in_what_may_be_null(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, nullable in (("a", True), ("b", False)):
        table = pa.table({**columns(5), "logit_0": [nan] * 5})
        schema = table.schema.set(0, pa.field("id", pa.string(), nullable))
        pq.write_table(table.cast(schema), tmp_path / "in" / f"{name}.parquet")
    score(save(tmp_path, "ts"), tmp_path / "in", tmp_path / "y.parquet")
    assert len(read(tmp_path / "y.rejected.parquet")["id"]) == 10
