"""Classes of ours under the vendor's camelCase names.

`renamed(OurClass)` is a class whose objects hold one of ours. Attributes and keyword arguments may be spelled in camelCase or as ours are;
shims that go in are taken off, and what comes out is given one if its class has one. Nothing else happens on the way.
"""

import dataclasses
import functools
import re
import types
from collections.abc import Callable
from typing import Any

_shims: dict[type, type["Renamed"]] = {}
_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PLAIN_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinMethodType, functools.partial)


def snake_case(name: str) -> str:
    """Returns `opaqueBlobs` as `opaque_blobs`; names in snake_case stay unchanged."""
    return _BOUNDARY.sub("_", name).lower()


class Renamed:
    """One object of ours; see the module."""

    _ours: type = object
    _inner: Any

    def __init__(self, *arguments: Any, **named: Any) -> None:
        object.__setattr__(self, "_inner", self._ours(*map(bare, arguments), **_bare_names(named)))

    def __getattr__(self, name: str) -> Any:
        return dressed(getattr(self._inner, _ours_of(self._inner, name)))

    def __setattr__(self, name: str, value: Any) -> None:
        known = _ours_of(self._inner, name)
        if not hasattr(self._inner, known):
            raise AttributeError(f"{type(self).__name__} has no '{name}'")
        try:
            setattr(self._inner, known, bare(value))
        except dataclasses.FrozenInstanceError:
            object.__setattr__(self, "_inner", dataclasses.replace(self._inner, **{known: bare(value)}))

    def __enter__(self) -> "Renamed":
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._inner.__exit__(*error)

    def __eq__(self, other: object) -> bool:
        return bool(self._inner == bare(other))

    def __hash__(self) -> int:
        return hash(self._inner)

    def __len__(self) -> int:
        return len(self._inner)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return repr(self._inner)


def renamed(ours: type, name: str | None = None) -> Any:
    """Returns the shim class of `ours`, named `name` (default: the same name); static methods can be called on it."""
    space: dict[str, Any] = {"_ours": ours, "__doc__": ours.__doc__}
    made: Any = _ShimType(name or ours.__name__, (Renamed,), space)
    _shims.setdefault(ours, made)
    return made


class _ShimType(type):
    """Class attributes of a shim are those of the class it stands for."""

    def __getattr__(cls, name: str) -> Any:
        ours = cls.__dict__.get("_ours")
        if ours is None or name.startswith("__"):
            raise AttributeError(name)
        return dressed(getattr(ours, _ours_of(ours, name)))


def bare(value: Any) -> Any:
    """Returns `value` without its shim; the arguments of a function get shims."""
    if isinstance(value, Renamed):
        return value._inner
    if isinstance(value, list | tuple):
        return type(value)(bare(each) for each in value)
    if isinstance(value, dict):
        return {key: bare(each) for key, each in value.items()}
    if isinstance(value, types.FunctionType | types.MethodType):
        return _crossing(value, inwards=dressed, outwards=bare)
    return value


def dressed(value: Any) -> Any:
    """Returns `value` in its shim, if it has one; the arguments of a function lose their shims."""
    shim = _shims.get(type(value))
    if shim is not None:
        made = object.__new__(shim)
        object.__setattr__(made, "_inner", value)
        return made
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return [dressed(each) for each in value]
    if isinstance(value, _PLAIN_FUNCTIONS):
        return _crossing(value, inwards=bare, outwards=dressed)
    return value


def _crossing(function: Callable[..., Any], *, inwards: Callable[[Any], Any], outwards: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return outwards(function(*map(inwards, arguments), **{snake_case(name): inwards(value) for name, value in named.items()}))

    return call


def _bare_names(named: dict[str, Any]) -> dict[str, Any]:
    return {snake_case(name): bare(value) for name, value in named.items()}


def _ours_of(holder: Any, name: str) -> str:
    return name if name.startswith("__") or hasattr(holder, name) else snake_case(name)
