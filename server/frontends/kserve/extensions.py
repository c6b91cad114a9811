"""The extensions of KServe v2 that have state: one set for all fronts of a server, so that a change made over gRPC is seen over HTTP."""

import logging

from server.frontends.kserve.log_settings import ChangeableLogs, LogControl
from server.frontends.kserve.settings import KServeSettings
from server.frontends.kserve.shared_memory import SharedMemory
from server.frontends.limits import Limits

_log = logging.getLogger("stoker.frontends")


class Extensions:
    """What `KServeService` and the infer handlers share. Confined to: the event loop.

    Attributes:
        shared_memory: Regions of client shared memory.
        logs: Log settings; None where the log is not ours to change.
    """

    def __init__(self, limits: Limits, settings: KServeSettings | None = None, logs: ChangeableLogs | None = None) -> None:
        settings = settings or KServeSettings()
        self.shared_memory = SharedMemory(limits, is_allowed=settings.allow_client_shm)
        self.logs = None if logs is None else LogControl(logs)
        if settings.allow_client_shm:
            _log.warning("--allow-client-shm: any client may have this server read and write the POSIX shared memory objects of its user")

    def names(self) -> list[str]:
        """The extensions that are on, by Triton's names, beside those that the engine names."""
        names = ["system_shared_memory"] if self.shared_memory.is_allowed else []
        return names if self.logs is None else [*names, "logging"]
