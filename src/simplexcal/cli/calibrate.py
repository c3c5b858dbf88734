"""``simplexcal calibrate``."""

import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from simplexcal.calibrators import CALIBRATORS
from simplexcal.cli._console import say, stderr_is_tty
from simplexcal.cli._inputs import read_source
from simplexcal.cli._options import (
    Data,
    Head,
    Input,
    Json,
    Method,
    Mixed,
    Model,
    Weights,
    check_files,
    network,
)
from simplexcal.io import save_calibrator
from simplexcal.metrics import nll
from simplexcal.mixup import mixup_or_none


def calibrate(
    data: Data,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The calibrator's file, .safetensors.")
    ],
    input: Input = None,
    method: Annotated[Method, typer.Option(help="The method.")] = Method.sts,
    model: Model = None,
    weights: Weights = None,
    head: Head = None,
    mixup: Annotated[
        Mixed, typer.Option(help="What is mixed, for sts and dirichlet.")
    ] = Mixed.features,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of all randomness.")] = 0,
    json: Json = False,
) -> None:
    """Fit a calibrator and save it.

    DATA are held-out outputs, or inputs for --model, with their true classes.
    """
    check_files(output, [".safetensors"], data, weights)
    start = time.perf_counter()
    source = read_source(data, input, network(model, weights, head), progress=stderr_is_tty())
    outputs, labels = source.table.outputs, source.labels
    calibrator = CALIBRATORS[method]()
    mixes = (
        mixup_or_none(lambda: source.mixup(mixup), calibrator.needs_mixup)
        if calibrator.uses_mixup
        else None
    )
    generator = torch.Generator().manual_seed(seed)
    calibrator.fit(outputs, labels, mixup=mixes, generator=generator, progress=stderr_is_tty())
    before, after = (
        float(nll(probs, labels))
        for probs in (outputs.logits.softmax(-1), calibrator(outputs).probs)
    )
    save_calibrator(calibrator, output, fingerprint=source.fingerprint)
    took = time.perf_counter() - start
    text = (
        f"{output}: {method} on {len(labels)} inputs of {outputs.n_classes} classes, {took:.1f} s. "
        f"NLL on these inputs {before:.4f} before, {after:.4f} after; judge it on others: simplexcal evaluate."
    )
    record = {
        "output": str(output),
        "method": str(method),
        "n": len(labels),
        "n_classes": outputs.n_classes,
    }
    say(text, record | {"nll_before": before, "nll_after": after, "seconds": took}, json)
