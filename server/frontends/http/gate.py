"""How many HTTP connections one port holds."""

import logging
import resource

from server.frontends.limits import Limits

_WARN_PERIOD_S = 10.0
_log = logging.getLogger(__name__)


class ConnectionGate:
    """Counts what is open against a bound. Confined to: the event loop.

    Attributes:
        most: Connections that may be open at once.
    """

    def __init__(self, limits: Limits) -> None:
        """The bound is `limits.http_connections`, or less where the process may not open that many files."""
        self.most = min(limits.http_connections, _files_for_connections())
        self._refused = 0
        self._warned_s: float | None = None

    def admits(self, count: int, now_s: float) -> bool:
        """Whether the newest of `count` connections may stay; a warning is logged at most once in ten seconds."""
        if count <= self.most:
            return True
        self._refused += 1
        if self._warned_s is None or now_s - self._warned_s >= _WARN_PERIOD_S:
            _log.warning("refusing HTTP connections: %d are open", self.most, extra={"refused": self._refused})
            self._warned_s, self._refused = now_s, 0
        return False


def _files_for_connections() -> int:
    """A quarter of the files the process may open stays for gRPC, models and logs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 31) if soft == resource.RLIM_INFINITY else max(1, soft - soft // 4)
