"""What is traced: the network, the calibrator, and their outputs in the order of the graph's."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from torch import Tensor, nn

from simplexcal._validation import check_float_tensor
from simplexcal.backbone import Backbone
from simplexcal.backbone._forward import logits_of, recorded
from simplexcal.calibrators import Calibrator, SimplexTemperatureScaling
from simplexcal.concrete import moments_of_mean
from simplexcal.dense import DenseOutputs, to_maps
from simplexcal.onnx._short_head import ShortHead
from simplexcal.thresholds import with_accepted
from simplexcal.types import Outputs, Prediction, log_probs, restore_argmax

# Every graph has the first three, and those with thresholds the fourth.
OUTPUTS = (
    "label",
    "probs",
    "confidence",
    "accepted",
    "aleatoric",
    "epistemic",
    "mutual_information",
)


UNCERTAINTIES = OUTPUTS[4:]


class TracedOutputs(Outputs):
    """Outputs whose number of rows is a symbol, so that no check may ask for it as a number."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "logits", check_float_tensor("logits", self.logits))
        if self.features is not None:
            object.__setattr__(self, "features", check_float_tensor("features", self.features))


class NetworkOutputs(nn.Module):
    """A backbone without its checks; it has been called once, so that its head is known.

    Args:
        backbone: The frozen network.
        pack: Makes of a list of tensors what the network is called with.
    """

    def __init__(
        self,
        backbone: Backbone,
        pack: Callable[[list[Tensor]], Any],
    ) -> None:
        super().__init__()
        self.net = backbone.net
        self.pack = pack
        self.outputs_of_result = backbone.outputs_of_result
        self.head_name = backbone.head_name

    def forward(self, inputs: list[Tensor]) -> Outputs:
        """Return the network's outputs; DenseOutputs, where it classifies tokens or pixels.

        Args:
            inputs: The tensors of the graph's inputs.
        """
        layers = {}
        if self.head_name is not None:
            layers[self.head_name] = self.net.get_submodule(self.head_name)
        with recorded(layers) as calls:
            found = logits_of(self.net, self.pack(inputs))
        last_call = None
        if calls:
            last_call = list(calls.values())[-1]
        return self.outputs_of_result(found, last_call)


class GivenOutputs(nn.Module):
    """The identity, for a calibrator alone: logits, and features if any, are the graph's inputs."""

    def forward(self, inputs: list[Tensor]) -> TracedOutputs:
        """Return the inputs as outputs of a network.

        Args:
            inputs: Logits and, where there are any, features.
        """
        return TracedOutputs(*inputs)


class TensorsOfGraph(nn.Module):
    """Outputs of a network made of the tensors of another graph, as an OnnxNetwork makes them.

    Args:
        holds_probs: Whether the first tensor holds probabilities; otherwise logits.
    """

    def __init__(self, holds_probs: bool) -> None:
        super().__init__()
        self.holds_probs = holds_probs

    def forward(self, inputs: list[Tensor]) -> TracedOutputs:
        """Return logits and features as rows.

        Args:
            inputs: Logits or probabilities and, where there are any, features.
        """
        rows = [x.flatten(1) for x in inputs]
        logits = rows[0]
        if self.holds_probs:
            probs = check_float_tensor("probs", logits)
            logits = log_probs(probs)
        return TracedOutputs(logits, *rows[1:])


class Graph(nn.Module):
    """Inputs → label, probs, confidence and, where there are any, accepted and the uncertainties.

    Of a network of tokens or pixels, all of them are maps, as those of a Prediction.

    Args:
        source: From the graph's inputs to outputs of a network.
        calibrator: A fitted calibrator.
        names: Which outputs there are; what only others need is not computed.
    """

    def __init__(self, source: nn.Module, calibrator: Calibrator, names: Sequence[str]) -> None:
        super().__init__()
        self.source = source
        self.calibrator = calibrator
        self.names = names
        self.short_head: ShortHead | None = None
        # A subclass may predict otherwise.
        if type(calibrator) is SimplexTemperatureScaling and calibrator.head_network is not None:
            self.short_head = ShortHead(calibrator.head_network, calibrator.log_temperature.exp())

    def forward(
        self,
        inputs: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """Return the outputs that there are, in the order of OUTPUTS.

        Args:
            inputs: The tensors of the graph's inputs.
        """
        # Not the calibrator's own call, whose checks read values.
        outputs: Outputs = self.source(inputs)
        if self.short_head is None:
            found: Prediction = self.calibrator._predict(outputs)
            prediction = replace(found, probs=restore_argmax(found.label, found.probs))
        else:
            prediction = self._predict_in_few_nodes(self.short_head, outputs)
        prediction = with_accepted(prediction, self.calibrator.thresholds)
        present = [getattr(prediction, name) for name in OUTPUTS if name in self.names]
        if isinstance(outputs, DenseOutputs):
            present = [to_maps(value, outputs.shape) for value in present]
        return tuple(present)

    def _predict_in_few_nodes(self, head: ShortHead, outputs: Outputs) -> Prediction:
        """Return the prediction of STS; torch leaves out of a graph what no output needs."""
        sts = cast(SimplexTemperatureScaling, self.calibrator)
        found = head(outputs.logits)
        m = moments_of_mean(found.probs, sts._temperature(outputs))
        return Prediction(
            found.probs,
            found.label,
            aleatoric=m.expected_entropy,
            epistemic=m.entropy,
            mutual_information=m.mutual_information,
        )


def output_names(calibrator: Calibrator, wanted: Sequence[str] | None = None) -> list[str]:
    """Return the names of a graph's outputs.

    Args:
        calibrator: The calibrator of the graph.
        wanted: Which of them; None is all that the calibrator has.

    Raises:
        ValueError: If it has none of a wanted name, or none is wanted.
    """
    names = [name for name in OUTPUTS if name != "accepted" or calibrator.thresholds]
    if not calibrator.has_uncertainties:
        names = [name for name in names if name not in UNCERTAINTIES]
    if wanted is None:
        return names
    unknown = [name for name in wanted if name not in names]
    if unknown or not wanted or isinstance(wanted, str):
        raise ValueError(
            f"`outputs` must be some of the outputs that this {type(calibrator).__name__} has, "
            f"{', '.join(names)}; got {wanted!r}."
        )
    return [name for name in names if name in wanted]
