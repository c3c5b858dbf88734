"""Write docs/results.md with its figures, and the README's table, from the records: no number of ours is typed.

usage: python -m experiments render
"""

from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from experiments.config.methods import TITLES
from experiments.config.run_config import RESULTS
from experiments.config.settings import ROWS, TABLE1_ROWS
from experiments.config.studies import OURS, STUDIES
from experiments.page import others, table1
from experiments.page.numbers import Group, Record, Rows, fitted_on, read
from experiments.pretraining import lenet5_variants as lenet5_forms

ROOT = Path(__file__).parents[2]
PAGE, README, FIGURES = ROOT / "docs" / "results.md", ROOT / "README.md", ROOT / "docs" / "figures"
BEGIN, END = "<!-- results, written by experiments/render.py -->", "<!-- end of results -->"

TOP = """# Results

Written by `python -m experiments render` from the records in `experiments/results`: one file for each fit, with
settings, seed, versions, times and all metrics. `python -m experiments` says how to make them again.

## The paper's Table 1

{done} of its {all} rows so far. Each network is trained by the paper's recipe with its own seed, which is the seed of
every method that calibrates it too. Half of the official test images calibrate and half judge, split by the fixed
permutation of seed 42. Mean ± standard deviation over the seeds. **Bold** is the paper's rule: the best, and what is
within the best one's standard deviation of it, in each column by itself. ECE has 10 bins of equal width; its floor is
what a perfectly calibrated model with the same confidences would score, the mean and the value exceeded in 5 % of
trials. "STS, paper" is the paper's method: 19 values of β, InputMixup with R = S = 10, 25 000 steps, the β with the
smallest validation ECE. "STS, default" is what `calibrate` does. A few variants of the default's head were compared on
test images earlier, with another LeNet-5 and a ResNet-18, so that its lines may be somewhat flattering; its third
output, the lead, was chosen on the validation halves alone. "fit" and "predict" are seconds, the latter for the test
half, after the network.
{preserved}
"""
DEVIATIONS = """### Where this differs from the paper

- STS: the mean of the Concrete distribution is exact, not that of samples. The 19 values of β are trained side by side,
  each on 50 000 mixes that were drawn before the first step as in Algorithm 1 (R = S = 10) and are then shuffled, not
  on 100 new ones in every step; "fresh mixes" below compares the two. All rows have 25 000 steps; the paper's 500
  epochs are 20 000 on STL-10. The branch's products are in TF32.
- PTS and AdaTS have the hyper-parameters on which their public implementations agree; AdaTS predicts with the
  posterior's mean, not with a sample of it.
- Pre-training computes in bfloat16 with float32 weights, LeNet-5 in float32 (convolutions in TF32, PyTorch's default on
  a GPU), and leaves out the images of an epoch that fill no batch of 128.
- LeNet-5 has tanh and average pooling; the paper says no more than the name (below, "Which LeNet-5").
- STL-10's ResNet-18 has the stem for small images, and a higher accuracy than the paper's. Where pooling halves the
  side after the stem, the two agree (below, "its networks in another form").
- Methods are fitted side by side, those without a GPU on one thread each: their seconds compare loosely. Those of
  Appendix C.4 are fitted one by one, on the CPU while other networks trained on the GPU.
- STS with mixed features was fitted on three of Fashion-MNIST's ResNet-18 (seeds 0 to 2) from saved outputs, from which
  the last layer, which the mixes need, was recovered (to 3e-6). "STS, default" in Appendix C.4 is of an earlier version
  with β = 4. Both enter the uncertainties; ECE and NLL of the default are the head's."""
OF_DATA = {
    "cifar100": "CIFAR-100: its images are the original ones in another order, so the two halves are not the paper's.",
}
OF_STRANGERS = {
    "svhn": "SVHN: digits cut out of the full-number images again, within ± 1 grey level of the official ones.",
    "notmnist": "notMNIST: 10000 letters; the paper had 18724.",
    "tinyimagenet": "Tiny-ImageNet stands beside LSUN, which could not be had; it is another data set.",
    "cifar100": "CIFAR-100 as strangers to CIFAR-10's networks is not in the paper.",
    "cifar10": "Strangers to CIFAR-100's networks are not in the paper.",
}


def render(results: Path = RESULTS) -> str:
    """Return the page."""
    studies = {name: read(name, results) for name in STUDIES}
    rows = _in_order(studies["table1"])
    parts = [TOP.format(done=len(rows), all=len(TABLE1_ROWS), preserved=_preserved(_all(studies)))]
    parts += [table1.summary(rows), *(_row(row, group) for row, group in rows.items())]
    differences = [*_mixed(_all(studies)), *_of_data(_all(studies)), *_earlier(studies)]
    parts += [DEVIATIONS + "".join(f"\n{_bullet(text)}" for text in differences)]
    parts += [
        "## The paper's other experiments\n",
        *_others(studies),
        _beta(rows),
        _missing(studies),
        DENSITIES,
    ]
    parts += [lenet5_forms.section()]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def write() -> None:
    """Write page, figures and README."""
    from experiments.page import figures

    rows = read("table1")
    for row, group in rows.items():
        figures.reliability(group, FIGURES / f"reliability-{row}.svg")
    for row, group in read("dirichlet").items():
        figures.reliability(group, FIGURES / f"dirichlet-{row}.svg")
    if searched := others.searched(rows):
        figures.sensitivity(searched, FIGURES / "beta.svg")
    figures.densities(FIGURES / "densities.png")
    PAGE.write_text(render())
    README.write_text(readme(README.read_text()))


def readme(text: str) -> str:
    """Return the README with its tables, Table 1 in short, as the records have it."""
    before, rest = text.split(BEGIN)
    return (
        f"{before}{BEGIN}\n{table1.summary(_in_order(read('table1')))}\n{END}{rest.split(END)[1]}"
    )


def _in_order(rows: Rows) -> Rows:
    return {row: rows[row] for row in ROWS if row in rows}


BETA = "The test ECE in % of each β in the fits of Table 1: median ± standard deviation over the networks."
DENSITIES = """### Densities on the simplex

![Dirichlet and Concrete densities](figures/densities.png)

Appendix D's picture: logits (1, 0.5, 0.25) and five temperatures; colours are logarithms, four decades below each peak.
As t grows the Dirichlet law becomes uniform; as λ grows the Concrete law gathers in the middle."""


def _row(row: str, group: Group) -> str:
    said = "\n".join(_bullet(sentence) for sentence in table1.sentences(row, group))
    figure = f"![Reliability of {ROWS[row].title}](figures/reliability-{row}.svg)"
    where = _where([record for records in group.values() for record in records])
    return "\n\n".join(
        [f"### {ROWS[row].title}", where, table1.row_table(row, group), said, figure]
    )


def _bullet(text: str) -> str:
    return fill(f"- {text}", 120, subsequent_indent="  ", break_on_hyphens=False)


def _where(records: list[Record]) -> str:
    """Say where and with what the records were made."""
    used = {fitted_on(record) for record in records}
    versions = sorted({r["versions"]["torch"] for r in records})
    return fill(
        f"{_pretrained(records)}; calibrated on {' and '.join(sorted(used))}; PyTorch {', '.join(versions)}.",
        120,
    )


def _pretrained(records: list[Record]) -> str:
    """Say where and in what time the networks were trained, unless they are of several rows that have said so."""
    rows = {record["row"] for record in records}
    if len(rows) > 1 and rows <= set(TABLE1_ROWS):
        return "Networks of Table 1"
    devices = sorted({record["training"]["device"] for record in records})
    trainings = [
        (row, " and ".join(sorted({_training(r) for r in records if r["row"] == row})))
        for row in ROWS
    ]
    if len(rows) > 1:
        each = "; ".join(
            f"{ROWS[row].title}: {training}" for row, training in trainings if training
        )
        return f"Pre-trained on {' and '.join(devices)} ({each})"
    return f"Pre-trained on {' and '.join(devices)}, {dict(trainings)[rows.pop()]}"


def _training(record: Record) -> str:
    """Say how many networks trained at once, and of which other rows some of them were."""
    made = record["training"]
    company = [ROWS[row].title for row in made.get("rows", ()) if row != record["row"]]
    beside = f" beside {' and '.join(company)}" if company else ""
    company_of = f"{made['at_once']} at once{beside}" if made["at_once"] > 1 else "alone"
    return f"{company_of} in {made['seconds']:.0f} s"


def _others(studies: dict[str, Rows]) -> Iterator[str]:
    for name, tabulate in others.TABLES.items():
        if studies[name]:
            yield _section(name, studies[name], tabulate(studies[name]))
    for name, compare in others.BESIDE_TABLE1.items():
        if rows := _in_order(studies[name]):
            yield _section(name, rows, compare(rows, studies["table1"]))


def _section(name: str, rows: Rows, text: str) -> str:
    return f"### {STUDIES[name].source}\n\n{_where(_all({name: rows}))}\n\n{text}"


def _beta(rows: Rows) -> str:
    searched = others.searched(rows)
    if not searched:
        return ""
    figure = "![ECE against β](figures/beta.svg)"
    return (
        f"### Appendix C.3: how ECE depends on β\n\n{BETA}\n\n{others.beta(searched)}\n\n{figure}"
    )


def _missing(studies: dict[str, Rows]) -> str:
    """Say what of the paper has no records yet."""
    rows = [ROWS[row].title for row in TABLE1_ROWS if row not in studies["table1"]]
    paper = {
        name: STUDIES[name].source
        for name in others.TABLES
        if not STUDIES[name].source.startswith(OURS)
    }
    left = [f"{source} (`run {name}`)" for name, source in paper.items() if not studies[name]]
    partly = [
        f"{ROWS[row].title} ({', '.join(TITLES[m] for m in table1.ORDER if m not in group)})"
        for row, group in _in_order(studies["table1"]).items()
        if not set(table1.ORDER) <= set(group)
    ]
    said = [
        f"Rows of Table 1 that were not run yet: {'; '.join(rows)}." if rows else "",
        f"Rows that lack a method: {'; '.join(partly)}." if partly else "",
        f"Not run yet: {'; '.join(left)}." if left else "",
    ]
    return "\n".join(fill(text, 120) for text in said if text)


def _preserved(records: list[Record]) -> str:
    changed = sum(not r["labels_preserved"] for r in records)
    if changed:
        return f"IN {changed} OF {len(records)} RUNS A LABEL CHANGED."
    return f"No method changed a label, or gave another class a larger probability, in any of the {len(records)} runs."


def _earlier(studies: dict[str, Rows]) -> list[str]:
    """Say which methods of Appendix F are of an earlier version than those of Table 1: their likelihoods differ."""
    now = {
        (r["row"], r["seed"], r["method"]): r["metrics"]["nll"]
        for r in _all({"table1": studies["table1"]})
    }
    other = {
        (ROWS[r["row"]].title, TITLES[r["method"]])
        for r in _all({"ood": studies["ood"]})
        if now.get((r["row"], r["seed"], r["method"]), r["metrics"]["nll"]) != r["metrics"]["nll"]
    }
    return [
        f"{m} on {row} in Appendix F was fitted by an earlier version than in Table 1."
        for row, m in sorted(other)
    ]


def _mixed(records: list[Record]) -> list[str]:
    """Say for which rows, methods and seeds a GPU computed the outputs of mixed images in bfloat16."""
    seeds: dict[str, set[str]] = {}
    for r in records:
        if r.get("mixed_in") == "bfloat16":
            seeds.setdefault(f"{ROWS[r['row']].title} ({TITLES[r['method']]})", set()).add(
                str(r["seed"])
            )
    found = "; ".join(
        f"{name}, seeds {' '.join(sorted(which))}" for name, which in sorted(seeds.items())
    )
    said = f"Mixed images went through the network in bfloat16: {found}. All others in float32 or TF32."
    return [said] if found else []


def _of_data(records: list[Record]) -> list[str]:
    sets, strangers = {ROWS[r["row"]].data for r in records}, {r["stranger"] for r in records}
    said = [text for name, text in OF_DATA.items() if name in sets]
    return said + [text for name, text in OF_STRANGERS.items() if name in strangers]


def _all(studies: dict[str, Rows]) -> list[Record]:
    return [
        r
        for rows in studies.values()
        for group in rows.values()
        for found in group.values()
        for r in found
    ]
