"""What somebody may have meant who wrote a name that there is not."""

import difflib
from collections.abc import Iterable


def meant(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """`: is X meant?` for the end of an error, X with `prefix` before it; empty where none of the names `known` is near."""
    found = difflib.get_close_matches(name, sorted(known), n=1)
    return f": is {prefix}{found[0]} meant?" if found else ""
