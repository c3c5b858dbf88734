"""Writes a calibrated network, or a calibrator alone, as one ONNX file."""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from simplexcal._validation import NotFittedError, check_class_names
from simplexcal._version import __version__
from simplexcal.backbone import Backbone
from simplexcal.backbone._forward import frozen
from simplexcal.calibrators import CALIBRATORS, Calibrator
from simplexcal.io._atomic import atomic_write
from simplexcal.onnx.converter import convert
from simplexcal.onnx.wrappers import GivenOutputs, Graph, NetworkOutputs, output_names

NETWORK_REMEDY = (
    "Export the calibrator alone, simplexcal.onnx.export_calibrator, and the network by means of "
    "its own."
)
METHOD_REMEDY = "Its prediction must be tensor operations alone, the same for any number of rows."


class Exported(NamedTuple):
    """What a file holds.

    Args:
        method: Key of the method.
        inputs: Names of the graph's inputs.
        outputs: Names of the graph's outputs.
    """

    method: str
    inputs: list[str]
    outputs: list[str]


class Example(NamedTuple):
    """Example inputs of a network.

    Args:
        tensors: Inputs by name.
        pack: Makes of a list of them what the network is called with.
    """

    tensors: dict[str, Tensor]
    pack: Callable[[list[Tensor]], Any]


@torch.inference_mode(False)  # Tensors of the inference mode cannot be traced.
def export_model(
    backbone: Backbone,
    calibrator: Calibrator,
    path: str | Path,
    example_inputs: Any,
    *,
    dynamic: Sequence[int] = (0,),
    class_names: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Exported:
    """Write network and calibrator as one graph, from inputs to calibrated predictions.

    Args:
        backbone: The frozen network.
        calibrator: A calibrator fitted for it.
        path: The file to write.
        example_inputs: What the backbone takes; only shapes and dtypes matter. A tensor becomes
            the input "inputs", the parts of a mapping keep their names, those of a tuple become
            "input_0", ….
        dynamic: Dimensions that may have any size, in every input that has them. 0 is the batch;
            (0, 1) lets texts have any length too.
        class_names: The names of the K classes, stored in the metadata of the file as a JSON list.
            None is those that the calibrator keeps, if any.
        outputs: Which outputs the graph has, such as ("label", "probs"); None is all. Without the
            uncertainties a graph of STS takes less time.

    Raises:
        NotFittedError: If the calibrator is not fitted.
        ValueError: If the names are not K, or network or calibrator cannot be traced.
    """
    if backbone.is_function:
        raise TypeError(
            "`net` must be a torch.nn.Module to be exported; this model calls a function. Export "
            "the calibrator alone: simplexcal.onnx.export_calibrator(model.calibrator, path)."
        )
    check_ready(calibrator, path)
    names = output_names(calibrator, outputs)
    facts = class_facts(class_names, calibrator)
    example = _example(backbone, example_inputs)
    found = backbone(example_inputs)  # Finds the head, and checks network and inputs.
    facts["fingerprint"] = backbone.fingerprint()
    device = found.logits.device
    tensors = {name: tensor.to(device) for name, tensor in example.tensors.items()}
    graph = Graph(NetworkOutputs(backbone, example.pack), calibrator.to(device), names)
    subject = f"This {type(backbone.net).__name__} with {type(calibrator).__name__}"
    with frozen(backbone.net):
        model = convert(graph, tensors, names, dynamic, subject=subject, remedy=NETWORK_REMEDY)
    return _write(model, Path(path), calibrator, facts)


@torch.inference_mode(False)
def export_calibrator(
    calibrator: Calibrator,
    path: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    fingerprint: str | None = None,
    class_names: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Exported:
    """Write the calibrator alone; inputs are "logits" (N, K) and, if it reads them, "features".

    Args:
        calibrator: A fitted calibrator.
        path: The file to write.
        dtype: Of logits and features: torch.float32 or torch.float64.
        fingerprint: Of the backbone that the calibrator was fitted for.
        class_names: The names of the K classes, stored in the metadata of the file as a JSON list.
            None is those that the calibrator keeps, if any.
        outputs: Which outputs the graph has, such as ("label", "probs"); None is all. Without the
            uncertainties a graph of STS takes less time.

    Raises:
        NotFittedError: If the calibrator is not fitted.
        ValueError: If the names are not K, or it cannot be traced.
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"`dtype` must be torch.float32 or torch.float64; got {dtype}. Cast half precision to "
            "float32."
        )
    k = check_ready(calibrator, path)
    names = output_names(calibrator, outputs)
    facts = class_facts(class_names, calibrator)
    if fingerprint is not None:
        facts["fingerprint"] = fingerprint
    device = next((x.device for x in calibrator.state_dict().values()), torch.device("cpu"))
    tensors = {}
    for name, size in (("logits", k), ("features", calibrator.n_features)):
        if size is not None:
            tensors[name] = torch.zeros(2, size, dtype=dtype, device=device)
    graph = Graph(GivenOutputs(), calibrator, names)
    subject = f"This {type(calibrator).__name__}"
    model = convert(graph, tensors, names, (0,), subject=subject, remedy=METHOD_REMEDY)
    if outputs is not None:
        _drop_unused_inputs(model.graph)
    return _write(model, Path(path), calibrator, facts)


def _drop_unused_inputs(graph: Any) -> None:
    """Remove the inputs that no node reads: features, where no uncertainty is asked for."""
    read = {name for node in graph.node for name in node.input} | {x.name for x in graph.output}
    for value in list(graph.input):
        if value.name not in read:
            graph.input.remove(value)


def check_ready(calibrator: Calibrator, path: str | Path) -> int:
    """Return K; say before time is spent that a package, a fit or the folder is missing.

    Args:
        calibrator: The calibrator that is to be exported.
        path: The file that is to be written.

    Raises:
        ImportError: If a package is missing.
        NotFittedError: If the calibrator is not fitted.
        FileNotFoundError: If there is no such folder.
    """
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"Exporting needs {' and '.join(missing)}, which is not installed. "
            'Run pip install "simplexcal[onnx]".'
        )
    if calibrator.n_classes is None:
        raise NotFittedError(
            f"This {type(calibrator).__name__} is not fitted yet. Call fit(outputs, labels) first."
        )
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(
            f"'{path}' is to be written to a folder that does not exist. Make it first."
        )
    return calibrator.n_classes


def class_facts(class_names: Sequence[str] | None, calibrator: Calibrator) -> dict[str, str]:
    """Return the names of the classes as metadata, if there are any.

    Args:
        class_names: A name for each class; None: those that the calibrator keeps, if any.
        calibrator: A fitted calibrator.
    """
    if class_names is None:
        class_names = calibrator.facts.class_names
    if class_names is None:
        return {}
    names = check_class_names(class_names, calibrator.n_classes or 0)
    return {"class_names": json.dumps(names, ensure_ascii=False)}


def _example(backbone: Backbone, x: Any) -> Example:
    """Return the inputs as tensors of at least two rows: torch takes a size of 1 for a constant."""
    parts, pack = _named(x)
    tensors = {}
    for name, part in parts.items():
        if not isinstance(part, Tensor | np.ndarray) or part.ndim == 0:
            raise TypeError(
                "`example_inputs` must be a tensor, or a mapping or a tuple of tensors, each with "
                f"one row for each input; got a {type(part).__name__} as {name!r}. Wrap the "
                "network so that it takes tensors only."
            )
        tensors[name] = backbone.as_input(part)
    sizes = {len(tensor) for tensor in tensors.values()}
    if len(sizes) != 1:
        raise ValueError(
            "`example_inputs` must have the same number of rows in every part; got "
            f"{sorted(sizes)}."
        )
    if sizes == {1}:
        tensors = {name: torch.cat([tensor, tensor]) for name, tensor in tensors.items()}
    return Example(tensors, pack)


def _named(x: Any) -> tuple[dict[str, Any], Callable[[list[Tensor]], Any]]:
    """Return the parts of example inputs by name, and how to put them together again."""
    if isinstance(x, Mapping):
        names = list(x)
        parts = {str(name): part for name, part in x.items()}
        return parts, lambda tensors: dict(zip(names, tensors, strict=True))
    if isinstance(x, tuple | list):
        return {f"input_{i}": part for i, part in enumerate(x)}, list
    return {"inputs": x}, itemgetter(0)


def _write(
    model: Any,
    path: Path,
    calibrator: Calibrator,
    facts: dict[str, str],
) -> Exported:
    """Write a graph, with facts about it in its metadata."""
    import onnx

    described = calibrator_facts(calibrator)
    model.producer_name = "simplexcal"
    model.producer_version = __version__
    onnx.helper.set_model_props(model, {**described, **facts})
    onnx.checker.check_model(model, full_check=True)
    atomic_write(path, model.SerializeToString(deterministic=True))
    inputs = [x.name for x in model.graph.input]
    outputs = [x.name for x in model.graph.output]
    return Exported(described["method"], inputs, outputs)


def calibrator_facts(calibrator: Calibrator) -> dict[str, str]:
    """Return what the metadata of a file say about its calibrator.

    Args:
        calibrator: A fitted calibrator.
    """
    method = type(calibrator).__name__
    if CALIBRATORS.get(calibrator.key) is type(calibrator):
        method = calibrator.key
    facts = {
        "method": method,
        "simplexcal": __version__,
        "torch": str(torch.__version__),
    }
    for promise, threshold in calibrator.thresholds.items():
        facts[f"threshold_{promise}"] = str(threshold)
    return facts
