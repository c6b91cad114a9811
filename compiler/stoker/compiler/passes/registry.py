"""Which passes there are: `register` enters one, `get_pass` makes one, `load_builtin_passes` finds ours."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.errors import PassError
from stoker.compiler.passes.pass_ import Pass

PassType = TypeVar("PassType", bound=type[Pass])

_GROUPS = ("shape", "cleanup", "precision", "fusion", "replacement", "layout", "workaround", "inspection")
_passes: dict[str, type[Pass]] = {}
_history: list[str] = []
_are_builtins_loaded = False


def register(
    name: str, *, against: Iterable[str] = (), depend: Iterable[str] = (), before: Iterable[str] = ()
) -> Callable[[PassType], PassType]:
    """Enters the decorated class as pass `name`; a later registration of a name replaces an earlier one, so that ours can be overridden."""

    def enter(cls: PassType) -> PassType:
        cls.name = name
        cls.against, cls.depend, cls.before = frozenset(against), frozenset(depend), frozenset(before)
        _passes[name] = cls
        _history.append(name)
        return cls

    return enter


def registration_mark() -> int:
    """A moment, for `registered_since`; our own passes count as registered before it."""
    load_builtin_passes()
    return len(_history)


def registered_since(mark: int) -> list[str]:
    """Names registered after that moment, in order, each once."""
    return list(dict.fromkeys(_history[mark:]))


@contextmanager
def temporary_registrations() -> Iterator[None]:
    """Registrations within the block end with it, for tests of custom passes."""
    load_builtin_passes()
    before = dict(_passes)
    try:
        yield
    finally:
        _passes.clear()
        _passes.update(before)


def load_builtin_passes() -> None:
    """Imports every module of the groups, once. A group is a module or a folder of modules."""
    global _are_builtins_loaded
    if _are_builtins_loaded:
        return
    _are_builtins_loaded = True
    earlier = dict(_passes)
    for group in _GROUPS:
        package = importlib.import_module(f"stoker.compiler.passes.{group}")
        for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
            importlib.import_module(f"{package.__name__}.{module.name}")
    _passes.update(earlier)  # a pass that was registered before ours were loaded overrides them too


def pass_class(name: str) -> type[Pass]:
    """The class registered as `name`.

    Raises:
        PassError: there is none; the text names the nearest ones.
    """
    load_builtin_passes()
    if name not in _passes:
        raise PassError(f"there is no pass '{name}'{did_you_mean(name, _passes)}")
    return _passes[name]


def get_pass(name: str, **settings: Any) -> Pass:
    """Pass `name` with `settings`, callable on a model.

    Raises:
        PassError: there is none of that name, or it does not take these settings.
    """
    cls = pass_class(name)
    try:
        return cls(**settings)
    except TypeError as error:
        raise PassError(f"pass '{name}': {_what_is_wrong(cls, settings) or error}") from None


def _what_is_wrong(cls: type[Pass], settings: dict[str, Any]) -> str | None:
    """Which settings `cls` does not take or wants besides; None: all are as it takes them."""
    signature = inspect.signature(cls)
    try:
        signature.bind(**settings)
    except TypeError:
        takes = list(signature.parameters)
        unknown = [each for each in settings if each not in takes]
        wrong = f"there is no setting {', '.join(map(repr, unknown))}" if unknown else "a setting is missing"
        return f"{wrong}; it takes {', '.join(takes) or 'none'}"
    return None


def get_all_pass_names() -> list[str]:
    """Names of all registered passes, sorted."""
    load_builtin_passes()
    return sorted(_passes)
