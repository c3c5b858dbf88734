"""Writes the graph of an ONNX file again, with a calibrator appended."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simplexcal.calibrators import Calibrator
from simplexcal.io._atomic import atomic_write, check_output_path
from simplexcal.onnx._reading import PROBS, ZIP_MAP, GraphReader
from simplexcal.onnx.converter import MAX_BYTES, OPSET, convert
from simplexcal.onnx.export import (
    METHOD_REMEDY,
    Exported,
    calibrator_facts,
    check_ready,
    class_facts,
)
from simplexcal.onnx.network import SUFFIX, TYPES, OnnxNetwork, open_session, run_batches
from simplexcal.onnx.wrappers import Graph, TensorsOfGraph, output_names
from simplexcal.types import Prediction

CLASH = "calibrated_"  # precedes the name of an output that the graph has already
TOLERANCE = 1e-5  # of the probabilities of the graph that is written
PREFIX = "simplexcal/"  # of the names inside of the calibrator
REMEDY = "Export the calibrator alone, simplexcal.onnx.export_calibrator, and run it after it."
FACT = "simplexcal_"  # precedes a fact in the metadata that the file has under the same name


@torch.inference_mode(False)
def append_calibrator(
    network: OnnxNetwork,
    calibrator: Calibrator,
    path: str | Path,
    *,
    example_inputs: Any = None,
    class_names: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Exported:
    """Write the network's graph with the calibrator appended.

    The graph keeps its inputs, its metadata and its outputs; a list of dicts (ZipMap) alone is left
    out. The calibrator's outputs come after them: label, probs, confidence and, where there are
    any, accepted and the uncertainties. A name that the graph has already gets the prefix
    "calibrated_". The new graph is run once, and must give what the library itself gives.

    Args:
        network: The network.
        calibrator: A calibrator fitted to its outputs.
        path: The .onnx file to write, another one than the network's.
        example_inputs: Inputs for this run. None takes the first ones of the network's first call.
        class_names: The names of the K classes, stored in the metadata of the file as a JSON list.
            None is those that the calibrator keeps, if any.
        outputs: Which outputs of the calibrator the graph has, "label" and "probs" among them; None
            is all.

    Raises:
        NotFittedError: If the calibrator is not fitted.
        ValueError: If the graph cannot be brought to a common version with the calibrator, or the
            new graph gives something else than the library.
    """
    path = Path(path)
    check_output_path(path, [SUFFIX], [network.path])
    check_ready(calibrator, path)
    own_names = _names_with_answer(calibrator, outputs)
    facts = class_facts(class_names, calibrator)
    facts["fingerprint"] = network.fingerprint()
    arrays = _example(network, example_inputs)
    values = network.values(arrays)
    expected = calibrator(network.outputs(values))
    first = _exposed(network)
    names = _free_names(first.graph, own_names)
    second = _convert(network, calibrator, values, own_names, names)
    names = [x.name for x in second.graph.output]
    with _explained(network.path):
        merged = _merge(first, second, network)
        _add_facts(merged, {**calibrator_facts(calibrator), **facts})
        content = _checked_bytes(merged)
        found = _run_once(content, names, arrays)
    _check_same(network.path, found, expected)
    atomic_write(path, content)
    inputs = network.input_names
    method = calibrator_facts(calibrator)["method"]
    return Exported(method, inputs, [x.name for x in merged.graph.output])


def _example(network: OnnxNetwork, example_inputs: Any) -> dict[str, Any]:
    """Return inputs by name: those that are given, those of the first call, or zeros."""
    if example_inputs is None and network.example is not None:
        return network.example
    if example_inputs is not None:
        return network.as_arrays(example_inputs)
    arrays = {}
    for node in network.session.get_inputs():
        sizes = [_size(size) for size in node.shape]
        arrays[node.name] = np.zeros(sizes, TYPES.get(node.type, np.float32))
    return arrays


def _size(size: Any) -> int:
    """Return a dimension of an example; those without a number have the size 1."""
    if isinstance(size, int):
        return size
    return 1


def _exposed(network: OnnxNetwork) -> Any:
    """Return a copy of the graph in which the tensors that are read are outputs."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    graph = model.graph
    types = {x.name: x for x in network.session.get_outputs()}
    own = [x.name for x in graph.output]
    for name in network.tensor_names():
        if name in own:
            continue
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[types[name].type]))
        # onnxruntime gives [] where the graph does not tell the shape; [] to onnx is a scalar.
        shape = types[name].shape or None
        graph.output.append(onnx.helper.make_tensor_value_info(name, kind, shape))
    _drop_zip_maps(graph)
    return model


def _drop_zip_maps(graph: Any) -> None:
    """Remove the outputs that are lists of dicts, and the nodes that make them."""
    reader = GraphReader(graph)
    dropped = [x for x in graph.output if reader.is_zip_map(x.name)]
    for output in dropped:
        graph.output.remove(output)
    used = {name for node in graph.node for name in node.input}
    for node in [x for x in graph.node if x.op_type == ZIP_MAP]:
        if node.output[0] not in used:
            graph.node.remove(node)


def _names_in(graph: Any) -> set[str]:
    """Return all names of tensors in a graph."""
    found = {x.name for x in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        found.update(node.output)
    return found


def _free_names(graph: Any, names: Iterable[str]) -> list[str]:
    """Return names of outputs, with a prefix where the graph has them already."""
    taken = _names_in(graph)
    free = []
    for name in names:
        while name in taken:
            name = f"{CLASH}{name}"
        free.append(name)
    return free


def _names_with_answer(calibrator: Calibrator, outputs: Sequence[str] | None) -> list[str]:
    """Return the names of the calibrator's outputs; the first two show that the graph is right."""
    names = output_names(calibrator, outputs)
    if names[:2] != ["label", "probs"]:
        raise ValueError(
            f'`outputs` must have "label" and "probs", which are compared with the library; '
            f"got {outputs!r}. Name them too."
        )
    return names


def _convert(
    network: OnnxNetwork,
    calibrator: Calibrator,
    values: Sequence[Any],
    own_names: Sequence[str],
    names: Sequence[str],
) -> Any:
    """Return the calibrator as a model whose inputs are the tensors that are read."""
    from onnx import compose

    tensors: dict[str, Tensor] = {}
    for name, array in zip(_read_by(calibrator), values, strict=False):
        tensors[name] = torch.from_numpy(np.concatenate([array, array]))  # more than one row
    source = TensorsOfGraph(network.reading.kind == PROBS)
    graph = Graph(source, calibrator.to("cpu"), own_names)
    subject = f"This {type(calibrator).__name__}"
    model = convert(graph, tensors, names, (0,), subject=subject, remedy=METHOD_REMEDY)
    prefix = PREFIX
    taken = _names_in(network.model.graph)
    while any(name.startswith(prefix) for name in taken):
        prefix = f"{prefix}{PREFIX}"
    return compose.add_prefix(model, prefix, rename_outputs=False)


def _read_by(calibrator: Calibrator) -> list[str]:
    """Return the names of the tensors that a calibrator reads."""
    if calibrator.n_features is None:
        return ["logits"]
    return ["logits", "features"]


def _merge(first: Any, second: Any, network: OnnxNetwork) -> Any:
    """Return the first model with the graph of the second appended."""
    from onnx import compose

    version = max(_opset(first), _opset(second))
    first = _at_version(first, version)
    second = _at_version(second, version)
    kept = [x for x in first.graph.output if x.name in _own_outputs(network)]
    inputs = [x.name for x in second.graph.input]
    io_map = list(zip(network.tensor_names(), inputs, strict=False))
    graph = compose.merge_graphs(
        first.graph,
        second.graph,
        io_map,
        name=first.graph.name,
        doc_string=first.graph.doc_string,
    )
    del graph.output[:]
    graph.output.extend([*kept, *second.graph.output])
    first.graph.CopyFrom(graph)
    first.ir_version = max(first.ir_version, second.ir_version)
    known = {entry.domain for entry in first.opset_import}
    first.opset_import.extend([x for x in second.opset_import if _domain(x) not in known])
    return first


def _own_outputs(network: OnnxNetwork) -> set[str]:
    """Return the names of the outputs that the file itself has."""
    return {x.name for x in network.model.graph.output}


def _domain(entry: Any) -> str:
    """Return the domain of a set of operators; the standard one has two names."""
    domain = str(entry.domain)
    if domain == "ai.onnx":
        return ""
    return domain


def _opset(model: Any) -> int:
    """Return the version of the standard operators."""
    return max((x.version for x in model.opset_import if _domain(x) == ""), default=OPSET)


def _at_version(model: Any, version: int) -> Any:
    """Return a model with this version of the standard operators."""
    from onnx import inliner, version_converter

    entries = [x for x in model.opset_import if _domain(x) == ""]
    if not entries:
        model.opset_import.add(domain="", version=version)
        return model
    for entry in entries:
        entry.domain = ""
    if _opset(model) == version:
        return model
    if model.functions:
        model = inliner.inline_local_functions(model)
    converted = version_converter.convert_version(model, version)
    # The converter keeps neither.
    del converted.metadata_props[:]
    converted.metadata_props.extend(model.metadata_props)
    known = {entry.domain for entry in converted.opset_import}
    converted.opset_import.extend([x for x in model.opset_import if x.domain not in known])
    return converted


def _add_facts(model: Any, facts: dict[str, str]) -> None:
    """Add facts to the metadata of a model, next to its own."""
    own = {entry.key for entry in model.metadata_props}
    for name, value in facts.items():
        key = name
        while key in own:
            key = f"{FACT}{key}"
        model.metadata_props.add(key=key, value=value)


def _checked_bytes(model: Any) -> bytes:
    """Return a model as the content of a file."""
    import onnx

    size = model.ByteSize()
    if size >= MAX_BYTES:
        raise ValueError(f"one ONNX file holds less than 2 GiB, and this takes {size / 2**30:.1f}")
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _run_once(content: bytes, names: Sequence[str], arrays: dict[str, Any]) -> list[Any]:
    """Return the first two outputs of the calibrator in a graph, the labels and probabilities."""
    return run_batches(open_session(content), names[:2], arrays)


def _check_same(path: Path, found: Sequence[Any], expected: Prediction) -> None:
    """Raise ValueError unless a graph gives the labels and the probabilities of the library."""
    label, probs = (torch.from_numpy(values) for values in found)
    difference = float((probs - expected.probs).abs().max())
    if not torch.equal(label, expected.label) or not difference <= TOLERANCE:
        raise ValueError(
            f"'{path}' with its calibrator gives other predictions than the library (probabilities "
            f"differ by {difference:.2g}). {REMEDY}"
        )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise one ValueError for whatever onnx and onnxruntime raise at a graph.

    Args:
        path: The file of the network.
    """
    try:
        yield
    except Exception as error:  # their classes have no common base
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"'{path}' cannot be written with its calibrator ({reason}). {REMEDY}"
        ) from error
