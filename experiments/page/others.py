"""The paper's other experiments on the results page: tables of those that have records."""

import statistics
from textwrap import fill

from experiments.config.methods import PAPER_BETAS, TITLES
from experiments.config.paper import (
    BEST_BETA,
    BRANCH,
    CALIBRATION_SECONDS,
    DIRICHLET,
    INFERENCE_SECONDS,
    MIXES,
    TABLE1,
    Number,
)
from experiments.config.settings import FORM_OF, ROWS
from experiments.page.numbers import Record, Rows, fitted_on, number, shown, spread, table
from experiments.page.ood import ood, uncertainty
from experiments.page.splits import exchanged, few
from experiments.page.table1 import ORDER, betas_of


def dirichlet(rows: Rows) -> str:
    """Return ECE of the Dirichlet method, β chosen for each network by the validation ECE as the paper does."""
    lines = []
    for row, group in rows.items():
        records = group["dirichlet"]
        ours, confidence = (
            number(records, "metrics", key, factor=100) for key in ("ece", "confidence")
        )
        cells = [shown(ours), shown(DIRICHLET[row]) if row in DIRICHLET else "", shown(confidence)]
        lines.append(
            [ROWS[row].title, str(len(records)), *cells, betas_of(records), _extremes(records)]
        )
    figures = "\n".join(
        f"![Reliability of the Dirichlet method](figures/dirichlet-{row}.svg)" for row in rows
    )
    header = ("row", "seeds", "ECE %", "paper's ECE %", "mean confidence %", "β", "ECE % of each β")
    return table(header, lines) + "\n\n" + figures


def _extremes(records: list[Record]) -> str:
    """Return the smallest and the largest test ECE that some β gives, where each is on record."""
    if not all(record.get("betas") for record in records):
        return ""
    means = {
        b: statistics.mean(found) for b in PAPER_BETAS if (found := errors(records, b, "test"))
    }
    ends = [best(means, key=lambda b: means[b]) for best in (min, max)]
    return " to ".join(f"{100 * means[b]:.2f} (β = {b:g})" for b in ends)


Searched = dict[
    str, list[Record]
]  # records of STS, paper, of the rows where all have the errors of each β


def searched(rows: Rows) -> Searched:
    """Return the records of Table 1 that have the errors of each β."""
    found = {row: group.get("sts-paper", []) for row, group in rows.items()}
    return {
        row: records
        for row, records in found.items()
        if records and all(r.get("betas") for r in records)
    }


def errors(records: list[Record], beta: float, half: str) -> list[float]:
    """Return the ECE of each network for one β, on the "validation" or the "test" half; not of fits that diverged."""
    found = [
        tried[half]["ece"]
        for record in records
        for tried in record["betas"]
        if tried["beta"] == beta
    ]
    return [float(error) for error in found if error is not None]


def beta(rows: Searched) -> str:
    """Return the test ECE for each β, median and deviation as in the paper's figure, and the best β on either half."""
    lines = [
        [str(b), *(_median(errors(records, b, "test")) for records in rows.values())]
        for b in PAPER_BETAS
    ]
    for half in ("validation", "test"):
        best = [_best_beta(records, half) for records in rows.values()]
        lines.append([f"smallest, {half}", *(f"β = {b}" for b in best)])
    lines.append(
        ["smallest, paper", *(f"β = {BEST_BETA[row]}" if row in BEST_BETA else "" for row in rows)]
    )
    return table(("β", *(ROWS[row].title for row in rows)), lines)


def _median(found: list[float]) -> str:
    if not found:
        return "diverged"
    return shown(Number(100 * statistics.median(found), 100 * spread(found)))


def _best_beta(records: list[Record], half: str) -> float:
    found = {b: errors(records, b, half) for b in PAPER_BETAS}
    return min((b for b in PAPER_BETAS if found[b]), key=lambda b: statistics.median(found[b]))


HALVES = ("validation", "metrics")


def time(rows: Rows) -> str:
    """Return seconds to calibrate, and to score the test half: network and calibrator."""
    lines = []
    for row, group in rows.items():
        for method, records in group.items():
            inference = [r["timings"]["outputs"] + r["timings"]["prediction"] for r in records]
            ours = [
                f"{number(records, 'timings', 'calibration').mean:.1f}",
                f"{statistics.mean(inference):.2f}",
            ]
            theirs = [
                f"{t[method]:.1f}" if method in t else ""
                for t in (CALIBRATION_SECONDS, INFERENCE_SECONDS)
            ]
            where = " and ".join(sorted({fitted_on(record) for record in records}))
            lines.append(
                [ROWS[row].title, TITLES[method], where, ours[0], theirs[0], ours[1], theirs[1]]
            )
    return table(
        ("row", "method", "fitted on", "calibration, s", "paper's", "inference, s", "paper's"),
        lines,
    )


def variants(rows: Rows) -> str:
    """Return ECE and NLL of the variants."""
    said = (
        "ETS is fitted by the squared error in Table 1. Logits times 0.3 make the network under-confident: TS and STS "
        "should come to what they are in Table 1. The branch alone has no head: trained on 19 values of β, 3000 steps "
        "each, it gives the probabilities. So does that of STS, paper, in Table 1, which is wider, mixes images and "
        "takes 25 000 steps."
    )
    return "\n\n".join([fill(said, 120), _both_halves(rows), *_of_samples(rows)])


def _of_samples(rows: Rows) -> list[str]:
    """Return what becomes of the exact mean when 30 samples estimate it, where that is on record."""
    lines = []
    for row, group in rows.items():
        for method, records in group.items():
            if all("sampled" in record for record in records):
                exact, sampled = (
                    number(records, k, "ece", factor=100) for k in ("metrics", "sampled")
                )
                changed = shown(number(records, "sampled", "changed", factor=100))
                lines.append(
                    [ROWS[row].title, TITLES[method], shown(exact), shown(sampled), changed]
                )
    if not lines:
        return []
    said = (
        "The exact mean, and the paper's estimate of it, the mean of 30 samples: its largest class is not always the "
        "network's. On the test half, in %."
    )
    header = ("row", "method", "ECE, exact", "ECE, 30 samples", "labels that 30 samples change")
    return [fill(said, 120), table(header, lines)]


def mixes(rows: Rows) -> str:
    """Return ECE for other R and S."""
    return _variants(rows, MIXES)


def branch(rows: Rows) -> str:
    """Return ECE with the smaller branch."""
    return _variants(rows, BRANCH)


def fresh(rows: Rows) -> str:
    """Return ECE and NLL with the paper's own supply of mixes."""
    said = (
        "Table 1 has 50 000 mixes for each β, drawn before the first step; the paper's Algorithm 1 draws 100 new ones "
        "for each of 25 000 steps, as here."
    )
    return said + "\n\n" + _both_halves(rows)


def steps(rows: Rows) -> str:
    """Return ECE and NLL after fewer steps of the branch, and with a learning rate that goes to 0."""
    said = (
        "Fewer steps of the branch, or a learning rate that goes to 0. 25 000 steps at the paper's fixed rate, on the "
        "same number of mixes, are in Table 1 above."
    )
    return fill(said, 120) + "\n\n" + _both_halves(rows)


def forms(rows: Rows, table1: Rows) -> str:
    """Return accuracy and ECE of networks in another form, beside those of Table 1's form and the paper's."""
    said = (
        "The paper says little of its networks. Table 1 has them in the forms for small images, trained on flips and "
        "on crops of the images' own size; here they have another form, or are trained on something else. The same "
        "methods on Table 1's form stand above each."
    )
    lines = []
    for usual in dict.fromkeys(FORM_OF[row] for row in rows):
        changed = {row: group for row, group in rows.items() if FORM_OF[row] == usual}
        asked = [method for method in ORDER if any(method in group for group in changed.values())]
        for row, group in {usual: table1.get(usual, {}), **changed}.items():
            lines += [
                _form(row, method, group[method], TABLE1[usual])
                for method in asked
                if method in group
            ]
    header = ("row", "method", "seeds", "accuracy %", "paper's", "ECE %", "paper's", "NLL", "β")
    return fill(said, 120) + "\n\n" + table(header, lines)


def _form(row: str, method: str, records: list[Record], theirs: dict[str, Number]) -> list[str]:
    accuracy = [shown(number(records, "accuracy", factor=100)), shown(theirs["accuracy"])]
    error = [
        shown(number(records, "metrics", "ece", factor=100)),
        shown(theirs[method]) if method in theirs else "",
    ]
    nll = shown(number(records, "metrics", "nll"), 4)
    return [
        ROWS[row].title,
        TITLES[method],
        str(len(records)),
        *accuracy,
        *error,
        nll,
        betas_of(records),
    ]


def _both_halves(rows: Rows) -> str:
    lines = []
    for row, group in rows.items():
        for method, records in group.items():
            errors = [shown(number(records, half, "ece", factor=100)) for half in HALVES]
            nll = shown(number(records, "metrics", "nll"), 4)
            lines.append([ROWS[row].title, TITLES[method], str(len(records)), *errors, nll])
    return table(("row", "method", "seeds", "validation ECE %", "test ECE %", "NLL"), lines)


def _variants(rows: Rows, theirs: dict[str, dict[str, Number]]) -> str:
    lines = []
    for row, group in rows.items():
        usual = shown(TABLE1[row]["sts-paper"])
        for method, records in group.items():
            ours = shown(number(records, "metrics", "ece", factor=100))
            paper = shown(theirs[row][method]) if method in theirs.get(row, {}) else ""
            lines.append([ROWS[row].title, TITLES[method], str(len(records)), ours, paper, usual])
    return table(
        ("row", "method", "seeds", "ECE %", "paper's ECE %", "paper's, as in Table 1"), lines
    )


TABLES = {
    "dirichlet": dirichlet,
    "time": time,
    "ood": ood,
    "mixes": mixes,
    "branch": branch,
    "fresh": fresh,
    "steps": steps,
    "variants": variants,
    "few": few,
    "uncertainty": uncertainty,
}
BESIDE_TABLE1 = {"forms": forms, "exchanged": exchanged}
