"""The paper's tables and figures.

  python -m experiments download DATA [NAME ...]      fetch the official data sets that have a fixed address
  python -m experiments run STUDY --data DATA --cache CACHE [...]       do what is left of one of the paper's studies
  python -m experiments render                        write docs/results.md, its figures and the README's table

An example: python -m experiments run table1 --rows fmnist-lenet5 --seeds 0-4 --data DATA --cache CACHE --device cuda
"""

import argparse
import math
import os
import sys
from pathlib import Path

from experiments.config.methods import METHODS
from experiments.config.run_config import RESULTS, Place, say
from experiments.config.settings import ROWS
from experiments.config.studies import STUDIES
from experiments.datasets.download import FILES, download
from experiments.running.runner import JobsFailedError, run_study

LEFT = 3  # exit code when the time is up and something is left


def seeds_of(text: str) -> list[int]:
    """Return the seeds in "0-4" or "0,2,7-9"."""
    parts = [part.split("-") for part in text.split(",")]
    try:
        return [seed for part in parts for seed in range(int(part[0]), int(part[-1]) + 1)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be like 0-4 or 0,2,7-9; got {text!r}") from None


def parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    whole = argparse.ArgumentParser(
        "python -m experiments", description=__doc__, formatter_class=raw
    )
    commands = whole.add_subparsers(dest="command", metavar="COMMAND")
    _add_run(
        commands.add_parser(
            "run", help="do what is left of a study; exit code 3: the time is up, something left"
        )
    )
    getting = commands.add_parser("download", help="fetch the official data sets")
    getting.add_argument("data", type=Path)
    getting.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(FILES)}; all of them by default"
    )
    commands.add_parser("render", help="write the results page from the records")
    return whole


def _add_run(run: argparse.ArgumentParser) -> None:
    studies = "; ".join(f"{name}: {study.source}" for name, study in STUDIES.items())
    run.add_argument("study", choices=STUDIES, metavar="STUDY", help=studies)
    run.add_argument("--rows", nargs="+", choices=ROWS, metavar="ROW", help=f"of {', '.join(ROWS)}")
    run.add_argument("--seeds", type=seeds_of, default=list(range(5)), help="0-4 by default")
    run.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        metavar="METHOD",
        help="those of the study by default",
    )
    run.add_argument(
        "--data", type=Path, required=True, help="where the data sets are: see experiments/data.py"
    )
    run.add_argument(
        "--cache",
        type=Path,
        required=True,
        help="for weights and outputs; a later run needs it again",
    )
    run.add_argument("--results", type=Path, help="for the records; experiments/results by default")
    run.add_argument(
        "--device",
        default="cpu",
        help="for pre-training and the methods that gain from it: cpu, cuda",
    )
    run.add_argument(
        "--workers",
        type=int,
        default=max(1, (os.cpu_count() or 1) - 2),
        help="processes for the others",
    )
    run.add_argument(
        "--at-once", type=int, default=5, help="networks of one data set to pre-train at once"
    )
    run.add_argument(
        "--compiled", action="store_true", help="compile the networks before they train"
    )
    run.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    run.add_argument(
        "--trial",
        action="store_true",
        help="few steps, to see that all works; records stay in CACHE",
    )


def main(arguments: list[str] | None = None) -> int:
    whole = parser()
    args = whole.parse_args(arguments)
    if args.command == "run":
        rows = STUDIES[args.study].rows
        if wrong := set(args.rows or ()) - set(rows):
            whole.error(
                f"argument --rows: {args.study} has {', '.join(rows)}; got {', '.join(sorted(wrong))}"
            )
        try:
            return _run(args)
        except (JobsFailedError, FileNotFoundError) as error:
            say(str(error))
            return 1
    if args.command == "download":
        for name in args.names or FILES:
            print(f"{name} ...", file=sys.stderr, flush=True)
            download(name, args.data)
    elif args.command == "render":
        from experiments.page import render

        render.write()
    else:
        whole.print_help()
        return 2
    return 0


def _run(args: argparse.Namespace) -> int:
    study = STUDIES[args.study]
    cache = args.cache / "trial" if args.trial else args.cache
    results = args.results or (cache / "results" if args.trial else RESULTS)
    place = Place(args.data, cache, results, args.device, args.trial, args.compiled)
    rows = args.rows or study.rows
    complete = run_study(
        args.study,
        rows,
        args.seeds,
        args.methods or study.methods,
        place,
        workers=args.workers,
        at_once=args.at_once,
        seconds=args.seconds,
    )
    return 0 if complete else LEFT


if __name__ == "__main__":
    sys.exit(main())
