"""Writes a calibrated network, or a calibrator alone, as one ONNX file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import simplexcal
from simplexcal._validation import NotFittedError
from simplexcal.backbone import Backbone
from simplexcal.backbone._forward import frozen
from simplexcal.calibrators import CALIBRATORS, Calibrator
from simplexcal.io._atomic import atomic_write
from simplexcal.onnx.converter import convert, reason
from simplexcal.onnx.wrappers import OUTPUTS, CalibratorAlone, Graph, Network

LARGEST = 2**31  # bytes: what a protobuf message, and so one ONNX file, stays below
NETWORK_REMEDY = "Export the calibrator alone, simplexcal.onnx.export_calibrator, and the network by means of its own."
METHOD_REMEDY = "Its prediction must be tensor operations alone, the same for any number of rows."


class Exported(NamedTuple):
    """What a file holds: the method, and the names of what goes in and comes out."""

    method: str
    inputs: list[str]
    outputs: list[str]


class Example(NamedTuple):
    """Inputs by name, and how a list of them becomes what the network is called with."""

    tensors: dict[str, Tensor]
    pack: Callable[[list[Tensor]], Any]


@torch.inference_mode(False)  # tensors of the inference mode cannot be traced
def export_model(
    backbone: Backbone,
    calibrator: Calibrator,
    path: str | Path,
    example_inputs: Any,
    *,
    dynamic: Sequence[int] = (0,),
) -> Exported:
    """Write network and calibrator as one graph from inputs to label, probs, confidence and uncertainties.

    ``example_inputs`` is what the backbone takes; only shapes and dtypes matter. A tensor becomes the input "inputs",
    the parts of a mapping keep their names, those of a tuple become "input_0", …. ``dynamic`` are the dimensions that
    may have any size, in every input that has them: 0 is the batch; (0, 1) lets texts have any length too.
    """
    _check_ready(calibrator, path)
    outputs = backbone(
        example_inputs
    )  # finds the head, and says what is wrong with network or inputs
    example = _example(example_inputs, outputs.logits.device)
    calibrator.to(outputs.logits.device)
    graph = Graph(Network(backbone, example.pack), calibrator, outputs.logits.dtype)
    _check_size(graph)
    what = f"This {type(backbone.net).__name__} with {type(calibrator).__name__}"
    with frozen(backbone.net), _blaming(what, NETWORK_REMEDY):
        model = convert(graph, example.tensors, OUTPUTS, dynamic)
    return _write(model, Path(path), calibrator, backbone.fingerprint())


@torch.inference_mode(False)
def export_calibrator(
    calibrator: Calibrator,
    path: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    fingerprint: str | None = None,
) -> Exported:
    """Write the calibrator alone: inputs are "logits" (N, K) of ``dtype`` and, if it takes them, "features" (N, D).

    ``fingerprint`` is that of the backbone which the calibrator was fitted for.
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"`dtype` must be torch.float32 or torch.float64; got {dtype}. Cast half precision to float32."
        )
    _check_ready(calibrator, path)
    device = next((x.device for x in calibrator.state_dict().values()), torch.device("cpu"))
    sizes = {"logits": calibrator.n_classes, "features": calibrator.n_features}
    tensors = {
        name: torch.zeros(2, n, dtype=dtype, device=device)
        for name, n in sizes.items()
        if n is not None
    }
    graph = Graph(CalibratorAlone(), calibrator, dtype)
    _check_size(graph)
    with _blaming(f"This {type(calibrator).__name__}", METHOD_REMEDY):
        model = convert(graph, tensors, OUTPUTS, (0,))
    _drop_unused_inputs(model.graph)
    return _write(model, Path(path), calibrator, fingerprint)


def _check_ready(calibrator: Calibrator, path: str | Path) -> None:
    """Say what is missing before time is spent: a package, a fit, the folder to write to."""
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        raise ImportError(
            f'Exporting needs {" and ".join(missing)}, which is not installed. Run pip install "simplexcal[onnx]".'
        )
    if calibrator.n_classes is None:
        raise NotFittedError(
            f"This {type(calibrator).__name__} is not fitted yet. Call fit(outputs, labels) first."
        )
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(
            f"'{path}' is to be written to a folder that does not exist. Make it first."
        )


def _check_size(graph: Graph) -> None:
    size = sum(x.nbytes for x in graph.state_dict().values())
    if size >= LARGEST:
        raise ValueError(
            f"An ONNX file holds less than 2 GiB; these weights take {size / 2**30:.1f} GiB. Export the calibrator "
            "alone with simplexcal.onnx.export_calibrator, and the network with torch.onnx.export."
        )


def _example(x: Any, device: torch.device) -> Example:
    """Return the inputs as tensors of two rows at least: torch takes a dimension of size 1 for a constant."""
    parts, pack = _named(x)
    for name, part in parts.items():
        if not isinstance(part, Tensor | np.ndarray) or part.ndim == 0:
            raise TypeError(
                "`example_inputs` must be a tensor, or a mapping or a tuple of tensors, each with one row for each "
                f"input; got a {type(part).__name__} as {name!r}. Wrap the network so that it takes tensors only."
            )
    tensors = {name: torch.as_tensor(part).to(device) for name, part in parts.items()}
    if len(sizes := {len(part) for part in tensors.values()}) != 1:
        raise ValueError(
            f"`example_inputs` must have the same number of rows in every part; got {sorted(sizes)}."
        )
    return Example(
        {name: torch.cat([t, t]) if len(t) == 1 else t for name, t in tensors.items()}, pack
    )


def _named(x: Any) -> tuple[dict[str, Any], Callable[[list[Tensor]], Any]]:
    if isinstance(x, Mapping):
        names = list(x)
        return {str(name): part for name, part in x.items()}, lambda tensors: dict(
            zip(names, tensors, strict=True)
        )
    if isinstance(x, tuple | list):
        return {f"input_{i}": part for i, part in enumerate(x)}, list
    return {"inputs": x}, itemgetter(0)


@contextmanager
def _blaming(what: str, remedy: str) -> Iterator[None]:
    """Say of whatever tracing and conversion raise what it comes from."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what} cannot be exported: {reason(error)}. {remedy}") from error


def _drop_unused_inputs(graph: Any) -> None:
    used = {name for node in graph.node for name in node.input}
    for value in [value for value in graph.input if value.name not in used]:
        graph.input.remove(value)


def _write(model: Any, path: Path, calibrator: Calibrator, fingerprint: str | None) -> Exported:
    import onnx

    method = next(
        (name for name, kind in CALIBRATORS.items() if kind is type(calibrator)),
        type(calibrator).__name__,
    )
    model.producer_name, model.producer_version = "simplexcal", simplexcal.__version__
    facts = {"method": method, "fingerprint": fingerprint, "torch": str(torch.__version__)}
    onnx.helper.set_model_props(
        model, {name: fact for name, fact in facts.items() if fact is not None}
    )
    onnx.checker.check_model(model, full_check=True)
    atomic_write(path, model.SerializeToString(deterministic=True))
    return Exported(
        method, [x.name for x in model.graph.input], [x.name for x in model.graph.output]
    )
