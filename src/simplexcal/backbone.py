"""The frozen network: logits and penultimate features in one forward pass, and nothing of the network changed."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from simplexcal._calls import Call, frozen, linear_layers, logits_of, recorded
from simplexcal._progress import track
from simplexcal.records import Outputs


class Backbone(nn.Module):
    """Any classifier, frozen whole: called with inputs, it returns their Outputs.

    ``x`` is a tensor, or a mapping or a tuple of them for ``net(**x)`` or ``net(*x)``. The head is the last linear
    layer whose output the network returns; the first call finds it, or ``head`` names it ("classifier.6"). Logits are
    the network's own; features are the head's input. They must belong together, up to a constant in each row that no
    softmax sees (a final log_softmax), and each call makes sure: a network that scales its logits or returns
    probabilities is an error. Where the head is applied to all tokens and one is picked, so are its features.
    """

    net: nn.Module

    def __init__(self, net: nn.Module, head: str | None = None) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise TypeError(f"`net` must be a torch.nn.Module; got {type(net).__name__}. For logits, use Outputs.")
        # Not a submodule, so that no optimiser, train(), requires_grad_() or state_dict() reaches the network through
        # this object.
        self.__dict__["net"] = _unwrapped(net)
        self._head_name = head
        if head not in (None, *(names := list(linear_layers(self.net)))):
            raise ValueError(f"`head` must name a linear layer; got {head!r}. The last ones are {names[-5:]}.")
        self.eval()

    @property
    def head(self) -> nn.Linear:
        """The last linear layer, known from the first call on."""
        if self._head_name is None:
            raise RuntimeError("The head is found in the first forward pass. Call the backbone once, or pass head=...")
        return linear_layers(self.net)[self._head_name]

    def forward(self, x: Any) -> Outputs:
        """Return logits (N, K) and features (N, D), on the network's device."""
        layers = linear_layers(self.net) if self._head_name is None else {self._head_name: self.head}
        with frozen(self.net), recorded(layers) as calls:
            logits = Outputs(logits_of(self.net, _map(self._tensor, x))).logits
            for call in reversed(calls.values()):
                if (features := _features(call, logits)) is not None:
                    self._head_name = call.name
                    return Outputs(logits, features)
        raise _no_head([call.name for call in calls.values() if call.output.shape[-1] == logits.shape[1]], logits)

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: batch-norm statistics are part of the frozen model."""
        return super().train(False)

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of the network's tensors: names, dtypes, shapes and bytes, on whatever device."""
        digest = hashlib.sha256()
        for name, value in sorted(self.net.state_dict().items()):
            if isinstance(value, Tensor):
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
                digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def as_input(self, x: Tensor | np.ndarray) -> Tensor:
        """Return a tensor as it is, and an array as a tensor, its floats in the dtype of the network."""
        tensor = _as_tensor(x)
        if tensor is x or not tensor.is_floating_point():
            return tensor
        return tensor.to(next((p.dtype for p in self.net.parameters() if p.is_floating_point()), tensor.dtype))

    def _tensor(self, x: Any) -> Tensor:
        anchor = next((t for t in (*self.net.parameters(), *self.net.buffers())), torch.empty(0))
        return self.as_input(x).to(anchor.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.net._apply(fn, recurse)  # what .to(device) calls: the network moves along
        return self


def extract(
    backbone: nn.Module, data: Any, *, batch_size: int = 256, storage: str | Path | None = None, progress: bool = False
) -> tuple[Outputs, Tensor]:
    """Return a network's outputs for labelled data, and the labels (N,), on the CPU.

    ``data`` is a DataLoader or another iterable of batches, or, to be cut into batches of ``batch_size``, a Dataset or
    a pair (inputs, labels) of tensors or arrays. A batch is such a pair, or a dict with "labels" whose other tensors
    are the inputs. With a folder ``storage`` the results are written there and memory-mapped.
    """
    backbone = backbone if isinstance(backbone, Backbone) else Backbone(backbone)
    batches = _batches(data, batch_size)
    parts = _run(backbone, track(batches, "Extracting", progress))
    columns = [torch.cat(c) for c in zip(*parts, strict=True)] if storage is None else _mapped(parts, Path(storage))
    if not columns:
        raise ValueError("`data` is empty. Pass at least one batch; an iterator that was read before gives no more.")
    return Outputs(columns[0], columns[1]), columns[2]


def _unwrapped(net: nn.Module) -> nn.Module:
    """Return the network itself: a compiled one skips later hooks, a parallel one runs copies and has other names."""
    parallel = nn.DataParallel, DistributedDataParallel
    inner = net.module if isinstance(net, parallel) else getattr(net, "_orig_mod", net)
    return net if inner is net else _unwrapped(inner)


def _features(call: Call, logits: Tensor) -> Tensor | None:
    """Return the features (N, D) that this layer turned into the logits, or None if they are not its output.

    Each row must be, up to a constant and rounding, the layer's output for one of the row's T tokens; mostly T = 1.
    """
    (n, k), numel = logits.shape, call.output.numel()
    t = max(1, numel // max(1, n * k))
    if call.output.shape[-1] != k or numel != n * t * k:
        return None
    output, eps = call.output.reshape(n, t, k).to(logits), torch.finfo(call.output.dtype).eps
    made, said = (z.log_softmax(-1).nan_to_num(1e9) for z in (output, logits.unsqueeze(1)))  # NaN is like NaN alone
    gap, token = (made - said).abs().amax(-1).min(1)
    size = logits.nan_to_num(0, 0, 0).abs().amax(-1)
    if (gap > 4 * max(eps, torch.finfo(logits.dtype).eps) * (1 + size)).any():
        return None
    return call.features.reshape(n, t, call.features.shape[-1])[torch.arange(n, device=token.device), token]


def _no_head(names: list[str], logits: Tensor) -> ValueError:
    k = logits.shape[1]
    found = f"those of {names[-1]!r} are changed after it" if names else f"no linear layer with {k} outputs ran"
    return ValueError(
        f"`net` must return the output of a linear layer as its {k} logits; {found}. Wrap it so that it returns them "
        "before softmax, scaling or pooling; or go without features, by Outputs(logits) from a loop of your own."
    )


def _map(fn: Callable[[Any], Any], x: Any) -> Any:
    """Apply ``fn`` to every tensor and array in ``x``."""
    if isinstance(x, Mapping):
        return {name: _map(fn, part) for name, part in x.items()}
    if isinstance(x, tuple | list):
        return [_map(fn, part) for part in x]
    return fn(x) if isinstance(x, Tensor | np.ndarray) else x


def _as_tensor(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))  # a copy, since an array may be read-only


def _class_numbers(labels: Any, n: int) -> Tensor:
    """Return the labels as int64; unlike in a fit, one class alone will do."""
    remedy = "Number the classes from 0; one-hot labels need .argmax(-1)."
    if "int" not in str(getattr(labels, "dtype", "")):
        kind = getattr(labels, "dtype", type(labels).__name__)
        raise TypeError(f"`labels` must be a tensor or an array of integers; got {kind}. {remedy}")
    if labels.shape != (n,):
        raise ValueError(f"`labels` must have shape ({n},), one for each input; got {tuple(labels.shape)}. {remedy}")
    return _as_tensor(labels).to("cpu", torch.int64)


def _batches(data: Any, size: int) -> Iterable[Any]:
    data = _split(data) if isinstance(data, Mapping) else data
    if isinstance(data, tuple | list) and len(data) == 2 and any(isinstance(x, Tensor | np.ndarray) for x in data):
        _map(lambda x: _class_numbers(data[1], len(x)), data[0])
        return [_map(itemgetter(slice(i, i + size)), data) for i in range(0, len(data[1]), size)]
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and not isinstance(data, tuple | list)):
        return DataLoader(data, size, generator=torch.Generator())  # or it would draw from the global one
    if not isinstance(data, Iterable):
        raise TypeError(f"`data` must be a DataLoader, Dataset or pair (inputs, labels); got {type(data).__name__}.")
    return data


def _split(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the labels of a batch."""
    if isinstance(batch, Mapping) and (names := {"labels", "label"}.intersection(batch)):
        x = {name: x for name, x in batch.items() if name not in names and isinstance(x, Tensor | np.ndarray)}
        return x, batch[max(names)]  # "labels", if both are there
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    kind = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, tuple | list) else type(batch).__name__
    raise ValueError(f"`data` must come with labels, as (inputs, labels) or a dict with 'labels'; got a {kind}.")


def _run(backbone: Backbone, batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for x, y in map(_split, batches):
        outputs = backbone(x)
        yield outputs.logits.cpu(), outputs.features.cpu(), _class_numbers(y, len(outputs))


def _mapped(parts: Iterable[tuple[Tensor, ...]], folder: Path) -> list[Tensor]:
    """Append the rows of each column to a file, and map the files; changes to the tensors do not reach them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.bin" for name in ("logits", "features", "labels")]
    last: tuple[Tensor, ...] = ()
    for path in paths:
        path.unlink(missing_ok=True)  # not overwritten: an earlier result may still be mapped to it
    for last in parts:
        for path, rows in zip(paths, last, strict=True):
            with path.open("ab") as file:
                rows.numpy().tofile(file)
    files = [np.memmap(path, rows.numpy().dtype, "c") for path, rows in zip(paths, last, strict=False)]
    return [torch.from_numpy(file).reshape(-1, *rows.shape[1:]) for file, rows in zip(files, last, strict=True)]
