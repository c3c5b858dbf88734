import pytest
import torch

from simplexcal._validation import check_every, check_float_tensor


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
