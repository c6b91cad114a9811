"""The worker process: loads one instance of a model, and runs the batches that the server sends.

The model's code runs in the main thread (and in further threads, if the instance takes several batches at a time). Another thread receives
messages where some may arrive while a batch runs: cancellations, credits of streams, responses to the model's own calls.
"""

import contextlib
import gc
import importlib
import os
import queue
import resource
import socket
import threading
import traceback
from collections.abc import Callable
from typing import Any

from stoker.backends.api.backend import Backend, Instance
from stoker.backends.api.batch import BatchProcessor, BatchResult, processor_for
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import BackendFailed, ServingError, drop_tracebacks
from stoker.backends.worker.arrays import to_json
from stoker.backends.worker.batches import WHOLE, BatchReader, Outgoing, ReceivedBatch, ResultWriter, WorkerItem, error_to_json
from stoker.backends.worker.channel import Channel, ChannelClosed, Message
from stoker.backends.worker.figures import FigureReporter
from stoker.backends.worker.load_message import WorkerLoad
from stoker.backends.worker.model_calls import RemoteCalls
from stoker.backends.worker.output_segment import OutputSegment
from stoker.backends.worker.protocol import (
    CALL_END,
    CALL_RESPONSE,
    CANCEL,
    CLOSE,
    CLOSED,
    CREDIT,
    CREDIT_STEP,
    DONE,
    FAILED,
    FREED,
    LOADED,
    RELEASE,
    RUN,
)
from stoker.backends.worker.responses import RemoteSink


def main(descriptor: int) -> None:
    """Serves the channel on the socket `descriptor` until the server closes it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel = Channel(socket.socket(fileno=descriptor))
    with contextlib.suppress(ChannelClosed):
        WorkerMain(channel).run()
    # The interpreter is not finalized: threads of the model may run, and native code may crash then.
    os._exit(0)


def load_backend(target: str) -> Backend:
    """A new backend of the class that `target`, `module:name`, names."""
    module, _, name = target.partition(":")
    backend: Backend = getattr(importlib.import_module(module), name)()
    return backend


class WorkerMain:
    """The main thread of a worker process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._calls = RemoteCalls(channel)
        self._clock = SystemClock()
        #: The batches that run or wait, by number; only where a thread receives messages.
        self._running: dict[int, list[WorkerItem]] = {}
        self._reader = BatchReader()
        self._outputs = OutputSegment(channel)
        self._writer = ResultWriter(self._outputs)
        #: Of a decoupled model, the sinks of the requests of each batch.
        self._sinks: dict[int, list[RemoteSink]] = {}
        self._is_decoupled = False
        self._backend: Backend | None = None

    def run(self) -> None:
        """Loads the instance, and serves it.

        Raises:
            ChannelClosed: the server is gone.
        """
        load = WorkerLoad.from_json(self._channel.receive().meta, self._calls)
        try:
            instance = self._load(load)
        except BaseException as error:  # noqa: BLE001 - whatever a model's code raises is the load's failure
            self._channel.send(FAILED, meta=to_json(error_to_json(error, load.request.folders)))
            return
        self._writer.folders = load.request.folders
        signature = load.request.signature
        self._is_decoupled = signature.is_decoupled
        depth = max(1, instance.pipeline_depth)
        if depth == 1:
            instance.place_outputs(self._outputs)
        processors = [processor_for(instance, signature, self._clock) for _ in range(depth)]
        has_receiver = depth > 1 or instance.reads_requests or instance.calls_models or self._is_decoupled
        facts = {
            "static_batch_size": instance.static_batch_size,
            "pipeline_depth": depth,
            "reads_requests": instance.reads_requests,
        }
        # What was made so far lives as long as the process.
        gc.freeze()
        self._channel.send(LOADED, meta=to_json(facts))
        reporter: FigureReporter | None = None
        if self._backend is not None and self._backend.runs_model_code:
            reporter = FigureReporter(self._channel, self._backend.figures)
            reporter.start()
        try:
            if has_receiver:
                self._serve_in_threads(processors)
            else:
                self._serve(processors[0])
        finally:
            if reporter is not None:
                reporter.stop()
            with contextlib.suppress(Exception):
                instance.close()
        with contextlib.suppress(OSError):
            self._channel.send(CLOSED)

    def _load(self, load: WorkerLoad) -> Instance:
        if load.nice:
            os.nice(load.nice)
        if load.memory_limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (load.memory_limit_bytes, load.memory_limit_bytes))
        self._backend = load_backend(load.backend)
        if load.settings:
            self._backend.configure(load.settings)
        return self._backend.load(load.request)

    def _serve(self, processor: BatchProcessor) -> None:
        """Runs batches in this thread until CLOSE: no message is sent while one runs."""
        while (message := self._channel.receive()).kind != CLOSE:
            if message.kind == RUN:
                number, batch = message.number, self._reader.read(message)
                del message
                self._run(processor, number, batch)
                del batch
            elif message.kind == RELEASE:
                self._release()

    def _serve_in_threads(self, processors: "list[BatchProcessor]") -> None:
        inbox: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        receiver = threading.Thread(target=self._receive, args=(inbox, len(processors)), name="stoker-receive", daemon=True)
        self._calls.is_serving = True
        receiver.start()
        others = [
            threading.Thread(target=self._run_all, args=(processor, inbox), name="stoker-run", daemon=True) for processor in processors[1:]
        ]
        for thread in others:
            thread.start()
        self._run_all(processors[0], inbox)
        for thread in others:
            thread.join()

    def _run_all(self, processor: BatchProcessor, inbox: "queue.SimpleQueue[tuple[int, Any] | None]") -> None:
        while (work := inbox.get()) is not None:
            number, batch = work
            del work
            with contextlib.suppress(ChannelClosed):
                self._run(processor, number, batch)
            del batch

    def _receive(self, inbox: "queue.SimpleQueue[tuple[int, Any] | None]", threads: int) -> None:
        try:
            while (message := self._channel.receive()).kind != CLOSE:
                self._dispatch(message, inbox.put)
                del message
                if self._channel.unreported > 1:
                    self._channel.send(FREED)
        except ChannelClosed:
            # Without the server nothing of this process is of use, and the model may hang.
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a damaged message, or no memory for one: the process ends, also if the model hangs
            traceback.print_exc()
            os._exit(1)
        finally:
            self._calls.close()
            for _ in range(threads):
                inbox.put(None)

    def _dispatch(self, message: Message, put: "Callable[[tuple[int, Any] | None], None]") -> None:
        kind, number = message.kind, message.number
        if kind == RUN:
            batch = self._reader.read(message)
            # The cancellation of a request reaches the item that the model sees.
            items = self._running[number] = batch.items()
            if self._is_decoupled:
                sinks = self._sinks[number] = [RemoteSink(self._channel, number, index, item) for index, item in enumerate(items)]
                for item, sink in zip(items, sinks, strict=True):
                    item.responses = sink
            put((number, batch))
        elif kind == CREDIT:
            for sink in self._sinks.get(number, [])[message.index : message.index + 1]:
                sink.add_credits(CREDIT_STEP)
        elif kind == CANCEL:
            items = self._running.get(number, [])
            if message.index < len(items):
                items[message.index].is_cancelled = True
            for sink in self._sinks.get(number, [])[message.index : message.index + 1]:
                sink.cancel()
        elif kind in (CALL_RESPONSE, CALL_END):
            self._calls.arrived(message)
        elif kind == RELEASE:
            self._release()

    def _run(self, processor: BatchProcessor, number: int, batch: ReceivedBatch) -> None:
        index, outgoing, times_ns = self._result(processor, batch)
        self._running.pop(number, None)
        self._sinks.pop(number, None)
        # Before the message, which reports the segments that are free then.
        batch.release()
        send, reserved = self._channel.send, self._outputs.take()
        try:
            send(
                DONE, number, index, outgoing.meta, outgoing.size_bytes, outgoing.write,
                reserved=reserved, payload=outgoing.payload, times_ns=times_ns,
            )  # fmt: skip
        except (OSError, MemoryError, ValueError) as error:
            failure = BackendFailed(f"the outputs cannot be passed to the server: {type(error).__name__}")
            failure.__cause__ = error
            outgoing = self._writer.apart([failure] * batch.count, [])
            send(DONE, number, 0, outgoing.meta, times_ns=times_ns)

    def _result(self, processor: BatchProcessor, batch: ReceivedBatch) -> tuple[int, Outgoing, tuple[int, int, int]]:
        """Runs a batch: as one item if the processor would join its requests anyway.

        Returns:
            The index of the DONE message, the message, and the times of the batch.
        """
        whole = batch.whole
        result: BatchResult | None = None
        try:
            if whole is not None and type(processor) is BatchProcessor:
                result = processor.process([whole])
                outcome = result.outcomes[0]
                if not isinstance(outcome, ServingError):
                    return WHOLE, self._writer.whole(outcome), (result.input_ns, result.infer_ns, result.output_ns)
                if batch.count > 1:
                    drop_tracebacks(outcome)
                    failed, result = result, processor.process_each(batch.items())
                    result.input_ns += failed.input_ns
                    result.infer_ns += failed.infer_ns
                    result.output_ns += failed.output_ns
            else:
                result = processor.process(batch.items())
            outgoing = self._writer.apart(result.outcomes, result.executions)
        except Exception as error:  # noqa: BLE001 - a processor of a backend has broken its contract; the batch gets its error
            failure = BackendFailed(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            outgoing = self._writer.apart([failure] * batch.count, [])
        times_ns = (0, 0, 0) if result is None else (result.input_ns, result.infer_ns, result.output_ns)
        return 0, outgoing, times_ns

    def _release(self) -> None:
        self._channel.shrink()
        if self._backend is not None:
            with contextlib.suppress(Exception):
                self._backend.give_memory_back()
