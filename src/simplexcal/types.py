"""The two records that travel through the library: what a network says, and what a calibrator makes of it."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from simplexcal._validation import check_float_tensor, check_probs

SMALLEST = torch.finfo(torch.float32).tiny  # 1.2e-38; a lesser probability counts as this


@dataclass(frozen=True, eq=False)
class Outputs:
    """A frozen network's outputs for N inputs: all that a calibrator sees.

    ``logits`` (N, K) are the values before the softmax; ``features`` (N, D), where there are any, the inputs of the
    last linear layer. Half precision becomes float32.
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
        """Take probabilities instead of logits: their logarithms are logits, up to a constant that does not matter.

        0 counts as 1.2e-38, in every dtype. Where it only means that the model cannot say less, as 0 of 100 trees,
        put half of the smallest probability that it can say in its place first.
        """
        return cls(check_probs(probs).clamp_min(SMALLEST).log(), features)

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
        return type(self)(self.logits[rows], None if self.features is None else self.features[rows])

    def to(self, target: torch.device | str | torch.dtype) -> Self:
        """Return the same outputs on another device or in another dtype."""
        return type(self)(
            self.logits.to(target), None if self.features is None else self.features.to(target)
        )


@dataclass(frozen=True, eq=False)
class Prediction:
    """What is said about N inputs. ``label`` is the network's own, so no calibration can change the accuracy.

    ``probs`` (N, K) are calibrated probabilities. The uncertainties (N,), in nats, are None where a method has none:
    ``aleatoric`` is an expected entropy, ``epistemic`` a differential entropy, and ``mutual_information`` another
    measure of the epistemic one, from the same distribution.
    """

    probs: Tensor
    label: Tensor
    aleatoric: Tensor | None = None
    epistemic: Tensor | None = None
    mutual_information: Tensor | None = None

    @property
    def confidence(self) -> Tensor:
        """The probability of the predicted class."""
        return self.probs.gather(-1, self.label.unsqueeze(-1)).squeeze(-1)

    def __len__(self) -> int:
        return len(self.probs)


def _check_features(features: Tensor | None, n: int) -> None:
    if features is not None and (features.dim() != 2 or len(features) != n):
        raise ValueError(
            f"`features` must have shape (N, D) with N = {n} as the logits have; got {tuple(features.shape)}. "
            "Flatten each input's features to one row."
        )
