"""Studies of what calibrates: fewer images, or the half that judges in Table 1."""

from textwrap import fill

from experiments.config.methods import FEW, OF_FEW, TITLES
from experiments.config.settings import ROWS
from experiments.page.numbers import Group, Rows, number, shown, table, values
from experiments.page.table1 import summary


def few(rows: Rows) -> str:
    """Return ECE and NLL after calibration with fewer images, and for how many networks STS has the lower NLL."""
    said = (
        "Only so many images of the validation half calibrate, drawn with the network's seed; all of the test half "
        "judge. Table 1 has all. STS is the default's head, which gives the probabilities. Last, for how many networks "
        "its NLL is lower than that of TS."
    )
    lines, lower = [], {n: [0, 0] for n in FEW}
    for row, group in rows.items():
        for n in FEW:
            found = [group.get(f"{m}-of-{n}", []) for m in OF_FEW]
            if not all(found):
                continue
            errors = [shown(number(records, "metrics", "ece", factor=100)) for records in found]
            nll = [shown(number(records, "metrics", "nll"), 4) for records in found]
            wins = sum(
                a < b
                for a, b in zip(*(values(found[i], "metrics", "nll") for i in (-1, 0)), strict=True)
            )
            lower[n] = [lower[n][0] + wins, lower[n][1] + len(found[0])]
            lines.append([ROWS[row].title, str(n), *errors, *nll, f"{wins} of {len(found[0])}"])
    names = [TITLES[m].removesuffix(", default") for m in OF_FEW]
    header = (
        "row",
        "labels",
        *(f"{name}, ECE %" for name in names),
        *(f"{name}, NLL" for name in names),
        "lower",
    )
    in_all = ", ".join(
        f"{wins} of {every} with {n} labels" for n, (wins, every) in lower.items() if every
    )
    return "\n\n".join(
        [fill(said, 120), table(header, lines), fill(f"Lower in all: {in_all}.", 120)]
    )


def exchanged(rows: Rows, table1: Rows) -> str:
    """Return Table 1 in short for the halves exchanged, and the mean of both ways."""
    said = (
        "Table 1 once more: the test half calibrates and the validation half judges. A difference that only one of the "
        "two shows is the luck of the split. STS is the default's head, which gives the probabilities; its third "
        "output, the lead, was chosen on the half that judges here."
    )
    plain = {
        row: {m.removesuffix("-exchanged"): found for m, found in group.items()}
        for row, group in rows.items()
    }
    both = {row: _means(group, table1.get(row, {})) for row, group in plain.items()}
    both = {row: group for row, group in both.items() if group}
    return "\n\n".join(
        [
            fill(said, 120),
            summary(plain),
            "The mean of both ways, network by network:",
            summary(both),
        ]
    )


def _means(here: Group, there: Group) -> Group:
    """Return for each network that both have the means of ECE and NLL."""
    means: Group = {}
    for method, records in here.items():
        other = {record["seed"]: record["metrics"] for record in there.get(method, [])}
        for r in (r for r in records if r["seed"] in other):
            metrics = {
                key: (r["metrics"][key] + other[r["seed"]][key]) / 2 for key in ("ece", "nll")
            }
            means.setdefault(method, []).append({"seed": r["seed"], "metrics": metrics})
    return means
