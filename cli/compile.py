"""`stoker compile`: hands its words to the compiler, which is an optional part of an installation."""

import sys
from collections.abc import Sequence
from typing import NoReturn

from cli.failure import CommandFailed

_PARTS = frozenset({"onnx", "onnx_ir", "onnxscript", "ml_dtypes", "yaml"})


def run_compile(arguments: Sequence[str]) -> NoReturn:
    """Runs the compiler and ends the process with its exit code.

    Raises:
        CommandFailed: the packages that compiling needs are not installed.
    """
    try:
        from compiler.cli import main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _PARTS:
            raise
        raise CommandFailed(f"compiling needs the package {error.name}: install stoker with its extra, 'stoker[compile]'") from error
    sys.exit(main(arguments))
