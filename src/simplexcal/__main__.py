"""The command ``simplexcal``, and ``python -m simplexcal``."""

import sys


def main() -> int:
    """Run the command line, if what it needs is installed."""
    try:
        from simplexcal import cli
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write(
            'error: the command line needs typer and rich. Run pip install "simplexcal[cli,report]".\n'
        )
        return 2
    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
