"""The attributes of a slotted class, compiled or not."""

from typing import Any


def field_names(kind: type[Any]) -> tuple[str, ...]:
    """The names of the attributes that instances of `kind` have. A compiled class has no `__slots__`."""
    names: tuple[str, ...] = getattr(kind, "__mypyc_attrs__", None) or kind.__slots__
    return names


def facts(value: Any) -> dict[str, Any]:
    """The attributes of an object by name."""
    return {name: getattr(value, name) for name in field_names(type(value))}
