"""Writes traces in Triton's JSON form, from a thread of its own; what comes faster than it can be written is dropped and counted.

A file is a JSON array at any moment: each trace takes the place of the closing bracket and brings a new one.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from stoker.backends.api.tensor import DataType
from stoker.server.core.trace import TracedTensor, TraceRecord

#: Traces that may wait for the writer: with tensors, a few dozen MB at most.
QUEUE_TRACES: Final = 256
_ID_CHARACTERS: Final = 256
_CLOSE_TIMEOUT_S: Final = 2.0
_log = logging.getLogger("stoker.tracing")


class TraceWriter:
    """The files `path`, `path.0`, `path.1` and so on. `put` may be called anywhere; one thread writes."""

    def __init__(self, path: Path, queue_traces: int = QUEUE_TRACES) -> None:
        """A writer whose thread starts with the first trace. What files of these names hold is replaced."""
        self._path = path
        self._waiting: queue.Queue[TraceRecord | None] = queue.Queue(queue_traces)
        self._thread: threading.Thread | None = None
        # By number, how long each file is.
        self._sizes: dict[int | None, int] = {}
        self._not_queued = 0
        self._not_written = 0
        self._is_closed = False

    @property
    def dropped(self) -> int:
        """Traces that were never written."""
        return self._not_queued + self._not_written

    def put(self, record: TraceRecord) -> None:
        """Writes `record` some time later."""
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
        """Writes what waits, for two seconds at most, and ends the thread."""
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
            except (OSError, ValueError, TypeError):  # no space, no folder any more; or a value that JSON cannot carry
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


def trace_objects(record: TraceRecord) -> Iterator[dict[str, Any]]:
    """What Triton writes of a trace: one object that names the request, one for each time stamp, one for each tensor."""
    named: dict[str, Any] = {"id": record.number, "model_name": record.model_name, "model_version": record.model_version}
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


def _values(tensor: TracedTensor) -> str:
    values: Any = tensor.values
    if tensor.datatype is DataType.BYTES:
        texts = (value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value) for value in values)
        return ",".join(f'"{text}"' for text in texts)
    if tensor.datatype is DataType.BF16:
        # Its raw bits: the upper half of the same number as FP32.
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if tensor.datatype is DataType.BOOL:
        values = values.astype(np.uint8)
    return ",".join(map(str, values.tolist()))
