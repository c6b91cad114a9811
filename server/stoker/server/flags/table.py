"""Every flag of `serve`, collected from the settings and from the groups, and the `ServerConfig` made from their values.

Most flags are declared on the field that they set: a field of `ServerConfig`, or of settings in it. Flags that do not set exactly one field
are in groups: a group is a dataclass with one field for each flag, and its `settings()` returns the resulting settings.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, get_args, get_origin, get_type_hints

from stoker.server.core.flag import BOOLEAN_METAVAR, Flag
from stoker.server.flags.caching import CacheFlags
from stoker.server.flags.network import CorsFlags, NetworkFlags, TlsFlags
from stoker.server.flags.protocols import ApiKeyFlags, KServeFlags
from stoker.server.flags.rate_limit import RateLimitFlags
from stoker.server.flags.serving import MetricsFlags, ModelFlags, ServingFlags
from stoker.server.flags.tensorflow import TensorflowFlags
from stoker.server.flags.without_effect import FlagsWithoutEffect
from stoker.server.server_config import ServerConfig


class FlagGroup(Protocol):
    """Flags that belong together: a dataclass with one field for each flag."""

    def settings(self) -> dict[str, Any]:
        """The settings by their path from `ServerConfig` (such as `lifecycle.control_mode`); `notices` of several groups are joined."""


GROUPS: tuple[type[Any], ...] = (
    ModelFlags,
    NetworkFlags,
    TlsFlags,
    ApiKeyFlags,
    CorsFlags,
    MetricsFlags,
    KServeFlags,
    TensorflowFlags,
    CacheFlags,
    RateLimitFlags,
    ServingFlags,
    FlagsWithoutEffect,
)


class Declared(NamedTuple):
    """A flag with its declaration.

    Attributes:
        flag: The flag.
        kind: The type of its field.
        default: The default of its field.
        path: Path of the field from `ServerConfig` or from `group`: field names joined by dots.
        group: The group that declares it; None: it is declared on a setting.
    """

    flag: Flag
    kind: Any
    default: Any
    path: str
    group: type[Any] | None


def holds(kind: Any, sought: type) -> bool:
    """Whether an annotation is the type `sought`, an optional one, or a list of it."""
    return kind is sought or get_origin(kind) is sought or any(holds(part, sought) for part in get_args(kind) if part is not None)


@functools.cache
def flags() -> Mapping[str, Declared]:
    """All flags by name, in the order of the help within each panel."""
    before, after = GROUPS[:-2], GROUPS[-2:]
    found = [each for group in before for each in _declared(group, group)]
    found += _declared(ServerConfig, None)
    found += [each for group in after for each in _declared(group, group)]
    return {each.flag.name: each for each in found}


def _declared(kind: type[Any], group: type[Any] | None, prefix: str = "") -> Iterable[Declared]:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    for name, annotation in get_type_hints(kind, include_extras=True).items():
        flag = next((each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, Flag)), None)
        if flag is not None:
            yield Declared(flag, annotation.__origin__, defaults[name], prefix + name, group)
        elif dataclasses.is_dataclass(annotation):
            yield from _declared(annotation, group, f"{prefix}{name}.")  # type: ignore[arg-type]


@functools.cache
def primary_names() -> Mapping[str, str]:
    """The primary name of each flag, by alias."""
    return {alias: name for name, each in flags().items() for alias in each.flag.aliases}


@functools.cache
def boolean_names() -> frozenset[str]:
    """The primary names of the boolean flags: one without a value stands for `=true`."""
    return frozenset(name for name, each in flags().items() if each.flag.metavar == BOOLEAN_METAVAR)


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by their path from `ServerConfig`; `given` are the flags' values by name.

    Raises:
        FlagError: flags that exclude or require each other.
    """
    settings = {flags()[name].path: value for name, value in given.items() if flags()[name].group is None}
    notices: list[str] = []
    for kind in GROUPS:
        values = {flags()[name].path: value for name, value in given.items() if flags()[name].group is kind}
        group: FlagGroup = kind(**values)
        of_group = group.settings()
        notices += of_group.pop("notices", ())
        settings |= of_group
    return settings | {"notices": tuple(notices)}


def built(kind: type[Any], settings: Mapping[str, Any], prefix: str = "") -> Any:
    """An instance of the dataclass `kind` with `settings`, by path; the other fields have their defaults."""
    values: dict[str, Any] = {}
    for name, annotation in get_type_hints(kind).items():
        path = prefix + name
        if path in settings:
            values[name] = settings[path]
        elif dataclasses.is_dataclass(annotation) and any(each.startswith(f"{path}.") for each in settings):
            values[name] = built(annotation, settings, f"{path}.")  # type: ignore[arg-type]
    return kind(**values)
