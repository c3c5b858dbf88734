"""Dense outputs: a class for each token or pixel, as rows of a network's outputs, and back.

A network of tokens returns logits (N, T, K), one of maps (N, K, H, W) or (N, K, D, H, W). The
number of dimensions tells which. Calibrators see rows: one for each of the R positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

from simplexcal._validation import check_array, check_classes, check_count
from simplexcal.types import Outputs, Prediction, class_dim

MAX_POSITIONS = 50_000  # of the sample that a fit learns from
IGNORED = -100  # the label that torch.nn.functional.cross_entropy ignores by default
IGNORED_BYTE = 255  # the one of label images with up to 255 classes
SEED = 0


@dataclass(frozen=True, eq=False, repr=False)
class DenseOutputs(Outputs):
    """Outputs for each position of N inputs, as the rows of all positions.

    Args:
        logits: (R, K).
        features: (R, D), or None.
        shape: Shape of the labels, (N, T) or (N, H, W), of which R is the product.
    """

    shape: tuple[int, ...] = ()

    def __getitem__(self, rows: Tensor | slice | int) -> Outputs:  # type: ignore[override]
        return Outputs(self.logits, self.features)[rows]

    def to(self, target: torch.device | str | torch.dtype) -> Self:
        """Return the same outputs on another device or in another dtype.

        Args:
            target: A device or a floating-point dtype.
        """
        features = self.features
        if features is not None:
            features = features.to(target)
        return type(self)(self.logits.to(target), features, self.shape)


def is_dense(logits: Tensor) -> bool:
    """Return whether a network returns logits for each position of an input.

    Args:
        logits: What it returns.
    """
    return logits.dim() > 2


def label_shape(logits: Tensor) -> tuple[int, ...]:
    """Return the shape of the labels for logits: theirs without the dimension of the classes.

    Args:
        logits: (N, K), (N, T, K) or (N, K, H, W).
    """
    shape = list(logits.shape)
    if shape:
        del shape[class_dim(len(shape) - 1)]
    return tuple(shape)


def dense_outputs_of_rows(
    logits: Tensor, features: Tensor | None, shape: tuple[int, ...]
) -> DenseOutputs:
    """Return outputs made of rows, as a graph needs them: without a check.

    Args:
        logits: (R, K).
        features: (R, D), or None.
        shape: Shape of the labels.
    """
    outputs = DenseOutputs.__new__(DenseOutputs)
    object.__setattr__(outputs, "logits", logits)
    object.__setattr__(outputs, "features", features)
    object.__setattr__(outputs, "shape", shape)
    return outputs


def to_rows(maps: Tensor) -> Tensor:
    """Return (N, T, C) or (N, C, H, W) as rows (R, C).

    Args:
        maps: Logits, probabilities or features.
    """
    rows = maps.movedim(class_dim(maps.dim() - 1), -1)
    return rows.reshape(-1, rows.shape[-1])


def to_maps(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """Return rows (R, C) as (N, T, C) or (N, C, H, W), and values (R,) in the shape of the labels.

    Args:
        rows: Values of all positions.
        shape: Shape of the labels.
    """
    if rows.dim() == 1:
        return rows.reshape(*shape)
    return rows.reshape(*shape, rows.shape[-1]).movedim(-1, class_dim(len(shape)))


def prediction_maps(prediction: Prediction, shape: Sequence[int]) -> Prediction:
    """Return a prediction for rows as one for N inputs.

    Args:
        prediction: Prediction for the rows of all positions.
        shape: Shape of the labels, (N, T) or (N, H, W).
    """
    values = {name: x for name, x in vars(prediction).items() if x is not None}
    return Prediction(**{name: to_maps(x, shape) for name, x in values.items()})


def ignored_labels(ignore_index: int | Sequence[int] | None, n_classes: int) -> tuple[int, ...]:
    """Return the labels of positions that do not count.

    Args:
        ignore_index: One or several; None is -100, and 255 where that is no class.
        n_classes: K.
    """
    if isinstance(ignore_index, int):
        return (ignore_index,)
    if ignore_index is not None:
        return tuple(ignore_index)
    if n_classes <= IGNORED_BYTE:
        return (IGNORED, IGNORED_BYTE)
    return (IGNORED,)


def position_labels(
    labels: object,
    outputs: DenseOutputs,
    ignore_index: int | Sequence[int] | None = None,
    mask: object = None,
    *,
    binary: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the labels of all positions, (R,), and which positions count, (R,), on the CPU.

    Args:
        labels: Labels (N, T) or (N, H, W), or (N, 1, H, W).
        outputs: The outputs for the same inputs.
        ignore_index: Labels of positions that do not count; see `ignored_labels`.
        mask: An attention mask, (N, T): positions with 0 do not count. None: all count.
        binary: Whether labels of 0 and 1 may be floats or bools.

    Raises:
        TypeError: If labels are not integers.
        ValueError: If the shapes differ, or a label that counts is no class.
    """
    shape = outputs.shape
    tensor = check_array("labels", labels, " Number the classes from 0.").cpu()
    if tensor.shape == (shape[0], 1, *shape[1:]):
        tensor = tensor.squeeze(1)
    if tensor.shape != shape:
        raise ValueError(
            f"`labels` must have shape {shape}, one class for each position, as the network "
            f"returns logits for positions; got {tuple(tensor.shape)}. Let the network return "
            "logits of the labels' size, for instance with torch.nn.functional.interpolate."
        )
    flat = tensor.flatten()
    if binary and bool((flat == flat.long()).all()):
        flat = flat.long()
    counts = torch.ones(len(flat), dtype=torch.bool)
    for value in ignored_labels(ignore_index, outputs.n_classes):
        counts &= flat != value
    if mask is not None:
        counts &= check_array("attention_mask", mask).cpu().flatten() != 0
    remedy = "Pass `ignore_index` for labels that do not count."
    known = check_classes(flat[counts], outputs.n_classes, remedy)
    rows = torch.zeros(len(flat), dtype=torch.int64)
    rows[counts] = known
    return rows, counts


class PositionSample:
    """A stratified sample of positions, of bounded size, from one pass over the data.

    The strata are the classes within each input. Each gives its share of the positions that count,
    up to one position, so that the sample represents them all: every image, and every class in it.
    It is the same for the same data in the same order.

    Args:
        max_positions: Most positions that are kept.
    """

    def __init__(self, max_positions: int = MAX_POSITIONS) -> None:
        self.max_positions = check_count("max_positions", max_positions)
        self.n_inputs = 0
        self.n_positions = 0
        self._generator = Generator().manual_seed(SEED)
        self._keys = torch.zeros(0, dtype=torch.float64)
        self._columns: tuple[Tensor, ...] = ()

    def add(self, outputs: DenseOutputs, labels: Tensor, counts: Tensor) -> None:
        """Add the positions of a batch.

        Args:
            outputs: Outputs for the batch.
            labels: Label of each position, (R,).
            counts: Which positions count, (R,).
        """
        n = outputs.shape[0]
        rows = counts.nonzero().squeeze(-1)
        self.n_inputs += n
        self.n_positions += len(rows)
        size = max(1, len(outputs) // max(1, n))
        strata = rows // size * outputs.n_classes + labels[rows]
        keys = stratified_keys(strata, self._generator)
        if len(self._keys) == self.max_positions:
            is_near = keys < self._keys.max()
            keys = keys[is_near]
            rows = rows[is_near]
        chosen = rows.to(outputs.logits.device)
        columns = [outputs.logits[chosen].cpu(), labels[rows]]
        if outputs.features is not None:
            columns.insert(1, outputs.features[chosen].cpu())
        if self._columns:
            columns = [torch.cat(pair) for pair in zip(self._columns, columns, strict=True)]
        keys = torch.cat([self._keys, keys])
        if len(keys) > self.max_positions:
            # In the order of the data.
            kept = keys.topk(self.max_positions, largest=False).indices.sort().values
            keys = keys[kept]
            columns = [column[kept] for column in columns]
        self._keys = keys
        self._columns = tuple(columns)

    def columns(self) -> tuple[Tensor, ...]:
        """Return the logits, the features if there are any, and the labels of the sample.

        Raises:
            ValueError: If no position counts.
        """
        if self.n_positions == 0:
            raise ValueError(
                "`labels` hold no position that counts: all are ignored. Check `ignore_index` and "
                "the attention mask."
            )
        return self._columns


def stratified_keys(strata: Tensor, generator: Generator) -> Tensor:
    """Return a key in [0, 1) for each member, so that the smallest keys are a stratified sample.

    The keys of a stratum of n members lie one in each [i / n, (i + 1) / n), in random order.

    Args:
        strata: Number of each member's stratum, (R,).
        generator: Source of randomness.
    """
    n = len(strata)
    shuffled = torch.randperm(n, generator=generator)
    order = shuffled[strata[shuffled].argsort(stable=True)]
    _, stratum, sizes = torch.unique_consecutive(
        strata[order], return_inverse=True, return_counts=True
    )
    first = sizes.cumsum(0) - sizes
    rank = torch.arange(n) - first[stratum]
    within = torch.rand(n, generator=generator, dtype=torch.float64)
    keys = torch.empty(n, dtype=torch.float64)
    keys[order] = (rank + within) / sizes[stratum]
    return keys
