import ast
import csv
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from helpers.user_files import (
    Array,
    D,
    K,
    N,
    array_suffix,
    content,
    each_suffix,
    equal,
    predict,
    select,
    write,
)
from numpy.lib.npyio import NpzFile
from torch import Generator, nn

import simplexcal
from simplexcal.calibrators import Uncalibrated
from simplexcal.io import save_calibrator, save_outputs
from simplexcal.io.tables import (
    WRITERS,
    check_suffix,
    read_inputs,
    read_outputs,
    read_predictions,
    write_predictions,
)
from simplexcal.mixup import FeatureMixup
from simplexcal.scoring import score
from simplexcal.types import Outputs, Prediction


@each_suffix
def test_logits_with_features_and_labels_are_read_bit_for_bit(suffix: str, tmp_path: Path) -> None:
    table = read_outputs(
        str(write(tmp_path / f"x{suffix}", select("logits", "features", "labels"))), "logits"
    )
    assert equal(table.outputs.logits, content()["logits"])
    assert equal(table.outputs.features, content()["features"])
    assert equal(table.labels, content()["labels"])
    assert (table.head, table.images, table.class_names, table.ids) == (None, None, None, None)


@each_suffix
def test_probs_alone_are_read(suffix: str, tmp_path: Path) -> None:
    table = read_outputs(write(tmp_path / f"x{suffix}", select("probs")), "probs")
    assert equal(table.outputs.logits, np.log(content()["probs"]))
    assert table.outputs.features is None
    assert table.labels is None


@each_suffix
def test_of_logits_and_probs_the_asked_are_taken(suffix: str, tmp_path: Path) -> None:
    path = write(
        tmp_path / f"x{suffix}", {"logits": 2 * content()["logits"], "probs": content()["probs"]}
    )
    assert equal(read_outputs(path, "logits").outputs.logits, 2 * content()["logits"])
    torch.testing.assert_close(
        read_outputs(path, "probs").outputs.logits.softmax(-1), torch.from_numpy(content()["probs"])
    )


@each_suffix
@pytest.mark.parametrize(("asked", "there"), [("logits", "probs"), ("probs", "logits")])
def test_the_other_array_is_never_taken_instead(
    suffix: str, asked: str, there: str, tmp_path: Path
) -> None:
    path = write(tmp_path / f"x{suffix}", select(there))
    with pytest.raises(
        ValueError,
        match=rf"^'.*' holds `{there}` and no `{asked}`. Pass `kind=\"{there}\"` if they are",
    ):
        read_outputs(path, asked)


@each_suffix
def test_logits_are_no_probs(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"x{suffix}", {"probs": content()["logits"]})
    with pytest.raises(
        ValueError,
        match=r"^'.*x\..*': `probs` must be between 0 and 1; found .* `names\[\"logits\"\]`\.$",
    ):
        read_outputs(path, "probs")


@pytest.mark.parametrize("kind", ["list", "large_list", "fixed_size_list"])
def test_parquet_may_hold_lists(kind: str, tmp_path: Path) -> None:
    make = {
        "list": pa.list_,
        "large_list": pa.large_list,
        "fixed_size_list": lambda t: pa.list_(t, K),
    }[kind]
    columns = {"probs": pa.array(content()["probs"].tolist(), make(pa.float64()))}
    pq.write_table(
        pa.table(columns | {"features": content()["features"].tolist()}), tmp_path / "x.parquet"
    )
    table = read_outputs(tmp_path / "x.parquet", "probs")
    assert equal(table.outputs.logits, np.log(content()["probs"]))
    assert equal(table.outputs.features, content()["features"])


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_columns_go_by_their_numbers_not_by_their_places(suffix: str, tmp_path: Path) -> None:
    logits = np.arange(24.0).reshape(2, 12)
    order = [7, 10, 0, 11, 3, 1, 2, 9, 4, 5, 6, 8]
    table = pa.table({f"logit_{i}": logits[:, i] for i in order})
    pq.write_table(table, tmp_path / "x.parquet")
    pa.csv.write_csv(table, tmp_path / "x.csv")
    assert equal(read_outputs(tmp_path / f"x{suffix}", "logits").outputs.logits, logits)


@pytest.mark.parametrize(
    "text",
    [
        b"logit_0,logit_1,label\n1.5,-2,0\n3,4e0,1\n",
        b"\xef\xbb\xbflogit_0,logit_1,label\r\n1.5,-2,0\r\n3,4,1\r\n",
        b'"logit_0","logit_1","label"\n"1.5","-2","0"\n3,4,1',
        b"logit_0, logit_1 ,label\n 1.5, -2, 0\n 3, 4, 1\n\n",
        b"label,name,logit_1,logit_0,date\n0.0,a b,-2,1.5,2020-01-01\n1.0,NA,4,3,\n",
        b'name,label,logit_1,logit_0\n"a\nb",0,-2,1.5\n"""",1,4,3\n',
    ],
    ids=["plain", "BOM and CRLF", "quoted", "spaces", "other columns", "line break in quotes"],
)
def test_csv_as_programs_write_it(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(text)
    table = read_outputs(tmp_path / "x.csv", "logits")
    assert table.outputs.logits.tolist() == [[1.5, -2], [3, 4]]
    assert table.labels is not None
    assert table.labels.tolist() == [0, 1]
    assert table.labels.dtype == torch.int64


def test_a_csv_line_may_be_longer_than_a_megabyte(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f"logit_0,note,logit_1\n1,{'x' * 3_000_000},2\n3,,4\n")
    assert read_outputs(tmp_path / "x.csv", "logits").outputs.logits.tolist() == [[1, 2], [3, 4]]


def test_a_line_break_in_quotes_may_come_between_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simplexcal.io._rows.BLOCK", 64)
    lines = [f'"a\n{"b" * (i % 7)}",{i},1\n' for i in range(100)]
    (tmp_path / "x.csv").write_text("".join(["note,logit_0,logit_1\n", *lines]))
    assert read_outputs(tmp_path / "x.csv", "logits").outputs.logits[:, 0].tolist() == list(
        range(100)
    )


def test_csv_may_have_thousands_of_classes(tmp_path: Path) -> None:
    logits = np.random.default_rng(0).standard_normal((2, 5000))
    assert equal(
        read_outputs(write(tmp_path / "x.csv", {"logits": logits}), "logits").outputs.logits, logits
    )


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        *[(dtype, "float32") for dtype in ("f2", "f4", ">f4", "i1", "u2")],
        *[(dtype, "float64") for dtype in (">f8", "g", "i8", ">i4")],
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_logits_of_any_number_type_become_floats(
    dtype: str, expected: str, order: Any, tmp_path: Path
) -> None:
    logits = np.array([[1, 2, 3], [5, 4, 3]], dtype, order=order)
    table = read_outputs(
        write(tmp_path / "x.npz", {"logits": logits, "labels": logits[:, 0]}), "logits"
    )
    assert table.outputs.logits.tolist() == logits.tolist()
    assert str(table.outputs.logits.dtype) == f"torch.{expected}"
    assert table.labels is not None
    assert table.labels.tolist() == [1, 5]


def test_tensors_that_numpy_does_not_know_become_float32(tmp_path: Path) -> None:
    logits = torch.tensor([[1.5, 2], [0, -1]], dtype=torch.bfloat16)
    safetensors.torch.save_file({"logits": logits}, tmp_path / "x.safetensors")
    assert torch.equal(
        read_outputs(tmp_path / "x.safetensors", "logits").outputs.logits, logits.float()
    )


def test_parquet_numbers_of_any_kind_are_numbers(tmp_path: Path) -> None:
    columns = [
        pa.array(np.array([0.5, 1.5], "f2")),
        pa.array([Decimal("1.25"), Decimal("2.00")]),
        pa.array([3.0, 4.0]).dictionary_encode(),
        pa.array([5, 6], pa.uint8()),
    ]
    pq.write_table(pa.table(columns, [f"logit_{i}" for i in range(4)]), tmp_path / "x.parquet")
    assert read_outputs(tmp_path / "x.parquet", "logits").outputs.logits.T.tolist() == [
        [0.5, 1.5],
        [1.25, 2],
        [3, 4],
        [5, 6],
    ]


@pytest.mark.parametrize("spelling", ["tensors", "encoded", "null"])
def test_what_can_be_scored_can_be_read(spelling: str, tmp_path: Path) -> None:
    logits = content()["logits"]
    columns: dict[str, Any] = {f"logit_{i}": logits[:, i] for i in range(K)}
    if spelling == "tensors":
        columns = {"logits": pa.FixedShapeTensorArray.from_numpy_ndarray(logits)}
    elif spelling == "encoded":
        columns["logit_0"] = pa.array(logits[:, 0]).dictionary_encode()
    else:
        columns["logit_0"] = pa.nulls(N)
    data = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), data)
    identity = Uncalibrated().fit(Outputs(torch.from_numpy(logits)), torch.arange(N) % K)
    save_calibrator(identity, tmp_path / "c.safetensors")
    summary = score(tmp_path / "c.safetensors", data, tmp_path / "y.parquet")
    if spelling == "null":
        assert (summary.rows, summary.n_rejected) == (0, N)
        with pytest.raises(ValueError, match="`logits` must be finite; found nan in row 0"):
            read_outputs(data, "logits")
        return
    assert (summary.rows, summary.n_rejected) == (N, 0)
    assert equal(read_outputs(data, "logits").outputs.logits, logits)


@pytest.mark.parametrize("kind", [pa.list_(pa.float64(), K), pa.list_(pa.float64())])
def test_null_lists_are_no_rows_of_zeros(kind: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"logits": pa.nulls(N, kind)}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"at least one row and column; got shape \(6, 0\)"):
        read_outputs(tmp_path / "x.parquet", "logits")


@array_suffix
@pytest.mark.parametrize("biased", [True, False])
def test_the_head_makes_features_mixable(suffix: str, biased: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer, features = nn.Linear(D, K, bias=biased), torch.randn(N, D)
    logits, state = layer(features).detach(), torch.random.get_rng_state()
    arrays = {"logits": logits.numpy(), "features": features.numpy(), "labels": np.arange(N) % K}
    arrays["head_weight"] = layer.weight.detach().numpy()
    if biased:
        arrays["head_bias"] = layer.bias.detach().numpy().astype(np.float64)
    table = read_outputs(write(tmp_path / f"x{suffix}", arrays), "logits")
    assert table.head is not None
    assert torch.equal(table.head(features), logits)
    assert not any(p.requires_grad for p in table.head.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert table.labels is not None
    mixed = FeatureMixup(table.head, table.outputs, table.labels).sample(
        1.0, 10, Generator().manual_seed(0)
    )
    assert mixed.outputs.logits.shape == (10, K)


@array_suffix
@pytest.mark.parametrize("shape", [(N, 4, 5), (N, 4, 5, 3)])
def test_images_are_read_when_asked_for(
    suffix: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    path = write(tmp_path / f"x{suffix}", {**select("logits"), "images": images})
    assert equal(read_outputs(path, "logits", images=True).images, images)
    assert read_outputs(path, "logits").images is None


def test_nothing_is_read_that_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = np.zeros((N, 4, 5), np.uint8)
    path = write(
        tmp_path / "x.npz", {**content(), "images": large, "inputs": large, "other": large}
    )
    read, original = [], NpzFile.__getitem__

    def record(file: Any, name: str) -> Array:
        read.append(name)
        return original(file, name)

    monkeypatch.setattr(NpzFile, "__getitem__", record)
    read_outputs(path, "logits")
    assert sorted(read) == ["features", "labels", "logits"]
    read.clear()
    read_inputs(path)
    assert sorted(read) == ["inputs", "labels"]


def test_class_names_come_from_npz(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.npz", {**select("logits"), "class_names": np.array(["cat", "Hündin", ""])}
    )
    assert read_outputs(path, "logits").class_names == ("cat", "Hündin", "")


@each_suffix
def test_ids_are_kept(suffix: str, tmp_path: Path) -> None:
    ids = read_outputs(
        write(tmp_path / f"x{suffix}", {**select("logits"), "id": np.arange(N) + 2**40}), "logits"
    ).ids
    assert ids is not None
    assert ids.astype(np.int64).tolist() == (np.arange(N) + 2**40).tolist()


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
@pytest.mark.parametrize(
    "keys", [["007", "NA", "", "1e3", 'a,"b"\n', "ü"], ["007", "08", "9", "10", "0", "1"]]
)
def test_ids_may_be_text_which_is_not_touched(suffix: str, keys: list[str], tmp_path: Path) -> None:
    ids = read_outputs(
        write(tmp_path / f"x{suffix}", {**select("logits"), "id": np.array(keys)}), "logits"
    ).ids
    assert ids is not None
    assert ids.tolist() == keys


@pytest.mark.parametrize("features", [True, False])
def test_outputs_that_the_library_saved_are_read(features: bool, tmp_path: Path) -> None:
    logits, labels = torch.from_numpy(content()["logits"]), torch.arange(N)
    outputs = Outputs(logits, torch.from_numpy(content()["features"]) if features else None)
    save_outputs(outputs, labels, tmp_path / "x.safetensors")
    table = read_outputs(tmp_path / "x.safetensors", "logits")
    assert torch.equal(table.outputs.logits, logits)
    assert (table.outputs.features is not None) == features
    assert equal(table.labels, labels.numpy())
    with pytest.raises(ValueError, match=r'holds `logits` and no `probs`. Pass `kind="logits"`'):
        read_outputs(tmp_path / "x.safetensors", "probs")


def test_every_flipped_bit_in_outputs_that_the_library_saved_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_outputs(Outputs(torch.from_numpy(content()["logits"])), None, path)
    whole = path.read_bytes()
    for i in range(len(whole) - 8 * N * K, len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        with pytest.raises(
            ValueError,
            match=r"^'.*' is damaged or was edited: its checksum is wrong. Save it again.$",
        ):
            read_outputs(path, "logits")


@array_suffix
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i8", "u1"])
def test_inputs_keep_their_type(suffix: str, dtype: str, tmp_path: Path) -> None:
    inputs = np.arange(24).reshape(4, 3, 2).astype(dtype)
    path = write(tmp_path / f"x{suffix}", {"inputs": inputs, "labels": np.array([0.0, 1, 2, 0])})
    read = read_inputs(path)
    assert equal(read.inputs, inputs)
    assert read.labels is not None
    assert read.labels.tolist() == [0, 1, 2, 0]
    alone = read_inputs(write(tmp_path / f"y{suffix}", {"inputs": inputs}))
    assert (alone.labels, alone.images, alone.class_names, alone.ids) == (None, None, None, None)


def test_inputs_come_with_what_a_report_shows(tmp_path: Path) -> None:
    images, inputs = np.zeros((N, 2, 2), np.uint8), np.ones((N, 1))
    names, keys = np.array(["cat", "dog"]), np.array(list("abcdef"))
    path = write(
        tmp_path / "x.npz", {"inputs": inputs, "images": images, "class_names": names, "id": keys}
    )
    read = read_inputs(path, images=True)
    assert equal(read.images, images)
    assert read.class_names == ("cat", "dog")
    assert read.ids is not None
    assert read.ids.tolist() == list("abcdef")
    assert read_inputs(path).images is None


def test_inputs_that_are_not_there_are_missed(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"holds `logits` and no `inputs`. Saved outputs need no network: leave out `network`",
    ):
        read_inputs(write(tmp_path / "x.npz", select("logits")))
    with pytest.raises(ValueError, match=r"must hold an array `inputs`; found 'labels'\.$"):
        read_inputs(write(tmp_path / "y.npz", select("labels")))
    with pytest.raises(
        ValueError,
        match=r"must hold an array `inputs`, which only .npz and .safetensors can; found 'f",
    ):
        read_inputs(write(tmp_path / "y.csv", select("features")))


@each_suffix
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_predictions_come_back(suffix: str, dtype: torch.dtype, tmp_path: Path) -> None:
    prediction, labels = predict(dtype), torch.tensor([2, 1, 0, 2, 1, 0])
    write_predictions(str(tmp_path / f"x{suffix}"), prediction, ids=np.arange(N), labels=labels)
    read, read_labels = read_predictions(str(tmp_path / f"x{suffix}"))
    assert equal(read_labels, labels.numpy())
    for name, x in vars(prediction).items():
        back = getattr(read, name)
        assert torch.equal(back.to(x.dtype), x), name
        assert (
            back.dtype == x.dtype or suffix == ".csv"
        )  # text has no type: float64 holds every digit


@each_suffix
def test_accepted_is_true_or_false(suffix: str, tmp_path: Path) -> None:
    arrays = select("probs") | {"accepted": np.arange(N)}
    with pytest.raises(TypeError, match="`accepted` must be true or false; got 'int64'"):
        read_predictions(write(tmp_path / f"x{suffix}", arrays))


@each_suffix
def test_what_is_not_known_is_not_written(suffix: str, tmp_path: Path) -> None:
    write_predictions(tmp_path / f"x{suffix}", Prediction(predict().probs, predict().label))
    read, labels = read_predictions(tmp_path / f"x{suffix}")
    assert read.accepted is None
    assert (read.aleatoric, read.epistemic, read.mutual_information, labels) == (
        None,
        None,
        None,
        None,
    )


def test_the_names_in_a_file_of_predictions_are_these(tmp_path: Path) -> None:
    for suffix in WRITERS:
        write_predictions(tmp_path / f"x{suffix}", predict(), ids=range(N), labels=torch.arange(N))
    scalars = [
        "predicted",
        "confidence",
        "aleatoric",
        "epistemic",
        "mutual_information",
        "accepted",
    ]
    in_rows = ["id", "label", *scalars, "prob_0", "prob_1", "prob_2"]
    in_arrays = ["id", "labels", *scalars, "probs"]
    assert np.load(tmp_path / "x.npz").files == in_arrays
    assert sorted(safetensors.torch.load_file(tmp_path / "x.safetensors")) == sorted(in_arrays)
    assert pq.read_schema(tmp_path / "x.parquet").names == in_rows
    with (tmp_path / "x.csv").open(newline="") as file:
        header, first, *_ = csv.reader(file)
    assert header == in_rows
    assert first[7] == "true"
    np.testing.assert_array_equal(np.array(first[8:], "f4"), predict().probs[0].numpy())
    assert np.float32(first[3]) == predict().confidence[0].item()


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_ids_are_written_as_they_were_read(suffix: str, tmp_path: Path) -> None:
    keys = ["007", "NA", "", "1e3", 'a,"b"\n', "ü"]
    for source in (".npz", ".parquet", ".csv"):
        table = read_outputs(
            write(tmp_path / f"x{source}", {**select("probs"), "id": np.array(keys)}), "probs"
        )
        write_predictions(tmp_path / f"y{suffix}", predict(), ids=table.ids)
        ids = read_outputs(tmp_path / f"y{suffix}", "probs").ids
        assert ids is not None
        assert ids.tolist() == keys


def test_the_predicted_class_is_the_networks_own(tmp_path: Path) -> None:
    tie = Prediction(torch.full((2, 2), 0.5), torch.tensor([1, 0]))
    write_predictions(tmp_path / "x.csv", tie)
    assert read_predictions(tmp_path / "x.csv")[0].label.tolist() == [1, 0]


@each_suffix
def test_probabilities_alone_are_predictions(suffix: str, tmp_path: Path) -> None:
    read, labels = read_predictions(write(tmp_path / f"x{suffix}", select("probs", "labels")))
    assert equal(read.label, content()["probs"].argmax(1))
    assert equal(labels, content()["labels"])


@each_suffix
@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    suffix: str,
    step: str,
    error: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / f"x{suffix}"
    write_predictions(path, predict())
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        for target in (path, tmp_path / f"new{suffix}"):
            with pytest.raises(error):
                write_predictions(target, predict(seed=1))
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before
    write_predictions(path, predict(seed=1))
    assert path.read_bytes() != before


def test_predictions_that_cannot_be_written_are_not(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"`labels` must have shape \(6,\), to fit the rest; got \(5,\)"
    ):
        write_predictions(tmp_path / "x.csv", predict(), labels=torch.arange(5))
    with pytest.raises(ValueError, match=r"`id` must have shape \(6,\), to fit the rest; got \(\)"):
        write_predictions(tmp_path / "x.csv", predict(), ids="abcdef")
    with pytest.raises(TypeError, match=r"`id` must be integers or text; got 'float64'"):
        write_predictions(tmp_path / "x.csv", predict(), ids=np.arange(N) / 2)
    with pytest.raises(
        TypeError,
        match=r"`id` is text, which .safetensors cannot hold. Write .npz, .parquet or .csv.",
    ):
        write_predictions(tmp_path / "x.safetensors", predict(), ids=list("abcdef"))
    with pytest.raises(
        ValueError,
        match=r"x.txt' must end in .npz, .safetensors, .parquet, .csv, which .*; got '.txt'",
    ):
        write_predictions(tmp_path / "x.txt", predict())
    with pytest.raises(ValueError, match=r"x.pt' must end in .npz, .safetensors, .parquet, .csv"):
        write_predictions(tmp_path / "x.pt", predict())
    with pytest.raises(
        FileNotFoundError,
        match=r"nowhere' is no folder, so nothing can be written there. Make it",
    ):
        write_predictions(tmp_path / "nowhere" / "x.csv", predict())
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(IsADirectoryError):
        write_predictions(tmp_path / "folder.csv", predict())
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]


def test_without_pyarrow_the_error_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path / f"x{suffix}", content()) for suffix in (".parquet", ".csv")]
    arrays = write(tmp_path / "x.npz", content())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for path in paths:
        with pytest.raises(
            ImportError, match=r'need pyarrow, which .*. Run pip install "simplexcal\[cli\]".'
        ):
            read_outputs(path, "logits")
        with pytest.raises(ImportError, match=r"need pyarrow"):
            write_predictions(path, predict())
    assert equal(read_outputs(arrays, "logits").outputs.logits, content()["logits"])


def test_pyarrow_is_imported_when_it_is_needed() -> None:
    code = "import sys, simplexcal.io.tables; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize("module", ["native", "tables", "_columns", "_npz", "_arrow", "_rows"])
def test_nothing_is_pickled_and_nothing_but_tensors_unpickled(module: str) -> None:
    tree = ast.parse((Path(simplexcal.__file__).parent / "io" / f"{module}.py").read_text())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names.isdisjoint(
        {"pickle", "_pickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"}
    )
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {ast.unparse(call.func) for call in calls}
    assert called.isdisjoint({"torch.save", "np.load", "eval", "exec"})
    for call in calls:
        if ast.unparse(call.func) == "torch.load":
            assert "weights_only=True" in [ast.unparse(keyword) for keyword in call.keywords]
    options = {
        (node.arg, ast.unparse(node.value))
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword)
    }
    assert ("allow_pickle", "True") not in options


def test_the_suffix_tells_the_format_in_any_case() -> None:
    assert check_suffix("a/X.CSV") == ".csv"


@pytest.mark.parametrize("key", ["=HYPERLINK(1)", "+1", "-x", "@me", "\t=1"])
def test_ids_that_a_spreadsheet_would_run_are_a_warning_in_csv(key: str, tmp_path: Path) -> None:
    ids = ["a"] * (N - 1) + [key]
    path = tmp_path / "y.csv"
    with pytest.warns(UserWarning, match=r"'.*y.csv': 1 of the ids begin with .* a formula"):
        write_predictions(path, predict(), ids=ids)
    table = read_outputs(path, "probs")
    assert table.ids is not None
    assert table.ids.tolist() == ids


@pytest.mark.filterwarnings("error")
def test_other_ids_are_no_warning(tmp_path: Path) -> None:
    write_predictions(tmp_path / "y.parquet", predict(), ids=["=1"] * N)
    write_predictions(tmp_path / "y.csv", predict(), ids=[f"row {i}" for i in range(N)])
    write_predictions(tmp_path / "y.csv", predict(), ids=[-i for i in range(N)])


def test_a_file_of_one_array_holds_what_is_asked_for(tmp_path: Path) -> None:
    arrays = content()
    np.save(tmp_path / "x.npy", arrays["logits"])
    torch.save(nn.Parameter(torch.from_numpy(arrays["logits"])), tmp_path / "x.pt")
    for name in ("x.npy", "x.pt"):
        table = read_outputs(tmp_path / name, "logits")
        assert equal(table.outputs.logits, arrays["logits"])
        assert (table.labels, table.head, table.ids) == (None, None, None)
        assert equal(read_inputs(tmp_path / name).inputs, arrays["logits"])
    np.save(tmp_path / "probs.npy", arrays["probs"])
    assert equal(read_predictions(tmp_path / "probs.npy")[0].probs, arrays["probs"])


def test_a_file_of_named_tensors_is_read_as_an_npz(tmp_path: Path) -> None:
    arrays = content()
    tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
    torch.save({**tensors, "logits": tensors["logits"].bfloat16()}, tmp_path / "x.pt")
    table = read_outputs(tmp_path / "x.pt", "logits")
    assert torch.equal(table.outputs.logits, tensors["logits"].bfloat16().float())
    assert equal(table.outputs.features, arrays["features"])
    assert equal(table.labels, arrays["labels"])
