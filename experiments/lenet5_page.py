"""The sections of the results page on the demo's LeNet-5, from its records: one network, many variants of methods."""

import statistics
from pathlib import Path
from textwrap import fill
from typing import Any

from experiments import lenet5, lenet5_forms, lenet5_ood
from experiments.place import RESULTS as RESULTS

Records = list[dict[str, Any]]
SHORT = "STS, paper's branch, 3000 steps"
PAPER_ACCURACY = 0.912  # of the paper's LeNet-5

TEMPLATE = """## One LeNet-5, more variants

The demo's network (`experiments/demo_network.py`: the paper's recipe, seed 0). Of the 10000 official test images 5000
calibrate and 5000 judge, split by the fixed permutation of seed 42; {n_seeds} calibration seeds, mean ± standard
deviation over them. ECE has 10 bins of equal width, and its floor is what a perfectly calibrated model with the same
confidences would score: the mean, and the value that it exceeds in 5 % of trials. No method changes a label
({same_labels}). Hardware: {devices}; PyTorch {versions}.
Jobs ran side by side, five on the GPU and up to eleven on 16 cores, so the seconds are upper bounds, and loose ones.

{lenet5}

How to read it: an ECE below its 95 % floor cannot be told from perfect with 5000 images, and differences between such
methods are noise. The likelihood can tell them apart.
{verdict}

- "STS" is the default: its probabilities come from the head, its uncertainties from the branch, so the mixes do not
  enter these columns, and "STS, logits alone" is equal to it. {against_ts} A few
  variants of the head's inputs were compared on these same test images, with an earlier LeNet-5 and a ResNet-18, so its
  row may be somewhat flattering. {against_adats}
- "STS, mixed features alone" and "STS, mixed inputs alone" have no head: the branch, trained on one kind of mix or the
  other with 19 values of β, gives the probabilities. A small branch, 3000 steps, on a CPU.
- "STS, paper" is `SimplexTemperatureScaling.paper()` with InputMixup: the paper's branch, 25 000 steps; only the mean
  is exact here. The paper reports an ECE of 0.91 ± 0.15 for networks with an accuracy of 91.2 ± 0.17 that start from an
  ECE of 3.52 ± 0.15. {against_paper}
- "logits times 0.3" makes the network under-confident: STS and TS come to what they were.
- "Dirichlet TS" is the failure that the paper's Appendix D describes: its confidence ends far too low.

### Which LeNet-5

The paper says no more than the name. Two seeds of each form, by the paper's recipe, on all 10000 test images,
uncalibrated (`experiments/lenet5_forms.py`). The form to keep was to be the one whose mean accuracy is nearest to the
paper's {paper_accuracy:.1f}, and was chosen before any calibrator was fitted to it: {nearest}.

{forms}

### Out of distribution

AUROC in % of telling 5000 notMNIST letters (of 10000; the paper had 18724) from the 5000 Fashion-MNIST test images, by
the Concrete distribution of a branch that was trained on each kind of mix (`experiments/lenet5_ood.py`).

{ood}

{ood_verdict}

The default, FeatureMixup with β = 4, was chosen with the table of an earlier network in view, a LeNet-5 with ReLU and
max-pooling. There its differential and expected entropy are above the network's largest probability, and its mutual
information below; here it is the other way round. Which score serves best depends on the network. The earlier table:

{relu_ood}
"""


def render() -> str:
    """Return the sections."""
    records = lenet5.read(RESULTS / "lenet5.jsonl")
    return TEMPLATE.format(
        n_seeds=len(lenet5.SEEDS),
        same_labels="checked in each of the " + str(len(records)) + " runs"
        if all(r["same_labels"] for r in records)
        else "NOT SO IN EVERY RUN",
        devices=" and ".join(sorted({r["device"] for r in records})),
        versions=", ".join(sorted({r["torch"] for r in records})),
        lenet5=lenet5.table(RESULTS / "lenet5.jsonl"),
        verdict=_verdict(records),
        against_ts=_against_ts(records),
        against_adats=_against_adats(records),
        against_paper=_against_paper(records),
        paper_accuracy=100 * PAPER_ACCURACY,
        nearest=lenet5_forms.nearest(RESULTS / "lenet5_forms.jsonl", PAPER_ACCURACY),
        forms=lenet5_forms.table(RESULTS / "lenet5_forms.jsonl"),
        ood=lenet5_ood.table(RESULTS / "lenet5_ood.jsonl"),
        ood_verdict=_ood_verdict(RESULTS / "lenet5_ood.jsonl"),
        relu_ood=lenet5_ood.table(RESULTS / "lenet5_relu_ood.jsonl"),
    )


def _verdict(records: Records) -> str:
    """Say which method has the best likelihood and which the smallest ECE, as the records have it."""
    plain = [str(name) for name in lenet5.METHODS if "0.3" not in name]
    best = {key: min(plain, key=lambda name: _mean(records, name, key)) for key in ("nll", "ece")}
    within = [name for name in plain if _mean(records, name, "ece") <= _mean(records, name, "ece_floor_95")]
    return (
        f'Here the best mean likelihood is that of "{best["nll"]}", the smallest mean ECE that of "{best["ece"]}".\n'
        f"Below their 95 % floor are: {'; '.join(within) or 'none'}."
    )


def _against_ts(records: Records) -> str:
    nll, error = (_mean(records, "STS", key) - _mean(records, "TS", key) for key in ("nll", "ece"))
    return f"Against TS, its NLL is {nll:+.4f} and its ECE {100 * error:+.2f} %."


def _against_adats(records: Records) -> str:
    gain = _mean(records, "AdaTS", "nll") - _mean(records, "STS", "nll")
    spread = statistics.stdev(float(r["nll"]) for r in records if r["method"] == "AdaTS")
    return f"Its gain in likelihood over AdaTS is {gain:.4f}, and AdaTS's spread over the seeds {spread:.4f}."


def _against_paper(records: Records) -> str:
    def error(name: str) -> str:
        return f"{100 * _mean(records, name, 'ece'):.2f}"

    return (
        f"This one network, with {100 * _mean(records, 'none', 'accuracy'):.1f} on the images that judge, starts from\n"
        f"  {error('none')} and comes to {error('STS, paper')}; to {error('STS, paper, mixed features')} with mixed "
        f"features, and to {error(SHORT)} after 3000 steps."
    )


def _ood_verdict(path: Path) -> str:
    """Say which cells of the table are above what the network says alone, by more than their spread."""
    plain = {name: value for name, value in lenet5.read(path)[0].items() if name != "mixup"}
    above = {name: "; ".join(lenet5_ood.above(path, value)) or "none" for name, value in plain.items()}
    listed = [fill(f"- above the {name}: {cells}.", 120, subsequent_indent="  ") for name, cells in above.items()]
    return "\n".join(["By more than their spread over the seeds,", "", *listed])


def _mean(records: Records, name: str, key: str) -> float:
    values = [float(r[key]) for r in records if r["method"] == name]
    return sum(values) / len(values) if values else float("inf")
