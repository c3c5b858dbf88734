"""The paper's other experiments on the results page: tables of those that have records."""

import statistics
from itertools import product
from textwrap import fill

from experiments.methods import PAPER_BETAS, TITLES
from experiments.paper import (
    BEST_BETA,
    BRANCH,
    CALIBRATION_SECONDS,
    DIRICHLET,
    INFERENCE_SECONDS,
    MIXES,
    OOD,
    OOD_COLUMNS,
    TABLE1,
    Number,
)
from experiments.records import Group, Record, fitted_on, number, shown, table
from experiments.rows import ROWS
from experiments.table1 import ORDER, betas_of

Rows = dict[str, Group]


def dirichlet(rows: Rows) -> str:
    """Return ECE of the Dirichlet method, β chosen for each network by the validation ECE as the paper does."""
    lines = []
    for row, group in rows.items():
        records = group["dirichlet"]
        ours, confidence = (number(records, "metrics", key, factor=100) for key in ("ece", "confidence"))
        cells = [shown(ours), shown(DIRICHLET[row]) if row in DIRICHLET else "", shown(confidence)]
        lines.append([ROWS[row].title, str(len(records)), *cells, betas_of(records)])
    figures = "\n".join(f"![Reliability of the Dirichlet method](figures/dirichlet-{row}.svg)" for row in rows)
    return table(("row", "seeds", "ECE %", "paper's ECE %", "mean confidence %", "β"), lines) + "\n\n" + figures


Searched = dict[str, list[Record]]  # records of STS, paper, of the rows where all have the errors of each β


def searched(rows: Rows) -> Searched:
    """Return the records of Table 1 that have the errors of each β."""
    found = {row: group.get("sts-paper", []) for row, group in rows.items()}
    return {row: records for row, records in found.items() if records and all(r.get("betas") for r in records)}


def errors(records: list[Record], beta: float, half: str) -> list[float]:
    """Return the ECE of each network for one β, on the "validation" or the "test" half; not of fits that diverged."""
    found = [tried[half]["ece"] for record in records for tried in record["betas"] if tried["beta"] == beta]
    return [float(error) for error in found if error is not None]


def beta(rows: Searched) -> str:
    """Return the test ECE for each β, median and deviation as in the paper's figure, and the best β on either half."""
    lines = [[str(b), *(_median(errors(records, b, "test")) for records in rows.values())] for b in PAPER_BETAS]
    for half in ("validation", "test"):
        best = [_best_beta(records, half) for records in rows.values()]
        lines.append([f"smallest, {half}", *(f"β = {b}" for b in best)])
    lines.append(["smallest, paper", *(f"β = {BEST_BETA[row]}" if row in BEST_BETA else "" for row in rows)])
    return table(("β", *(ROWS[row].title for row in rows)), lines)


def _median(found: list[float]) -> str:
    if not found:
        return "diverged"
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return f"{100 * statistics.median(found):.2f} ± {100 * spread:.2f}"


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
            ours = [f"{number(records, 'timings', 'calibration').mean:.1f}", f"{statistics.mean(inference):.2f}"]
            theirs = [f"{t[method]:.1f}" if method in t else "" for t in (CALIBRATION_SECONDS, INFERENCE_SECONDS)]
            where = " and ".join(sorted({fitted_on(record) for record in records}))
            lines.append([ROWS[row].title, TITLES[method], where, ours[0], theirs[0], ours[1], theirs[1]])
    return table(("row", "method", "fitted on", "calibration, s", "paper's", "inference, s", "paper's"), lines)


SCORES = ("confidence", "expected_entropy", "differential_entropy", "mutual_information", "energy")


def ood(rows: Rows) -> str:
    """Return AUROC and AUPR of each method's confidence, and of STS's uncertainties."""
    lines = []
    for name, group in rows.items():
        theirs = _theirs(group)
        lines += [
            _ood_line(name, method, score, group[method], theirs)
            for method, score in product(ORDER, SCORES)
            if method in group and _has(group[method][0], score)
        ]
    return table(("set", "method", "score", "AUROC %", "paper's", "AUPR %", "paper's", "FPR at 95 % TPR, %"), lines)


def _has(record: Record, score: str) -> bool:
    """Return whether a record has this score to show; the energy is the network's, so only its own line has it."""
    return (score != "energy" or record["method"] == "none") and record["ood"].get(f"{score}_auroc") is not None


def _ood_line(
    name: str, method: str, score: str, records: list[Record], theirs: dict[str, dict[str, str]]
) -> list[str]:
    ours = {m: shown(number(records, "ood", f"{score}_{m}", factor=100)) for m in ("auroc", "aupr", "fpr_95")}
    key = method if score == "confidence" else f"{method}, {score.replace('_', ' ')}"
    paper = {m: theirs.get(m, {}).get(key, "") for m in ("auroc", "aupr")}
    cells = [ours["auroc"], paper["auroc"], ours["aupr"], paper["aupr"], ours["fpr_95"]]
    return [_title(name, records), TITLES[method], score.replace("_", " "), *cells]


def _title(name: str, records: list[Record]) -> str:
    return f"{ROWS[records[0]['row']].title}, {name.rpartition('-')[2]}"


def _theirs(group: Group) -> dict[str, dict[str, str]]:
    record = next(iter(group.values()))[0]
    found = OOD.get((record["row"], record["stranger"]), {})
    return {
        m: {c: shown(Number(*n)) for c, n in zip(OOD_COLUMNS, numbers, strict=True)} for m, numbers in found.items()
    }


def uncertainty(rows: Rows) -> str:
    """Return the AUROC of each score for the branch alone, by kind of mix and β, and what the network says alone."""
    lines = []
    for name, group in rows.items():
        for method in [m for m in TITLES if m in group]:
            cells = [_auroc(group[method], score) for score in SCORES]
            lines.append([_title(name, group[method]), TITLES[method], str(len(group[method])), *cells])
    said = "AUROC in %. The branch alone gives these scores; the default has mixed features and β = 4."
    return said + "\n\n" + table(("set", "method", "seeds", *(s.replace("_", " ") for s in SCORES)), lines)


def _auroc(records: list[Record], score: str) -> str:
    return shown(number(records, "ood", f"{score}_auroc", factor=100)) if _has(records[0], score) else ""


def variants(rows: Rows) -> str:
    """Return ECE and NLL of the variants."""
    said = (
        "ETS is fitted by the squared error in Table 1. Logits times 0.3 make the network under-confident: TS and STS "
        "should come to what they are in Table 1. The branch alone has no head: trained on 19 values of β, 3000 steps "
        "each, it gives the probabilities."
    )
    return fill(said, 120) + "\n\n" + _both_halves(rows)


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
    return table(("row", "method", "seeds", "ECE %", "paper's ECE %", "paper's, as in Table 1"), lines)


TABLES = {
    "dirichlet": dirichlet,
    "time": time,
    "ood": ood,
    "mixes": mixes,
    "branch": branch,
    "fresh": fresh,
    "steps": steps,
    "variants": variants,
    "uncertainty": uncertainty,
}
