"""Variables of the environment that look like flags and are none."""

from collections.abc import Iterable, Mapping
from typing import Final

from stoker.server.flags.nearest import meant

_PREFIX: Final = "STOKER_"
#: What others than the server read: the simulated devices, and the client with its command.
_OF_OTHERS: Final = ("STOKER_SIM_", "STOKER_TLS_", "STOKER_URL", "STOKER_API_KEY", "STOKER_HEADERS", "STOKER_MODELS")
#: What Kubernetes sets in every container for a service that is called stoker, or stoker-something.
_OF_SERVICES: Final = ("_SERVICE_HOST", "_SERVICE_PORT", "_PORT_")
_ADDRESSES: Final = ("tcp://", "udp://", "sctp://")


def unknown_variables(environment: Mapping[str, str], known: Iterable[str]) -> tuple[str, ...]:
    """A line for each variable that begins as flags' do, and sets none; its value, which may be a secret, is not said.

    Args:
        environment: Variables by name.
        known: Names that flags are read from.
    """
    names = sorted(known)
    strange = (name for name in sorted(environment) if name.startswith(_PREFIX) and name not in names)
    return tuple(
        f"{name} in the environment sets no flag{meant(name, names)}" for name in strange if not _is_of_others(name, environment[name])
    )


def _is_of_others(name: str, value: str) -> bool:
    return name.startswith(_OF_OTHERS) or any(part in name for part in _OF_SERVICES) or value.startswith(_ADDRESSES)
