"""`python -m poprt.cli` and `poprt`: `stoker compile` with the IPU as its target."""

from collections.abc import Sequence
from typing import NoReturn

from stoker.cli.written_version import load_once
from stoker.compiler import cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code; see `stoker.compiler.cli`."""
    return cli.main(arguments, default_target="ipu", program="poprt", load_once=load_once)


def run() -> NoReturn:
    """As `main`, and ends the process."""
    cli.run(default_target="ipu", program="poprt", load_once=load_once)


if __name__ == "__main__":
    run()
