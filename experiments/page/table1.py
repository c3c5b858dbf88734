"""A row of the paper's Table 1 on the results page: our numbers beside the paper's, and what they say."""

import statistics

from experiments.config.methods import TITLES
from experiments.config.paper import TABLE1, Number, best
from experiments.config.settings import ROWS
from experiments.page.numbers import Group, Record, Rows, number, shown, table, values

ORDER = ("none", "ts", "ets", "pts", "adats", "sts-paper", "sts")
CONFIDENCE = ("metrics", "confidence")
TILTED = ("ts", "pts", "sts-paper", "sts")
SURE = 0.9  # an edge of the bins
HEADER = (
    "method",
    "seeds",
    "ECE %",
    "paper's ECE %",
    "floor, 95 %",
    "NLL",
    "β",
    "fit, s",
    "predict, s",
)


def row_table(row: str, group: Group) -> str:
    """Return the table of a row; bold by the paper's rule."""
    found = [method for method in ORDER if method in group]
    errors = {m: number(group[m], "metrics", "ece", factor=100) for m in found}
    likelihoods = {m: number(group[m], "metrics", "nll") for m in found}
    theirs = {m: n for m, n in TABLE1[row].items() if m in ORDER}
    bold = [best(errors), best(likelihoods), best(theirs)]
    return table(
        HEADER,
        (
            [
                TITLES[m],
                str(len(group[m])),
                shown(errors[m], bold=m in bold[0]),
                shown(theirs[m], bold=m in bold[2]) if m in theirs else "",
                _floor(group, m),
                shown(likelihoods[m], 4, m in bold[1]),
                betas_of(group[m]),
                f"{number(group[m], 'timings', 'calibration').mean:.1f}",
                f"{number(group[m], 'timings', 'prediction').mean:.3f}",
            ]
            for m in found
        ),
    )


def summary(rows: Rows) -> str:
    """Return ECE and NLL of all rows and methods, bold by the paper's rule, and how often the default is the best."""
    methods = [m for m in ORDER if any(m in group for group in rows.values())]
    tables = [
        table(
            (title, *(TITLES[m] for m in methods)),
            (_line(row, group, methods, *how) for row, group in rows.items()),
        )
        for title, how in (("ECE %", ("ece", 100.0, 2)), ("NLL", ("nll", 1.0, 4)))
    ]
    return "\n\n".join([*tables, _best_likelihoods(rows)])


def _line(
    row: str, group: Group, methods: list[str], key: str, factor: float, digits: int
) -> list[str]:
    found = {m: number(group[m], "metrics", key, factor=factor) for m in methods if m in group}
    bold, most = best(found), max(len(group[m]) for m in found)
    cells = {
        m: shown(found[m], digits, m in bold)
        + (f" (of {len(group[m])})" if len(group[m]) < most else "")
        for m in found
    }
    title = ROWS[row].title + (" (one network)" if most == 1 else "")
    return [title, *(cells.get(m, "") for m in methods)]


def _best_likelihoods(rows: Rows) -> str:
    n_best = n_all = 0
    for group in rows.values():
        likelihoods = {
            m: {r["seed"]: r["metrics"]["nll"] for r in records} for m, records in group.items()
        }
        for seed, ours in likelihoods.get("sts", {}).items():
            n_all += 1
            n_best += all(
                ours < found[seed]
                for m, found in likelihoods.items()
                if m != "sts" and seed in found
            )
    return f"Of these {n_all} networks, the default has the lowest NLL of all methods for {n_best}."


def sentences(row: str, group: Group) -> list[str]:
    """Return what the records of a row say, good or bad."""
    said = [_accuracy(row, group), *_against_paper(row, group), _on_validation(group)]
    said += [_squared(group), _within_floor(group), _gaps(group), _tilt(group)]
    if "sts" in group:
        said += [_likelihood(group), _error(group)]
    return [sentence for sentence in said if sentence]


def _accuracy(row: str, group: Group) -> str:
    ours, theirs = number(group["none"], "accuracy", factor=100), TABLE1[row]["accuracy"]
    start, their_start = number(group["none"], "metrics", "ece", factor=100), TABLE1[row]["none"]
    have, begin = (
        ("networks have", "start") if len(group["none"]) > 1 else ("network has", "starts")
    )
    return (
        f"The {have} an accuracy of {shown(ours)} % (the paper's: {theirs.mean} ± {theirs.std}), and {begin} from an "
        f"ECE of {shown(start)} ({shown(their_start)})."
    )


def _against_paper(row: str, group: Group) -> list[str]:
    said = []
    for method in ("sts-paper", "pts", "adats"):
        if method in group:
            ours, theirs = number(group[method], "metrics", "ece", factor=100), TABLE1[row][method]
            said.append(f"{TITLES[method]}: {_compared(ours, theirs)}.")
    return said


def _on_validation(group: Group) -> str:
    """Say whether the paper's method does worse on new images than on those that trained it and chose β."""
    if "sts-paper" not in group:
        return ""
    ours, seen = (
        number(group["sts-paper"], half, "ece", factor=100) for half in ("metrics", "validation")
    )
    return (
        f"On the validation half, which trained the branch and chose β, the ECE of STS, paper is {shown(seen)}; on the "
        f"test half {shown(ours)}."
    )


def _squared(group: Group) -> str:
    """Say what ETS gains by its own measure, the squared error, where likelihood and ECE do not show it."""
    if "ets" not in group or "ts" not in group:
        return ""
    scores = [values(group[m], "metrics", "brier") for m in ("ets", "ts")]
    gaps = [a - b for a, b in zip(*scores, strict=True)]
    return (
        f"ETS is fitted by the squared error, as published: its Brier score less that of TS is "
        f"{statistics.mean(gaps):+.4f}, and lower for {sum(g < 0 for g in gaps)} of {len(gaps)}."
    )


def _compared(ours: Number, theirs: Number) -> str:
    gap = ours.mean - theirs.mean
    side = "worse" if gap > 0 else "better"
    return (
        f"an ECE of {shown(ours)} where the paper has {shown(theirs)}: {side} by {abs(gap):.2f}, "
        f"{abs(gap) / max(theirs.std, 1e-9):.1f} of its standard deviations"
    )


def _within_floor(group: Group) -> str:
    """Say for which methods the ECE cannot be told from that of a perfectly calibrated model."""
    parts = []
    for m in (m for m in ORDER if m in group):
        n = sum(r["metrics"]["ece"] <= r["metrics"]["ece_floor_95"] for r in group[m])
        parts.append(f"{TITLES[m]} {n}")
    return f"Networks whose ECE is below its 95 % floor, and so no proof of any error: {', '.join(parts)}."


def _gaps(group: Group) -> str:
    """Say by how much confidence exceeds accuracy on either half, where several methods have it on record."""
    parts = []
    for m in (m for m in ORDER if m in group and all("gap" in r["validation"] for r in group[m])):
        seen, confidence = (
            number(group[m], *keys, factor=100).mean for keys in (("validation", "gap"), CONFIDENCE)
        )
        parts.append(
            f"{TITLES[m]} {seen:+.2f} and {confidence - number(group[m], 'accuracy', factor=100).mean:+.2f}"
        )
    if len(parts) < 2:
        return ""
    return (
        f"Mean confidence less accuracy, in %, on the validation half and on the test half: {', '.join(parts)}. A "
        "change that all methods share is the luck of the split."
    )


def _tilt(group: Group) -> str:
    """Say how far methods are off where they are sure and where not, which one temperature could not mend at once."""
    parts = []
    for m in (m for m in TILTED if m in group):
        gaps = [
            100 * statistics.mean(_gap_of_bins(r["bins"], side) for r in group[m])
            for side in (False, True)
        ]
        unsure, sure = (f"{round(gap, 1) + 0.0:+.1f}" for gap in gaps)  # no -0.0
        parts.append(f"{TITLES[m]} {unsure} and {sure}")
    if not parts:
        return ""
    return (
        f"Confidence less accuracy on the test half, in %, of inputs with a confidence up to {SURE} and of the others: "
        f"{', '.join(parts)}."
    )


def _gap_of_bins(bins: Record, sure: bool) -> float:
    """Return confidence less accuracy in the bins above SURE, or in the others; 0 where there are no inputs."""
    n = total = 0.0
    columns = (
        bins["edges"],
        bins["edges"][1:],
        bins["count"],
        bins["confidence"],
        bins["accuracy"],
    )
    for left, right, count, confidence, accuracy in zip(*columns, strict=False):
        if count and ((left + right) / 2 > SURE) == sure:
            n, total = n + count, total + count * (confidence - accuracy)
    return total / max(n, 1.0)


def _likelihood(group: Group) -> str:
    """Compare the default's likelihood with each rival's, network by network."""
    ours, parts = {r["seed"]: r["metrics"]["nll"] for r in group["sts"]}, []
    for m in (m for m in ORDER[:-1] if m in group):
        gaps = [ours[r["seed"]] - r["metrics"]["nll"] for r in group[m] if r["seed"] in ours]
        if gaps:
            parts.append(
                f"{TITLES[m]} {statistics.mean(gaps):+.4f} ({sum(g < 0 for g in gaps)} of {len(gaps)})"
            )
    return f"NLL of the default less that of each other, and for how many networks it is lower: {', '.join(parts)}."


def _error(group: Group) -> str:
    """Say where the default's ECE stands."""
    errors = {m: number(group[m], "metrics", "ece", factor=100).mean for m in ORDER if m in group}
    smaller = [f"{TITLES[m]} ({error:.2f})" for m, error in errors.items() if error < errors["sts"]]
    if not smaller:
        return f"The default's mean ECE, {errors['sts']:.2f}, is the smallest."
    return (
        f"The default's mean ECE is {errors['sts']:.2f}; smaller are those of {', '.join(smaller)}."
    )


def _floor(group: Group, method: str) -> str:
    low, high = (
        number(group[method], "metrics", key, factor=100).mean
        for key in ("ece_floor", "ece_floor_95")
    )
    return f"{low:.2f}, {high:.2f}"


def betas_of(records: list[Record]) -> str:
    """Return the values of β that were chosen."""
    chosen = sorted({r["beta"] for r in records if r["beta"] is not None})
    return ", ".join(f"{beta:g}" for beta in chosen)
