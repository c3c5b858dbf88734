"""What is traced: the network, the calibrator, and their outputs in the order of the graph's."""

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from simplexcal._validation import check_float_tensor
from simplexcal.backbone import Backbone
from simplexcal.backbone._forward import Call, logits_of, recorded
from simplexcal.calibrators import AdaptiveTemperatureScaling, Calibrator, SimplexTemperatureScaling
from simplexcal.calibrators._optim import features_of
from simplexcal.onnx.concrete import ExportableConcrete
from simplexcal.types import Outputs, Prediction

OUTPUTS = ("label", "probs", "confidence", "aleatoric", "epistemic")


class Traced(Outputs):
    """Outputs whose number of rows is a symbol, so that nothing may ask for it as a number."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "logits", check_float_tensor("logits", self.logits))
        if self.features is not None:
            object.__setattr__(self, "features", check_float_tensor("features", self.features))


class Network(nn.Module):
    """A backbone that has been called once, so that its head is known, without the backbone's own checks.

    ``pack`` makes of a list of tensors what the network is called with.
    """

    def __init__(self, backbone: Backbone, pack: Callable[[list[Tensor]], Any]) -> None:
        super().__init__()
        self.net, self.pack = backbone.net, pack
        self.head_name = next(
            name for name, layer in backbone.net.named_modules() if layer is backbone.head
        )

    def forward(self, inputs: list[Tensor]) -> Traced:
        """Return the network's outputs."""
        head = cast(nn.Linear, self.net.get_submodule(self.head_name))
        with recorded({self.head_name: head}) as calls:
            logits = logits_of(self.net, self.pack(inputs))
        return Traced(logits, _features(list(calls.values())[-1], logits))


class CalibratorAlone(nn.Module):
    """The identity: logits, and features where there are any, come from outside."""

    def forward(self, inputs: list[Tensor]) -> Traced:
        """Return the inputs as outputs of a network."""
        return Traced(*inputs)


class Adaptive(nn.Module):
    """Adaptive temperature scaling of all rows at once; the calibrator cuts them into chunks."""

    def __init__(self, calibrator: AdaptiveTemperatureScaling, _: torch.dtype) -> None:
        super().__init__()
        self.calibrator = calibrator

    def forward(self, outputs: Outputs) -> Prediction:
        """Return what the calibrator does."""
        features = features_of(outputs, self.calibrator._first)
        temperature = self.calibrator._temperature(self.calibrator._encode(features).mean).to(
            outputs.logits.dtype
        )
        return Prediction((outputs.logits / temperature.unsqueeze(-1)).softmax(-1), outputs.label)


class Simplex(nn.Module):
    """Simplex Temperature Scaling with exportable moments, and with the choices made that its buffers make."""

    def __init__(self, calibrator: SimplexTemperatureScaling, dtype: torch.dtype) -> None:
        super().__init__()
        self.calibrator = copy.deepcopy(calibrator)
        _make_number(self.calibrator, "beta")
        moments = ExportableConcrete(cast(int, calibrator.n_classes), dtype)
        self.moments = moments.to(calibrator.log_temperature.device)

    def forward(self, outputs: Outputs) -> Prediction:
        """Return what the calibrator does; where there are two distributions, both in one pass, one above the other."""
        both = [self.calibrator.concrete(outputs)]
        if self.calibrator.likelihood_head is not None and self.calibrator.beta > 0:
            both.append(self.calibrator._likely(outputs))
        m = self.moments(
            torch.cat([d.logits for d in both]), torch.cat([d.temperature for d in both])
        )
        n = outputs.logits.shape[0]
        return Prediction(m.mean[-n:], outputs.label, m.expected_entropy[:n], m.entropy[:n])


STAND_INS: dict[type[Calibrator], Callable[[Any, torch.dtype], nn.Module]] = {
    AdaptiveTemperatureScaling: Adaptive,
    SimplexTemperatureScaling: Simplex,
}  # for the methods that cannot be traced as they are


class Graph(nn.Module):
    """Inputs → label, probs, confidence and, where the method has them, aleatoric and epistemic."""

    def __init__(self, source: nn.Module, calibrator: Calibrator, dtype: torch.dtype) -> None:
        super().__init__()
        make = STAND_INS.get(
            type(calibrator)
        )  # not a subclass's, which may predict in a way of its own
        self.source, self.method = source, calibrator if make is None else make(calibrator, dtype)

    def forward(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs that there are, in the order of OUTPUTS."""
        predict = (
            self.method._predict if isinstance(self.method, Calibrator) else self.method
        )  # without chunks of rows
        prediction: Prediction = predict(self.source(inputs))
        return tuple(x for name in OUTPUTS if (x := getattr(prediction, name)) is not None)


def _make_number(module: nn.Module, name: str) -> None:
    """Turn a buffer into a Python number: a graph cannot ask for its value."""
    value = float(getattr(module, name))
    delattr(module, name)
    setattr(module, name, value)


def _features(call: Call, logits: Tensor) -> Tensor:
    """Return the head's input; where it was applied to all tokens, that of the token whose logits were picked."""
    if call.output.dim() == 2:
        return call.features
    made, said = call.output.log_softmax(-1), logits.log_softmax(-1).unsqueeze(1)
    token = (made - said).abs().amax(-1).argmin(1)
    index = token.reshape(-1, 1, 1).expand(-1, 1, call.features.shape[-1])
    return call.features.gather(1, index).squeeze(1)
