"""`VendorEngine`: one engine of the vendor's library on clusters of a card, and the thread that makes all calls for it.

The vendor's rule is that the thread which sets a device owns its clusters. So each engine has a thread of its own, which sets the device,
loads the engine, runs the batches, and releases everything. A batch has two phases: its copies to the card and the request to run it, and
later the wait for its end and the copies back. The thread begins waiting batches before it ends the oldest one, so that one batch is copied
while another runs.

Calls, as the vendor's samples show them: `set_device`, `load`, `create_stream`, `mem_alloc`, `mem_h2d_copy`, `run_with_batch` with
`TIF_ENGINE_RSC_IN_DEVICE_OUT_DEVICE` and a stream, `get` of its future, `mem_d2h_copy`, `mem_free`, `release_device`. A stream has no call
that frees it.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from stoker.backends.gcu.status import Status
from stoker.backends.gcu.vendor.failure import VendorCallFailed, called

Array = npt.NDArray[Any]
log = logging.getLogger("stoker.backends.topsinference")


@dataclass(frozen=True, slots=True)
class _Slot:
    """Device memory and a stream of one batch in flight."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    stream: Any


@dataclass(frozen=True, slots=True)
class _Job:
    """`begin` starts the work and returns what ends it; `ended` gets the result of that."""

    begin: Callable[[], Callable[[], Any]]
    ended: "Future[Any]"


class VendorEngine:
    """Any thread may use it."""

    def __init__(
        self,
        library: Any,
        path: Path,
        *,
        card: int,
        clusters: Sequence[int],
        input_bytes: Sequence[int],
        output_bytes: Sequence[int],
        depth: int,
    ) -> None:
        """Starts the thread and loads the engine.

        Args:
            library: The vendor's module.
            path: The engine's file.
            card: Number of the card.
            clusters: Numbers of its clusters.
            input_bytes: For each input, bytes of the largest batch.
            output_bytes: For each output, likewise.
            depth: Batches in flight.

        Raises:
            VendorCallFailed: the library rejects the device or the file, or memory is lacking. Nothing stays on the card.
        """
        self._library = library
        self._path = path
        self._sizes = (tuple(input_bytes), tuple(output_bytes))
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._depth = depth
        self._free: list[_Slot] = []
        self._blocks: list[Any] = []
        self._engine: Any = None
        self._handle: Any = None
        # A call that hangs must not keep the process from its end.
        self._thread = threading.Thread(target=self._serve, name=f"gcu-card-{card}", daemon=True)
        self._thread.start()
        try:
            self._call(lambda: self._set_up(card, tuple(clusters))).result()
        except BaseException:
            self.close()
            raise

    def submit(self, samples: int, inputs: Sequence[Array], outputs: Sequence[Array], on_run_end: Callable[[], None]) -> "Future[None]":
        """Runs a batch.

        Args:
            samples: Number of samples.
            inputs: C-contiguous arrays in the order of the engine; not written until the future is done.
            outputs: C-contiguous arrays likewise, which are filled.
            on_run_end: Called on the engine's thread when the run has ended, before the outputs are copied.

        Returns:
            Done when `outputs` are filled; its exception is a `VendorCallFailed`.
        """
        library = self._library

        def begin() -> Callable[[], None]:
            slot = self._free.pop()

            def end() -> None:
                try:
                    called(run.get)
                    on_run_end()
                    for block, array in zip(slot.outputs, outputs, strict=True):
                        called(library.mem_d2h_copy, block, array, array.nbytes)
                finally:
                    self._free.append(slot)

            try:
                for block, array in zip(slot.inputs, inputs, strict=True):
                    called(library.mem_h2d_copy, array, block, array.nbytes)
                arguments = (list(slot.inputs), list(slot.outputs), library.TIF_ENGINE_RSC_IN_DEVICE_OUT_DEVICE, slot.stream)
                run = called(self._engine.run_with_batch, samples, *arguments)
            except BaseException:
                self._free.append(slot)
                raise
            return end

        return self._queue(begin)

    def probe(self, samples: int, inputs: Sequence[Sequence[Array]], timeout_s: float | None) -> Sequence[Array]:
        """Runs one batch from host memory, which needs no sizes of outputs.

        Args:
            samples: Number of samples.
            inputs: For each input, the samples.
            timeout_s: Longest wait; None: no limit.

        Returns:
            The outputs in the order of the engine.

        Raises:
            VendorCallFailed: the library rejects the inputs, or the run failed.
            TimeoutError: the run did not end in that time.
        """
        given = [list(each) for each in inputs]

        def run() -> Sequence[Array]:
            future = called(self._engine.run_with_batch, samples, given)
            return list(called(future.get))

        outputs: Sequence[Array] = self._call(run).result(timeout_s)
        return outputs

    def close(self, *, wait_s: float = 0.0) -> None:
        """Releases everything on the card, after the work that is queued. A second call does nothing but wait.

        Args:
            wait_s: Longest wait for that. Without a wait, a call of the library that hangs cannot block the caller.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._jobs.put(None)
        self._thread.join(wait_s)

    def _call(self, function: Callable[[], Any]) -> "Future[Any]":
        return self._queue(lambda: function)

    def _queue(self, begin: Callable[[], Callable[[], Any]]) -> "Future[Any]":
        ended: Future[Any] = Future()
        ended.set_running_or_notify_cancel()
        with self._lock:
            if self._is_closed:
                ended.set_exception(VendorCallFailed("the engine was closed before this batch ran", Status.TIF_TERMINATED))
            else:
                self._jobs.put(_Job(begin, ended))
        return ended

    def _serve(self) -> None:
        running: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        is_open = True
        while is_open or running:
            if not is_open or len(running) == self._depth or (running and self._jobs.empty()):
                _end(*running.popleft())
                continue
            job = self._jobs.get()
            if job is None:
                is_open = False
                continue
            try:
                running.append((job.begin(), job.ended))
            except Exception as error:  # noqa: BLE001 - every error belongs to the caller, which waits for the future
                job.ended.set_exception(error)
        self._release()

    def _set_up(self, card: int, clusters: tuple[int, ...]) -> None:
        library = self._library
        self._handle = called(library.set_device, card, list(clusters))
        self._engine = called(library.load, str(self._path))
        for _ in range(self._depth):
            inputs, outputs = ([self._allocate(size) for size in sizes] for sizes in self._sizes)
            self._free.append(_Slot(inputs, outputs, called(library.create_stream)))

    def _allocate(self, size_bytes: int) -> Any:
        block = called(self._library.mem_alloc, max(1, size_bytes))
        self._blocks.append(block)
        return block

    def _release(self) -> None:
        for block in self._blocks:
            _released(self._library.mem_free, block)
        self._free.clear()
        self._engine = None
        if self._handle is not None:
            _released(self._library.release_device, self._handle)


def _end(end: Callable[[], Any], ended: "Future[Any]") -> None:
    try:
        ended.set_result(end())
    except Exception as error:  # noqa: BLE001 - as in `_serve`
        ended.set_exception(error)


def _released(function: Callable[..., Any], argument: Any) -> None:
    """Frees a resource of a card that may have failed; the library then may not free it."""
    try:
        called(function, argument)
    except VendorCallFailed as error:
        log.warning("a resource of a card was not released: %s", error)
