"""Write the tables of docs/results/dense.md from benchmarks/records/camvid.json.

usage: python benchmarks/camvid_page.py

The page has the lines `<!-- table NAME -->` and `<!-- end of table -->`. What is between them is
written here, so that no figure is typed.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from camvid import RECORD, TOLERANCE

import simplexcal as sc
from simplexcal.evaluation import markdown_table

PAGE = Path(__file__).parents[1] / "docs" / "results" / "dense.md"
TABLE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
HEADER = ("method", "acc. %", "ECE %", "95 % interval", "floor %", "NLL", "NLL above STS", "Brier")
UNCERTAINTIES = {
    "aleatoric": "aleatoric",
    "epistemic": "epistemic",
    "mutual_information": "mutual inf.",
}
NLL_HEADER = ("NLL", "above STS")
MIB_OF_LIMIT = 1024

Record = Mapping[str, Any]


def render(page: str, record: Record) -> str:
    """Return the page with the tables of a record.

    Args:
        page: The page as it is.
        record: What `benchmarks/camvid.py` has measured.
    """
    return TABLE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]](record)}\n\n{found[3]}", page)


def _title(method: str) -> str:
    return sc.CALIBRATORS[method].abbreviation


def _score_table(scores: Mapping[str, Record]) -> str:
    rows = [HEADER]
    for method, e in scores.items():
        mean, error = e["nll_above_sts"]
        above = f"{mean:.4f} ± {error:.4f}"
        if method == "sts":
            above = ""
        row = (
            _title(method),
            f"{100 * e['accuracy']:.2f}",
            f"{100 * e['ece']:.2f}",
            f"{100 * e['ece_low']:.2f} to {100 * e['ece_high']:.2f}",
            f"{100 * e['ece_floor_95']:.2f}",
            f"{e['nll']:.4f}",
            above,
            f"{e['brier']:.4f}",
        )
        rows.append(row)
    return markdown_table(rows)


def _network(record: Record) -> str:
    own = record["network"]
    first = next(iter(record["scores"]["all"].values()))
    shares = {**own["accuracy"], "test": first["accuracy"]}
    found = ", ".join(f"{split} {100 * share:.2f} %" for split, share in shares.items())
    versions = ", ".join(f"{name} {version}" for name, version in own["versions"].items())
    return (
        f"{own['n_weights']} weights. Accuracy of the pixels: {found}. The fit has learned from "
        f"{own['n_positions']} pixels of {own['n_images']} images; "
        f"{first['n_positions']} pixels of {first['n']} images evaluate. Made with {versions}."
    )


def _scores(record: Record) -> str:
    table = _score_table(record["scores"]["all"])
    return f"{table}\n\nPredictions that a method changed: 0."


def _fit(record: Record) -> str:
    cells = ", ".join(f"{_title(m)} {nll:.4f}" for m, nll in record["network"]["nll"].items())
    return f"NLL of the pixels of the fit: {cells}."


def _drives(record: Record) -> str:
    parts = []
    for drive, scores in record["scores"].items():
        if drive != "all":
            n = next(iter(scores.values()))["n"]
            parts.append(f"{drive}, {n} images:\n\n{_score_table(scores)}")
    return "\n\n".join(parts)


def _same_drives(record: Record) -> str:
    scores = record["same_drives"]
    n = next(iter(scores.values()))["n"]
    return f"{n} images evaluate:\n\n{_score_table(scores)}"


def _class_terms(record: Record) -> str:
    titles = {"ts": "TS", "sts": "STS", "sts_without": "STS without them"}
    rows = [("method", *(f"{name} drives: {x}" for name in ("other", "same") for x in NLL_HEADER))]
    for method, title in titles.items():
        row = [title]
        for drives in ("other", "same"):
            e = record["class_terms"][drives][method]
            mean, error = e["nll_above_sts"]
            above = f"{mean:.4f} ± {error:.4f}"
            if method == "sts":
                above = ""
            row += [f"{e['nll']:.4f}", above]
        rows.append(tuple(row))
    return markdown_table(rows)


def _classes(record: Record) -> str:
    scores = record["scores"]["all"]
    header = ["class", "pixels", "acc. %"]
    for score in ("ECE %", "NLL"):
        header += [f"{score}, {_title(method)}" for method in scores]
    rows = [tuple(header)]
    for i, name in enumerate(record["network"]["classes"]):
        of_class = [e["classes"][i] for e in scores.values()]
        row = [name, str(of_class[0]["n"]), f"{100 * of_class[0]['accuracy']:.2f}"]
        row += [f"{100 * x['ece']:.2f}" for x in of_class]
        row += [f"{x['nll']:.4f}" for x in of_class]
        rows.append(tuple(row))
    return markdown_table(rows)


def _memory(record: Record) -> str:
    memory = dict(record["memory"])
    alone = memory.pop("network")
    rows = [("process", "peak, MiB", "beyond the network, MiB"), ("network", f"{alone:.0f}", "")]
    for method, peak in memory.items():
        rows.append((f"{_title(method)}: calibrate", f"{peak:.0f}", f"{peak - alone:.0f}"))
    largest = max(memory.values()) - alone
    verdict = "kept"
    if largest > MIB_OF_LIMIT:
        verdict = "missed"
    return f"{markdown_table(rows)}\n\nThe limit of {MIB_OF_LIMIT} MiB is {verdict}."


def _time(record: Record) -> str:
    times = dict(record["time"]["seconds"])
    alone = times.pop("network")
    rows = [("what runs", "s", "over the network"), ("network", f"{alone:.3f}", "1.00")]
    for method, seconds in times.items():
        rows.append((f"{_title(method)}: predict", f"{seconds:.3f}", f"{seconds / alone:.2f}"))
    return f"{markdown_table(rows)}\n\n{record['time']['n_images']} images in a batch."


def _onnx(record: Record) -> str:
    rows = [("method", "labels that differ", "probs", *UNCERTAINTIES.values())]
    for method, found in record["onnx"]["differences"].items():
        cells = [f"{found[name]:.1e}" if name in found else "" for name in UNCERTAINTIES]
        rows.append((_title(method), str(found["labels"]), f"{found['probs']:.1e}", *cells))
    limit = f"The limit for probabilities is {TOLERANCE:.0e}."
    return f"{markdown_table(rows)}\n\n{record['onnx']['n_images']} test images. {limit}"


TABLES: dict[str, Callable[[Record], str]] = {
    "network": _network,
    "scores": _scores,
    "fit": _fit,
    "drives": _drives,
    "same_drives": _same_drives,
    "class_terms": _class_terms,
    "classes": _classes,
    "memory": _memory,
    "time": _time,
    "onnx": _onnx,
}


def main() -> None:
    """Write the tables."""
    record = json.loads(RECORD.read_text())
    PAGE.write_text(render(PAGE.read_text(), record))


if __name__ == "__main__":
    main()
