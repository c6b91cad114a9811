"""Names that tell anchors apart."""

from collections.abc import Iterable


def distinct_names(names: Iterable[str]) -> tuple[str, ...]:
    """The same names, repeated ones with a numeric suffix, as TensorFlow's writer names its anchors.

    The first of its name keeps it; the next are `name_1`, `name_2`, ..., passing over names that stand elsewhere in the list. Metadata with
    two anchors of one name are refused by the writer, so a compiler whose source may repeat names calls this first.
    """
    listed = tuple(names)
    taken = set(listed)
    seen: set[str] = set()
    counts: dict[str, int] = {}
    distinct: list[str] = []
    for name in listed:
        unique = name
        while unique in seen or (unique != name and unique in taken):
            counts[name] = counts.get(name, 0) + 1
            unique = f"{name}_{counts[name]}"
        seen.add(unique)
        distinct.append(unique)
    return tuple(distinct)
