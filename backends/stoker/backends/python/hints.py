"""Hints at the name that the author of a model probably meant by one that does not exist."""

import difflib
import pkgutil
import sys
from typing import Final

import stoker.models

#: How close a name must be, 0 to 1.
_CUTOFF: Final = 0.8


def hint_of(error: BaseException) -> str:
    """A hint for the name or the module that `error` did not find, to be appended to its text; empty: there is none."""
    if isinstance(error, ModuleNotFoundError):
        return _module_hint(error.name or "")
    if isinstance(error, NameError):
        return _name_hint(error.name or "")
    return ""


def _name_hint(name: str) -> str:
    known = stoker.models.__all__
    if name in known:
        wanted = {"Array": "Array, float32"}.get(name, name if name[0].isupper() or name == "batched" else f"Array, {name}")
        return f"; write `from stoker.models import {wanted}`"
    close = difflib.get_close_matches(name, known, 1, _CUTOFF)
    return f"; did you mean {close[0]}?" if close else ""


def _module_hint(name: str) -> str:
    """A hint for a module below a package that is installed."""
    parent, _, last = name.rpartition(".")
    package = sys.modules.get(parent) if parent else None
    if package is None:
        return ""
    loaded = {each.removeprefix(f"{parent}.").partition(".")[0] for each in list(sys.modules) if each.startswith(f"{parent}.")}
    below = loaded | {each.name for each in pkgutil.iter_modules(getattr(package, "__path__", ()))}
    close = difflib.get_close_matches(last, sorted(below), 1, _CUTOFF)
    return f"; did you mean {parent}.{close[0]}?" if close else f"; package '{parent}' is installed, but has no module '{last}'"
