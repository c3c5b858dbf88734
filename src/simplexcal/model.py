"""One call from a trained network to calibrated predictions, and the model that it returns."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.utils.hooks import RemovableHandle

from simplexcal.backbone import Backbone, extract
from simplexcal.calibrators import CALIBRATORS, Calibrator
from simplexcal.io import load_calibrator, save_calibrator
from simplexcal.mixup import FeatureMixup, InputMixup, Mixup, mixup_or_none
from simplexcal.onnx import export_model
from simplexcal.types import Outputs, Prediction


class CalibratedModel(nn.Module):
    """A frozen network and its calibrator: called with inputs, it returns calibrated probabilities (N, K).

    Inputs are what ``Backbone`` takes. The calibrator follows the network to its device.
    """

    def __init__(self, backbone: Backbone, calibrator: Calibrator) -> None:
        super().__init__()
        self.backbone, self.calibrator = backbone, calibrator
        self.eval()

    def forward(self, x: Any) -> Tensor:
        """Return calibrated probabilities (N, K)."""
        return self.predict(x).probs

    @torch.no_grad()
    def predict(self, x: Any, *, batch_size: int = 256) -> Prediction:
        """Return labels, calibrated probabilities and uncertainties; one tensor or array is cut into batches."""
        return _joined([self._predict(part) for part in _parts(x, batch_size)])

    def save(self, path: str | Path) -> None:
        """Write the calibrator to a safetensors file, with the fingerprint of the network but not the network."""
        save_calibrator(self.calibrator, path, fingerprint=self.backbone.fingerprint())

    def to_onnx(
        self, path: str | Path, example_inputs: Any, *, dynamic: Sequence[int] = (0,)
    ) -> None:
        """Write network and calibrator as one ONNX graph, for any number of rows; see ``onnx.export_model``."""
        export_model(self.backbone, self.calibrator, path, example_inputs, dynamic=dynamic)

    def _predict(self, x: Any) -> Prediction:
        outputs = self.backbone(x)
        prediction: Prediction = self.calibrator.to(outputs.logits.device)(outputs)
        return prediction


@torch.inference_mode(False)  # tensors of the inference mode cannot be trained on
def calibrate(
    net: nn.Module,
    data: Any,
    method: str | Calibrator = "sts",
    *,
    head: str | None = None,
    mixup: str | None = "features",
    generator: Generator | None = None,
    progress: bool = False,
    batch_size: int = 256,
) -> CalibratedModel:
    """Fit a calibrator to a trained network on held-out labelled data; the network stays as it is, bit for bit.

    ``data`` is what ``extract`` takes, ``method`` a key of CALIBRATORS or a calibrator, which is then fitted itself.
    The methods that learn from mixed samples, STS and Dirichlet, mix "features" or, as the paper does, "inputs", which
    must be one floating-point tensor; None fits without mixup, and so does STS, with a warning, if ``data`` lack a
    class. ``generator`` is the source of all randomness.
    """
    _check_mixup(mixup)
    calibrator, backbone = _calibrator(method), Backbone(net, head)
    mixup = mixup if calibrator.uses_mixup else None
    inputs: list[Tensor] = []
    with _recording(backbone, inputs) if mixup == "inputs" else nullcontext():
        outputs, labels = extract(backbone, data, batch_size=batch_size, progress=progress)
    outputs = outputs.to(_where_to_fit(next(backbone.head.parameters()).device))
    source = mixup_or_none(
        lambda: _mixup(mixup, backbone, inputs, outputs, labels), calibrator.needs_mixup
    )
    calibrator.fit(outputs, labels, mixup=source, generator=generator, progress=progress)
    return CalibratedModel(backbone, calibrator)


def load(path: str | Path, net: nn.Module, *, head: str | None = None) -> CalibratedModel:
    """Return the model that ``CalibratedModel.save`` wrote, around the same network.

    A calibrator that was saved without a fingerprint is taken as it is.
    """
    calibrator, header = load_calibrator(path)
    backbone = Backbone(net, head)
    if header["fingerprint"] not in (None, backbone.fingerprint()):
        raise ValueError(
            f"'{path}' was calibrated for another network: its weights, names or dtypes differ from those of `net`. "
            "Pass the network of the fit, or calibrate this one."
        )
    return CalibratedModel(backbone, calibrator)


def _calibrator(method: str | Calibrator) -> Calibrator:
    if isinstance(method, Calibrator):
        return method
    if method not in CALIBRATORS:
        raise ValueError(
            f"`method` must be a Calibrator or one of {', '.join(CALIBRATORS)}; got {method!r}."
        )
    return CALIBRATORS[method]()


def _check_mixup(mixup: str | None) -> None:
    if mixup not in (None, "features", "inputs"):
        raise ValueError(f'`mixup` must be "features", "inputs" or None; got {mixup!r}.')


def _where_to_fit(device: torch.device) -> torch.device:
    """Return the network's device, or the CPU where that has no float64, as Apple's MPS."""
    return torch.device("cpu") if device.type == "mps" else device


def _mixup(
    mixup: str | None, backbone: Backbone, inputs: list[Tensor], outputs: Outputs, labels: Tensor
) -> Mixup | None:
    if mixup is None:
        return None
    if mixup == "features":
        return FeatureMixup(backbone.head, outputs, labels)
    return InputMixup(lambda x: backbone(x).to(outputs.logits.device), torch.cat(inputs), labels)


def _recording(backbone: Backbone, inputs: list[Tensor]) -> RemovableHandle:
    """Add the inputs of each call to the list, so that they come in the order of the outputs; used in ``with``."""
    return backbone.register_forward_pre_hook(
        lambda _, args: inputs.append(backbone.as_input(_mixable(args[0], inputs)))
    )


def _mixable(x: Any, earlier: list[Tensor]) -> Tensor | np.ndarray:
    """Return the inputs if they are one tensor or array, of the same shape as those before."""
    if not isinstance(x, Tensor | np.ndarray):
        raise TypeError(
            f'Inputs must be one tensor to be mixed; got {type(x).__name__}. Use mixup="features".'
        )
    if earlier and x.shape[1:] != earlier[0].shape[1:]:
        shapes = f"{tuple(earlier[0].shape[1:])} and {tuple(x.shape[1:])}"
        raise ValueError(
            f'Inputs must be of one shape to be mixed; got {shapes}. Use mixup="features".'
        )
    return x


def _parts(x: Any, size: int) -> list[Any]:
    if not isinstance(x, Tensor | np.ndarray):
        return [x]
    return [x[i : i + size] for i in range(0, max(len(x), 1), size)]


def _joined(parts: list[Prediction]) -> Prediction:
    if len(parts) == 1:
        return parts[0]
    return Prediction(
        **{
            field.name: _cat([getattr(part, field.name) for part in parts])
            for field in fields(Prediction)
        }
    )


def _cat(values: list[Any]) -> Any:
    return None if values[0] is None else torch.cat(values)
