"""Hugging Face transformers: a calibrated network for `transformers.pipeline`."""

from copy import copy
from functools import wraps
from typing import Any

from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from simplexcal.dense import is_dense
from simplexcal.model import CalibratedModel
from simplexcal.types import class_dim, log_probs


def pipeline_model(model: CalibratedModel) -> Any:
    """Return the network with calibrated logits, to be passed to ``transformers.pipeline``.

    Its logits are the logarithms of the calibrated probabilities, so the scores of a pipeline are
    these probabilities. It shares all weights with the network, which stays as it is.

    Args:
        model: A calibrated network of Hugging Face that classifies texts, tokens, images or audio.

    Raises:
        TypeError: If the network is none of Hugging Face.
        ValueError: If its pipeline would give each class a score of its own.
    """
    net: Any = model.backbone.net
    if not isinstance(net, PreTrainedModel):
        raise TypeError(
            "`model` must be a calibrated transformers.PreTrainedModel; the network is a "
            f"{type(net).__name__}. Use CalibratedModel.predict."
        )
    if net.config.problem_type == "multi_label_classification" or net.config.num_labels == 1:
        raise ValueError(
            "`model` must be a network of one label out of several, for which a pipeline uses "
            f"softmax; got problem_type {net.config.problem_type!r} and {net.config.num_labels} "
            "labels. Use CalibratedModel.predict."
        )
    shared = _share(net)

    @wraps(net.forward)
    def forward(*args: Any, **inputs: Any) -> ModelOutput:
        if args:
            raise TypeError("Inputs must be named, as a pipeline names them. Pass input_ids=….")
        return ModelOutput(logits=_log_probs(model.predict(inputs).probs))

    shared.forward = forward
    return shared


def _share(net: PreTrainedModel) -> Any:
    """Return a module with the same class, weights and submodules."""
    shared: Any = copy(net)
    for name in ("_parameters", "_buffers", "_modules"):
        # With dicts of its own, so that nothing that is assigned to one reaches the other.
        shared.__dict__[name] = dict(getattr(net, name))
    return shared


def _log_probs(probs: Any) -> Any:
    """Return logarithms of probabilities (N, K), or of maps of them, with the same argmax."""
    if not is_dense(probs):
        return log_probs(probs)
    dim = class_dim(probs.dim() - 1)
    rows = probs.movedim(dim, -1)
    return log_probs(rows.flatten(0, -2)).view(rows.shape).movedim(-1, dim)
