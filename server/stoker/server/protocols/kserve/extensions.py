"""The stateful extensions of KServe v2: one set for all ports of a server, so that a change made over gRPC is visible over HTTP."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from stoker.server.codecs.memo import BoundedCache
from stoker.server.codecs.shared_memory import SharedMemory
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest, ParameterValue
from stoker.server.core.trace import CallerTrace, read_caller
from stoker.server.observability.tracer import Tracer
from stoker.server.protocols.kserve.dynamic_settings import ChangeableLogs, LogControl, SettingsChanges, TraceControl
from stoker.server.protocols.settings import KServeSettings
from stoker.server.rpc.restricted import Category, Restrictions


class Call(Protocol):
    """One RPC or HTTP request in progress.

    A disconnected client cancels the task of its handler, so that a handler needs no check while it waits.
    """

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata or headers, names in lower case."""

    @property
    def deadline_ns(self) -> int | None:
        """The client's deadline in nanoseconds of the engine's monotonic clock; None: there is none."""

    def cancelled(self) -> bool:
        """Whether the client no longer waits for the response."""


_LONGEST_NAME: Final = 256
_CASE_SENSITIVE: Final = "(?-i)"
#: Constructs that Python's patterns have and RE2 lacks: back references and look-around, which may take exponential time.
_NOT_RE2: Final = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?:[=!]|<[=!]|P=|P>|\(|>)|\\[1-9])")
#: Parameters that the server reads itself, or that no client may set.
_RESERVED: Final = frozenset({"priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "headers", "binary_data_output"})
NOTHING: Final[Mapping[str, ParameterValue]] = {}


class PatternError(ValueError):
    """A pattern cannot be used; the message gives the reason."""


class HeaderForward:
    """Selects the headers that are forwarded as parameters.

    Attributes:
        is_on: Whether any headers are forwarded.
        match_by_name: Whether a header is forwarded, by its name; a cache of recent names.
    """

    def __init__(self, pattern: str = "") -> None:
        """Forwards headers whose names match `pattern` as a whole; empty: none.

        Raises:
            PatternError: the pattern is invalid, or has constructs that RE2 lacks.
        """
        self.is_on = bool(pattern)
        if _NOT_RE2.search(pattern):
            raise PatternError("back references, looks ahead and looks behind are not RE2 syntax")
        flags = re.RegexFlag(0) if pattern.startswith(_CASE_SENSITIVE) else re.IGNORECASE
        try:
            self._pattern = re.compile(pattern.removeprefix(_CASE_SENSITIVE), flags | re.ASCII)
        except re.error as error:
            raise PatternError(f"it is not a regular expression: {error}") from None
        self.match_by_name: BoundedCache[str, bool] = BoundedCache()

    def parameters(self, headers: Iterable[tuple[str, str]]) -> Mapping[str, ParameterValue]:
        """The forwarded ones of `headers`, by name; the last of several values is used."""
        if not self.is_on:
            return NOTHING
        return {name: value for name, value in headers if self._matches(name)}

    def _matches(self, name: str) -> bool:
        known = self.match_by_name.entries.get(name)
        if known is None:
            if len(name) > _LONGEST_NAME or name in _RESERVED or name.startswith("triton_"):
                return False
            known = self.match_by_name.put(name, self._pattern.fullmatch(name) is not None)
        return known


def with_forwarded(parameters: Mapping[str, ParameterValue], forwarded: Mapping[str, ParameterValue]) -> Mapping[str, ParameterValue]:
    """Merges a request's parameters with forwarded headers, which take precedence because the operator trusts them."""
    return {**parameters, **forwarded} if forwarded else parameters


class RequestMetadata(NamedTuple):
    """The data of one call's headers.

    Attributes:
        parameters: Forwarded headers by name.
        caller: The caller's trace context; None: there is none.
    """

    parameters: Mapping[str, ParameterValue]
    caller: CallerTrace | None

    def apply_to(self, request: InferRequest) -> None:
        """Adds the metadata to the decoded request."""
        if self.parameters:
            request.parameters = with_forwarded(request.parameters, self.parameters)
        request.caller = self.caller


class HeaderReader:
    """Reads the request metadata from HTTP headers or gRPC metadata.

    Attributes:
        is_on: Whether any header is read; if not, callers skip the reader.
    """

    def __init__(self, forward: HeaderForward | None = None, *, takes_callers: bool = False) -> None:
        """Reads the headers of `forward`, and with `takes_callers` also `traceparent` and `tracestate`."""
        self._forward = forward or HeaderForward()
        self._takes_callers = takes_callers
        self.is_on = self._forward.is_on or takes_callers

    def read(self, headers: Mapping[str, str]) -> RequestMetadata | None:
        """The request metadata of `headers`, names in lower case; None: there is none."""
        if not self.is_on:
            return None
        caller = read_caller(headers.get("traceparent"), headers.get("tracestate")) if self._takes_callers else None
        parameters = self._forward.parameters(headers.items())
        return RequestMetadata(parameters, caller) if parameters or caller is not None else None

    def read_raw(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestMetadata | None:
        """As `read`, for raw HTTP headers; the last of several values is used."""
        if not self.is_on:
            return None
        return self.read({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})


_log = logging.getLogger("stoker.protocols")


class Extensions:
    """The objects that `KServeService` and the infer handlers share. Confined to: the event loop.

    Attributes:
        shared_memory: Regions of client shared memory.
        logs: Log settings; None: the server does not control the log.
        traces: Trace settings; None: the server does not trace.
        changes: Which clients may change log and trace settings.
        http_restrictions, grpc_restrictions: Categories of calls that require a key.
        http_headers, grpc_headers: Read the request metadata of infer requests: parameters and the caller's trace context.
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
        """Creates the extensions.

        Args:
            limits: Bounds on what clients send.
            settings: The operator's settings; None: the defaults.
            logs: The process's logs, for clients to change their settings.
            tracer: The engine's tracer, likewise.
            is_model_ready: Whether a model is READY: only such models may have trace settings. May raise InvalidRequest.
            api_key: The bearer token that all calls except health require; None: none.
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
        """Triton's names of the enabled extensions, without those of the engine."""
        names = ["system_shared_memory"] if self.shared_memory.is_allowed else []
        if self.traces is not None:
            names.append("trace")
        if self.logs is not None:
            names.append("logging")
        return names
