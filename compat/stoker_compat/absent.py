"""Names of the vendors that the shims lack: the error says why."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NoReturn

from stoker.backends.api.nearest import did_you_mean


def absent(package: str, names: Iterable[str], reasons: Mapping[str, str] | None = None) -> Callable[[str], NoReturn]:
    """Returns a module's `__getattr__`, which raises an `AttributeError` with a reason.

    Args:
        package: Name of the shim.
        names: The names that it has.
        reasons: Of known names that it lacks.
    """
    known, why = sorted(names), reasons or {}

    def __getattr__(name: str) -> NoReturn:  # noqa: N807 - it becomes the module's
        raise AttributeError(f"module '{package}' has no attribute '{name}'{_reason(name, known, why)}", name=name)

    return __getattr__


def _reason(name: str, known: list[str], reasons: Mapping[str, str]) -> str:
    if name.startswith("__"):  # Python's own; it asks for some of them and expects none
        return ""
    if name in reasons:
        return f": the vendor's package has it; it is not simulated, because {reasons[name]}"
    return f"{did_you_mean(name, known)}: stoker-compat has what public documents and scripts of the vendor show; docs/compat.md lists it"


class WithReasons:
    """A class of a shim whose missing methods have a reason, in `_absent` by name."""

    _absent: ClassVar[Mapping[str, str]] = {}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"'{type(self).__name__}' object has no attribute '{name}'{_reason(name, dir(type(self)), self._absent)}", name=name
        )
