"""The end of a message about an unknown name: what was probably meant, and what is allowed."""

import functools
from collections.abc import Iterable, Iterator, Mapping

from google.protobuf.descriptor import Descriptor

from stoker.backends.api.nearest import nearest

#: More names than this are not all listed: the nearest of them say more.
_FEW = 8
#: Share of letters in common from which a name counts as a misspelling of another.
_CLOSE = 0.7
#: Spellings of element types that other formats use, without prefix: to Triton's name and to TensorFlow's.
_TYPE_SPELLINGS = {
    "BOOLEAN": ("BOOL", "BOOL"),
    "HALF": ("FP16", "HALF"),
    "FLOAT16": ("FP16", "HALF"),
    "FP16": ("FP16", "HALF"),
    "FLOAT": ("FP32", "FLOAT"),
    "FLOAT32": ("FP32", "FLOAT"),
    "FP32": ("FP32", "FLOAT"),
    "DOUBLE": ("FP64", "DOUBLE"),
    "FLOAT64": ("FP64", "DOUBLE"),
    "FP64": ("FP64", "DOUBLE"),
    "BFLOAT16": ("BF16", "BFLOAT16"),
    "BF16": ("BF16", "BFLOAT16"),
    "BYTES": ("STRING", "STRING"),
    "STR": ("STRING", "STRING"),
    "INT": ("INT32", "INT32"),
    "LONG": ("INT64", "INT64"),
}  # fmt: skip


def allowed_names(wrong: str, allowed: Iterable[str], *, also: Iterable[str] = (), most: int = _FEW) -> str:
    """The end of a message about a name that is not among `allowed`: `; did you mean 'x'? allowed: x, y, z`.

    Of many names only the nearest are listed: `; did you mean 'x'? allowed: x, y, ... (27 in all)`.

    Args:
        wrong: The name.
        allowed: In the order in which they are listed.
        also: Further names that may have been meant, and are not listed.
        most: So many names are all listed.
    """
    names = list(allowed)
    meant = _meant(wrong, list(dict.fromkeys([*names, *also])))
    hint = f"; did you mean '{meant}'?" if meant else ";"
    if len(names) <= most:
        return f"{hint} allowed: {', '.join(names) or 'nothing'}"
    near = list(dict.fromkeys([*([meant] if meant in names else []), *nearest(wrong, names, most=_FEW, closeness=0.0)]))[:_FEW]
    return f"{hint} allowed: {', '.join(near)}, ... ({len(names)} in all)"


@functools.cache
def field_homes(root: Descriptor) -> Mapping[str, tuple[str, ...]]:
    """For every field name below `root`: the blocks nearest to the top that have such a field, by path; empty for the top level."""
    homes: dict[str, list[str]] = {}
    for name, home in sorted(_fields(root, ""), key=lambda found: _depth(found[1])):
        found = homes.setdefault(name, [])
        if home not in found and (not found or _depth(home) == _depth(found[0])):
            found.append(home)
    return {name: tuple(paths) for name, paths in homes.items()}


def belonging(homes: Iterable[str]) -> str:
    """The end of a message about a field that stands in the wrong block: `; it belongs inside 'dynamic_batching'`."""
    first, *others = [f"inside '{home}'" if home else "at the top level" for home in homes]
    places = f"{', '.join([first, *others[:-1]])} or {others[-1]}" if others else first
    return f"; it belongs {places}"


def _meant(wrong: str, names: list[str]) -> str | None:
    by_folded = {name.lower(): name for name in names}
    folded = wrong.lower()
    for spelling in (folded, *_type_names(wrong)):
        # `CPU` for KIND_CPU, `value` for string_value.
        named = [name for name in by_folded if name == spelling or name.endswith(f"_{spelling}")]
        if len(named) == 1:
            return by_folded[named[0]]
    return next(iter(nearest(wrong, names, closeness=_CLOSE)), None)


def _type_names(wrong: str) -> tuple[str, ...]:
    """What an element type of that spelling is called here, in lower case."""
    bare = wrong.upper().removeprefix("TYPE_").removeprefix("DT_")
    triton, tensorflow = _TYPE_SPELLINGS.get(bare, ("", ""))
    return (f"type_{triton}".lower(), f"dt_{tensorflow}".lower()) if triton else ()


def _depth(home: str) -> int:
    return home.count(".") + 1 if home else 0


def _fields(message: Descriptor, path: str) -> Iterator[tuple[str, str]]:
    """Name and home of every field; the schema has no message within itself."""
    for field in message.fields:
        yield field.name, path
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            inner = inner.fields_by_name["value"].message_type
        if inner is not None:
            yield from _fields(inner, f"{path}.{field.name}" if path else field.name)
