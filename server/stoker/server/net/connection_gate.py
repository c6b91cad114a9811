"""Limits the connections of one port, in total and per address, and selects idle ones to close in favour of new ones."""

import asyncio
import enum
import logging
import resource
from collections import deque
from collections.abc import Collection
from typing import Final, Protocol

_WARN_PERIOD_S: Final = 10.0
#: Seconds until the next search after one that has found no idle connection.
_LOOK_PERIOD_S: Final = 0.05
#: Reserved slots: one per this many connections, and at most this many.
_RESERVED_PART: Final = 32
_MOST_RESERVED: Final = 32
#: Idle connections that one search keeps for the next times, and searches that are kept.
_NOTED: Final = 64
_SEARCHES: Final = 16
#: The error for all other requests on a connection in a reserved slot.
RESERVED_TEXT: Final = "the server holds as many connections as it may: this one serves health, metrics and administration only; try again"
_log = logging.getLogger(__name__)

Idleness = tuple[int, float]
"""How readily a connection is closed (lower: sooner), and since when it has been so, in seconds of the loop's clock."""
#: It is ending.
ENDING: Final = 0
#: It waits for the client's next request.
IDLE: Final = 1
#: Its first request, or the header of the next one, has not arrived.
UNREGISTERED: Final = 2


class GatedConnection(Protocol):
    """The gate's interface to a connection."""

    def idleness(self) -> Idleness | None:
        """The time since which the connection is idle; None: a request is in work, or its body or response is in transfer."""

    def close_idle(self) -> None:
        """Closes it now. REQUIRES: it is idle."""

    def abort(self) -> None:
        """Drops the connection and its requests in work."""


class Slot(enum.Enum):
    """The slot of a new connection."""

    ORDINARY = 0
    #: The port is full of busy connections: only health, metrics and administration are served.
    RESERVED = 1


class _Search:
    """Finds idle connections, the longest idle first.

    It caches results, so that a flood of new connections does not cause a search each.
    """

    def __init__(self) -> None:
        self._noted: deque[tuple[Idleness, GatedConnection]] = deque()
        self._look_again_s = float("-inf")

    def find(self, among: Collection[GatedConnection], now_s: float) -> GatedConnection | None:
        """Returns the longest idle connection of `among`; None: none is idle."""
        found = self._next_noted(among)
        if found is None and now_s >= self._look_again_s:
            idle = [(idleness, connection) for connection in among if (idleness := connection.idleness()) is not None]
            idle.sort(key=lambda each: each[0])
            self._noted = deque(idle[:_NOTED])
            found = self._next_noted(among)
            if found is None:
                self._look_again_s = now_s + _LOOK_PERIOD_S
        return found

    def _next_noted(self, among: Collection[GatedConnection]) -> GatedConnection | None:
        while self._noted:
            idleness, connection = self._noted.popleft()
            if connection in among and connection.idleness() == idleness:
                return connection
        return None


class ConnectionGate:
    """The connections of one port. Confined to: the event loop.

    A new connection that exceeds a limit closes the longest idle connection that the limit counts. If none is idle, it gets a reserved
    slot. If these are taken, the slot that was taken first is freed: clients that are slow on purpose must not hold them.

    Attributes:
        most: Connections that may be open at once, reserved slots included.
        per_address: Connections of one address among them; a Unix-domain socket's have no address, and only `most` bounds them.
        reserved: How many of the slots are reserved.
    """

    def __init__(self, most: int, protocol: str, per_address: int | None = None) -> None:
        """Sets the bounds.

        Args:
            most: As the attribute; less if the process may not open so many files.
            protocol: The port's name in the log.
            per_address: As the attribute; None: half of `most`.
        """
        self.most = min(most, _files_for_connections())
        self.per_address = per_address or max(1, self.most // 2)
        self.reserved = min(_MOST_RESERVED, self.most // _RESERVED_PART)
        self._protocol = protocol
        self._addresses: dict[GatedConnection, str | None] = {}
        self._by_address: dict[str, set[GatedConnection]] = {}
        #: In the order in which they came.
        self._in_reserve: dict[GatedConnection, None] = {}
        self._searches: dict[str, _Search] = {}
        self._refused = 0
        self._closed = 0
        self._warned_s: float | None = None

    def enter(self, connection: GatedConnection, address: str | None, now_s: float) -> Slot | None:
        """Takes in a new connection from `address` (None: of a Unix-domain socket); None: there is no slot for it.

        A warning with the refused and closed connections is logged at most once in ten seconds.
        """
        of_address = self._by_address.get(address) if address is not None else None
        if of_address is not None and len(of_address) >= self.per_address:
            has_capacity = self._close_longest_idle(f"of {address}", of_address, now_s)
        elif len(self._addresses) >= self.most - self.reserved:
            has_capacity = self._close_longest_idle("of all", self._addresses, now_s)
        else:
            has_capacity = True
        if has_capacity:
            self._addresses[connection] = address
            if address is not None:
                self._by_address.setdefault(address, set()).add(connection)
            slot: Slot | None = Slot.ORDINARY
        elif self.reserved:
            if len(self._in_reserve) >= self.reserved and not self._close_longest_idle("in reserve", self._in_reserve, now_s):
                self._abort_oldest_in_reserve()
            self._in_reserve[connection] = None
            slot = Slot.RESERVED
        else:
            self._refused += 1
            slot = None
        if (self._refused or self._closed) and (self._warned_s is None or now_s - self._warned_s >= _WARN_PERIOD_S):
            self._warn(now_s)
        return slot

    def leave(self, connection: GatedConnection) -> None:
        """Forgets a connection. No effect on one without a slot."""
        self._in_reserve.pop(connection, None)
        address = self._addresses.pop(connection, None)
        if address is not None:
            of_address = self._by_address[address]
            of_address.discard(connection)
            if not of_address:
                del self._by_address[address]

    def _close_longest_idle(self, key: str, among: Collection[GatedConnection], now_s: float) -> bool:
        """Closes the longest idle connection `among` these; False: none is idle. `key` names their search."""
        search = self._searches.get(key)
        if search is None:
            if len(self._searches) >= _SEARCHES:
                self._searches.clear()
            search = self._searches[key] = _Search()
        found = search.find(among, now_s)
        if found is None:
            return False
        self.leave(found)
        self._closed += 1
        found.close_idle()
        return True

    def _abort_oldest_in_reserve(self) -> None:
        oldest = next(iter(self._in_reserve))
        self.leave(oldest)
        self._refused += 1
        oldest.abort()

    def _warn(self, now_s: float) -> None:
        if self._closed:
            _log.warning("too many %s connections: the longest idle ones are closed", self._protocol, extra={"closed": self._closed})
        if self._refused:
            count = len(self._addresses) + len(self._in_reserve)
            _log.warning("refusing %s connections: %d are open", self._protocol, count, extra={"refused": self._refused})
        self._warned_s, self._refused, self._closed = now_s, 0, 0


def address_of(transport: asyncio.BaseTransport) -> str | None:
    """The client's address; None: it came by a Unix-domain socket."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else None


def _files_for_connections() -> int:
    """A quarter of the files the process may open stays for the other ports, models and logs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 31) if soft == resource.RLIM_INFINITY else max(1, soft - soft // 4)
