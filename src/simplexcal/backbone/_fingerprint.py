"""A digest of all that a network computes with: parameters, buffers and packed weights."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, str, type(None), torch.dtype)
SPARSE_INDICES = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def digest_network(net: nn.Module) -> str:
    """Return a SHA-256 digest of a network's state: names, dtypes, shapes and bytes.

    Args:
        net: The network.
    """
    state = dict(net.state_dict())
    for name, buffer in net.named_buffers(remove_duplicate=False):
        # Buffers that are not persistent are no part of the state dict.
        state.setdefault(name, buffer)
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        for chunk in _chunks(name, value):
            digest.update(chunk)
    return digest.hexdigest()


def _chunks(name: str, value: Any) -> Iterator[Any]:
    """Yield the bytes that stand for a value; objects of unknown types have none."""
    if isinstance(value, Tensor):
        yield from _tensor_chunks(name, value)
    elif isinstance(value, PLAIN):
        yield f"{name} {value!r}\n".encode()
    elif isinstance(value, torch.ScriptObject):
        # The packed weights of a quantised layer.
        yield from _chunks(name, value.__getstate__())
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _chunks(f"{name}.{key}", part)
    elif isinstance(value, tuple | list):
        for i, part in enumerate(value):
            yield from _chunks(f"{name}.{i}", part)


def _tensor_chunks(name: str, value: Tensor) -> Iterator[Any]:
    yield f"{name} {value.dtype} {tuple(value.shape)}\n".encode()
    parts = _parts(value)
    if parts is None:
        plain = value.detach().cpu().contiguous().flatten()
        yield plain.view(torch.uint8).numpy().data
        return
    yield f"{name} {value.layout} {type(value).__name__}\n".encode()
    for key, part in parts.items():
        yield from _chunks(f"{name}.{key}", part)


def _parts(value: Tensor) -> dict[str, Any] | None:
    """Return what a tensor consists of, or None for one whose bytes can be read."""
    if value.is_quantized:
        return _quantised_parts(value)
    if value.layout == torch.sparse_coo:
        value = value.coalesce()
        return {"indices": value.indices(), "values": value.values()}
    if value.layout in SPARSE_INDICES:
        parts = {index: getattr(value, index)() for index in SPARSE_INDICES[value.layout]}
        return {**parts, "values": value.values()}
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is None:
        return None
    # A subclass, such as one of quantised weights, that names the tensors inside of it.
    names, _ = flatten()
    return {inner: getattr(value, inner) for inner in names}


def _quantised_parts(value: Tensor) -> dict[str, Any]:
    parts: dict[str, Any] = {"integers": value.int_repr()}
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        parts["scale"] = value.q_scale()
        parts["zero_point"] = value.q_zero_point()
    else:
        parts["scales"] = value.q_per_channel_scales()
        parts["zero_points"] = value.q_per_channel_zero_points()
        parts["axis"] = value.q_per_channel_axis()
    return parts
