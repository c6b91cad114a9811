"""The traceback of a failure as the log shows it: with the frames of the model, and without Stoker's own where the model has some."""

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from stoker.backends.api.errors import ServingError
from stoker.backends.worker.last_lines import is_stokers, relative

#: Bound of a traceback that crosses to the log, characters: the last ones.
TRACEBACK_CHARACTERS: Final = 16_384


def traceback_of(error: ServingError, folders: "Sequence[Path]") -> "tuple[str, bool]":
    """The traceback of `error`, and whether the code of a model whose files are in `folders` raised it.

    The text is that of the exception that led to it, with paths in `folders` relative to them. It is empty for an error that Stoker's own
    code raised without such an exception: its message says all.
    """
    cause = error.__cause__ or error
    shown = traceback.TracebackException(type(cause), cause, cause.__traceback__)
    prefixes = tuple(f"{folder}/" for folder in folders)
    is_of_model = False
    for each in _chain(shown):
        own = [frame.filename.startswith(prefixes) for frame in each.stack] if prefixes else []
        if any(own):
            is_of_model = True
            each.stack[:] = [frame for frame, is_own in zip(each.stack, own, strict=True) if is_own or not is_stokers(frame.filename)]
    if cause is error and not is_of_model:
        return "", False
    return relative("".join(shown.format()), folders).rstrip("\n")[-TRACEBACK_CHARACTERS:], is_of_model


def _chain(first: traceback.TracebackException) -> "Iterator[traceback.TracebackException]":
    """`first` and the exceptions that led to it."""
    waiting, seen = [first], set()
    while waiting:
        each = waiting.pop()
        seen.add(id(each))
        yield each
        others = (each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ()))
        waiting += [other for other in others if other is not None and id(other) not in seen]
