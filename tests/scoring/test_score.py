import copy
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers.methods import METHODS
from helpers.parquet_rows import K, columns, fitted, outputs, read, save, write
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import nn

from simplexcal.backbone import Backbone
from simplexcal.io import native, save_calibrator
from simplexcal.network_spec import NetworkSpec
from simplexcal.scoring import score
from simplexcal.scoring.worker import Job, load_worker
from simplexcal.types import Outputs, Prediction

UNCERTAINTIES = ("aleatoric", "epistemic", "mutual_information")


def check(rows: dict[str, list[Any]], expected: Prediction) -> None:
    """Compare with a prediction for all rows at once; another batch may round otherwise."""
    assert rows["predicted"] == expected.label.tolist()
    for name in ("confidence", *UNCERTAINTIES):
        own = getattr(expected, name)
        assert (name in rows) == (own is not None)
        if own is not None:
            torch.testing.assert_close(torch.tensor(rows[name]), own, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_scores_as_it_predicts(method: str, tmp_path: Path) -> None:
    data = write(tmp_path / "x.parquet", columns(100))
    summary = score(save(tmp_path, method), data, tmp_path / "y.parquet", batch_size=16)
    rows = read(tmp_path / "y.parquet")
    assert rows["id"] == columns(100)["id"]
    check(rows, fitted(method)(outputs(100)))
    assert (summary.rows, summary.n_rejected, summary.rejected, summary.n_resumed) == (
        100,
        0,
        None,
        0,
    )
    assert not (tmp_path / "y.rejected.parquet").exists()
    assert not (tmp_path / "y.parquet.shards").exists()


def test_accepted_is_a_column_where_there_are_thresholds(tmp_path: Path) -> None:
    calibrator = copy.deepcopy(fitted("ts"))
    threshold = calibrator.threshold(outputs(60), coverage=0.7)
    save_calibrator(calibrator, tmp_path / "c.safetensors")
    data = write(tmp_path / "x.parquet", columns(100))
    score(tmp_path / "c.safetensors", data, tmp_path / "y.parquet", batch_size=16)
    rows = read(tmp_path / "y.parquet")
    assert rows["accepted"] == [x >= threshold.value for x in rows["confidence"]]
    assert set(rows["accepted"]) == {True, False}
    score(save(tmp_path, "ts"), data, tmp_path / "z.parquet")
    assert "accepted" not in read(tmp_path / "z.parquet")


@pytest.mark.parametrize("features", [True, False])
def test_a_local_run_opens_and_hashes_the_calibrator_once(
    features: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = "ts"
    if features:
        method = "adats"
    data, calibrator = write(tmp_path / "x.parquet", columns(50)), save(tmp_path, method)
    opened, hashed = [], []
    plain_hash = native._checksum

    def count_open(path: Path, *arguments: str) -> Any:
        opened.append(path)
        return safe_open(path, *arguments)

    def count_hash(*arguments: Any) -> str:
        hashed.append(arguments)
        return plain_hash(*arguments)

    monkeypatch.setattr(native, "safe_open", count_open)
    monkeypatch.setattr(native, "_checksum", count_hash)
    score(calibrator, data, tmp_path / "y.parquet", batch_size=4)
    assert opened == [calibrator]
    assert len(hashed) == 1


def test_a_worker_elsewhere_loads_the_calibrator_of_the_job_only(tmp_path: Path) -> None:
    calibrator = save(tmp_path, "ts")
    header = native.load_calibrator(calibrator)[1]
    job = Job(calibrator, header["checksum"], None, (), None, 4, with_probs=False)
    load_worker.cache_clear()
    assert load_worker(job).calibrator.n_classes == K
    save_calibrator(fitted("ets"), calibrator)
    load_worker.cache_clear()
    with pytest.raises(ValueError, match="is not the file that this run began with"):
        load_worker(job)


def spellings() -> dict[str, dict[str, Any]]:
    z, f = outputs(50).logits, outputs(50).features
    assert f is not None
    lists = {"logits": z.tolist(), "features": f.tolist()}
    fixed = {
        name: pa.FixedSizeListArray.from_arrays(pa.array(x.flatten().numpy()), x.shape[1])
        for name, x in (("logits", z), ("features", f))
    }
    tensors = {
        name: pa.FixedShapeTensorArray.from_numpy_ndarray(x.numpy())
        for name, x in (("logits", z), ("features", f))
    }
    large = {name: pa.array(x, pa.large_list(pa.float64())) for name, x in lists.items()}
    return {"lists": lists, "fixed": fixed, "tensors": tensors, "large": large}


@pytest.mark.parametrize("spelling", ["lists", "fixed", "tensors", "large"])
def test_lists_of_each_kind_are_numbered_columns(spelling: str, tmp_path: Path) -> None:
    data = write(
        tmp_path / "x.parquet", {"id": columns(50)["id"], **spellings()[spelling]}, group=7
    )
    score(save(tmp_path, "sts"), data, tmp_path / "y.parquet", batch_size=16)
    check(read(tmp_path / "y.parquet"), fitted("sts")(outputs(50)))


@pytest.mark.parametrize(
    "kind", [pa.float16(), pa.float32(), pa.float64(), pa.int8(), pa.int64(), pa.decimal128(9, 3)]
)
def test_numbers_of_each_type_are_what_they_say(kind: Any, tmp_path: Path) -> None:
    z = np.round(outputs(20).logits.numpy().astype(np.float64))
    own = [[Decimal(int(v)) for v in x] for x in z.T] if pa.types.is_decimal(kind) else list(z.T)
    cast = [pa.array(x, kind) if pa.types.is_decimal(kind) else pa.array(x).cast(kind) for x in own]
    data = write(tmp_path / "x.parquet", {f"logit_{i}": x for i, x in enumerate(cast)})
    score(save(tmp_path, "ts"), data, tmp_path / "y.parquet")
    small = kind in (pa.float16(), pa.float32(), pa.int8())
    expected = fitted("ts")(
        Outputs(torch.from_numpy(z).to(torch.float32 if small else torch.float64))
    )
    confidence = pq.read_table(tmp_path / "y.parquet")["confidence"]
    assert confidence.type == (pa.float32() if small else pa.float64())
    assert confidence.to_pylist() == expected.confidence.tolist()


def test_probs_are_taken_by_their_name_and_written_where_wanted(tmp_path: Path) -> None:
    probs = outputs(30).logits.softmax(-1)
    data = write(tmp_path / "x.parquet", {"probs": probs.tolist()})
    score(save(tmp_path, "ts"), data, tmp_path / "y.parquet", with_probs=True)
    expected = fitted("ts")(Outputs.from_probs(probs)).probs
    rows = read(tmp_path / "y.parquet")
    torch.testing.assert_close(torch.tensor([rows[f"prob_{i}"] for i in range(K)]).T, expected)


def test_a_folder_is_one_table_and_its_rows_are_numbered_through(tmp_path: Path) -> None:
    (tmp_path / "in" / "b").mkdir(parents=True)
    (tmp_path / "in" / "_temporary").mkdir()
    content = {name: x for name, x in columns(90).items() if name != "id"}
    for name, rows in {
        "a.parquet": slice(40),
        "b/0.parquet": slice(40, 40),
        "c.parquet": slice(40, 90),
    }.items():
        write(tmp_path / "in" / name, {column: x[rows] for column, x in content.items()}, group=13)
    write(tmp_path / "in" / "_temporary" / "d.parquet", content)
    score(save(tmp_path, "sts"), tmp_path / "in", tmp_path / "y.parquet", batch_size=5)
    assert read(tmp_path / "y.parquet")["row_number"] == list(range(90))
    check(read(tmp_path / "y.parquet"), fitted("sts")(outputs(90)))


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.Flatten(), nn.BatchNorm1d(8), nn.Linear(8, K)
    ).eval()


def test_a_network_takes_its_inputs_from_nested_lists(tmp_path: Path) -> None:
    inputs = torch.randn(30, 1, 3, 3)
    lists: list[Any] = inputs.tolist()
    lists[3], lists[5], lists[7] = (
        None,
        [[[1.0, 2.0, 3.0]]],
        [[[1.0, 2.0, 3.0]] * 2 + [[1.0, 2.0, float("nan")]]],
    )
    net, calibrator = make_network(), tmp_path / "c.safetensors"
    save_calibrator(fitted("ts"), calibrator, fingerprint=Backbone(net).fingerprint())
    data = write(tmp_path / "x.parquet", {"inputs": lists})
    score(
        calibrator,
        data,
        tmp_path / "y.parquet",
        network=NetworkSpec("test_score:make_network"),
        batch_size=8,
    )
    good = [i for i in range(30) if i not in (3, 5, 7)]
    rows = read(tmp_path / "y.parquet")
    assert rows["row_number"] == good
    check(rows, fitted("ts")(Outputs(net(inputs[good]).detach())))
    reasons = [
        "`inputs` is null",
        "`inputs` has the shape (1, 1, 3), not (1, 3, 3)",
        "`inputs` at position 8 is NaN",
    ]
    assert read(tmp_path / "y.rejected.parquet") == {"row_number": [3, 5, 7], "reason": reasons}


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    group=st.integers(1, 50),
    batch_size=st.integers(1, 12),
)
def test_every_row_comes_out_once_and_in_order(
    sizes: list[int], group: int, batch_size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("x")
    (folder / "in").mkdir()
    ends = np.cumsum([0, *sizes])
    for i, (start, stop) in enumerate(pairwise(ends)):
        rows = {
            "key": np.arange(start, stop),
            "logits": pa.array(outputs(200).logits[start:stop].tolist(), pa.list_(pa.float32())),
        }
        write(folder / "in" / f"{i}.parquet", rows, group)
    score(
        save(folder, "ts"),
        folder / "in",
        folder / "y.parquet",
        names={"id": "key"},
        batch_size=batch_size,
    )
    assert read(folder / "y.parquet")["key"] == list(range(ends[-1]))


def test_row_groups_and_columns_beside_do_not_matter(tmp_path: Path) -> None:
    content, calibrator = columns(200), save(tmp_path, "sts")
    written = []
    for group, extra in ((200, {}), (3, {"text": ["?"] * 200, "feature_x": ["?"] * 200})):
        data = write(tmp_path / "x.parquet", content | extra, group)
        score(calibrator, data, tmp_path / "y.parquet", batch_size=32)
        written.append((tmp_path / "y.parquet").read_bytes())
    assert written[0] == written[1]
