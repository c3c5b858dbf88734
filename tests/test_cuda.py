"""Promises that only a GPU can break; skipped where there is none."""

import pytest
import torch

from simplexcal import Concrete

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_neither_tf32_nor_autocast_lowers_the_precision() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(1000, 50, device="cuda", generator=generator)
    exact = Concrete(logits.double(), 0.7).mean
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            mean = Concrete(logits, 0.7).mean
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(mean.double(), exact, rtol=0, atol=1e-6)


def test_nan_with_validation_off_stays_nan_and_does_not_kill_the_context() -> None:
    logits = torch.tensor([[float("nan"), 1.0], [2.0, 1.0]], device="cuda")
    mean = Concrete(logits, 1.0, validate_args=False).mean
    torch.cuda.synchronize()
    assert mean[0].isnan().all()
    assert mean[1].isfinite().all()


def test_samples_take_a_generator_of_the_device() -> None:
    d = Concrete(torch.zeros(3, device="cuda"), 1.0)
    a, b = (d.sample((5,), torch.Generator("cuda").manual_seed(3)) for _ in range(2))
    assert torch.equal(a, b)


def test_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`logits` and `temperature` must be on one device; got cuda:0 and cpu"):
        Concrete(torch.zeros(3, device="cuda"), torch.tensor(1.0))
