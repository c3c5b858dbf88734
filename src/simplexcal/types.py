"""The two records that travel through the library: a network's outputs, and predictions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import torch
from torch import Tensor

from simplexcal._validation import check_float_tensor, check_probs

SMALLEST = torch.finfo(torch.float32).tiny  # 1.2e-38; a lesser probability counts as this


@dataclass(frozen=True, eq=False)
class Outputs:
    """A frozen network's outputs for N inputs: all that a calibrator sees.

    Half precision becomes float32.

    Args:
        logits: The values before the softmax, (N, K).
        features: The inputs of the last linear layer, (N, D), where there are any.

    Raises:
        TypeError: If an argument is no floating-point tensor.
        ValueError: If the shapes do not fit together.
    """

    logits: Tensor
    features: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "logits", check_float_tensor("logits", self.logits))
        if self.logits.dim() != 2 or self.logits.shape[1] < 2:
            raise ValueError(
                f"`logits` must have shape (N, K) with K >= 2 classes; got {tuple(self.logits.shape)}. "
                "For a binary model with one output z, pass torch.stack([torch.zeros_like(z), z], -1)."
            )
        if self.features is not None:
            object.__setattr__(self, "features", check_float_tensor("features", self.features))
            _check_features(self.features, len(self.logits))

    @classmethod
    def from_probs(cls, probs: Tensor, features: Tensor | None = None) -> Self:
        """Take probabilities instead of logits: their logarithms are logits up to a constant.

        A probability of 0 counts as 1.2e-38, in every dtype. Where 0 only means that the model
        cannot give less, as 0 of 100 trees, replace it first by half of the smallest probability
        that the model can give.

        Args:
            probs: Rows of probabilities, (N, K).
            features: The inputs of the last linear layer, (N, D), where there are any.
        """
        return cls(check_probs(probs).clamp_min(SMALLEST).log(), features)

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of several outputs as one.

        Args:
            parts: Outputs of one network; all or none have features.
        """
        return cls(**_concatenate(parts))

    @property
    def label(self) -> Tensor:
        """The predicted class of each input."""
        return self.logits.argmax(-1)

    @property
    def n_classes(self) -> int:
        """K."""
        return self.logits.shape[1]

    @property
    def n_features(self) -> int | None:
        """D, or None without features."""
        return None if self.features is None else self.features.shape[1]

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, rows: Tensor | slice) -> Self:
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

    The label is the network's own, so that no calibration can change the accuracy. The
    uncertainties are in nats, and None where a method has none.

    Args:
        probs: Calibrated probabilities, (N, K).
        label: The predicted class of each input, (N,).
        aleatoric: Expected entropy, (N,).
        epistemic: Differential entropy, (N,).
        mutual_information: Another measure of the epistemic uncertainty, (N,), from the same
            distribution.
    """

    probs: Tensor
    label: Tensor
    aleatoric: Tensor | None = None
    epistemic: Tensor | None = None
    mutual_information: Tensor | None = None

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of several predictions as one.

        Args:
            parts: Predictions of one method.
        """
        return cls(**_concatenate(parts))

    @property
    def confidence(self) -> Tensor:
        """The probability of the predicted class."""
        return self.probs.gather(-1, self.label.unsqueeze(-1)).squeeze(-1)

    def __len__(self) -> int:
        return len(self.probs)

    def __getitem__(self, rows: Tensor | slice) -> Self:
        return _map_tensors(self, lambda x: x[rows])

    def to(self, device: torch.device | str) -> Self:
        """Return the same prediction on another device.

        Args:
            device: Where the tensors are to be.
        """
        return _map_tensors(self, lambda x: x.to(device))


Record = TypeVar("Record", bound=Outputs | Prediction)


def _map_tensors(record: Record, function: Callable[[Tensor], Tensor]) -> Record:
    """Return the record with a function applied to each tensor that is there."""
    present = {name: x for name, x in vars(record).items() if x is not None}
    return type(record)(**{name: function(x) for name, x in present.items()})


def _concatenate(parts: Sequence[Record]) -> dict[str, Tensor]:
    """Return the concatenated tensors of each field that the first record has."""
    if len(parts) == 0:
        raise ValueError("`parts` is empty. Pass at least one.")
    names = [name for name, x in vars(parts[0]).items() if x is not None]
    return {name: torch.cat([getattr(part, name) for part in parts]) for name in names}


def _check_features(features: Tensor | None, n: int) -> None:
    if features is not None and (features.dim() != 2 or len(features) != n):
        raise ValueError(
            f"`features` must have shape (N, D) with N = {n} as the logits have; got {tuple(features.shape)}. "
            "Flatten each input's features to one row."
        )
