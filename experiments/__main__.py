"""The paper's tables and figures.

  python -m experiments download DATA [NAME ...]
      fetch the official data sets that have a fixed address
  python -m experiments run STUDY --data DATA --cache CACHE [...]
      do what is left of one of the studies
  python -m experiments render
      write docs/results/ and its figures

An example:
  python -m experiments run table1 --settings fmnist-lenet5 --seeds 0-4
      --data DATA --cache CACHE --device cuda
"""

import argparse
import math
import os
import sys
from pathlib import Path

from experiments.config.methods import METHODS
from experiments.config.run_config import RESULTS, RunConfig, log
from experiments.config.settings import SETTINGS
from experiments.config.studies import STUDIES
from experiments.datasets.download import FILES, download
from experiments.running.runner import JobsFailedError, run_study

INCOMPLETE = 3  # exit code when the time is up and something is left


def parse_seeds(text: str) -> list[int]:
    """Return the seeds in "0-4" or "0,2,7-9".

    Args:
        text: Seeds and ranges of seeds, separated by commas.

    Raises:
        argparse.ArgumentTypeError: If the text is something else.
    """
    seeds: list[int] = []
    try:
        for part in text.split(","):
            ends = part.split("-")
            seeds += range(int(ends[0]), int(ends[-1]) + 1)
    except ValueError:
        message = f"must be like 0-4 or 0,2,7-9; got {text!r}"
        raise argparse.ArgumentTypeError(message) from None
    return seeds


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        "python -m experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    run = commands.add_parser(
        "run", help="do what is left of a study; exit code 3: the time is up, something is left"
    )
    _add_run_choices(run)
    _add_run_options(run)
    fetch = commands.add_parser("download", help="fetch the official data sets")
    fetch.add_argument("data", type=Path)
    known = ", ".join(FILES)
    fetch.add_argument("names", nargs="*", metavar="NAME", help=f"of {known}; all by default")
    commands.add_parser("render", help="write the results pages from the records")
    return parser


def _add_run_choices(run: argparse.ArgumentParser) -> None:
    """Add the arguments that say what to run."""
    studies = "; ".join([f"{name}: {study.title}" for name, study in STUDIES.items()])
    run.add_argument("study", choices=STUDIES, metavar="STUDY", help=studies)
    run.add_argument(
        "--settings",
        nargs="+",
        choices=SETTINGS,
        metavar="SETTING",
        help=f"of {', '.join(SETTINGS)}; those of the study by default",
    )
    run.add_argument("--seeds", type=parse_seeds, default=list(range(5)), help="0-4 by default")
    run.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        metavar="METHOD",
        help="those of the study by default",
    )


def _add_run_options(run: argparse.ArgumentParser) -> None:
    """Add the arguments that say where and how to run."""
    run.add_argument(
        "--data",
        type=Path,
        required=True,
        help="the data sets, laid out as experiments/datasets/loading.py says",
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
        help="processes for the other methods",
    )
    run.add_argument(
        "--concurrent", type=int, default=5, help="networks that are pre-trained concurrently"
    )
    run.add_argument(
        "--compiled", action="store_true", help="compile the networks before they train"
    )
    run.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="few steps, to see that all works; records stay in CACHE",
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, and return its exit code.

    Args:
        arguments: The arguments; None means those of the process.
    """
    parser = make_parser()
    args = parser.parse_args(arguments)
    if args.command == "run":
        _check_settings(parser, args)
        try:
            return _run(args)
        except (JobsFailedError, FileNotFoundError) as error:
            log(str(error))
            return 1
    if args.command == "download":
        _download(args.names or list(FILES), args.data)
        return 0
    if args.command == "render":
        # Only this command needs Jinja and Matplotlib.
        from experiments.page import render

        render.write()
        return 0
    parser.print_help()
    return 2


def _check_settings(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    known = STUDIES[args.study].settings
    wrong = sorted(set(args.settings or ()) - set(known))
    if wrong:
        parser.error(
            f"argument --settings: {args.study} has {', '.join(known)}; got {', '.join(wrong)}"
        )


def _run(args: argparse.Namespace) -> int:
    study = STUDIES[args.study]
    cache = args.cache
    results = RESULTS
    if args.dry_run:
        cache = args.cache / "dry-run"
        results = cache / "results"
    config = RunConfig(
        data=args.data,
        cache=cache,
        results=args.results or results,
        device=args.device,
        dry_run=args.dry_run,
        compiled=args.compiled,
    )
    complete = run_study(
        args.study,
        args.settings or study.settings,
        args.seeds,
        args.methods or study.methods,
        config,
        workers=args.workers,
        concurrent=args.concurrent,
        seconds=args.seconds,
    )
    if complete:
        return 0
    return INCOMPLETE


def _download(names: list[str], folder: Path) -> None:
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        download(name, folder)


if __name__ == "__main__":
    sys.exit(main())
