"""The two records that travel through the library: a network's outputs, and predictions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from simplexcal._arrays import ArrayLike
from simplexcal._validation import check_logits_and_features, check_probs

SMALLEST = torch.finfo(torch.float32).tiny  # 1.2e-38; a smaller probability counts as this


@dataclass(frozen=True, eq=False)
class Outputs:
    """A frozen network's outputs for N inputs: all that a calibrator sees.

    Arguments may be what ``torch.as_tensor`` takes: tensors, arrays, lists, and columns of data
    frames. Half precision becomes float32. Outputs leave the graph of the network behind, which
    would keep its activations in memory; only a tensor that requires gradients itself gets them.

    Args:
        logits: The values before the softmax, (N, K).
        features: The inputs of the last linear layer, (N, D), or None.

    Raises:
        TypeError: If an argument holds no floating-point numbers.
        ValueError: If the shapes do not fit together.
    """

    logits: Tensor
    features: Tensor | None = None

    def __post_init__(self) -> None:
        logits, features = check_logits_and_features(self.logits, self.features)
        object.__setattr__(self, "logits", _without_graph(logits))
        if features is not None:
            features = _without_graph(features)
        object.__setattr__(self, "features", features)

    @classmethod
    def from_probs(cls, probs: ArrayLike, features: Tensor | None = None) -> Self:
        """Return outputs whose logits are the logarithms of probabilities.

        The label is the most probable class, also where two logarithms round to one number.

        A probability of 0 counts as 1.2e-38, in every dtype. Some models cannot give small
        probabilities: a forest of 100 trees gives 0 for less than 1/100. Replace such zeros first
        by half of the smallest probability that the model can give.

        Args:
            probs: Rows of probabilities, (N, K).
            features: The inputs of the last linear layer, (N, D), or None.
        """
        return cls(log_probs(check_probs(probs)), features)

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of several outputs as one.

        Args:
            parts: Outputs of one network; all or none have features.
        """
        return _concatenate(parts)

    @property
    def label(self) -> Tensor:
        """The predicted class of each input, (N,)."""
        return self.logits.argmax(-1)

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return self.logits.shape[1]

    @property
    def n_features(self) -> int | None:
        """Number of features, D, or None without features."""
        if self.features is None:
            return None
        return self.features.shape[1]

    def __repr__(self) -> str:
        return _describe(self)

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, rows: Tensor | slice | int) -> Self:
        rows = _as_rows(rows, len(self))
        return _map_tensors(self, lambda x: x[rows])

    def to(self, target: torch.device | str | torch.dtype) -> Self:
        """Return the same outputs on another device or in another dtype.

        Args:
            target: A device or a floating-point dtype.
        """
        return _map_tensors(self, lambda x: x.to(target))


@dataclass(frozen=True, eq=False)
class Prediction:
    """Calibrated predictions for N inputs.

    The label is the network's own, so calibration does not change the accuracy; only methods with
    `keeps_predictions` False have labels of their own. Uncertainties are in nats; they are None
    where a method has none. Of a network that classifies each token or pixel,
    the probabilities are (N, T, K) or (N, K, H, W), and all else is (N, T) or (N, H, W).

    Args:
        probs: Calibrated probabilities, (N, K).
        label: The predicted class of each input, (N,).
        aleatoric: Expected entropy, (N,).
        epistemic: Differential entropy, (N,).
        mutual_information: Another measure of the epistemic uncertainty, (N,), from the same
            distribution.
        accepted: Whether all thresholds of the calibrator accept each input, (N,); None without
            thresholds.
    """

    probs: Tensor
    label: Tensor
    aleatoric: Tensor | None = None
    epistemic: Tensor | None = None
    mutual_information: Tensor | None = None
    accepted: Tensor | None = None

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of several predictions as one.

        Args:
            parts: Predictions of one method.
        """
        return _concatenate(parts)

    @property
    def confidence(self) -> Tensor:
        """The probability of the predicted class, (N,)."""
        dim = class_dim(self.label.dim())
        return self.probs.gather(dim, self.label.unsqueeze(dim)).squeeze(dim)

    def __repr__(self) -> str:
        return _describe(self)

    def __len__(self) -> int:
        return len(self.probs)

    def __getitem__(self, rows: Tensor | slice | int) -> Self:
        rows = _as_rows(rows, len(self))
        return _map_tensors(self, lambda x: x[rows])

    def to(self, device: torch.device | str) -> Self:
        """Return the same prediction on another device.

        Args:
            device: Device of the result.
        """
        return _map_tensors(self, lambda x: x.to(device))


def class_dim(n_dims: int) -> int:
    """Return the dimension of the classes: 1 in maps (N, K, H, W), the last one elsewhere.

    Args:
        n_dims: Number of dimensions of the labels.
    """
    if n_dims > 2:
        return 1
    return -1


def restore_argmax(label: Tensor, values: Tensor) -> Tensor:
    """Return probabilities, or their logarithms, with the largest at the label.

    Rounding can make another one equal or larger; then the two are swapped.

    Args:
        label: Predicted classes, (N,).
        values: Probabilities or their logarithms, (N, K).
    """
    own = label.unsqueeze(-1)
    # A graph has no values to look at, and a GPU had to be waited for.
    may_look = values.device.type == "cpu" and not torch.compiler.is_compiling()
    if may_look and _are_strictly_largest(own, values):
        return values
    other = values.argmax(-1, keepdim=True)
    largest = values.gather(-1, other)
    swapped = values.scatter(-1, other, values.gather(-1, own))
    # This is 0.75 to 1.5 rounding steps more, which rounds to one; ONNX has no nextafter.
    above = largest + largest.abs() * (0.75 * torch.finfo(values.dtype).eps)
    return torch.where(own == other, values, swapped.scatter(-1, own, above))


def _are_strictly_largest(own: Tensor, values: Tensor) -> bool:
    """Return whether in each row all values are less than the one at the label, but for that one.

    This is several times as fast as to find the largest.

    Args:
        own: Predicted classes, (N, 1).
        values: (N, K).
    """
    n_less = torch.count_nonzero(values < values.gather(-1, own))
    return int(n_less) == values.numel() - own.numel()


def log_probs(probs: Tensor) -> Tensor:
    """Return the logarithms of probabilities, with the same argmax; 0 counts as SMALLEST.

    Args:
        probs: Rows of probabilities, (N, K).
    """
    return restore_argmax(probs.argmax(-1), probs.clamp_min(SMALLEST).log())


def outputs_of_rows(logits: Tensor, features: Tensor | None = None) -> Outputs:
    """Return outputs made of rows of others, with their graph and without another check.

    Args:
        logits: (N, K).
        features: (N, D), or None.
    """
    outputs = Outputs.__new__(Outputs)
    object.__setattr__(outputs, "logits", logits)
    object.__setattr__(outputs, "features", features)
    return outputs


def _describe(record: "Outputs | Prediction") -> str:
    """Return a record in one line: the tensors of many inputs would fill pages."""
    tensors = {name: x for name, x in vars(record).items() if isinstance(x, Tensor)}
    first = next(iter(tensors.values()))
    n = len(first)
    k = first.shape[class_dim(first.dim() - 1)]
    inputs = f"{n} inputs"
    if n == 1:
        inputs = "1 input"
    return f"{type(record).__name__}({inputs}, {k} classes: {', '.join(tensors)})"


def _as_rows(rows: Tensor | slice | int, n: int) -> Tensor | slice:
    """Return an index that keeps the dimension of the inputs: one input is a record of one."""
    if isinstance(rows, Tensor) and rows.ndim == 0:
        rows = int(rows)
    if not isinstance(rows, int | np.integer):
        return rows
    row = range(n)[rows]
    return slice(row, row + 1)


def _without_graph(tensor: Tensor) -> Tensor:
    """Return a tensor that an operation made without what it was made from."""
    if tensor.requires_grad and not tensor.is_leaf:
        return tensor.detach()
    return tensor


Record = TypeVar("Record", bound=Outputs | Prediction)


def _map_tensors(record: Record, function: Callable[[Tensor], Tensor]) -> Record:
    """Return the record with a function applied to each tensor that is present."""
    changed = {}
    for name, tensor in vars(record).items():
        if tensor is not None:
            changed[name] = function(tensor)
    return type(record)(**changed)


def _concatenate(parts: Sequence[Record]) -> Record:
    """Return the rows of all records as one, with the fields that the first has."""
    if len(parts) == 0:
        raise ValueError("`parts` is empty. Pass at least one.")
    first = parts[0]
    if len(parts) == 1:
        return first
    sizes = {next(iter(vars(part).values())).shape[1:] for part in parts}
    if len(sizes) > 1:
        found = " and ".join(str(tuple(size)) for size in sorted(sizes)[:2])
        raise ValueError(
            f"`parts` must be of one shape but for the first dimension; got {found}. Pad the "
            "inputs to one size, or keep the parts apart."
        )
    columns = {}
    for name, tensor in vars(first).items():
        if isinstance(tensor, Tensor):
            columns[name] = torch.cat([getattr(part, name) for part in parts])
    if isinstance(first, Outputs):
        return Outputs(**columns)  # type: ignore[return-value]  # rows have no shape of positions
    return type(first)(**columns)
