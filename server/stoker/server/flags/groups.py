"""The groups of flags that `serve` takes, in the order of its help."""

import dataclasses
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, get_type_hints

from stoker.server.flags.declare import BOOLEAN_METAVAR, Flag
from stoker.server.flags.network import CorsFlags, GrpcFlags, NetworkFlags, SocketFlags, TlsFlags
from stoker.server.flags.observability import LogFlags, MetricsFlags
from stoker.server.flags.protocols import AdlikFlags, ApiKeyFlags, KServeFlags
from stoker.server.flags.serving import ModelFlags, ServingFlags
from stoker.server.flags.tensorflow import TensorflowFlags
from stoker.server.flags.without_effect import FlagsWithoutEffect


class FlagGroup(Protocol):
    """Flags that belong together: a dataclass, one field a flag."""

    def settings(self) -> dict[str, Any]:
        """The fields of `ServerConfig` that these flags set; `notices` of several groups are joined."""


GROUPS: tuple[type[Any], ...] = (
    ModelFlags,
    NetworkFlags,
    SocketFlags,
    TlsFlags,
    ApiKeyFlags,
    CorsFlags,
    GrpcFlags,
    MetricsFlags,
    KServeFlags,
    AdlikFlags,
    TensorflowFlags,
    ServingFlags,
    LogFlags,
    FlagsWithoutEffect,
)


@functools.cache
def annotations() -> Mapping[str, Any]:
    """By field, its type with the `Flag` it is read from, over all groups."""
    return MappingProxyType({name: kind for group in GROUPS for name, kind in get_type_hints(group, include_extras=True).items()})


def flag_of(kind: Any) -> Flag:
    """The flag of an annotation."""
    found: Flag = kind.__metadata__[0]
    return found


def defaults() -> dict[str, Any]:
    """By field, its default. Every flag has one."""
    return {field.name: field.default for group in GROUPS for field in dataclasses.fields(group)}


#: Boolean flags by their own name: a bare one stands for `=true`.
BOOLEANS = frozenset(flag_of(kind).name for kind in annotations().values() if flag_of(kind).metavar == BOOLEAN_METAVAR)
