"""Selects the requests to trace, and writes traces in Triton's JSON form in a thread.

A file is a complete JSON array at any moment: each trace overwrites the closing bracket and appends a new one.
"""

import contextlib
import enum
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import orjson

from stoker.backends.api.tensor import DataType
from stoker.server.core.request import Done, EngineResult, InferRequest, InferResponse
from stoker.server.core.trace import RequestTrace, TracedTensor, TraceRecord

#: Traces that may wait for the writer: with tensors, a few dozen MB at most.
QUEUE_TRACES: Final = 256
_ID_CHARACTERS: Final = 256
_CLOSE_TIMEOUT_S: Final = 2.0
_log = logging.getLogger("stoker.tracing")


class TraceWriter:
    """The files `path`, `path.0`, `path.1` and so on. `put` may be called anywhere; one thread writes."""

    def __init__(self, path: Path, queue_traces: int = QUEUE_TRACES) -> None:
        """Makes a writer whose thread starts with the first trace. Existing files of these names are overwritten."""
        self._path = path
        self._waiting: queue.Queue[TraceRecord | None] = queue.Queue(queue_traces)
        self._thread: threading.Thread | None = None
        # Length of each file, by its number.
        self._sizes: dict[int | None, int] = {}
        self._not_queued = 0
        self._not_written = 0
        self._is_closed = False

    @property
    def dropped(self) -> int:
        """The number of traces that were never written."""
        return self._not_queued + self._not_written

    def put(self, record: TraceRecord) -> None:
        """Queues `record` for the writer thread."""
        if self._is_closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="stoker-trace", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._not_queued += 1

    def close(self) -> None:
        """Writes the waiting traces, for two seconds at most, and ends the thread."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=_CLOSE_TIMEOUT_S)
            self._thread.join(_CLOSE_TIMEOUT_S)
        if self.dropped:
            _log.warning("traces were dropped", extra={"traces": self.dropped})

    def _write_all(self) -> None:
        while (record := self._waiting.get()) is not None:
            try:
                self._append(record.file_index, b",\n".join(orjson.dumps(part) for part in trace_objects(record)))
            except (OSError, ValueError, TypeError):  # no space, the folder is gone, or a value without a JSON form
                if not self._not_written:
                    _log.exception("a trace cannot be written")
                self._not_written += 1

    def _append(self, index: int | None, text: bytes) -> None:
        path = self._path if index is None else self._path.with_name(f"{self._path.name}.{index}")
        size = self._sizes.get(index)
        with path.open("wb" if size is None else "r+b") as file:
            if size is None:
                file.write(b"[\n")
            else:
                file.seek(size - 2)
                file.write(b",\n")
            file.write(text)
            file.write(b"\n]")
            self._sizes[index] = file.tell()


def trace_objects(record: TraceRecord, ensemble: TraceRecord | None = None) -> Iterator[dict[str, Any]]:
    """The JSON objects of a trace in Triton's form: one that names the request, one for each time stamp, one for each tensor.

    The objects of the steps of an ensemble follow; `ensemble` is the trace that a step belongs to.
    """
    named: dict[str, Any] = {"id": record.number, "model_name": record.model_name, "model_version": record.model_version}
    if ensemble is not None:
        named["parent_id"] = ensemble.number
    if record.request_id:
        named["request_id"] = record.request_id[:_ID_CHARACTERS].encode(errors="backslashreplace").decode()
    yield named
    for name, ns in sorted(record.timestamps, key=lambda stamp: stamp[1]):
        yield {"id": record.number, "timestamps": [{"name": name, "ns": ns}]}
    for tensor in record.tensors:
        shown = {
            "name": tensor.name,
            "data": _values(tensor),
            "shape": ",".join(map(str, tensor.shape)),
            "dtype": tensor.datatype.value,
        }
        yield {"id": record.number, "activity": tensor.activity, "tensor": shown}
    for step in record.steps:
        yield from trace_objects(step, record)


def _values(tensor: TracedTensor) -> str:
    values: Any = tensor.values
    if tensor.datatype is DataType.BYTES:
        texts = (value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value) for value in values)
        return ",".join(f'"{text}"' for text in texts)
    if tensor.datatype is DataType.BF16:
        # The raw bits: the upper half of the same number as FP32.
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if tensor.datatype is DataType.BOOL:
        values = values.astype(np.uint8)
    return ",".join(map(str, values.tolist()))


#: The trace modes, by Triton's names: JSON files, or OpenTelemetry spans.
FILE: Final = "triton"
SPANS: Final = "opentelemetry"


class TraceLevel(enum.StrEnum):
    """The detail of a trace."""

    TIMESTAMPS = "TIMESTAMPS"
    TENSORS = "TENSORS"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """Trace settings of one model, or of all models.

    Attributes:
        levels: The contents of a trace, in Triton's order; empty: no request is traced.
        rate: One request of so many is traced; at least 1.
        count: Bound on the traced requests; -1: no bound.
        log_frequency: So many traces go to one numbered file; 0: all go to the file without a number.
    """

    levels: tuple[TraceLevel, ...] = ()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0


class TraceSink(Protocol):
    """The destination of traces."""

    @property
    def dropped(self) -> int:
        """The number of traces that were lost."""

    def put(self, record: TraceRecord) -> None:
        """Takes a trace. Called on any thread; never waits."""

    def close(self) -> None:
        """Writes or sends pending traces."""


class _Sampler:
    """Applies trace settings; counts from the time they are set."""

    __slots__ = ("_filled", "_index", "_seen", "left", "settings")

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        self.left = settings.count
        self._seen = 0
        self._filled = 0
        self._index: int | None = None

    @property
    def is_on(self) -> bool:
        return bool(self.settings.levels) and self.left != 0

    def takes(self) -> bool:
        """Whether to trace the next request; counts it."""
        self._seen += 1
        if self._seen % self.settings.rate:
            return False
        if self.left > 0:
            self.left -= 1
        return True

    def file_index(self, next_index: Callable[[], int]) -> int | None:
        """The number of the file for the last selected trace."""
        if not self.settings.log_frequency:
            return None
        if self._index is None or self._filled >= self.settings.log_frequency:
            self._index, self._filled = next_index(), 0
        self._filled += 1
        return self._index


class Tracer:
    """Starts the traces of selected requests. Confined to: the event loop.

    Attributes:
        is_on: Whether any request may be traced now: the only test for every request.
        path: The file for traces; None: there is none.
        mode: The trace mode, by Triton's name.
    """

    def __init__(
        self, path: Path | None, now_ns: Callable[[], int], settings: TraceSettings | None = None, spans: TraceSink | None = None
    ) -> None:
        """Writes traces to `path`, or to `spans` if given, as `settings` say."""
        self.path = path
        self.mode = FILE if spans is None else SPANS
        self._now_ns = now_ns
        self._writer = TraceWriter(path) if spans is None and path is not None else spans
        self._of_all = _Sampler(settings or TraceSettings())
        self._of_models: dict[str, _Sampler] = {}
        self._number = 0
        self._file_number = -1
        self.is_on = False
        self._update_is_on()

    @property
    def has_sink(self) -> bool:
        """Whether there is a destination; if not, no request is traced."""
        return self._writer is not None

    @property
    def dropped(self) -> int:
        """The number of traces that were begun and never written."""
        return 0 if self._writer is None else self._writer.dropped

    def set(self, settings: TraceSettings, of_models: Mapping[str, TraceSettings]) -> None:
        """Replaces all settings; settings that do not change keep their counts."""
        if settings != self._of_all.settings:
            self._of_all = _Sampler(settings)
        kept = self._of_models
        self._of_models = {
            name: kept[name] if name in kept and kept[name].settings == each else _Sampler(each) for name, each in of_models.items()
        }
        self._update_is_on()

    @property
    def takes_callers(self) -> bool:
        """Whether the server continues the traces of clients. Then a request with a sampled client trace is always traced, at any rate and
        count.
        """
        return self.mode == SPANS

    def left(self, model: str) -> int:
        """The number of requests that may still be traced for `model` (empty: for all models without their own settings); -1: no bound."""
        return self._of_models.get(model, self._of_all).left

    def traced(self, request: InferRequest, version: int, done: Done) -> Done:
        """Starts the trace of `request` if it is selected; returns the callback to use in place of `done`."""
        sampler = self._of_models.get(request.model_name, self._of_all)
        if self._writer is None or not (self._goes_on(request, sampler) or (sampler.is_on and sampler.takes())):
            return done
        if sampler.left == 0:
            self._update_is_on()
        index = sampler.file_index(self._next_file)
        record = TraceRecord(self._next_number(), request.model_name, version, request.request_id, index, request.caller)
        levels, now_ns = sampler.settings.levels, self._now_ns
        trace = request.trace = RequestTrace(
            record,
            self._writer.put,
            now_ns(),
            has_timestamps=TraceLevel.TIMESTAMPS in levels,
            has_tensors=TraceLevel.TENSORS in levels,
            next_number=self._next_number,
            now_ns=now_ns,
            has_spans=self.takes_callers,
        )
        trace.show("TENSOR_QUEUE_INPUT", request.inputs, request.signature.inputs)

        def ended(response: EngineResult) -> None:
            if isinstance(response, InferResponse):
                trace.end(response.outputs, response.signature.outputs)
            else:
                trace.end(None, ())
            done(response)

        return ended

    def close(self) -> None:
        """Writes pending traces."""
        self.is_on = False
        if self._writer is not None:
            self._writer.close()

    def _goes_on(self, request: InferRequest, sampler: _Sampler) -> bool:
        caller = request.caller
        return caller is not None and caller.is_sampled and bool(sampler.settings.levels) and self.takes_callers

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _next_file(self) -> int:
        self._file_number += 1
        return self._file_number

    def _update_is_on(self) -> None:
        samplers: list[_Sampler] = [self._of_all, *self._of_models.values()]
        self.is_on = self._writer is not None and any(
            sampler.is_on or (self.takes_callers and bool(sampler.settings.levels)) for sampler in samplers
        )
