"""The command ``simplexcal``, and ``python -m simplexcal``."""

import sys

CLI_PACKAGES = ("typer", "rich")


def main() -> int:
    """Run the command line, if the packages it needs are installed, and return the exit code."""
    try:
        from simplexcal import cli
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in CLI_PACKAGES:
            raise
        sys.stderr.write(
            "error: the command line needs typer and rich. "
            'Run pip install "simplexcal[cli,report]".\n'
        )
        return 2
    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
