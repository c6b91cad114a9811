"""The extensions of KServe v2 that have state: one set for all fronts of a server, so that a change made over gRPC is seen over HTTP."""

import logging
from collections.abc import Callable

from stoker.server.codecs.shared_memory import SharedMemory
from stoker.server.core.limits import Limits
from stoker.server.observability.tracer import Tracer
from stoker.server.protocols.kserve.header_forward import HeaderForward
from stoker.server.protocols.kserve.log_settings import ChangeableLogs, LogControl
from stoker.server.protocols.kserve.request_metadata import HeaderReader
from stoker.server.protocols.kserve.settings import KServeSettings
from stoker.server.protocols.kserve.settings_changes import SettingsChanges
from stoker.server.protocols.kserve.trace_settings import TraceControl
from stoker.server.rpc.restricted_apis import Category, Restrictions

_log = logging.getLogger("stoker.protocols")


class Extensions:
    """What `KServeService` and the infer handlers share. Confined to: the event loop.

    Attributes:
        shared_memory: Regions of client shared memory.
        logs: Log settings; None where the log is not ours to change.
        traces: Trace settings; None where nothing traces.
        changes: Which clients may change log and trace settings.
        http_restrictions, grpc_restrictions: Categories of calls that must bring a key.
        http_headers, grpc_headers: Read what headers bring to infer requests: parameters, and the trace of the caller.
    """

    def __init__(
        self,
        limits: Limits,
        settings: KServeSettings | None = None,
        logs: ChangeableLogs | None = None,
        tracer: Tracer | None = None,
        is_model_ready: Callable[[str], bool] = lambda _: False,
        api_key: str | None = None,
        *,
        is_local: bool = True,
    ) -> None:
        """Extensions as `settings` say.

        Args:
            limits: Bounds on what clients send.
            settings: What is allowed; None: what is on by default.
            logs: The process's logs, for clients to change their settings.
            tracer: The engine's, likewise.
            is_model_ready: Tells for which models trace settings may be made.
            api_key: The bearer token that every call but those of health must bring; None: none.
            is_local: Whether the server listens on loopback addresses and Unix-domain sockets alone.
        """
        settings = settings or KServeSettings()
        self.shared_memory = SharedMemory(limits, is_allowed=settings.allow_client_shm)
        self.logs = None if logs is None else LogControl(logs)
        self.traces = None if tracer is None else TraceControl(tracer, settings.trace.settings, limits, is_model_ready)
        self.http_restrictions = Restrictions(settings.http_restricted, api_key=api_key)
        self.grpc_restrictions = Restrictions(settings.grpc_restricted, what="protocol", api_key=api_key)
        self.changes = SettingsChanges(settings.allow_settings_changes, is_local=is_local)
        takes_callers = tracer is not None and tracer.takes_callers
        self.http_headers = HeaderReader(HeaderForward(settings.http_forward_pattern), takes_callers=takes_callers)
        self.grpc_headers = HeaderReader(HeaderForward(settings.grpc_forward_pattern), takes_callers=takes_callers)
        if settings.allow_client_shm:
            _log.warning("--allow-client-shm: any client may have this server read and write the POSIX shared memory objects of its user")

        opened = [category for category in (Category.LOGGING, Category.TRACE) if self._is_open(category)]
        if opened:
            _log.warning("--allow-settings-changes: any client that reaches this server may change its %s settings", " and ".join(opened))

    def _is_open(self, category: Category) -> bool:
        return any(self.changes.is_open(category, restrictions) for restrictions in (self.http_restrictions, self.grpc_restrictions))

    def names(self) -> list[str]:
        """The extensions that are on, by Triton's names, beside those that the engine names."""
        names = ["system_shared_memory"] if self.shared_memory.is_allowed else []
        if self.traces is not None:
            names.append("trace")
        if self.logs is not None:
            names.append("logging")
        return names
