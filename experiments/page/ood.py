"""How well strangers are told apart, on the results page: the paper's Appendix F, and which mixes and β serve best."""

from itertools import product
from textwrap import fill

import simplexcal as sc
from experiments.config.methods import TITLES
from experiments.config.paper import OOD, OOD_COLUMNS, Number
from experiments.config.settings import ROWS
from experiments.page.numbers import Group, Record, Rows, number, shown, table
from experiments.page.table1 import ORDER
from experiments.running.sampled_scores import MARGINS

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
    return table(
        ("set", "method", "score", "AUROC %", "paper's", "AUPR %", "paper's", "FPR at 95 % TPR, %"),
        lines,
    )


def _has(record: Record, score: str) -> bool:
    """Return whether a record has this score to show; the energy is the network's, so only its own line has it."""
    return (score != "energy" or record["method"] == "none") and record["ood"].get(
        f"{score}_auroc"
    ) is not None


def _ood_line(
    name: str, method: str, score: str, records: list[Record], theirs: dict[str, dict[str, str]]
) -> list[str]:
    ours = {
        m: shown(number(records, "ood", f"{score}_{m}", factor=100))
        for m in ("auroc", "aupr", "fpr_95")
    }
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
        m: {c: shown(Number(*n)) for c, n in zip(OOD_COLUMNS, numbers, strict=True)}
        for m, numbers in found.items()
    }


def uncertainty(rows: Rows) -> str:
    """Return the AUROC of each score for the branch alone, by kind of mix and β, and what the network says alone."""
    lines = []
    for name, group in rows.items():
        for method in [m for m in TITLES if m in group]:
            cells = [_auroc(group[method], score) for score in SCORES]
            lines.append(
                [_title(name, group[method]), TITLES[method], str(len(group[method])), *cells]
            )
    default = f"β = {', '.join(f'{beta:g}' for beta in sc.SimplexTemperatureScaling().betas)}"
    said = f"AUROC in %. The branch alone gives these scores; the default has mixed features and {default}."
    found = table(("set", "method", "seeds", *(s.replace("_", " ") for s in SCORES)), lines)
    return "\n\n".join([said, found, *_sampled(rows)])


def _sampled(rows: Rows) -> list[str]:
    """Return the AUROC of the entropy from 30 samples, for each distance that they keep from the simplex's border."""
    lines = []
    for name, group in rows.items():
        for method, records in ((m, group[m]) for m in TITLES if m in group):
            if all("sampled_entropy_auroc" in record["ood"] for record in records):
                exact = shown(number(records, "ood", "differential_entropy_auroc", factor=100))
                sampled = [
                    shown(
                        number(records, "ood", "sampled_entropy_auroc", f"{margin:g}", factor=100)
                    )
                    for margin in MARGINS
                ]
                lines.append([_title(name, records), TITLES[method], exact, *sampled])
    if not lines:
        return []
    said = (
        "The differential entropy again, exact and as the paper estimates it, by the mean of -ln p over 30 samples; π "
        "of K classes is moved to (1 - K·margin) π + margin before p is taken. AUROC in %."
    )
    header = ("set", "method", "exact", *(f"30 samples, margin {margin:g}" for margin in MARGINS))
    return [fill(said, 120), table(header, lines)]


def _auroc(records: list[Record], score: str) -> str:
    return (
        shown(number(records, "ood", f"{score}_auroc", factor=100))
        if _has(records[0], score)
        else ""
    )
