"""A malformed file is refused in one line that says what is wrong with it."""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from helpers.user_files import (
    K,
    N,
    content,
    npz,
    read_outputs_of_logits,
    select,
    write,
)

from simplexcal.calibrators import TemperatureScaling
from simplexcal.io import save_calibrator
from simplexcal.io.native import _checksum
from simplexcal.io.tables import (
    READERS,
    read_inputs,
    read_outputs,
    read_predictions,
)
from simplexcal.types import Outputs


def parquet(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def npy(header: str, magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    """Return an .npz whose array `logits` has this header."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        head = header.encode() + b" " * (117 - len(header)) + b"\n"
        file.writestr("logits.npy", magic + len(head).to_bytes(2, "little") + head)
    return buffer.getvalue()


def saved(save: Callable[..., None], content: object) -> bytes:
    """Return what a library writes for a value."""
    buffer = io.BytesIO()
    save(buffer, content)
    return buffer.getvalue()


def save_pt(buffer: io.BytesIO, content: object) -> None:
    torch.save(content, buffer)


class Evil:
    """What a careless unpickler would run."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return Path.touch, ("pwned",)  # type: ignore[return-value]


def twice() -> bytes:
    """Return an .npz with two arrays of one name."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(npz(logits=np.ones((2, 2))))) as source,
        zipfile.ZipFile(buffer, "w") as file,
    ):
        file.writestr("logits.npy", source.read("logits.npy"))
        file.writestr("logits", source.read("logits.npy"))
    return buffer.getvalue()


def tensors(metadata: dict[str, str] | None = None, **arrays: Any) -> bytes:
    return safetensors.torch.save(
        {name: torch.as_tensor(x) for name, x in arrays.items()}, metadata
    )


def header(text: bytes) -> bytes:
    """Return a .safetensors with this header and eight bytes."""
    return len(text).to_bytes(8, "little") + text + bytes(8)


class Bomb:
    """Goes off when it is unpickled."""

    def __reduce__(self) -> Any:
        return os._exit, (1,)


X = np.array([[1.0, 2, 3], [4, 5, 6]])
Y = np.array([0, 1])
HOLE = np.array([[1.0, 2, 3], [4, np.nan, np.inf]])
L = {"logit_0": [1.0, 2], "logit_1": [3.0, 4]}
NPZ: dict[str, tuple[bytes, str]] = {
    "empty npz": (
        b"",
        "cannot be read as .npz (File is not a zip file). Write it with numpy.savez",
    ),
    "csv as npz": (b"logit_0,logit_1\n1,2\n", "cannot be read as .npz (File is not a zip file)"),
    "objects": (npz(logits=np.array([[1, 2], [3]], object)), "objects are never unpickled"),
    "bomb": (npz(logits=np.array([Bomb()], object)), "objects are never unpickled"),
    "pickle": (pickle.dumps(Bomb()), "cannot be read as .npz (File is not a zip file)"),
    "bare pickle in zip": (npy("", magic=b"\x80"), "must be numbers; got '|S"),
    "huge": (
        npy(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**10}, {10**5}), }}"),
        "cannot be read",
    ),
    "overflow": (
        npy(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**62}, 16), }}"),
        "cannot be read",
    ),
    "negative": (
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 2), }"),
        "cannot be read",
    ),
    "no header": (npy("{'descr': "), "cannot be read as .npz ("),
    "code in header": (npy("__import__('os')._exit(1)"), "cannot be read as .npz ("),
    "duplicate": (
        twice(),
        "must hold `logits` once; found 'logits', 'logits'. Keep the one that is meant.",
    ),
    "nothing": (npz(), "must hold an array `logits`; found nothing."),
    "other names": (npz(a=X, b=Y), "must hold an array `logits`; found 'a', 'b'."),
    "unnamed": (npz(arr_0=X), "must hold an array `logits`; found 'arr_0'."),
    "nan": (
        npz(logits=HOLE),
        "`logits` must be finite; found nan in row 1, column 1, both counted from 0.",
    ),
    "nan features": (
        npz(logits=X, features=HOLE),
        "`features` must be finite; found nan in row 1, column 1",
    ),
    "nan labels": (
        npz(logits=X, labels=[0, np.nan]),
        "`labels` must be finite; found nan in row 1 counted",
    ),
    "long double": (npz(logits=X * np.longdouble("1e4000")), "found inf in row 0, column 0"),
    "text": (npz(logits=X.astype(str)), "`logits` must be numbers; got '<U"),
    "complex": (npz(logits=X + 1j), "`logits` must be numbers; got 'complex128'."),
    "bool": (npz(logits=X > 2), "`logits` must be numbers; got 'bool'."),
    "record": (npz(logits=np.zeros(2, "f4,f4")), "`logits` must be numbers; got"),
    "date": (npz(logits=X.astype("M8[s]")), "`logits` must be numbers; got"),
    "scalar": (npz(logits=1.0), "`logits` must have at least one row and column; got shape ()."),
    "no rows": (
        npz(logits=X[:0]),
        "`logits` must have at least one row and column; got shape (0, 3).",
    ),
    "no classes": (
        npz(logits=X[:, :0]),
        "`logits` must have at least one row and column; got shape (2, 0).",
    ),
    "one class": (
        npz(logits=X[:, :1]),
        "`logits` must have shape (N, K) with K >= 2 classes; got (2, 1).",
    ),
    "vector": (npz(logits=X[0]), "`logits` must have shape (N, K) with K >= 2 classes; got (3,)."),
    "cube": (
        npz(logits=X[None]),
        "`logits` must have shape (N, K) with K >= 2 classes; got (1, 2, 3).",
    ),
    "fewer features": (
        npz(logits=X, features=X[:1]),
        "`features` must have shape (N, D) with N = 2",
    ),
    "no features": (
        npz(logits=X, features=X[:, :0]),
        "`features` must have at least one row and column",
    ),
    "fewer labels": (
        npz(logits=X, labels=Y[:1]),
        "`labels` must have shape (2,), to fit the rest; got (1,).",
    ),
    "one-hot": (
        npz(logits=X, labels=np.eye(2)),
        "`labels` must have shape (2,), to fit the rest; got (2, 2).",
    ),
    "half labels": (
        npz(logits=X, labels=[1.0, 0.5]),
        "must be whole numbers; found 0.5 in row 1 counted from",
    ),
    "large labels": (
        npz(logits=X, labels=[1.0, 1e300]),
        "must be whole numbers; found 1e+300 in row 1",
    ),
    "larger labels": (
        npz(logits=X, labels=np.array([0, 2**64 - 1], "u8")),
        f"found {2**64 - 1} in row 1",
    ),
    "text labels": (npz(logits=X, labels=["cat", "dog"]), "`labels` must be numbers; got '<U3'."),
    "bool labels": (npz(logits=X, labels=[True, False]), "`labels` must be numbers; got 'bool'."),
    "head upside down": (
        npz(logits=X, features=X[:, :2], head_weight=X),
        "`head_weight` must have shape (3, 2)",
    ),
    "flat head": (
        npz(logits=X, head_weight=Y),
        "`head_weight` must have shape (3, 2), to fit the rest; got (2,)",
    ),
    "bias alone": (
        npz(logits=X, head_bias=X[0]),
        "holds `head_bias` and no `head_weight`. Add it, or leave out",
    ),
    "other bias": (
        npz(logits=X, head_weight=X.T, head_bias=Y),
        "`head_bias` must have shape (3,), to fit",
    ),
    "float images": (
        npz(logits=X, images=np.zeros((2, 4, 4))),
        "`images` must be uint8 with shape (2, H, W) or",
    ),
    "images first": (
        npz(logits=X, images=np.zeros((2, 3, 4, 4), "u1")),
        "(2, H, W, 3); got 'uint8' (2, 3, 4, 4).",
    ),
    "few images": (
        npz(logits=X, images=np.zeros((1, 4, 4), "u1")),
        "shape (2, H, W) or (2, H, W, 3); got",
    ),
    "scalar images": (
        npz(logits=X, images=np.uint8(1)),
        "shape (2, H, W) or (2, H, W, 3); got 'uint8' ().",
    ),
    "fewer names": (
        npz(logits=X, class_names=["a", "b"]),
        "`class_names` must have shape (3,), to fit the rest",
    ),
    "numbers as names": (
        npz(logits=X, class_names=[1, 2, 3]),
        "`class_names` must be text; got 'int64'.",
    ),
    "fewer ids": (npz(logits=X, id=[1]), "`id` must have shape (2,), to fit the rest; got (1,)."),
    "float ids": (npz(logits=X, id=[1.0, 2.0]), "`id` must be integers or text; got 'float64'."),
}
SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "empty safetensors": (b"", "cannot be read as .safetensors ("),
    "csv as safetensors": (b"logit_0,logit_1\n1,2\n", "cannot be read as .safetensors ("),
    "npz as safetensors": (npz(logits=X), "cannot be read as .safetensors ("),
    "no tensors": (tensors(), "must hold an array `logits`; found nothing."),
    "nan tensor": (tensors(logits=HOLE), "`logits` must be finite; found nan in row 1, column 1"),
    "bool tensor": (tensors(logits=X > 2), "`logits` must be numbers; got 'bool'."),
    "huge tensor header": (
        (2**62).to_bytes(8, "little") + b"{}",
        "cannot be read as .safetensors (",
    ),
    "huge tensor": (
        header(b'{"logits":{"dtype":"F64","shape":[99999999999,99999999],"data_offsets":[0,8]}}'),
        "(",
    ),
    "our header, no sense": (tensors({"simplexcal": "{}"}, logits=X), "its header cannot be read."),
    "our header, deep": (
        tensors({"simplexcal": "[" * 10**5}, logits=X),
        "its header makes no sense.",
    ),
    "our header, edited": (
        tensors(
            {"simplexcal": json.dumps({"format": 1, "kind": "outputs", "checksum": "0"})}, logits=X
        ),
        "its checksum is wrong.",
    ),
}
PARQUET: dict[str, tuple[bytes, str]] = {
    "empty parquet": (b"", "cannot be read as .parquet ("),
    "csv as parquet": (b"logit_0,logit_1\n1,2\n", "cannot be read as .parquet ("),
    "gap": (
        parquet(logit_0=[1.0], logit_2=[2.0]),
        "must be logit_0 to logit_1, once each; logit_1 is missing",
    ),
    "from one": (
        parquet(logit_1=[1.0], logit_2=[2.0]),
        "; logit_0 is missing. Number them from 0, without",
    ),
    "padded": (
        parquet(**L, logit_02=[1.0, 2]),
        "must be logit_0 to logit_2, once each; logit_2 is missing",
    ),
    "far": (
        parquet(logit_0=[1.0], **{"logit_" + "9" * 5000: [1.0]}),
        "once each; logit_1 is missing",
    ),
    "lists and columns": (
        parquet(**L, logits=[[1.0], [2.0]]),
        "must hold `logits` once; found 'logit_0', 'logit_1', 'logits'. Keep the one that is meant",
    ),
    "labels twice": (
        parquet(**L, label=[0, 1], labels=[0, 1]),
        "must hold `labels` once; found 'label', 'labels'",
    ),
    "ragged": (
        parquet(logits=[[1.0, 2], [3.0]]),
        "lists of one length; the first has 2 values, that at position 1 has 1.",
    ),
    "missing list": (
        parquet(logits=[[1.0, 2], None]),
        "the first has 2 values, that at position 1 has 0.",
    ),
    "no lists": (
        parquet(logits=pa.nulls(2, pa.list_(pa.float32()))),
        "at least one row and column; got shape (2, 0)",
    ),
    "missing value": (
        parquet(logits=[[1.0, 2], [3.0, None]]),
        "must be finite; found nan in row 1, column 1",
    ),
    "numbers for lists": (
        parquet(logits=[1.0, 2]),
        "must hold lists of numbers; it holds values of type 'double'. Or write",
    ),
    "lists of text": (
        parquet(logits=[["1", "x"], ["3", "4"]]),
        "must hold numbers; it holds text, 'x' at position 1.",
    ),
    "lists of lists": (
        parquet(logits=[[[1.0]], [[2.0]]]),
        "must hold numbers; it holds values of type 'list<",
    ),
    "struct": (
        parquet(logit_0=[{"a\nb": 1}], logit_1=[1.0]),
        "column 'logit_0' must hold numbers; it holds values of type",
    ),
    "bytes": (
        parquet(logit_0=[b"1"], logit_1=[1.0]),
        "must hold numbers; it holds values of type 'binary'.",
    ),
    "text column": (
        parquet(logit_0=["1", "x"], logit_1=[1.0, 2]),
        "must hold numbers; it holds text, 'x' at position 1.",
    ),
    "numbers in text": (
        parquet(logit_0=["1", "2"], logit_1=[1.0, 2]),
        "it holds text, '1' at position 0.",
    ),
    "bool column": (
        parquet(logit_0=[True], logit_1=[1.0]),
        "must hold numbers; it holds values of type 'bool'.",
    ),
    "missing ids": (
        parquet(**L, id=["a", None]),
        "column 'id' must have a value in every row; 1 have none.",
    ),
    "float id column": (
        parquet(**L, id=[1.0, 2]),
        "column 'id' must hold integers or text; it holds 'double'.",
    ),
    "parquet without rows": (
        parquet(logit_0=pa.nulls(0, pa.float64()), logit_1=pa.nulls(0, pa.float64())),
        "row and column; got shape (0, 2)",
    ),
    "parquet without lists": (
        parquet(logits=pa.nulls(0, pa.list_(pa.float64()))),
        "row and column; got shape (0, 0)",
    ),
    "parquet of nulls": (
        parquet(logit_0=pa.nulls(2), logit_1=pa.nulls(2)),
        "must be finite; found nan in row 0, column 0",
    ),
    "no columns": (parquet(), "must hold columns logit_0, logit_1, …; found nothing."),
    "head in rows": (
        parquet(head_weight=[1.0]),
        "must hold columns logit_0, logit_1, …; found 'head_weight'.",
    ),
}
CSV: dict[str, tuple[bytes, str]] = {
    "empty csv": (
        b"",
        "cannot be read as .csv (Empty CSV file). Write a first line of column names",
    ),
    "parquet as csv": (parquet(**L), "cannot be read as .csv ("),
    "npz as csv": (npz(logits=X), "cannot be read as .csv ("),
    "semicolons": (
        b"logit_0;logit_1;label\n1;2;0\n",
        "separated by commas; found 'logit_0;logit_1;label'.",
    ),
    "decimal commas": (
        b"logit_0;logit_1\n1,5;2,5\n",
        "(CSV parse error: Expected 1 columns, got 3: 1,5;2,5). Write a first line",
    ),
    "quoted decimal commas": (
        b'logit_0,logit_1\n1,2\n"1,5",2\n',
        "column 'logit_0' must hold numbers; it holds text, '1,5' at position 1.",
    ),
    "tabs": (b"logit_0\tlogit_1\n1\t2\n", r"found 'logit_0\tlogit_1'."),
    "no names": (
        b"1.5,2.5,0\n3.5,4.5,1\n",
        "logit_0, logit_1, …, named in its first line and separated by commas; "
        "found '1.5', '2.5', '0'.",
    ),
    "line break in name": (b'"a\nb",c\n1,2\n', r"found 'a\nb', 'c'."),
    "ragged lines": (
        b"logit_0,logit_1\n1,2\n3\n",
        "(CSV parse error: Expected 2 columns, got 1: 3). Write a first line",
    ),
    "same name": (
        b"logit_0,logit_1,logit_1\n1,2,3\n",
        "has 3 columns of logits, which must be logit_0 to logit_2, once each; logit_2 is missing",
    ),
    "same label": (
        b"logit_0,logit_1,label,label \n1,2,0,0\n",
        "must hold `labels` once; found 'label', 'label'.",
    ),
    "word": (
        b"logit_0,logit_1\n1,2\n3,four\n",
        "column 'logit_1' must hold numbers; it holds text, 'four' at position 1.",
    ),
    "class name": (
        b"logit_0,logit_1,label\n1,2,cat\n",
        "column 'label' must hold numbers; it holds text, 'cat' at position 0.",
    ),
    "dates": (
        b"logit_0,logit_1\n2020-01-01,2\n",
        "column 'logit_0' must hold numbers; it holds values of type 'date32[day]'.",
    ),
    "list in text": (
        b'logits\n"[1, 2]"\n',
        "must hold lists of numbers; it holds text, '[1, 2]' at position 0. "
        "Or write columns logit_0, logit_1, ….",
    ),
    "hole": (
        b"logit_0,logit_1\n1,2\n,4\n",
        "`logits` must be finite; found nan in row 1, column 0, both counted from 0. Mend or",
    ),
    "nan in csv": (
        b"logit_0,logit_1\n1,2\n3,NaN\n",
        "`logits` must be finite; found nan in row 1, column 1",
    ),
    "inf in csv": (
        b"logit_0,logit_1\n1,-inf\n",
        "`logits` must be finite; found -inf in row 0, column 1",
    ),
    "overflow in csv": (
        b"logit_0,logit_1\n1,1e999\n",
        "`logits` must be finite; found inf in row 0, column 1",
    ),
    "hole in labels": (
        b"logit_0,logit_1,label\n1,2,0\n1,2,\n",
        "`labels` must be finite; found nan in row 1 counted",
    ),
    "half label": (
        b"logit_0,logit_1,label\n1,2,0\n1,2,1.5\n",
        "must be whole numbers; found 1.5 in row 1 counted",
    ),
    "names alone": (
        b"logit_0,logit_1\n",
        "`logits` must have at least one row and column; got shape (0, 2).",
    ),
    "one column": (
        b"logit_0\n1\n2\n",
        "`logits` must have shape (N, K) with K >= 2 classes; got (2, 1).",
    ),
    "UTF-16": ("logit_0,logit_1\n1,2\n".encode("utf-16"), "cannot be read as .csv ("),
    "Latin-1": ("logit_0,logit_1,id\n1,2,ü\n".encode("latin-1"), "cannot be read as .csv ("),
    "open quote": (
        b'logit_0,logit_1\n1,"2\n',
        r"must hold numbers; it holds text, '2\n' at position 0.",
    ),
    "NUL": (
        b"logit_0,logit_1\n1,2\x00\n",
        r"must hold numbers; it holds text, '2\x00' at position 0.",
    ),
    "huge number": (
        b"logit_0,logit_1\n1," + b"9" * 10**5 + b"\n",
        "`logits` must be finite; found inf in row 0, column 1",
    ),
}
NPY: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "cannot be read as .npy ("),
    "text": (b"no array", "cannot be read as .npy ("),
    "cut short": (saved(np.save, np.ones((5, 3)))[:-9], "cannot be read as .npy ("),
    "objects": (
        saved(np.save, np.array([[{}], [{}]])),
        "cannot be read as .npy (Object arrays cannot be loaded when allow_pickle=False). Write",
    ),
    "one row": (
        saved(np.save, np.ones(3)),
        "`logits` must have shape (N, K) with K >= 2 classes; got (3,).",
    ),
    "text in an array": (saved(np.save, np.array([["a"]])), "`logits` must be numbers; got '<U1'"),
    "NaN": (saved(np.save, np.full((1, 2), np.nan)), "`logits` must be finite; found nan in row 0"),
}
PT: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "cannot be read as .pt ("),
    "text": (b"no tensor", "cannot be read as .pt ("),
    "cut short": (saved(save_pt, torch.ones(5, 3))[:300], "cannot be read as .pt ("),
    "code": (saved(save_pt, {"logits": Evil()}), "cannot be read as .pt ("),
    "a number": (saved(save_pt, 3), "must hold a tensor, or a dict of tensors; it holds int."),
    "no tensor": (
        saved(save_pt, {"logits": [1.0]}),
        "must hold a tensor, or a dict of tensors; 'logits' is list.",
    ),
    "another name": (
        saved(save_pt, {"scores": torch.ones(2, 2)}),
        "must hold an array `logits`; found 'scores'.",
    ),
    "sparse": (saved(save_pt, torch.eye(3).to_sparse()), "cannot be read as .pt ("),
}
MALFORMED = {
    (suffix, case): files[case]
    for suffix, files in zip(READERS, (NPZ, SAFETENSORS, PARQUET, CSV, NPY, PT), strict=True)
    for case in files
}


@pytest.mark.parametrize(("suffix", "case"), MALFORMED)
def test_a_malformed_file_is_one_clear_sentence(suffix: str, case: str, tmp_path: Path) -> None:
    data, message = MALFORMED[suffix, case]
    path = tmp_path / f"x{suffix}"
    path.write_bytes(data)
    with pytest.raises((ValueError, TypeError)) as caught:
        read_outputs(path, "logits", images=True)
    assert type(caught.value) in (ValueError, TypeError)
    assert str(caught.value).startswith(f"'{path}'")
    assert message in str(caught.value)
    assert not Path("pwned").exists()
    assert str(caught.value).isprintable()
    assert str(caught.value).count(str(path)) == 1
    assert len(str(caught.value)) < 400 + 2 * len(str(path))


@pytest.mark.parametrize("read", [read_outputs_of_logits, read_inputs, read_predictions])
def test_a_path_that_cannot_be_opened_is_the_systems_error(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    for suffix in READERS:
        with pytest.raises(FileNotFoundError, match=rf"nowhere{suffix}"):
            read(tmp_path / f"nowhere{suffix}")
        (tmp_path / f"folder{suffix}").mkdir()
        with pytest.raises(IsADirectoryError, match=rf"folder{suffix}"):
            read(tmp_path / f"folder{suffix}")
    for name in ("x.txt", "x", "x.csv.gz", ".csv"):
        with pytest.raises(
            ValueError,
            match=rf"{name}' must end in .npz, .safetensors, .parquet, .csv, .npy, .pt, which",
        ):
            read(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(
        ValueError, match=r"pipe\.csv' is a pipe, and tables are read more than once\. Write it to"
    ):
        read_outputs_of_logits(tmp_path / "pipe.csv")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npz(logits=X), "holds `logits` and no `probs`. Calibrate them first: simplexcal predict."),
        (npz(probs=X), "': `probs` must be between 0 and 1; found 2 at position (0, 1)."),
        (npz(probs=HOLE), "': `probs` must be finite; found nan in row 1, column 1"),
        (
            npz(probs=np.eye(2), predicted=[0, 2]),
            "`predicted` must lie in 0..1 for 2 columns of probs; found 2 in row 1.",
        ),
        (
            npz(probs=np.eye(2), predicted=[-1, 0]),
            "`predicted` must lie in 0..1 for 2 columns of probs; found -1 in row 0.",
        ),
        (
            npz(probs=np.eye(2), predicted=[0.5, 0]),
            "`predicted` must be whole numbers; found 0.5 in row 0",
        ),
        (
            npz(probs=np.eye(2), aleatoric=[0.5, np.nan]),
            "`aleatoric` must be finite; found nan in row 1 counted from 0.",
        ),
        (
            npz(probs=np.eye(2), epistemic=[0.5]),
            "`epistemic` must have shape (2,), to fit the rest; got (1,).",
        ),
        (
            npz(probs=np.eye(2), mutual_information=["a", "b"]),
            "`mutual_information` must be numbers; got '<U1'.",
        ),
        (
            npz(probs=np.eye(2), labels=[0]),
            "`labels` must have shape (2,), to fit the rest; got (1,).",
        ),
    ],
)
def test_malformed_predictions_are_one_clear_sentence(
    data: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises((ValueError, TypeError)) as caught:
        read_predictions(tmp_path / "x.npz")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            npz(inputs=np.float32(1)),
            "`inputs` must have at least one row and column; got shape ().",
        ),
        (npz(inputs=X[:0]), "`inputs` must have at least one row and column; got shape (0, 3)."),
        (npz(inputs=["a text", "b"]), "`inputs` must be numbers; got '<U6'."),
        (
            npz(inputs=np.full((2, 2, 2), np.nan)),
            "`inputs` must be finite; found nan in row 0 counted from 0.",
        ),
        (
            npz(inputs=X, labels=[0, 1, 2]),
            "`labels` must have shape (2,), to fit the rest; got (3,).",
        ),
        (
            npz(inputs=X, class_names=[["a", "b"]]),
            "`class_names` must have shape (2,), to fit the rest; got (1, 2).",
        ),
    ],
)
def test_malformed_inputs_are_one_clear_sentence(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises((ValueError, TypeError)) as caught:
        read_inputs(tmp_path / "x.npz")
    assert message in str(caught.value)


def test_a_calibrator_is_no_file_of_outputs(tmp_path: Path) -> None:
    outputs = Outputs(torch.from_numpy(content()["logits"]))
    save_calibrator(
        TemperatureScaling().fit(outputs, torch.arange(N) % 2), tmp_path / "x.safetensors"
    )
    with pytest.raises(ValueError, match=r"is of kind 'calibrator', not 'outputs'"):
        read_outputs(tmp_path / "x.safetensors", "logits")


def test_a_header_with_the_right_checksum_may_still_make_no_sense(tmp_path: Path) -> None:
    header = {"format": 1, "kind": "outputs"}
    header |= {"checksum": _checksum(header, {"x": torch.zeros(2)})}
    safetensors.torch.save_file(
        {"x": torch.zeros(2)}, tmp_path / "x.safetensors", {"simplexcal": json.dumps(header)}
    )
    with pytest.raises(
        ValueError, match=r"is damaged or was edited: its header lacks 'versions'. Save it again."
    ):
        read_outputs(tmp_path / "x.safetensors", "logits")


@pytest.mark.parametrize("asked", ["", "logit", "LOGITS", "features", None])
def test_what_to_take_is_said_exactly(asked: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match='`kind` must be "logits" or "probs", as the file holds them; got'
    ):
        read_outputs(write(tmp_path / "x.npz", content()), asked)


def test_labels_from_one_are_left_to_those_who_know_the_classes(tmp_path: Path) -> None:
    table = read_outputs(
        write(tmp_path / "x.csv", {**select("logits"), "labels": np.arange(N) % K + 1}), "logits"
    )
    assert table.labels is not None
    with pytest.raises(ValueError, match=r"Your labels start at 1: subtract 1."):
        TemperatureScaling().fit(table.outputs, table.labels)
