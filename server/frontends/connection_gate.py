"""How many connections one port holds."""

import logging
import resource

_WARN_PERIOD_S = 10.0
_log = logging.getLogger(__name__)


class ConnectionGate:
    """Counts what is open against a bound. Confined to: the event loop.

    Attributes:
        most: Connections that may be open at once.
    """

    def __init__(self, most: int, protocol: str) -> None:
        """The bound is `most`, or less where the process may not open that many files; `protocol` names the port in the log."""
        self.most = min(most, _files_for_connections())
        self._protocol = protocol
        self._refused = 0
        self._warned_s: float | None = None

    def admits(self, count: int, now_s: float) -> bool:
        """Whether the newest of `count` connections may stay; a warning is logged at most once in ten seconds."""
        if count <= self.most:
            return True
        self._refused += 1
        if self._warned_s is None or now_s - self._warned_s >= _WARN_PERIOD_S:
            _log.warning("refusing %s connections: %d are open", self._protocol, self.most, extra={"refused": self._refused})
            self._warned_s, self._refused = now_s, 0
        return False


def _files_for_connections() -> int:
    """A quarter of the files the process may open stays for the other ports, models and logs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 31) if soft == resource.RLIM_INFINITY else max(1, soft - soft // 4)
