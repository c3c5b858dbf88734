import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from simplexcal import _validation
from simplexcal._validation import (
    check_batch_labels,
    check_classes,
    check_every,
    check_float_tensor,
    check_label_shape,
    check_labels,
    warn_caller,
)


def test_half_precision_becomes_float32_and_the_rest_stays() -> None:
    assert check_float_tensor("x", torch.zeros(2, dtype=torch.bfloat16)).dtype == torch.float32
    assert check_float_tensor("x", torch.zeros(2, dtype=torch.float64)).dtype == torch.float64


def test_the_first_bad_value_is_named_with_its_position() -> None:
    x = torch.tensor([[1.0, 2.0], [-3.0, -4.0]])
    with pytest.raises(
        ValueError, match=r"^`x` must be positive; found -3 at position \(1, 0\). Square it.$"
    ):
        check_every("x", x, x > 0, "positive", "Square it.")


def test_a_scalar_has_no_position() -> None:
    x = torch.tensor(-1.0)
    with pytest.raises(ValueError, match=r"^`x` must be positive; found -1. Square it.$"):
        check_every("x", x, x > 0, "positive", "Square it.")


LABELS = torch.tensor([0, 2, 1])
NOT_NUMBERS = (
    "`labels` must be a tensor, or an array or a list of numbers; got list. "
    "Number the classes from 0."
)
NOT_INTEGERS = (
    "`labels` must be integers; got torch.float32. "
    "Convert class numbers with torch.as_tensor(labels).long()."
)
WRONG_SHAPE = (
    "`labels` must have shape (3,), one value for each input; got (3, 1). "
    "One-hot labels need .argmax(-1)."
)
BAD_LABELS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "names": (lambda: check_classes(["cat", "dog"], 3), TypeError, NOT_NUMBERS),
    "names in a batch": (lambda: check_batch_labels(["cat", "dog"], 2), TypeError, NOT_NUMBERS),
    "float": (lambda: check_labels(LABELS.float(), 3, 3), TypeError, NOT_INTEGERS),
    "bool": (
        lambda: check_labels(LABELS.bool(), 3, 3),
        TypeError,
        NOT_INTEGERS.replace("float32", "bool"),
    ),
    "shape": (lambda: check_labels(LABELS[:, None], 3, 3), ValueError, WRONG_SHAPE),
    "shape alone": (lambda: check_label_shape(LABELS[:, None], 3), ValueError, WRONG_SHAPE),
    "shape of a batch": (lambda: check_batch_labels(LABELS[:, None], 3), ValueError, WRONG_SHAPE),
    "empty": (
        lambda: check_labels(LABELS[:0], 0, 3),
        ValueError,
        "`labels` is empty; calibration needs labelled inputs. Pass a validation set.",
    ),
    "too large": (
        lambda: check_labels(LABELS, 3, 2),
        ValueError,
        "`labels` must be in 0..1 for 2 classes; found 2 at position 1. "
        "Labels count the classes from 0.",
    ),
    "from 1": (
        lambda: check_labels(LABELS + 1, 3, 3),
        ValueError,
        "`labels` must be in 0..2 for 3 classes; found 3 at position 1. "
        "Your labels start at 1: subtract 1.",
    ),
    "one class": (
        lambda: check_labels(LABELS * 0, 3, 3),
        ValueError,
        "`labels` must hold at least two classes; all 3 are class 0. "
        "Calibrate on a sample of all classes.",
    ),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels_get_the_same_sentence_everywhere(case: str) -> None:
    call, error, message = BAD_LABELS[case]
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_labels_of_every_integer_dtype_become_int64(dtype: torch.dtype) -> None:
    for found in (check_labels(LABELS.to(dtype), 3, 3), check_classes(LABELS.to(dtype), 3)):
        assert found.dtype == torch.int64
        assert torch.equal(found, LABELS)
    assert torch.equal(check_batch_labels(LABELS.to(dtype), 3), LABELS.to(dtype))
    assert torch.equal(check_batch_labels(LABELS.to(dtype).numpy(), 3), LABELS.to(dtype))


class Frame:
    """Has no more in common with pandas than polars has."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)

    def to_numpy(self) -> Any:
        return self.values


AS_TENSOR: dict[str, Callable[[list[Any]], Any]] = {
    "array": np.array,
    "list of numbers": list,
    "list of arrays": lambda x: [np.array(part) for part in x],
    "big-endian": lambda x: np.array(x).astype(np.array(x).dtype.newbyteorder(">")),
    "read-only": lambda x: np.broadcast_to(np.array(x), np.shape(x)),
    "reversed twice": lambda x: np.array(x[::-1])[::-1],
    "pandas": lambda x: pd.DataFrame(x),
    "polars": lambda x: pytest.importorskip("polars").DataFrame(np.array(x)),
    "a frame of another library": lambda x: Frame(x),
}


@pytest.mark.parametrize("kind", AS_TENSOR)
def test_what_torch_takes_becomes_a_tensor(kind: str) -> None:
    values = [[0.25, 0.75], [0.5, 0.5]]
    found = check_float_tensor("x", AS_TENSOR[kind](values))
    assert torch.equal(found.double(), torch.tensor(values).double())


@pytest.mark.parametrize("column", [pd.Series([0, 2, 1]), [0, 2, 1]])
def test_labels_may_be_a_column_or_a_list(column: Any) -> None:
    assert torch.equal(check_labels(column, 3, 3), LABELS)
    assert torch.equal(check_batch_labels(column, 3), LABELS)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "int16"])
def test_labels_may_be_arrays_of_any_integers(dtype: str) -> None:
    assert torch.equal(check_labels(np.array([0, 2, 1], dtype), 3, 3), LABELS)


def test_an_array_that_changes_later_does_not_change_the_tensor() -> None:
    array = np.zeros(2)
    tensor = check_float_tensor("x", array)
    array += 1
    assert torch.equal(tensor, torch.zeros(2).double())


@pytest.mark.parametrize("value", [None, "hot", object(), np.array(["a"]), [[1.0], [1.0, 2.0]]])
def test_what_torch_does_not_take_gets_one_clear_sentence(value: object) -> None:
    message = r"^`x` must be a tensor, or an array or a list of numbers; got \w+( of \S+)?\.$"
    with pytest.raises(TypeError, match=message):
        check_float_tensor("x", value)


def test_classes_may_have_any_shape() -> None:
    assert check_classes(torch.tensor([[0, 1], [1, 2]]), 3).shape == (2, 2)
    assert check_classes(torch.tensor(2), 3) == 2


def run_as_if_in(path: Path, source: str, **names: Any) -> dict[str, Any]:
    """Return what a source defines, as if it were a file of this path."""
    code: CodeType = compile(source, str(path), "exec")
    exec(code, names)
    return names


def test_a_warning_points_at_the_callers_line() -> None:
    inside = Path(_validation.__file__).parent / "module.py"
    names = run_as_if_in(
        inside,
        "def inner(): warn_caller('Look out.')\ndef outer(): decorated()",
        warn_caller=warn_caller,
    )
    names["decorated"] = torch.no_grad()(names["inner"])
    public = torch.inference_mode(False)(names["outer"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        public()
        warn_caller("Here.")
    first, second = caught
    assert str(first.message) == "Look out."
    assert first.filename == second.filename == __file__
    assert second.lineno == first.lineno + 1
    assert first.category is UserWarning
