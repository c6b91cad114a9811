"""`ProcessWorker`: an `InstanceWorker` whose instance lives in a worker process, which it supervises.

The event loop writes a batch's tensors into shared memory and receives the results: there is no thread in between. A process that dies
costs the batches that it held: their requests fail with UNAVAILABLE. It is started again after a pause (`process_supervision.py`), and
requests wait in the queue meanwhile. A process that makes no progress for `instance_timeout_s` is ended by the watchdog.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from stoker.backends.api.backend import Figure
from stoker.backends.api.batch import BatchResult
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import BackendFailed, DeadlineExceeded, ServingError, Unavailable, Unsupported
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.streaming import DECOUPLED_ONLY
from stoker.backends.worker.batches import BatchWriter, Outgoing, ResultReader
from stoker.backends.worker.channel import ChannelClosed, ChannelError, Message, SegmentsFull
from stoker.backends.worker.figures import read_figures
from stoker.backends.worker.process import WorkerProcess
from stoker.backends.worker.protocol import (
    CALL,
    CALL_CANCEL,
    CALL_CREDIT,
    CANCEL,
    CONTROL,
    CREDIT,
    CREDIT_STEP,
    CREDITS,
    DONE,
    FIGURES,
    FREED,
    RELEASE,
    RESPONSE,
    RUN,
)
from stoker.backends.worker.responses import read_response
from stoker.backends.worker.segments import KEPT_BYTES
from stoker.server.core.tasks import in_daemon_thread
from stoker.server.core.timers import Timer, Timers
from stoker.server.execution.process_supervision import ProcessSettings, ProcessStart, ProcessSupervision
from stoker.server.execution.worker import Work

log = logging.getLogger("stoker.execution")

#: Batches whose tensors take more bytes are copied in a thread. Below, the hand-over to a thread takes about as much CPU as the copy, which
#: keeps the loop busy for less than a millisecond (measured beside other load).
LOOP_COPY_BYTES = 4 << 20
#: How long a channel is idle before both sides return the memory of large batches to the system, nanoseconds.
IDLE_NS = 5_000_000_000


class CallHandler(Protocol):
    """Runs the calls that a model makes to other models. All methods are called on the event loop."""

    def begin(self, process: WorkerProcess, message: Message) -> None:
        """Begins the call that a CALL or CONTROL message says."""

    def credit(self, process: WorkerProcess, number: int, count: int) -> None:
        """The model has read `count` responses of a call."""

    def cancel(self, process: WorkerProcess, number: int) -> None:
        """The model wants no more responses of a call."""

    def is_controlling(self, process: WorkerProcess) -> bool:
        """Whether the process waits for a load or an unload of another model."""

    def cancel_all(self, process: WorkerProcess) -> None:
        """The process is gone."""


class _Running:
    """A batch that the process holds."""

    __slots__ = ("cancelled", "is_sent", "progress_ns", "result", "unread", "unreported", "work", "write_ns")

    def __init__(self, work: Work, now_ns: int) -> None:
        self.work = work
        self.result: BatchResult | None = None
        self.progress_ns = now_ns
        #: Whether a message that is sent now arrives after the batch.
        self.is_sent = False
        #: Places of the requests whose clients have gone.
        self.cancelled: list[int] = []
        self.write_ns = 0
        #: By place, responses that the client has not read, and read ones that the process does not know of.
        self.unread = [0] * len(work.items)
        self.unreported = [0] * len(work.items)

    @property
    def waits_for_client(self) -> bool:
        """Whether the model waits until a client that has not gone reads its responses."""
        return any(unread >= CREDITS - self.unreported[index] for index, unread in enumerate(self.unread) if index not in self.cancelled)


class ProcessWorker:
    """Runs batches in a worker process, up to its pipeline depth at a time. Confined to: the event loop.

    Attributes:
        supervision: The deaths and restarts of its processes.
    """

    def __init__(
        self,
        process: WorkerProcess,
        start: ProcessStart,
        signature: ModelSignature,
        settings: ProcessSettings,
        *,
        clock: Clock,
        timers: Timers,
        loop: asyncio.AbstractEventLoop,
        calls: CallHandler | None = None,
    ) -> None:
        """Takes over `process`, which has loaded; `start` makes the next ones."""
        self._signature = signature
        self._settings = settings
        self._now_ns = clock.now_ns
        self._timers = timers
        self._loop = loop
        self._calls = calls
        self._process: WorkerProcess | None = None
        self._numbers = 0
        #: In the order of the batches.
        self._running: dict[int, _Running] = {}
        self._unsent: deque[tuple[int, int, int, Outgoing | None]] = deque()
        self._watchdog: Timer | None = None
        self._idle: Timer | None = None
        self._is_large = False
        self._is_closing = False
        #: Set when the last batch ends, while `close` waits for it.
        self._drained: asyncio.Event | None = None
        self.supervision = ProcessSupervision(
            start, settings, clock=clock, timers=timers, loop=loop, fail=self._fail_running, take=self._attach
        )
        self._writer = BatchWriter(signature, with_facts=process.reads_requests)
        self._reader = ResultReader(is_iterative=signature.is_iterative)
        self._attach(process)

    @property
    def is_ejected(self) -> bool:
        """See `InstanceWorker`."""
        return self.supervision.is_ejected

    @property
    def outage(self) -> str:
        """See `InstanceWorker`."""
        return self.supervision.outage

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closing

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its metrics."""
        namespace = {"namespace": self._settings.namespace} if self._settings.namespace else {}
        return {**namespace, "model": self._settings.model, "version": str(self._settings.version), "worker": self._settings.name}

    @property
    def process(self) -> WorkerProcess | None:
        """The process; None: there is none now."""
        return self._process

    @property
    def pid(self) -> int | None:
        """The process' number; None: there is none now."""
        return None if self._process is None else self._process.pid

    @property
    def model_figures(self) -> Sequence[Figure]:
        """The metrics that the model defines; empty without a process."""
        return () if self._process is None else self._process.figures

    def submit(self, work: Work) -> None:
        process = self._process
        assert process is not None, "no slot is free without a process"
        if self._signature.is_decoupled and any(item.responses is None for item in work.items):
            work.on_done(BatchResult([Unsupported(DECOUPLED_ONLY) for _ in work.items]))
            return
        self.free_slots -= 1
        now_ns = self._now_ns()
        running = _Running(work, now_ns)
        number = self._numbers = (self._numbers + 1) & 0xFFFFFFFF
        self._running[number] = running
        try:
            outgoing = self._writer.message(work.items)
        except Exception as error:  # noqa: BLE001 - a parameter of a request that JSON cannot hold, and the like: this batch's own
            self._complete(number, _failed(work, error))
            return
        self._is_large = self._is_large or outgoing.size_bytes > KEPT_BYTES
        if outgoing.size_bytes > LOOP_COPY_BYTES:
            self._send_in_thread(process, number, outgoing)
        else:
            running.is_sent = True
            self._send(process, RUN, number, 0, outgoing)
        running.write_ns = self._now_ns() - now_ns
        if self._watchdog is None:
            self._arm_watchdog()

    def cancel(self, work: Work, index: int) -> None:
        """The client of the request at place `index` has gone; the model may look."""
        process = self._process
        if process is None or not (process.reads_requests or self._signature.is_decoupled):
            return
        for number, running in self._running.items():
            if running.work is work:
                running.cancelled.append(index)
                if running.is_sent:
                    self._send(process, CANCEL, number, index)

    def credit(self, work: Work, index: int) -> None:
        """The client of the request at place `index` has read one response."""
        for number, running in self._running.items():
            if running.work is work:
                running.unread[index] -= 1
                running.unreported[index] += 1
                if running.unreported[index] >= CREDIT_STEP and self._process is not None:
                    self._send(self._process, CREDIT, number, index)
                    running.unreported[index] -= CREDIT_STEP
                running.progress_ns = self._now_ns()

    async def close(self) -> None:
        self._is_closing = True
        self.supervision.stop()
        if self._running and self._process is not None:
            # Streams may end early. The watchdog bounds the wait.
            for running in list(self._running.values()):
                for index in range(len(running.work.items)):
                    self.cancel(running.work, index)
            self._drained = asyncio.Event()
            await self._drained.wait()
        await self.supervision.stopped()
        process = self._process
        if process is not None:
            self._detach(process)
            await in_daemon_thread("close", process.close)

    # -- the channel

    def _attach(self, process: WorkerProcess) -> None:
        self._process = process
        self.depth = self.free_slots = process.pipeline_depth
        process.channel.set_timeout(0)
        self._loop.add_reader(process.channel.descriptor, self._readable, process)
        if process.exit_descriptor >= 0:
            self._loop.add_reader(process.exit_descriptor, self._exited, process)
        self.supervision.started()

    def _detach(self, process: WorkerProcess) -> None:
        self._process = None
        self._unsent.clear()
        self._loop.remove_reader(process.channel.descriptor)
        self._loop.remove_writer(process.channel.descriptor)
        if process.exit_descriptor >= 0:
            self._loop.remove_reader(process.exit_descriptor)
        process.channel.set_timeout(None)
        if self._calls is not None:
            self._calls.cancel_all(process)
        for timer in (self._watchdog, self._idle):
            if timer is not None:
                timer.cancel()
        self._watchdog = self._idle = None

    def _send(self, process: WorkerProcess, kind: int, number: int = 0, index: int = 0, outgoing: Outgoing | None = None) -> None:
        """Sends a message, or keeps it until there is space. A batch that cannot be sent fails."""
        if self._unsent or not self._is_passed(process, kind, number, index, outgoing):
            self._unsent.append((kind, number, index, outgoing))

    def _is_passed(self, process: WorkerProcess, kind: int, number: int, index: int, outgoing: Outgoing | None) -> bool:
        """Sends a message, or fails its batch. False: there is no space now; `_send_unsent` is called when there may be some."""
        try:
            if outgoing is None:
                process.channel.send(kind, number, index)
            else:
                process.channel.send(kind, number, index, outgoing.meta, outgoing.size_bytes, outgoing.write, payload=outgoing.payload)
        except SegmentsFull:
            return False  # a message says when one is free
        except BlockingIOError:
            self._loop.add_writer(process.channel.descriptor, self._send_unsent, process)
            return False
        except ChannelClosed:
            return True  # the reader finds the end of the channel
        except (OSError, MemoryError, ValueError, TypeError) as error:
            if outgoing is not None and number in self._running:
                self._complete(number, _failed(self._running[number].work, error))
        return True

    def _send_unsent(self, process: WorkerProcess) -> None:
        """Sends what has waited for space."""
        self._loop.remove_writer(process.channel.descriptor)
        unsent = self._unsent
        while unsent:
            if not self._is_passed(process, *unsent[0]):
                return
            if process is not self._process or not unsent:
                return
            unsent.popleft()

    def _send_in_thread(self, process: WorkerProcess, number: int, outgoing: Outgoing) -> None:
        def send() -> None:
            timeout_s = self._settings.instance_timeout_s
            process.channel.send(RUN, number, 0, outgoing.meta, outgoing.size_bytes, outgoing.write, timeout_s)

        # The copy ends by itself: it may run in a thread that the loop joins at its end.
        sending = self._loop.run_in_executor(None, send)

        def sent(future: "asyncio.Future[None]") -> None:
            error = future.exception()
            running = self._running.get(number)
            if running is None or process is not self._process or isinstance(error, ChannelError):
                return
            if isinstance(error, BlockingIOError):
                self._send(process, RUN, number, 0, outgoing)
            elif error is not None:
                self._complete(number, _failed(running.work, error))
                return
            running.is_sent = True
            for index in running.cancelled:
                self._send(process, CANCEL, number, index)

        sending.add_done_callback(sent)

    def _readable(self, process: WorkerProcess) -> bool:
        """Takes one message. False: there is none, or the process is given up."""
        try:
            self._dispatch(process, process.channel.receive())
        except BlockingIOError:
            return False
        except ChannelClosed:
            self._died(process, None)
            return False
        except ChannelError as error:
            log.exception("a worker process has sent a damaged message", extra=self._settings.facts)
            process.interrupt()
            self._died(process, Unavailable(f"its worker process has sent a damaged message: {error}"))
            return False
        except OSError as error:
            process.interrupt()
            self._died(process, Unavailable(f"the channel of its worker process failed: {error.strerror}"))
            return False
        if process is not self._process:
            return False
        if process.channel.unreported > 1:
            self._send(process, FREED)
        if self._unsent:
            self._send_unsent(process)
        return True

    def _exited(self, process: WorkerProcess) -> None:
        """`process` has ended. A process that it has started may keep its end of the channel open."""
        # What it sent before its end counts.
        while self._readable(process):
            continue
        self._died(process, None)

    def _dispatch(self, process: WorkerProcess, message: Message) -> None:
        kind = message.kind
        if kind == DONE:
            running = self._running.get(message.number)
            if running is None:
                return
            result = _checked(self._reader.read, message, running.work.items)
            self._is_large = self._is_large or message.payload.size > KEPT_BYTES
            result.input_ns += running.write_ns
            self._complete(message.number, result)
        elif kind == RESPONSE:
            running = self._running.get(message.number)
            if running is None:
                return
            running.progress_ns = self._now_ns()
            work, index = running.work, message.index
            outputs = _checked(read_response, message)
            sink: Any = _checked(work.items.__getitem__, index).responses
            running.unread[index] += 1
            if sink is not None:
                sink.feed(outputs, lambda: self.credit(work, index))
        elif kind == FIGURES:
            process.figures = _checked(read_figures, message)
        elif self._calls is not None and kind in (CALL, CALL_CREDIT, CALL_CANCEL, CONTROL):
            self._progressed()
            if kind in (CALL, CONTROL):
                _checked(self._calls.begin, process, message)
            elif kind == CALL_CREDIT:
                self._calls.credit(process, message.number, message.index)
            else:
                self._calls.cancel(process, message.number)

    def _progressed(self) -> None:
        now_ns = self._now_ns()
        for running in self._running.values():
            running.progress_ns = now_ns

    # -- batches

    def _complete(self, number: int, result: BatchResult) -> None:
        running = self._running[number]
        running.result = result
        if self._signature.is_decoupled:
            # A short stream does not wait for the end of an earlier long one.
            del self._running[number]
            self.free_slots += 1
            running.work.on_done(result)
        else:
            while self._running:
                first = next(iter(self._running))
                done = self._running[first]
                if done.result is None:
                    break
                del self._running[first]
                self.free_slots += 1
                done.work.on_done(done.result)
        if not self._running:
            if self._is_large and self._idle is None and self._process is not None:
                self._idle = self._timers.call_at(self._now_ns() + IDLE_NS, self._release)
            self._notice_drained()

    def _notice_drained(self) -> None:
        if self._drained is not None and not self._running:
            self._drained.set()

    def _fail_running(self, error: ServingError) -> None:
        running = list(self._running.values())
        self._running.clear()
        for each in running:
            result = each.result or BatchResult([error] * len(each.work.items))
            each.work.on_done(result)
        self._notice_drained()

    def _release(self) -> None:
        self._idle = None
        process = self._process
        if process is None or self._running:
            return
        self._is_large = False
        process.channel.shrink()
        self._send(process, RELEASE)

    # -- supervision

    def _arm_watchdog(self) -> None:
        timeout_ns = int(self._settings.instance_timeout_s * 1e9)
        oldest_ns = min((running.progress_ns for running in self._running.values()), default=self._now_ns())
        self._watchdog = self._timers.call_at(oldest_ns + timeout_ns, self._watch)

    def _watch(self) -> None:
        self._watchdog = None
        process = self._process
        if process is None or not self._running:
            return
        timeout_ns = int(self._settings.instance_timeout_s * 1e9)
        now_ns = self._now_ns()
        if self._calls is not None and self._calls.is_controlling(process):
            self._progressed()  # a load has its own limit
        for running in self._running.values():
            if running.waits_for_client:
                running.progress_ns = now_ns  # the model waits for its client
            if now_ns - running.progress_ns >= timeout_ns:
                limit_s = self._settings.instance_timeout_s
                log.error(
                    "model '%s' version %d made no progress for %g s: its worker process is ended",
                    self._settings.model, self._settings.version, limit_s, extra=self._settings.facts,
                )  # fmt: skip
                process.interrupt()
                text = f"the model made no progress for {limit_s:g} s (instance_timeout): its worker process was ended"
                self._died(process, DeadlineExceeded(text))
                return
        self._arm_watchdog()

    def _died(self, process: WorkerProcess, error: ServingError | None) -> None:
        """`process` is dead or dying. `error`: for the requests that it held; None: from its exit code."""
        if process is not self._process:
            return
        self._detach(process)
        self.free_slots = 0
        self.supervision.ended(process, error)


P = ParamSpec("P")
T = TypeVar("T")


def _checked(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls `read`, which reads a message: a process with corrupted memory may have written anything into it.

    Raises:
        ChannelError: the message is damaged.
    """
    try:
        return read(*args, **kwargs)
    except Exception as error:
        raise ChannelError(f"{type(error).__name__} while it was read") from error


def _failed(work: Work, error: BaseException) -> BatchResult:
    failure = BackendFailed(f"the batch cannot be passed to the worker process: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return BatchResult([failure] * len(work.items))
