"""The access log: one line for one of every so many inference requests, and for each that fails.

It stands at the engine's door, where the requests of all protocols come by. A request that is not taken pays for one count and one test of
its response. Lines go through the ordinary log or to a file of their own, by the same formatter, so that what clients send is escaped and
cut there (`log_text.py`) and no request waits for a disk.

Peers' addresses are personal data, and are not logged.
"""

import logging
from collections.abc import Callable
from typing import Final

from stoker.backends.api.errors import ServingError
from stoker.server.core.request import AccessNote, Done, EngineResult, InferRequest, InferResponse, Via
from stoker.server.observability.logs import JsonFormatter, LineBudget, LogSink, RawWriter
from stoker.server.observability.settings import AccessLogSettings

#: Failures that are logged in a second; of further ones the next line says how many there were. What clients do wrong must not fill a disk.
FAILURES_PER_S: Final = 100
_CANCELLED: Final = "CANCELLED"
_OK: Final = "OK"


class AccessLog:
    """Confined to: the event loop.

    Attributes:
        is_on: Whether anything is logged: all that is asked for every request.
    """

    def __init__(self, settings: AccessLogSettings, now_ns: Callable[[], int]) -> None:
        """Logs as `settings` say.

        Raises:
            OSError: the file cannot be opened for appending.
        """
        self.is_on = settings.every > 0
        self._every = settings.every
        self._now_ns = now_ns
        self._left = settings.every
        self._failures = LineBudget(FAILURES_PER_S)
        self._logger = logging.getLogger("stoker.access")
        self._raw: RawWriter | None = None
        self._sink: LogSink | None = None
        if self.is_on and settings.file is not None:
            self._raw = settings.file.open("ab", buffering=0)
            self._sink = LogSink(self._raw, JsonFormatter())
            # A logger that is not registered by name: its lines go to the file only.
            self._logger = logging.Logger("stoker.access", logging.INFO)
            self._logger.addHandler(self._sink)

    def dropped(self) -> int:
        """Lines that could not be written to the file since the start."""
        return 0 if self._sink is None else self._sink.dropped

    def watched(self, request: InferRequest, done: Done) -> Done:
        """Looks after an accepted request; returns what is to be called instead of `done`."""
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
        """Notes a request that the engine did not take."""
        if self.is_on:
            if request.access is not None:
                request.access.is_logged = True
            self.failed(_facts(request), error)

    def unread(self, via: Via, model: str, version: int | None, error: ServingError) -> None:
        """Notes a request that contradicts its protocol or its model: there is no more of it than this."""
        if self.is_on:
            self.failed({"protocol": via, "model": model, "version": version}, error)

    def log_response(self, via: Via, error: ServingError, model: str, version: int | None) -> None:
        """Logs the error that a client received, unless `error`, or the error that it was translated from, is logged already.

        `model` may be empty: the request was rejected before anybody knew for which it was.
        """
        if not self.is_on or error.is_noted or (isinstance(error.__context__, ServingError) and error.__context__.is_noted):
            return
        self.failed({"protocol": via, "model": model, "version": version} if model else {"protocol": via}, error)

    def failed(self, facts: dict[str, object], error: ServingError) -> None:
        """Writes the line of a request that failed, unless there are too many of them."""
        error.is_noted = True
        suppressed = self._failures.take(self._now_ns())
        if suppressed is None:
            return
        facts |= {"status": error.code.name, "error": error.message}
        if suppressed:
            facts["suppressed"] = suppressed
        self._write("an inference request failed", facts)

    def close(self) -> None:
        """Writes what waits, and ends."""
        self.is_on = False
        if self._sink is not None and self._raw is not None:
            self._sink.close()
            self._raw.close()

    def _write(self, text: str, facts: dict[str, object]) -> None:
        received_ns = facts.pop("received_ns", None)
        if isinstance(received_ns, int):
            facts["total_us"] = (self._now_ns() - received_ns) // 1000
        self._logger.info(text, extra=facts)


class _Sampled:
    """A sampled request, logged when it succeeds, fails, or is cancelled (this object is then collected without a response)."""

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
