"""`stoker compile`: hands its words to the compiler, which is an optional part of an installation."""

import sys
from collections.abc import Sequence
from typing import NoReturn

from stoker.cli.failure import CommandFailed

_HELP = """usage: stoker compile --target TARGET -i MODEL [options]

Convert an ONNX model and compile it for an IPU, a GCU or a CPU.

The compiler is an optional part of Stoker and is not installed here (the package {package} is missing).
  pip install 'stoker[compile]'      installs it
  stoker compile --help              then lists all options
"""
_PARTS = frozenset({"onnx", "onnx_ir", "onnxscript", "ml_dtypes", "yaml"})


def run_compile(arguments: Sequence[str]) -> NoReturn:
    """Runs the compiler and ends the process with its exit code.

    Raises:
        CommandFailed: the packages that compiling needs are not installed.
    """
    try:
        from stoker.compiler.cli import main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _PARTS:
            raise
        if {"--help", "-h"} & set(arguments):
            sys.stdout.write(_HELP.format(package=error.name))
            sys.exit(0)
        raise CommandFailed(f"compiling needs the package {error.name}: install stoker with its extra, 'stoker[compile]'") from error
    sys.exit(main(arguments))
