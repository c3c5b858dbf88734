"""A damaged file, whatever the damage, is read or refused in one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.user_files import (
    Array,
    D,
    K,
    N,
    content,
    each_suffix,
    npz,
    predict,
    read_outputs_of_logits,
    read_outputs_of_probs,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from simplexcal.io.tables import (
    Inputs,
    Table,
    read_inputs,
    read_predictions,
    write_predictions,
)


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """Return copies with bytes flipped, cut, inserted or repeated in up to four places."""
    place = st.integers(0, len(whole))
    edit = st.tuples(
        place,
        st.integers(0, 40),
        st.binary(max_size=12) | st.sampled_from([b"\xff" * 8, b"\x00" * 8]),
    )

    def apply(edits: list[tuple[int, int, bytes]]) -> bytes:
        data = whole
        for start, n, new in edits:
            data = data[:start] + new + data[start + n :]
        return data

    replaced = st.builds(
        lambda i, new: whole[:i] + new + whole[i + len(new) :],
        place,
        st.binary(min_size=1, max_size=2),
    )
    return (
        replaced
        | place.map(lambda n: whole[:n])
        | st.lists(edit, min_size=1, max_size=4).map(apply)
    )


def valid(suffix: str, folder: Path) -> bytes:
    """Return a file with something for every reader."""
    prediction = {
        "predicted": np.arange(N) % K,
        "aleatoric": np.linspace(0, 1, N),
        "id": np.arange(N),
    }
    arrays = content() | prediction
    if suffix in (".npz", ".safetensors"):
        arrays |= {
            "inputs": np.ones((N, 2), "f4"),
            "head_weight": np.ones((K, D)),
            "images": np.ones((N, 2, 2), "u1"),
        }
    return write(folder / f"valid{suffix}", arrays).read_bytes()


def check_reading(path: Path) -> None:
    """Read as everything: either what comes is valid, or one line says why nothing does."""
    for read in (read_outputs_of_logits, read_outputs_of_probs, read_inputs, read_predictions):
        try:
            result: Any = read(path)
        except (ValueError, TypeError) as error:
            check_refusal(error, path)
        else:
            check_valid(result)


def check_refusal(error: Exception, path: Path) -> None:
    assert type(error) in (ValueError, TypeError)
    assert str(error).startswith(f"'{path}'")
    assert str(error).isprintable()
    assert str(error).count(str(path)) == 1


def check_valid(result: Any) -> None:
    columns: list[Any]
    if isinstance(result, Table):
        labels, columns = (
            result.labels,
            [result.outputs.logits, result.outputs.features, result.images],
        )
    elif isinstance(result, Inputs):
        labels, columns = result.labels, [result.inputs]
    else:
        prediction, labels = result
        columns = [prediction.probs, prediction.label, prediction.aleatoric]
    n = len(columns[0])
    assert n > 0
    assert labels is None or (labels.shape == (n,) and labels.dtype == torch.int64)
    assert all(x is None or (len(x) == n and bool(x.isfinite().all())) for x in columns)


@each_suffix
@given(data=st.data())
@settings(max_examples=300)
def test_a_damaged_file_is_read_or_refused_in_one_line(
    suffix: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / f"damaged{suffix}"
    path.write_bytes(data.draw(damaged(valid(suffix, folder))))
    check_reading(path)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_numbers_under_a_checksum_are_read_unchanged_or_not_at_all(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"x{suffix}"
    write_predictions(path, predict(), labels=torch.arange(N))
    whole, (before, _) = path.read_bytes(), read_predictions(path)
    n_refused = 0
    for i in range(0, len(whole), 2):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :])
        try:
            after, _ = read_predictions(path)
        except (ValueError, TypeError):
            n_refused += 1
        else:
            assert torch.equal(after.probs, before.probs)
            for name in (
                "aleatoric",
                "epistemic",
                "mutual_information",
            ):  # lost if the damage is in their names
                assert getattr(after, name) is None or torch.equal(
                    getattr(after, name), getattr(before, name)
                )
    assert n_refused > len(whole) / 6


NAMES = [
    "logits",
    "probs",
    "features",
    "labels",
    "inputs",
    "head_weight",
    "head_bias",
    "images",
    "class_names",
    "id",
]
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
any_array = (hnp.scalar_dtypes() | hnp.unicode_string_dtypes()).flatmap(
    lambda dtype: hnp.arrays(dtype, shapes)
)
near_array = hnp.arrays(
    st.sampled_from(["f4", "f8", "i8", "u1"]),
    st.sampled_from([(2,), (3,), (2, 3), (3, 2), (2, 2, 3)]),
)


@given(
    arrays=st.dictionaries(
        st.sampled_from([*NAMES, "predicted", "aleatoric"]), near_array | any_array
    )
)
@settings(max_examples=300)
def test_arrays_of_any_kind_are_read_or_refused_in_one_line(
    arrays: dict[str, Array], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.npz"
    path.write_bytes(npz(**arrays))
    check_reading(path)


HEADERS = [
    "logit_0",
    "logit_1",
    "prob_0",
    "prob_1",
    "feature_0",
    "label",
    "id",
    "predicted",
    "logits",
    "name",
    "",
    " ",
]
CELLS = [
    "0",
    "1",
    "0.5",
    "-3e2",
    "",
    "nan",
    "inf",
    "abc",
    "1e999",
    '"',
    '"a,b"',
    "true",
    "2020-01-01",
    "\x00",
    "é",
    ";",
]


@given(
    header=st.lists(st.sampled_from(HEADERS), max_size=6) | st.just(HEADERS[:4]),
    lines=st.lists(
        st.lists(st.sampled_from(CELLS[:4]) | st.sampled_from(CELLS), min_size=1, max_size=6),
        max_size=4,
    ),
    separator=st.sampled_from([",", ",", ",", ";", "\t"]),
    end=st.sampled_from(["\n", "\r\n", "\r", ""]),
    encoding=st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"]),
)
@settings(max_examples=300)
def test_text_of_any_kind_is_read_or_refused_in_one_line(
    header: list[str],
    lines: list[list[str]],
    separator: str,
    end: str,
    encoding: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    even = [(line * 6)[: max(1, len(header))] for line in lines]
    path.write_bytes(end.join(separator.join(line) for line in [header, *even]).encode(encoding))
    check_reading(path)
