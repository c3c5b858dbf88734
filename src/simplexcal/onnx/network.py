"""A classifier that is an .onnx file, run with onnxruntime."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from simplexcal._arrays import as_tensor, list_to_array
from simplexcal._progress import track
from simplexcal._validation import check_batch_labels, check_count
from simplexcal.backbone import Backbone, extract
from simplexcal.backbone.extraction import _batches, _split
from simplexcal.dense import MAX_POSITIONS
from simplexcal.io._columns import WRITE_AGAIN, quote_names, reraise_parse_errors
from simplexcal.onnx._reading import LOGITS, PROBS, GraphReader, Reading, choose_reading
from simplexcal.types import Outputs

SUFFIX = ".onnx"
SILENT = 4  # onnxruntime's level of messages, which its exceptions repeat
TYPES: dict[str, Any] = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(bool)": np.bool_,
    **{f"tensor({kind})": np.dtype(kind).type for kind in ("int8", "int16", "int32", "int64")},
    **{f"tensor({kind})": np.dtype(kind).type for kind in ("uint8", "uint16", "uint32", "uint64")},
}
Arrays = dict[str, Any]


class OnnxNetwork:
    """A classifier in an .onnx file. Called with inputs, it returns their Outputs, on the CPU.

    The graph tells whether an output holds logits or probabilities, by the node that made it; its
    values are not looked at. Where that is a softmax, its input is taken: these are the logits.
    The file is only read. A graph for a fixed number of inputs is run as often as needed.

    Args:
        path: The file.
        output_name: The graph's output to calibrate; needed only where several could be meant.
        features_name: A tensor of the graph, the input of its last linear layer. None goes without
            features.
        kind: "logits" or "probs", for an output whose node does not tell; it is taken as it is.

    Attributes:
        reading: The tensor that is calibrated, and what it holds.
        head: The last linear layer, or None without features.

    Raises:
        ImportError: If onnx or onnxruntime is not installed.
        ValueError: If the file is damaged, or the output cannot be found or understood.
        OSError: If the file cannot be read.
    """

    one_logit = False  # A graph has a column for each class.
    is_function = False
    is_dense = False

    def __init__(
        self,
        path: str | Path,
        *,
        output_name: str | None = None,
        features_name: str | None = None,
        kind: str | None = None,
    ) -> None:
        if kind not in (None, LOGITS, PROBS):
            raise ValueError(f'`kind` must be "logits", "probs" or None; got {kind!r}.')
        self.path = Path(path)
        self.model = _read(self.path)
        self.reading = _find(self.path, self.model.graph, output_name, kind)
        self.features_name = features_name
        self.head: nn.Linear | None = None
        if features_name is not None:
            self.head = self._find_head(features_name)
        self.example: Arrays | None = None
        self._open_session: Any = None
        self._check_columns()

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.path}': {self.describe()})"

    def describe(self) -> str:
        """Return which tensor is calibrated, in words."""
        words = {LOGITS: "logits", PROBS: "probabilities"}
        kind = words[str(self.reading.kind)]
        return f"the {kind} {self.reading.tensor!r}, {self.reading.origin}"

    @property
    def net(self) -> Any:
        """The object itself, where a Backbone has its network."""
        return self

    @property
    def device(self) -> torch.device:
        """The device of the outputs: onnxruntime returns arrays."""
        return torch.device("cpu")

    @property
    def input_names(self) -> list[str]:
        """The names of the graph's inputs."""
        return [x.name for x in self.session.get_inputs()]

    @property
    def session(self) -> Any:
        """The session of onnxruntime, which is opened when it is needed."""
        if self._open_session is None:
            self._open_session = self._new_session()
        return self._open_session

    @torch.no_grad()
    def __call__(self, x: Any) -> Outputs:
        """Return logits (N, K) and, where the tensor is named, features (N, D).

        Args:
            x: A tensor or an array for a graph with one input; or a dict of them, by the names of
                the graph's inputs.

        Raises:
            TypeError: If the inputs are of another type than the graph's.
            ValueError: If the graph cannot take them, or gives no column for each class.
        """
        arrays = self.as_arrays(x)
        if self.example is None:
            self.example = {name: array[:2].copy() for name, array in arrays.items()}
        return self.outputs(self.values(arrays))

    def values(self, arrays: Arrays) -> list[Any]:
        """Return the arrays of the tensors that are read, in as many runs as the graph needs.

        Args:
            arrays: Inputs from ``as_arrays``.

        Raises:
            ValueError: If the graph cannot take them, or does not give one row for each.
        """
        try:
            values = run_batches(self.session, self.tensor_names(), arrays)
        except Exception as error:  # onnxruntime's own classes have no common base
            shapes = ", ".join(f"{name!r} {x.shape}" for name, x in arrays.items())
            reason = " ".join(str(error).split())
            raise ValueError(f"'{self.path}' cannot take {shapes}: {reason}") from error
        n = len(next(iter(arrays.values())))
        if any(len(value) != n for value in values):
            shapes = " and ".join(str(value.shape) for value in values)
            raise ValueError(
                f"'{self.path}' must give one row for each of {n} inputs; it gives {shapes}. "
                "Name another output with `output_name`."
            )
        return values

    def outputs(self, values: Sequence[Any]) -> Outputs:
        """Return the outputs that tensors of the graph hold.

        Args:
            values: Their arrays.
        """
        rows = self._rows(values[0])
        features = None
        if self.features_name is not None:
            features = torch.from_numpy(values[1]).flatten(1)
        if self.reading.kind == LOGITS:
            return Outputs(rows, features)
        try:
            return Outputs.from_probs(rows, features)
        except ValueError as error:
            raise ValueError(
                f"'{self.path}': {self.reading.tensor!r} must hold probabilities, and does not: "
                f'{error} If they are logits, pass `kind="logits"`.'
            ) from error

    def forward(self, x: Any) -> Outputs:
        """Return the outputs, as a call does.

        Args:
            x: Inputs as a call takes them.
        """
        return self(x)

    def parameters(self) -> Iterator[Tensor]:
        """Return no tensors: those of the graph belong to onnxruntime."""
        return iter(())

    def buffers(self) -> Iterator[Tensor]:
        """Return no tensors."""
        return iter(())

    def possible_mixup(self, mixup: str | None) -> str | None:
        """Return what can be mixed: features only where they are named.

        Args:
            mixup: What is to be mixed, "features", "inputs", "logits" or None.

        Raises:
            ValueError: If inputs are to be mixed.
        """
        if mixup == "inputs":
            raise ValueError(
                '`mixup` must be "features" or "logits" for an ONNX file; got "inputs". To mix '
                "inputs, fit a calibrator with simplexcal.InputMixup(network, inputs, labels)."
            )
        if mixup == "features" and self.head is None:
            return None
        return mixup

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of the graph and of the name of the tensor that is calibrated."""
        digest = hashlib.sha256(f"{self.reading.kind} {self.reading.tensor}\n".encode())
        for part in (*self.model.opset_import, *self.model.functions, self.model.graph):
            digest.update(part.SerializeToString(deterministic=True))
        return digest.hexdigest()

    def as_input(self, x: Tensor | np.ndarray) -> Tensor:
        """Return a tensor; a call converts it to the type of the graph's input.

        Args:
            x: A tensor or an array.
        """
        return as_tensor(x)

    def tensor_names(self) -> list[str]:
        """Return the names of the tensors that are read: the calibrated one, and any features."""
        names = [self.reading.tensor]
        if self.features_name is not None:
            names.append(self.features_name)
        return names

    def __getstate__(self) -> dict[str, Any]:
        # A session cannot be copied or sent to another process.
        return {**self.__dict__, "_open_session": None}

    def _find_head(self, features: str) -> nn.Linear:
        reader = GraphReader(self.model.graph)
        if features not in reader.producers and features not in _graph_inputs(self.model.graph):
            raise ValueError(
                f"`features_name` must name a tensor of '{self.path}'; got {features!r}, which it "
                "does not have. Look at the graph with a viewer, or go without."
            )
        head = None
        if self.reading.kind == LOGITS:
            head = reader.linear_layer(features, self.reading.tensor)
        if head is None:
            raise ValueError(
                f"`features_name` must name the input of the last linear layer of '{self.path}', a "
                f"Gemm or MatMul with constant weights that gives {self.reading.tensor!r}; got "
                f"{features!r}. Name that one, or go without."
            )
        return head

    def _new_session(self) -> Any:
        graph = self.model.graph
        own = [x.name for x in graph.output]
        try:
            for name in self.tensor_names():
                if name not in own:
                    graph.output.add().name = name
            with reraise_parse_errors(self.path, WRITE_AGAIN):
                return open_session(self.model.SerializeToString())
        finally:
            del graph.output[len(own) :]

    def _check_columns(self) -> None:
        """Raise ValueError where the graph itself says that there is no column for each class."""
        outputs = {x.name: x for x in self.session.get_outputs()}
        shape = outputs[self.reading.tensor].shape
        if len(shape) > 1 and all(size == 1 for size in shape[1:]):
            raise self._one_column()

    def _one_column(self) -> ValueError:
        return ValueError(
            f"'{self.path}': {self.reading.tensor!r} must have a column for each class; it gives "
            "one number for each input. Write the network with two columns, one for each class."
        )

    def _rows(self, values: Any) -> Tensor:
        """Return the values as (N, K); other dimensions must have the size 1."""
        if values.ndim < 2 or values[:1].size == 1:
            raise self._one_column()
        if sum(size > 1 for size in values.shape[1:]) > 1:
            raise ValueError(
                f"'{self.path}': {self.reading.tensor!r} must have shape (N, K), one row for each "
                f"input; got {values.shape}. Name another output with `output_name`. Pixels and "
                "tokens are calibrated with a PyTorch network, or a function that runs this file."
            )
        return torch.from_numpy(values).flatten(1)

    def as_arrays(self, x: Any) -> Arrays:
        """Return inputs by name, in the types of the graph.

        Args:
            x: Inputs as a call takes them.

        Raises:
            TypeError: If they are of another type.
            ValueError: If their names are others, or their numbers of rows differ.
        """
        inputs = self.session.get_inputs()
        names = [node.name for node in inputs]
        x = list_to_array(x)
        if not isinstance(x, Mapping):
            if len(names) != 1 or not isinstance(x, Tensor | np.ndarray):
                raise TypeError(
                    f"'{self.path}' must be called with a dict of its inputs, "
                    f"{quote_names(names)}; got a {type(x).__name__}."
                )
            x = {names[0]: x}
        if set(x) != set(names):
            raise ValueError(
                f"'{self.path}' takes the inputs {quote_names(names)}; "
                f"got {quote_names([str(name) for name in x])}. Name them alike."
            )
        arrays = {node.name: self._array(node, x[node.name]) for node in inputs}
        sizes = {len(array) for array in arrays.values()}
        if len(sizes) != 1 or sizes == {0}:
            raise ValueError(
                f"'{self.path}' must be called with one or more rows, the same number in every "
                f"input; got {sorted(sizes)}."
            )
        return arrays

    def _array(self, node: Any, x: Any) -> Any:
        array = list_to_array(x)
        if isinstance(array, Tensor):
            array = array.detach().cpu().numpy()
        array = np.asarray(array)
        expected = TYPES.get(node.type)
        if array.ndim == 0 or expected is None:
            return np.atleast_1d(array)
        if not np.can_cast(array.dtype, expected, "same_kind"):
            raise TypeError(
                f"'{self.path}': the input {node.name!r} must hold {np.dtype(expected)}; "
                f"got {array.dtype}."
            )
        return np.ascontiguousarray(array, expected)


def as_network(
    net: Any, head: str | None = None, *, features: bool | None = None, probs: bool = False
) -> Backbone | OnnxNetwork:
    """Return a network of either kind, ready to be called for its outputs.

    Args:
        net: A torch.nn.Module, a function, an OnnxNetwork, or the path of an .onnx file.
        head: Name of the layer of a torch.nn.Module that makes the logits; None finds it.
        features: Whether features are needed, or not looked for; see ``Backbone``.
        probs: Whether a module or a function returns probabilities.

    Raises:
        ValueError: If `head` or `probs` is given for an ONNX file.
    """
    if isinstance(net, str | Path):
        net = OnnxNetwork(net)
    if not isinstance(net, OnnxNetwork):
        return Backbone(net, head, features=features, probs=probs)
    if head is not None:
        raise ValueError(
            "`head` names a layer of a PyTorch network. For an ONNX file, pass "
            "simplexcal.onnx.OnnxNetwork(path, features_name=...)."
        )
    if probs:
        raise ValueError(
            "`probs` is about a PyTorch network or a function. For an ONNX file, pass "
            'simplexcal.onnx.OnnxNetwork(path, kind="probs").'
        )
    return net


def extract_outputs(
    network: Backbone | OnnxNetwork,
    data: Any,
    *,
    batch_size: int = 256,
    progress: bool = False,
    ignore_index: int | Sequence[int] | None = None,
    max_positions: int = MAX_POSITIONS,
) -> tuple[Outputs, Tensor]:
    """Return the outputs of a network of either kind for labelled data, and the labels (N,).

    Args:
        network: A Backbone or an OnnxNetwork.
        data: Labelled data, as ``simplexcal.extract`` takes them.
        batch_size: Size of the batches that a Dataset or a pair is divided into.
        progress: Show a progress bar on stderr.
        ignore_index: Labels of tokens or pixels that do not count; see ``simplexcal.extract``.
        max_positions: Most positions of tokens or pixels that are kept.

    Raises:
        TypeError: If `data` is nothing of this, or labels are not integers.
        ValueError: If `data` is empty or has no labels.
    """
    if isinstance(network, Backbone):
        return extract(
            network,
            data,
            batch_size=batch_size,
            progress=progress,
            ignore_index=ignore_index,
            max_positions=max_positions,
        )
    check_count("batch_size", batch_size)
    batches = _batches(data, batch_size)
    if progress:
        batches = track(batches, "Extracting")
    parts = []
    for batch in batches:
        inputs, labels = _split(batch)
        outputs = network(inputs)
        labels = check_batch_labels(labels, len(outputs))
        parts.append((outputs, labels.to("cpu", torch.int64)))
    if not parts:
        raise ValueError(
            "`data` is empty. Pass at least one batch; "
            "an iterator that was read before gives no more."
        )
    all_outputs = Outputs.cat([outputs for outputs, _ in parts])
    return all_outputs, torch.cat([labels for _, labels in parts])


def is_onnx_file(model: str | Path) -> bool:
    """Return whether the name of a network is the path of an .onnx file.

    Args:
        model: The name.
    """
    return Path(model).suffix.lower() == SUFFIX


def _read(path: Path) -> Any:
    """Return the onnx.ModelProto in a file."""
    missing = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"An ONNX network needs {' and '.join(missing)}, which is not installed. "
            'Run pip install "simplexcal[onnx]".'
        )
    if not is_onnx_file(path):
        raise ValueError(
            f"`net` must be a torch.nn.Module or the path of a file that ends in {SUFFIX}; "
            f"got '{path}'."
        )
    if path.is_dir():
        raise IsADirectoryError(f"'{path}' is a folder. Give the name of an .onnx file.")
    if not path.is_file():
        raise FileNotFoundError(f"'{path}' does not exist or is no file. Pass an .onnx file.")
    import onnx

    with reraise_parse_errors(path, WRITE_AGAIN):
        model = onnx.load(path)
        if len(model.graph.output) == 0:
            raise ValueError("its graph has no outputs")
    return model


def _graph_inputs(graph: Any) -> list[str]:
    return [x.name for x in graph.input]


def _find(path: Path, graph: Any, output_name: str | None, kind: str | None) -> Reading:
    """Return the tensor of a graph that is to be calibrated."""
    reader = GraphReader(graph)
    names = _candidates(path, graph, reader, output_name)
    if kind is None:
        readings = [reader.read(name) for name in names]
    else:
        readings = [reader.as_is(name, kind) for name in names]
    reading = choose_reading(readings)
    if reading is None:
        raise ValueError(
            f"'{path}' has several outputs that could be meant: {quote_names(names)}. "
            "Name one with `output_name`."
        )
    if reading.kind is None:
        raise ValueError(
            f"'{path}': the output {reading.output!r} is {reading.origin}, which does not "
            'tell whether it holds logits or probabilities. Pass `kind="logits"` or `kind="probs"`.'
        )
    return reading


def _candidates(path: Path, graph: Any, reader: GraphReader, output_name: str | None) -> list[str]:
    """Return the outputs that may be meant: the one that is named, or all of the right type."""
    names = [x.name for x in graph.output]
    if output_name is not None:
        if output_name not in names:
            raise ValueError(
                f"`output_name` must name an output of '{path}'; got {output_name!r}. "
                f"It has {quote_names(names)}."
            )
        return [output_name]
    found = [x.name for x in graph.output if reader.is_zip_map(x.name) or _is_float(x)]
    if not found:
        raise ValueError(
            f"'{path}' must have an output of logits or probabilities, floating-point numbers "
            f"(N, K) with a column for each class; it has {quote_names(names)}."
        )
    return found


def _is_float(output: Any) -> bool:
    """Return whether an output has floating-point numbers, with two dimensions or more."""
    from onnx import TensorProto

    floats = (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
    kind = output.type.tensor_type
    if kind.HasField("shape") and len(kind.shape.dim) < 2:
        return False
    return kind.elem_type in floats


def open_session(content: bytes) -> Any:
    """Return a session of onnxruntime for the content of an .onnx file, on the CPU.

    Args:
        content: The bytes of the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_batches(session: Any, names: Sequence[str], arrays: Arrays) -> list[Any]:
    """Return outputs for any number of rows, in batches of the size that the graph takes.

    Args:
        session: A session of onnxruntime.
        names: Names of outputs.
        arrays: Inputs by name.
    """
    n = len(next(iter(arrays.values())))
    size = _batch_size(session) or n
    parts = []
    for start in range(0, n, size):
        batch = {name: _padded(x[start : start + size], size) for name, x in arrays.items()}
        n_rows = min(size, n - start)
        parts.append([_first_rows(x, n_rows, size) for x in session.run(names, batch)])
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _batch_size(session: Any) -> int | None:
    """Return the number of rows that a graph takes, or None for any number."""
    for node in session.get_inputs():
        if len(node.shape) > 0 and isinstance(node.shape[0], int):
            return int(node.shape[0])
    return None


def _first_rows(values: Any, n: int, size: int) -> Any:
    """Return the first n of as many rows as a graph takes; other results stay as they are."""
    values = np.atleast_1d(values)
    if len(values) != size:
        return values
    return values[:n]


def _padded(rows: Any, size: int) -> Any:
    """Return as many rows as a graph takes, by repeating the last one."""
    missing = size - len(rows)
    if missing <= 0:
        return rows
    return np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)])
