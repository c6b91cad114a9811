"""The access log: one line for every N-th inference request, and for each that fails.

The engine calls it for the requests of all protocols. A request that is not sampled costs one count and one test of its response. Lines go
to the ordinary log or to a separate file, with the same formatter, so that values from clients are escaped and cut, and through a writer
thread, so that no request waits for a disk.

Lines are held, formatted together, and given to the writer together: the formatter's code and the writer thread would otherwise have to
be fetched anew for each line, which costs several times what the line itself costs.

Addresses of peers are personal data and are not logged.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from stoker.backends.api.errors import ServingError
from stoker.server.core.request import AccessNote, Done, EngineResult, InferRequest, InferResponse, Via
from stoker.server.core.timers import Timers
from stoker.server.observability.logs import JsonFormatter, LineBudget, LogSink, RawWriter
from stoker.server.observability.settings import AccessLogSettings

#: Failures logged in one second; the next line gives the number of those left out. Errors of clients must not fill a disk.
FAILURES_PER_S: Final = 100
#: Lines held before they are formatted and written: some 0.5 ms of the loop.
MOST_HELD: Final = 32
#: Longest time that a line is held, nanoseconds.
HOLD_NS: Final = 200_000_000
_CANCELLED: Final = "CANCELLED"
_OK: Final = "OK"


class AccessLog:
    """Confined to: the event loop.

    Attributes:
        is_on: Whether any request is logged: the only test for every request.
    """

    def __init__(self, settings: AccessLogSettings, now_ns: Callable[[], int], timers: Timers | None = None) -> None:
        """Makes the log that `settings` describe.

        Args:
            settings: What is logged, and where.
            now_ns: The time.
            timers: Bound the time that a line is held; None: it is held until `close`, or until there are `MOST_HELD`.

        Raises:
            OSError: the file cannot be opened for appending.
        """
        self.is_on = settings.every > 0
        self._every = settings.every
        self._now_ns = now_ns
        self._left = settings.every
        self._failures = LineBudget(FAILURES_PER_S)
        self._timers = timers
        self._is_timed = False
        #: Time, text and fields of the lines that are not written yet.
        self._held = deque[tuple[int, str, dict[str, object]]]()
        self._logger = logging.getLogger("stoker.access")
        self._raw: RawWriter | None = None
        self._sink: LogSink | None = None
        if self.is_on and settings.file is not None:
            self._raw = settings.file.open("ab", buffering=0)
            self._sink = LogSink(self._raw, JsonFormatter())
            # A logger that is not registered by name: its lines go only to the file.
            self._logger = logging.Logger("stoker.access", logging.INFO)
            self._logger.addHandler(self._sink)

    def dropped(self) -> int:
        """Lines that could not be written to the file since the start."""
        return 0 if self._sink is None else self._sink.dropped

    def watched(self, request: InferRequest, done: Done) -> Done:
        """Observes an accepted request; returns the callback to use in place of `done`."""
        self._left -= 1
        if not self._left:
            self._left = self._every
            sampled = _Sampled(self, request, done)
            request.access = sampled.note
            return sampled.completed

        def completed(response: EngineResult) -> None:
            if not isinstance(response, InferResponse):
                self.failed(_facts(request), response)
            done(response)

        return completed

    def rejected(self, request: InferRequest, error: ServingError) -> None:
        """Records a request that the engine rejected."""
        if self.is_on:
            if request.access is not None:
                request.access.is_logged = True
            self.failed(_facts(request), error)

    def unread(self, via: Via, model: str, version: int | None, error: ServingError) -> None:
        """Records a request that violates its protocol or its model's signature; no `InferRequest` of it exists."""
        if self.is_on:
            self.failed({"protocol": via, "model": model, "version": version}, error)

    def log_response(self, via: Via, error: ServingError, model: str, version: int | None) -> None:
        """Logs the error that a client received, unless `error`, or the error it was translated from, is already logged.

        `model` may be empty: the request was rejected before its model was known.
        """
        if not self.is_on or error.is_noted or (isinstance(error.__context__, ServingError) and error.__context__.is_noted):
            return
        self.failed({"protocol": via, "model": model, "version": version} if model else {"protocol": via}, error)

    def failed(self, facts: dict[str, object], error: ServingError) -> None:
        """Writes the line of a failed request, unless too many have failed in this second."""
        error.is_noted = True
        suppressed = self._failures.take(self._now_ns())
        if suppressed is None:
            return
        facts |= {"status": error.code.name, "error": error.message}
        if suppressed:
            facts["suppressed"] = suppressed
        self._write("an inference request failed", facts)

    def close(self) -> None:
        """Writes pending lines and closes the file."""
        self.is_on = False
        self.flush()
        if self._sink is not None and self._raw is not None:
            self._sink.close()
            self._raw.close()

    def flush(self) -> None:
        """Passes the held lines to the writer, with the time at which each was logged. Any thread may call it."""
        logger, held = self._logger, self._held
        now_ns = self._now_ns()
        while held:
            try:
                logged_ns, text, facts = held.popleft()
            except IndexError:  # another thread took the last one
                return
            if logger.isEnabledFor(logging.INFO):
                record = logger.makeRecord(logger.name, logging.INFO, "", 0, text, (), None, extra=facts)
                record.created -= (now_ns - logged_ns) / 1e9
                logger.handle(record)

    def _hold_ended(self) -> None:
        self._is_timed = False
        self.flush()

    def _write(self, text: str, facts: dict[str, object]) -> None:
        now_ns = self._now_ns()
        received_ns = facts.pop("received_ns", None)
        if isinstance(received_ns, int):
            facts["total_us"] = (now_ns - received_ns) // 1000
        self._held.append((now_ns, text, facts))
        if len(self._held) >= MOST_HELD:
            self.flush()
        elif self._timers is not None and not self._is_timed:
            self._is_timed = True
            self._timers.call_at(now_ns + HOLD_NS, self._hold_ended)


class _Sampled:
    """A sampled request: logged when it succeeds, fails, or is cancelled (then this object is collected without a response)."""

    __slots__ = ("_done", "_facts", "_log", "note")

    def __init__(self, log: AccessLog, request: InferRequest, done: Done) -> None:
        self._log = log
        self._facts = _facts(request)
        self._done = done
        self.note = AccessNote()

    def completed(self, response: EngineResult) -> None:
        self.note.is_logged = True
        facts = self._facts | _times(self.note)
        if isinstance(response, InferResponse):
            facts["version"] = response.model_version
            facts["status"] = _OK
            facts["out_bytes"] = sum(array.nbytes for array in response.outputs.values())
            self._log._write("an inference request was completed", facts)
        else:
            self._log.failed(facts, response)
        self._done(response)

    def __del__(self) -> None:
        if not self.note.is_logged and self._log.is_on:
            self._log._write("an inference request was taken back", {**self._facts, **_times(self.note), "status": _CANCELLED})


def _facts(request: InferRequest) -> dict[str, object]:
    return {
        "protocol": request.via,
        "model": request.model_name,
        "version": request.model_version,
        "request_id": request.request_id,
        "rows": request.rows,
        "in_bytes": request.size_bytes,
        "received_ns": request.received_ns,
    }


def _times(note: AccessNote) -> dict[str, object]:
    return {name: ns // 1000 for name, ns in (("queue_us", note.queue_ns), ("compute_us", note.compute_ns)) if ns is not None}
