"""One call from a trained network to calibrated predictions, and the model that it returns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from simplexcal._arrays import ArrayLike
from simplexcal._validation import check_class_names, check_classes, check_count, warn_caller
from simplexcal.backbone import Backbone
from simplexcal.backbone.backbone import check_are_logits
from simplexcal.backbone.extraction import LABELS, input_batches
from simplexcal.calibrators import CALIBRATORS, Calibrator, Uncalibrated
from simplexcal.calibrators.base import SEED
from simplexcal.card import CalibrationCard
from simplexcal.comparison import Comparison, compare, compare_dense, evaluation_facts
from simplexcal.dense import MAX_POSITIONS, DenseOutputs, prediction_maps, to_maps
from simplexcal.dense_evaluation import score_positions
from simplexcal.facts import Facts, FitFacts
from simplexcal.io import save_calibrator
from simplexcal.io.native import check_fingerprint
from simplexcal.io.native import load_calibrator as read_calibrator
from simplexcal.metrics import nll
from simplexcal.metrics._binning import N_BINS
from simplexcal.mixup import make_mixup
from simplexcal.onnx import OnnxNetwork, append_calibrator, export_model
from simplexcal.onnx.network import as_network, extract_outputs
from simplexcal.report import DenseReport, write_report
from simplexcal.report.mistakes import Images
from simplexcal.report.verdict import TOLERANCE
from simplexcal.thresholds import Threshold
from simplexcal.types import Outputs, Prediction


class CalibratedModel(nn.Module):
    """A frozen network and its calibrator. Called with inputs, it returns probabilities (N, K).

    Where the network classifies each token or pixel, they are (N, T, K) or (N, K, H, W).

    The calibrator follows the network to its device.

    Args:
        backbone: The network.
        calibrator: A calibrator that is fitted to its outputs.
    """

    def __init__(self, backbone: Backbone | OnnxNetwork, calibrator: Calibrator) -> None:
        super().__init__()
        self.backbone = backbone
        self.calibrator = calibrator
        self.eval()

    def __repr__(self) -> str:
        calibrator = self.calibrator
        if calibrator.n_classes is None:
            return f"{type(self).__name__}({calibrator.abbreviation}, not fitted)"
        parts = [calibrator.abbreviation, *calibrator.describe_fit()]
        fit = calibrator.facts.fit
        if fit is not None and fit.nll_before is not None and fit.nll_after is not None:
            nll = f"NLL {fit.nll_before:.4f} -> {fit.nll_after:.4f}"
            parts.append(f"{nll} on the {fit.n} {fit.noun} of the fit")
        return f"{type(self).__name__}({', '.join(parts)})"

    def forward(self, x: Any) -> Tensor:
        """Return calibrated probabilities (N, K).

        Args:
            x: Inputs as a Backbone takes them.
        """
        if torch.compiler.is_compiling():  # A graph is one batch.
            outputs = self.backbone(x)
            probs = self.calibrator.probs_alone(outputs)
            if isinstance(outputs, DenseOutputs):
                return to_maps(probs, outputs.shape)
            return probs
        return self.predict(x).probs

    @torch.no_grad()
    def predict(self, x: Any, *, batch_size: int = 256) -> Prediction:
        """Return labels, calibrated probabilities and uncertainties, in the order of the inputs.

        Args:
            x: Inputs as a Backbone takes them, or what `calibrate` takes: a DataLoader, a Dataset,
                a pair (inputs, labels), a dict or a list of batches. Labels are ignored. A
                DataLoader that shuffles gives the predictions in its own order.
            batch_size: Size of the batches that one tensor or array, a Dataset or a pair is divided
                into. Several inputs without labels are one batch.

        Raises:
            TypeError: If `x` is nothing of this.
            ValueError: If `x` is empty.
        """
        may_be_binary = self.backbone.one_logit is not False and self.calibrator.n_classes == 2
        batches = input_batches(
            self.backbone.net, x, batch_size, binary=may_be_binary, dense=self.is_dense
        )
        parts = [self._predict_batch(batch) for batch in batches]
        if not parts:
            raise ValueError(
                "`x` is empty. Pass at least one batch; "
                "an iterator that was read before gives no more."
            )
        return Prediction.cat(parts)

    @torch.no_grad()
    def predict_labelled(self, data: Any, *, batch_size: int = 256) -> tuple[Prediction, Tensor]:
        """Return the predictions for labelled data, and the labels.

        Args:
            data: Labelled data; see `extract`.
            batch_size: Size of the batches that a Dataset or a pair is divided into.

        Raises:
            TypeError: If `data` are nothing that `extract` takes.
            ValueError: If `data` have no labels, or labels that are no classes of the network.
        """
        outputs, labels = extract_outputs(self.backbone, data, batch_size=batch_size)
        calibrator = self.calibrator.on(outputs.logits.device)
        return calibrator(outputs), check_classes(labels, outputs.n_classes)

    def evaluate(
        self,
        data: Any,
        *,
        n_bins: int = N_BINS,
        batch_size: int = 256,
        ignore_index: int | Sequence[int] | None = None,
    ) -> Comparison:
        """Compare the network before and after calibration, on test data.

        Printed, the result is a table with a verdict. The same data give the same result. The
        model keeps the main figures for its card, unless the data are those of the fit.

        Of tokens or pixels, all that count are evaluated, batch by batch; the floors, intervals and
        tests resample inputs, since the positions of one input are not independent. That `data`
        were those of the fit is not noticed there.

        Args:
            data: Labelled data, see `extract`, that `calibrate` has not seen.
            n_bins: Number of bins of the calibration errors.
            batch_size: Size of the batches that a Dataset or a pair is divided into.
            ignore_index: Labels of tokens or pixels that do not count, one or several. None is
                -100, and 255 where that is no class.

        Raises:
            TypeError: If `data` are nothing that `extract` takes.
            ValueError: If `data` have no labels, or labels that are no classes of the network.
        """
        check_count("n_bins", n_bins)
        if not self.is_dense:
            outputs, labels = extract_outputs(self.backbone, data, batch_size=batch_size)
        if self.is_dense:
            found = self._evaluate_positions(data, n_bins, batch_size, ignore_index)
            self.calibrator.keep_evaluation(evaluation_facts(found, n_bins))
            return found
        is_of_fit = self.calibrator.was_fitted_to(outputs)
        if is_of_fit:
            warn_caller(
                "These data are the ones that the calibrator was fitted to, so it looks better on "
                "them than on new data. Pass other held-out data."
            )
        calibrator = self.calibrator.on(outputs.logits.device)
        labels = check_classes(labels, outputs.n_classes)
        with torch.no_grad():
            before = Uncalibrated()(outputs)
            after = calibrator(outputs)
        found = compare(before, after, labels, calibrator.abbreviation, n_bins)
        if not is_of_fit:
            self.calibrator.keep_evaluation(evaluation_facts(found, n_bins))
        return found

    def card(self) -> CalibrationCard:
        """Return the calibration card: method, data, figures, thresholds and limits of use.

        Printed, it is Markdown. Its figures are those of the last call of `evaluate`.
        """
        return CalibrationCard.of(
            self.calibrator, fingerprint=self._fingerprint(), is_dense=self.is_dense
        )

    @property
    def class_names(self) -> list[str] | None:
        """The names of the classes, or None where they are not known."""
        names = self.calibrator.facts.class_names
        if names is None:
            return None
        return list(names)

    @torch.no_grad()
    def write_report(
        self,
        path: str | Path,
        data: Any,
        *,
        images: Images | None = None,
        words: Sequence[Sequence[str]] | None = None,
        class_names: Sequence[str] | None = None,
        title: str = "Calibration report",
        sources: Mapping[str, str] | None = None,
        tolerance: float = TOLERANCE,
        n_bins: int = N_BINS,
        batch_size: int = 256,
        ignore_index: int | Sequence[int] | None = None,
    ) -> Path:
        """Write a report on the network before and after calibration, and return its path.

        Of tokens or pixels, all that count are evaluated, batch by batch. It needs the extra
        ``simplexcal[report]``; see ``simplexcal.report.write_report``.

        Args:
            path: The .html file to write.
            data: Labelled data, see `extract`, that `calibrate` has not seen.
            images: Pictures of the inputs, in the order of the data. Of pixels, None shows the
                inputs themselves, each from its smallest to its largest number.
            words: The tokens of each input as text, in the order of the data.
            class_names: The names of the K classes. None is those of the model, or "class 0",
                "class 1" and so on.
            title: The title of the page.
            sources: What the page says about the origin of the data, by name.
            tolerance: An ECE up to this hardly matters in practice.
            n_bins: Number of bins of the calibration errors and the reliability diagrams.
            batch_size: Size of the batches that a Dataset or a pair is divided into.
            ignore_index: Labels of tokens or pixels that do not count, one or several. None is
                -100, and 255 where that is no class.

        Raises:
            ModuleNotFoundError: If the extra is not installed.
            TypeError: If `data` are nothing that `extract` takes.
            ValueError: If the arguments do not fit together.
        """
        key = self.calibrator.key
        if class_names is None:
            class_names = self.class_names
        if self.is_dense:
            report = DenseReport(
                class_names=class_names, focus=key, ignore_index=ignore_index, n_bins=n_bins
            )
            report.add_data(
                cast(Backbone, self.backbone),
                {key: self.calibrator},
                data,
                images=images,
                words=words,
                batch_size=batch_size,
            )
            return report.write(path, title=title, sources=sources, tolerance=tolerance)
        outputs, labels = extract_outputs(self.backbone, data, batch_size=batch_size)
        calibrator = self.calibrator.on(outputs.logits.device)
        predictions = {Uncalibrated.key: Uncalibrated()(outputs), key: calibrator(outputs)}
        thresholds = {key: list(self.thresholds.values())}
        return write_report(
            path,
            predictions,
            check_classes(labels, outputs.n_classes),
            images=images,
            class_names=class_names,
            thresholds=thresholds,
            title=title,
            sources=sources,
            tolerance=tolerance,
            n_bins=n_bins,
        )

    @property
    def is_dense(self) -> bool:
        """Whether the network classifies each token or pixel, as far as is known."""
        return bool(self.backbone.is_dense)

    @property
    def thresholds(self) -> dict[str, Threshold]:
        """The thresholds by promise. An input is accepted if all accept it."""
        return self.calibrator.thresholds

    def threshold(
        self,
        data: Any,
        *,
        target_accuracy: float | None = None,
        coverage: float | None = None,
        false_alarm: float | None = None,
        delta: float = 0.05,
        score: str | None = None,
        batch_size: int = 256,
    ) -> Threshold:
        """Find a threshold on held-out data, keep it, and return it.

        Pass exactly one promise; `simplexcal.find_threshold` states what it guarantees. From then
        on `predict` gives `accepted`. A threshold replaces an earlier one of the same promise, and
        `save` keeps all of them.

        Args:
            data: Held-out labelled data, see `extract`, that `calibrate` has not seen. For
                `coverage` and `false_alarm`, inputs alone will do: a tensor, an array, or a dict
                without "labels".
            target_accuracy: Promised accuracy of accepted inputs, with probability 1 - `delta`.
            coverage: Promised share of accepted inputs.
            false_alarm: Promised largest share of rejected in-distribution inputs.
            delta: Probability with which the accuracy may be missed.
            score: "confidence", "aleatoric", "epistemic", "mutual_information" or "entropy". None
                is "epistemic" for `false_alarm` where the method has it, otherwise "confidence".
            batch_size: Size of the batches that the data are divided into.

        Raises:
            ValueError: If no threshold keeps the promise, or an argument has no meaning.
        """
        outputs, labels = self._outputs_and_labels(data, batch_size)
        if self.is_dense:
            raise ValueError(
                "A threshold promises something of independent inputs, which the tokens or pixels "
                "of one input are not. Choose one by `confidence` on held-out data of your own."
            )
        return self.calibrator.threshold(
            outputs,
            labels,
            target_accuracy=target_accuracy,
            coverage=coverage,
            false_alarm=false_alarm,
            delta=delta,
            score=score,
        )

    def save(self, path: str | Path) -> None:
        """Write the calibrator, the network's fingerprint and the card, but not the network.

        A function that is no network has no fingerprint.

        Args:
            path: The safetensors file to write.
        """
        save_calibrator(
            self.calibrator, path, fingerprint=self._fingerprint(), is_dense=self.is_dense
        )

    def to_onnx(
        self,
        path: str | Path,
        example_inputs: Any = None,
        *,
        dynamic: Sequence[int] = (0,),
        class_names: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> None:
        """Write network and calibrator as one ONNX graph; see ``simplexcal.onnx.export_model``.

        A network from an ONNX file is written as it is there, with the calibrator appended; see
        ``simplexcal.onnx.append_calibrator``.

        Args:
            path: The .onnx file to write.
            example_inputs: Inputs as a Backbone takes them; not needed for an ONNX file.
            dynamic: Dimensions of the inputs that may have any size; 0 is the batch. An ONNX file
                keeps its own.
            class_names: The names of the classes, stored in the metadata of the file as JSON. None
                is those of the model.
            outputs: Which outputs the graph has, such as ("label", "probs"); None is all. Without
                the uncertainties a graph of STS takes less time.
        """
        if isinstance(self.backbone, OnnxNetwork):
            append_calibrator(
                self.backbone,
                self.calibrator,
                path,
                example_inputs=example_inputs,
                class_names=class_names,
                outputs=outputs,
            )
            return
        if example_inputs is None:
            raise TypeError("`example_inputs` must be inputs of the network; got None. Pass one.")
        export_model(
            self.backbone,
            self.calibrator,
            path,
            example_inputs,
            dynamic=dynamic,
            class_names=class_names,
            outputs=outputs,
        )

    def _fingerprint(self) -> str | None:
        """Return the network's fingerprint, None of a function."""
        if self.backbone.is_function:
            return None
        return self.backbone.fingerprint()

    def _evaluate_positions(
        self, data: Any, n_bins: int, batch_size: int, ignore_index: int | Sequence[int] | None
    ) -> Comparison:
        """Compare before and after calibration at all positions that count, batch by batch."""
        calibrators = {"before": Uncalibrated(), "after": self.calibrator}
        backbone = cast(Backbone, self.backbone)
        scores = score_positions(backbone, calibrators, data, n_bins, batch_size, ignore_index)
        return compare_dense(scores["before"], scores["after"], self.calibrator.abbreviation)

    @torch.no_grad()
    def _outputs_and_labels(self, data: Any, batch_size: int) -> tuple[Outputs, Tensor | None]:
        """Return the network's outputs for data, and the labels if there are any."""
        labels: Tensor | None
        if isinstance(data, Tensor | np.ndarray):
            starts = range(0, max(len(data), 1), batch_size)
            parts = [self.backbone(data[start : start + batch_size]) for start in starts]
            outputs = Outputs.cat(parts)
            labels = None
        elif isinstance(data, Mapping) and not any(name in data for name in LABELS):
            outputs = self.backbone(data)
            labels = None
        else:
            outputs, labels = extract_outputs(self.backbone, data, batch_size=batch_size)
        outputs = outputs.to(_fit_device(self.backbone.device))
        self.calibrator.to(outputs.logits.device)
        return outputs, labels

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Module.to(), half() and double() call this method.
        net = self.backbone.net
        tensors = (*net.parameters(), *net.buffers(), *self.calibrator.state_dict().values())
        for dtype in {x.dtype for x in tensors if x.is_floating_point()}:
            if fn(torch.empty(0, dtype=dtype)).dtype != dtype:
                raise TypeError(
                    "The network is frozen, so that its dtype cannot be converted; the model holds "
                    f"{dtype}. Convert a copy of the network, and calibrate that. Devices can be "
                    "changed, with .to(device)."
                )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _predict_batch(self, x: Any) -> Prediction:
        outputs = self.backbone(x)
        prediction: Prediction = self.calibrator.on(outputs.logits.device)(outputs)
        if isinstance(outputs, DenseOutputs):
            return prediction_maps(prediction, outputs.shape)
        return prediction


@torch.inference_mode(False)  # tensors made in inference mode could not be trained on
def calibrate(
    net: nn.Module | OnnxNetwork | Callable[..., Any] | str | Path,
    data: Any,
    method: str | Calibrator = "sts",
    *,
    head: str | None = None,
    sample_weight: ArrayLike | None = None,
    mixup: str | None = "features",
    generator: Generator | None = None,
    progress: bool = False,
    batch_size: int = 256,
    probs: bool = False,
    ignore_index: int | Sequence[int] | None = None,
    max_positions: int = MAX_POSITIONS,
    class_names: Sequence[str] | None = None,
) -> CalibratedModel:
    """Fit a calibrator to a trained network on held-out labelled data.

    The network stays as it is, bit for bit.

    A network may classify each token or pixel: logits (N, T, K) or (N, K, H, W), labels (N, T) or
    (N, H, W). It is fitted to a stratified sample of the positions; see `extract`.

    A method that may change predictions says so in its title; a warning says it too.

    A method that learns from mixed features learns from mixed logits where there are no features.
    For a network, a warning says so. A method that reads logits alone looks for no features.

    Args:
        net: The classifier, or any function from inputs to logits; see `Backbone`. Or the path of
            an .onnx file, or an `OnnxNetwork`.
        data: Labelled data; see `extract`.
        method: A key of CALIBRATORS, or a calibrator, which is then fitted itself.
        head: Name of the layer that makes the logits; None finds it.
        sample_weight: How much each input counts, (N,), in the order of the data; see
            `Calibrator.fit`. A DataLoader must keep the order. Mixup samples have no weights.
        mixup: What is mixed for the methods that learn from mixup samples: "features"; "inputs"
            as in the paper, which must be one floating-point tensor; or "logits", which is also
            what None means for a method that can do without features. Classes that `data` lack
            are left out, with a warning.
        generator: Source of all randomness. By default it has a fixed seed, so that the same data
            give the same model, and torch's global state is the same before and after.
        progress: Show progress bars on stderr.
        batch_size: Size of the batches that a Dataset or a pair of tensors is divided into.
        probs: Whether `net` returns probabilities; see `Backbone`.
        ignore_index: Labels of tokens or pixels that do not count, one or several. None is -100,
            and 255 where that is no class.
        max_positions: Most positions of tokens or pixels that the fit learns from.
        class_names: The names of the K classes, for cards, reports and ONNX files. None is those
            in the network's `config.id2label`, which networks of Hugging Face have.

    Raises:
        TypeError: If `data` are nothing that `extract` takes, or inputs cannot be mixed.
        ValueError: If an argument has no meaning, or the outputs or labels cannot be fitted to.
    """
    if mixup not in (None, "features", "inputs", "logits"):
        raise ValueError(f'`mixup` must be "features", "inputs", "logits" or None; got {mixup!r}.')
    calibrator = _calibrator(method)
    calibrator.check_takes_weight(sample_weight)
    calibrator.warn_of_changes()
    if sample_weight is not None:
        _check_order(data)
    if not calibrator.uses_mixup:
        mixup = None
    features = _features_for(calibrator, mixup)
    backbone: Any = as_network(net, head, features=features, probs=probs)
    if isinstance(backbone, OnnxNetwork):
        mixup = backbone.possible_mixup(mixup)
    inputs: list[Tensor] = []
    recording: AbstractContextManager[object] = nullcontext()
    if mixup == "inputs":
        recording = _record_inputs(backbone, inputs)
    with _random_state(generator):
        with recording:
            outputs, labels = extract_outputs(
                backbone,
                data,
                batch_size=batch_size,
                progress=progress,
                ignore_index=ignore_index,
                max_positions=max_positions,
            )
        if backbone.is_dense:
            _check_dense(sample_weight, mixup)
        if outputs.features is None and isinstance(backbone, Backbone) and not probs:
            check_are_logits(outputs, bool(backbone.one_logit))
        outputs = outputs.to(_fit_device(backbone.device))
        names = _class_names(class_names, backbone, outputs.n_classes)
        source = make_mixup(mixup, backbone, inputs, outputs, labels)
        calibrator.fit(
            outputs,
            labels,
            sample_weight=sample_weight,
            mixup=source,
            generator=generator,
            progress=progress,
        )
    model = CalibratedModel(backbone, calibrator)
    _keep_facts(model, outputs, labels, names)
    return model


def load(
    path: str | Path,
    net: nn.Module | OnnxNetwork | Callable[..., Any] | str | Path,
    *,
    head: str | None = None,
    probs: bool = False,
) -> CalibratedModel:
    """Return the model that ``CalibratedModel.save`` wrote, around the same network.

    A calibrator that was saved without a fingerprint is accepted for any network that can have its
    classes.

    Args:
        path: The file.
        net: The network, or the function, that the calibrator was fitted to, as `calibrate` takes
            it.
        head: Name of the layer that makes the logits; None finds it.
        probs: Whether `net` returns probabilities, as in the fit.

    Raises:
        ValueError: If the calibrator was fitted to another network.
    """
    calibrator, header = read_calibrator(path)
    features = calibrator.n_features is not None
    backbone: Any = as_network(net, head, features=features, probs=probs)
    check_fingerprint(header, backbone, path)
    if head is not None or header["fingerprint"] is None:
        _check_n_classes(calibrator, backbone, head, path)
    if isinstance(backbone, Backbone):
        backbone.is_dense = header.get("is_dense")
    return CalibratedModel(backbone, calibrator)


def load_calibrator(path: str | Path) -> Calibrator:
    """Return the calibrator that ``Calibrator.save`` or ``CalibratedModel.save`` wrote, on the CPU.

    It takes outputs of the network that it was fitted to; the network itself is not needed.

    Args:
        path: The file.

    Raises:
        ValueError: If the file is damaged, of another kind, or of another version.
        OSError: If the file cannot be read.
    """
    calibrator, _ = read_calibrator(path)
    return calibrator


@torch.no_grad()
def _keep_facts(
    model: CalibratedModel, outputs: Outputs, labels: Tensor, names: tuple[str, ...] | None
) -> None:
    """Keep the NLL of the data of a fit, before and after it, and the names of the classes."""
    noun = "inputs"
    if model.is_dense:
        noun = "positions"
    labels = labels.to(outputs.logits.device)
    calibrator = model.calibrator
    before = nll(Uncalibrated()(outputs).probs, labels)
    after = nll(calibrator(outputs).probs, labels)
    fit = calibrator.facts.fit or FitFacts(len(labels))
    fit = replace(fit, noun=noun, nll_before=before.item(), nll_after=after.item())
    calibrator.facts = Facts(fit, class_names=names)


def _class_names(
    given: Sequence[str] | None, backbone: Backbone | OnnxNetwork, k: int
) -> tuple[str, ...] | None:
    """Return the names of the classes that the caller gives, or else those of the network."""
    if given is not None:
        return tuple(check_class_names(given, k))
    own = None
    if isinstance(backbone, Backbone):
        own = backbone.class_names
    if own is None or len(own) != k:
        return None
    return tuple(own)


def _calibrator(method: str | Calibrator) -> Calibrator:
    """Return the calibrator itself, or a new one by its key."""
    if isinstance(method, Calibrator):
        return method
    if not isinstance(method, str):
        raise TypeError(
            f"`method` must be a Calibrator or a key of CALIBRATORS; got {type(method).__name__}. "
            "Inputs and labels are one argument: calibrate(net, (inputs, labels))."
        )
    if method not in CALIBRATORS:
        raise ValueError(
            f"`method` must be a Calibrator or one of {', '.join(CALIBRATORS)}; got {method!r}."
        )
    return CALIBRATORS[method]()


def _features_for(calibrator: Calibrator, mixup: str | None) -> bool | None:
    """Return whether a fit needs features; None where it can do without."""
    if calibrator.needs_features or mixup == "inputs":
        return True
    if mixup == "features":
        return None
    return False


def _check_dense(sample_weight: ArrayLike | None, mixup: str | None) -> None:
    """Raise ValueError for what a network of tokens or pixels cannot be fitted with."""
    if sample_weight is not None:
        raise ValueError(
            "`sample_weight` must be None for a network that classifies each token or pixel, of "
            "which a fit takes a sample. Leave positions out with `ignore_index`."
        )
    if mixup == "inputs":
        raise ValueError(
            '`mixup` must be "features" or "logits" for a network that classifies each token or '
            "pixel: a mixed input has no single pair of classes at each position."
        )


def _check_order(data: Any) -> None:
    """Raise ValueError if data are a DataLoader that may change the order of its samples."""
    if not isinstance(data, DataLoader):
        return
    sampler: Any = data.sampler
    if type(data.batch_sampler) is BatchSampler:
        sampler = data.batch_sampler.sampler
    elif data.batch_sampler is not None:
        sampler = data.batch_sampler
    in_order = isinstance(sampler, SequentialSampler)
    if not in_order:
        raise ValueError(
            "`sample_weight` must be in the order of the data, which this DataLoader may change; "
            f"its sampler is a {type(sampler).__name__}. Pass DataLoader(..., shuffle=False) "
            "or a pair (inputs, labels)."
        )


def _check_n_classes(
    calibrator: Calibrator, backbone: Backbone, head: str | None, path: str | Path
) -> None:
    """Raise ValueError where the network cannot return a logit for each class.

    A layer with K outputs has a parameter with K rows or columns. Which layer is the head is known
    from the first call on, unless it is named.
    """
    layer = backbone.net
    if head is not None:
        layer = backbone.head
    sizes = {size for parameter in layer.parameters() for size in parameter.shape}
    if isinstance(layer, nn.Linear):
        sizes = {layer.out_features}
    possible = {calibrator.n_classes}
    if calibrator.n_classes == 2:
        possible.add(1)  # one logit stands for two classes
    if sizes and not possible & sizes:
        raise ValueError(
            f"'{path}' is for {calibrator.n_classes} classes; `net` has no layer with so many "
            "outputs. Pass the network of the fit, or calibrate this one."
        )


def _fit_device(device: torch.device) -> torch.device:
    """Return the network's device, or the CPU where that has no float64, as Apple's MPS."""
    if device.type == "mps":
        return torch.device("cpu")
    return device


@contextmanager
def _random_state(generator: Generator | None) -> Iterator[None]:
    """Without a generator, seed torch's global state on the CPU, and restore it at the end.

    The library does not use this state, but a DataLoader takes the order of its samples from it. So
    one that shuffles gives the same model twice.
    """
    if generator is not None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)
        yield


def _record_inputs(backbone: Backbone, inputs: list[Tensor]) -> AbstractContextManager[object]:
    """Return a context in which the list collects the inputs of each call.

    So the inputs come in the order of the outputs, whatever order a loader has.
    """

    def record(_: nn.Module, args: tuple[Any, ...]) -> None:
        _check_mixable(args[0], inputs)
        inputs.append(backbone.as_input(args[0]))

    return backbone.register_forward_pre_hook(record)


def _check_mixable(x: Any, earlier: list[Tensor]) -> None:
    """Raise an error unless the inputs are one tensor or array, shaped as those before."""
    if not isinstance(x, Tensor | np.ndarray):
        raise TypeError(
            f'Inputs must be one tensor to be mixed; got {type(x).__name__}. Use mixup="features".'
        )
    if earlier and x.shape[1:] != earlier[0].shape[1:]:
        shapes = f"{tuple(earlier[0].shape[1:])} and {tuple(x.shape[1:])}"
        raise ValueError(
            f'Inputs must be of one shape to be mixed; got {shapes}. Use mixup="features".'
        )
