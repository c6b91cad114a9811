"""The groups of flags that `serve` takes, in the order of its help."""

import dataclasses
from typing import Any, Protocol, get_type_hints

from server.flags.adlik import AdlikFlags
from server.flags.cors import CorsFlags
from server.flags.declare import BOOLEAN_METAVAR
from server.flags.grpc import GrpcFlags
from server.flags.kserve import KServeFlags
from server.flags.logs import LogFlags
from server.flags.metrics import MetricsFlags
from server.flags.models import ModelFlags
from server.flags.network import NetworkFlags
from server.flags.serving import ServingFlags
from server.flags.sockets import SocketFlags
from server.flags.tensorflow import TensorflowFlags
from server.flags.tls import TlsFlags
from server.flags.without_effect import FlagsWithoutEffect


class FlagGroup(Protocol):
    """Flags that belong together: a dataclass, one field a flag."""

    def settings(self) -> dict[str, Any]:
        """The fields of `ServerConfig` that these flags set; `notices` of several groups are joined."""


GROUPS: tuple[type[Any], ...] = (
    ModelFlags,
    NetworkFlags,
    SocketFlags,
    TlsFlags,
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


def annotations() -> dict[str, Any]:
    """By parameter, its type with the flag it is read from, over all groups."""
    return {name: kind for group in GROUPS for name, kind in get_type_hints(group, include_extras=True).items()}


def defaults() -> dict[str, Any]:
    """By parameter, its default; those without are required."""
    given = {field.name: field.default for group in GROUPS for field in dataclasses.fields(group)}
    return {name: value for name, value in given.items() if value is not dataclasses.MISSING}


#: Boolean flags by their own name: a bare one stands for `=true`.
BOOLEANS = frozenset(
    kind.__metadata__[0].default.removeprefix("--") for kind in annotations().values() if kind.__metadata__[0].metavar == BOOLEAN_METAVAR
)
