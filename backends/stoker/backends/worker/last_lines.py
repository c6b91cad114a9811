"""The part of a worker process' output that the log of its death shows: the last lines, and the model's frames of the stack of a crash."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Bound on the lines; the log has what was printed before as records of its own.
MOST_LINES: Final = 10
#: The first line that faulthandler prints.
_CRASH: Final = "Fatal Python error:"
_FRAME: Final = re.compile(r'  File "(?P<file>.*)", line \S+ in .*')
#: Lines of faulthandler that say nothing about the crash.
_MODULES: Final = "Extension modules:"
_STOKER: Final = re.compile(r"(?:^|/)stoker/backends/")


def last_lines(printed: "Sequence[str]", folders: "Sequence[Path]") -> "list[str]":
    """The last `MOST_LINES` lines of those that a process has printed.

    Of the stack of a crash only the frames of the model's files (those in `folders`) are shown, with relative paths; where there are none,
    all but Stoker's own.
    """
    lines = list(printed)
    starts = [number for number, line in enumerate(lines) if line.startswith(_CRASH)]
    if not starts:
        return lines[-MOST_LINES:]
    stack = _shown(lines[starts[-1] :], folders)[:MOST_LINES]
    # Of these lines, the last; of the stack, the innermost frames, which are first.
    before = MOST_LINES - len(stack)
    return [*(lines[: starts[-1]][-before:] if before else ()), *stack]


def _shown(stack: "Sequence[str]", folders: "Sequence[Path]") -> "list[str]":
    files = {line: match["file"] for line in stack if (match := _FRAME.fullmatch(line)) is not None}
    own = {line for line, file in files.items() if any(file.startswith(f"{folder}/") for folder in folders)}
    return [
        relative(line, folders)
        for line in stack
        if not line.startswith(_MODULES) and (line not in files or line in own or not (own or is_stokers(files[line])))
    ]


def is_stokers(file: str) -> bool:
    """Whether `file` is one of the files of Stoker that run models."""
    return _STOKER.search(file) is not None


def relative(text: str, folders: "Sequence[Path]") -> str:
    """`text` with paths of files in `folders` relative to them; a folder alone is "the model's folder"."""
    for folder in folders:
        text = text.replace(f"{folder}/", "").replace(str(folder), "the model's folder")
    return text
