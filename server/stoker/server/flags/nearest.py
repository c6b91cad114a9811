"""The end of an error about an unknown name: the known name that was probably meant."""

from collections.abc import Iterable

from stoker.backends.api.nearest import nearest


def meant(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """`: is X meant?` for the end of an error, X with `prefix` before it; empty where none of the names `known` is near."""
    found = nearest(name, sorted(known))
    return f": is {prefix}{found[0]} meant?" if found else ""
