"""`popef_dump FILE...`: prints what PopEF files hold, for people or as JSON.

A damaged or missing file is one line on stderr and exit code 1.
"""

import argparse
import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence

from stoker.backends.ipu.popef.dump_report import report_file
from stoker.backends.ipu.popef.dump_text import text_of
from stoker.backends.ipu.popef.errors import PopefError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: Arguments without the command's name; None: those of the process.

    Returns:
        0; 1 where a file is missing or damaged (nothing is printed to stdout then) or stdout cannot be written; 130 where interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="popef_dump",
        description="Prints what PopEF files hold: executables and their static programs, devices, programs, anchors, tensor and feed "
        "data, opaque blobs. Every byte is checked on the way.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a PopEF file")
    parser.add_argument("--json", action="store_true", help='print {"files": [...]}, one entry a file, instead of text')
    arguments = parser.parse_args(argv)
    try:
        reports = [report_file(path) for path in arguments.files]
    except PopefError as error:
        sys.stderr.write(f"popef_dump: {' '.join(str(error).splitlines())}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    text = json.dumps({"files": reports}, indent=2) + "\n" if arguments.json else "\n".join(text_of(report) for report in reports)
    return _print(text)


def _print(text: str) -> int:
    """To stdout, in whatever encoding it has; a reader such as `| head` may close it early."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer goes nowhere, or the interpreter would complain while it ends.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"popef_dump: stdout cannot be written: {error.strerror}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
