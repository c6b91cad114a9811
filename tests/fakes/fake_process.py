"""A worker process that the test plays: the other end of its channel is in the test's hands."""

import array
import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stoker.backends.api.backend import Figure
from stoker.backends.api.batch import BatchItem, BatchResult
from stoker.backends.api.errors import ServingError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.rescheduling import Rescheduled
from stoker.backends.api.tensor import DataType
from stoker.backends.worker.arrays import Blocks, to_json
from stoker.backends.worker.batches import WHOLE, BatchReader, ResultWriter
from stoker.backends.worker.channel import Channel, Message
from stoker.backends.worker.process import StartControl, WorkerProcess
from stoker.backends.worker.protocol import DONE, RESPONSE, RUN
from stoker.server.execution.process_supervision import ProcessSettings
from stoker.server.execution.process_worker import CallHandler, ProcessWorker
from stoker.server.execution.worker import Work
from tests.fakes.puppet_worker import HandTimers

SIGNATURE = ModelSignature((TensorSpec("IN", DataType.FP32, (-1,)),), (TensorSpec("OUT", DataType.FP32, (-1,)),), 8)
STREAMS = ModelSignature((TensorSpec("IN", DataType.FP32, (-1,)),), (TensorSpec("OUT", DataType.FP32, (-1,)),), 0, is_decoupled=True)
ITERATIVE = replace(SIGNATURE, is_decoupled=True, is_iterative=True)
PATIENCE_S = 20.0


class FakeProcess:
    """Stands for a `WorkerProcess` that has loaded.

    Attributes:
        channel: The server's end.
        peer: The process' end, which never waits.
        code: Its exit code; None: it runs.
        events: What the server did to it.
    """

    def __init__(self, depth: int = 1, *, reads_requests: bool = False, has_exit_descriptor: bool = False) -> None:
        self.channel, end = Channel.pair()
        self.peer = Channel(end)
        self.peer.set_timeout(0)
        self.pid = 4711
        self.figures: tuple[Figure, ...] = ()
        self.pipeline_depth = depth
        self.static_batch_size = None
        self.reads_requests = reads_requests
        self.last_lines: Sequence[str] = ("its last line",)
        self.code: int | None = None
        self.events: list[str] = []
        self.waits = threading.Event()
        self.waits.set()
        self.exit_descriptor, self._exit = os.pipe() if has_exit_descriptor else (-1, -1)
        self._reader = BatchReader()
        self._writer = ResultWriter()

    # -- what the server calls

    def exit_code(self, timeout_s: float) -> int | None:
        assert self.waits.wait(PATIENCE_S)
        self.events.append("exit_code")
        return self.code

    def interrupt(self) -> None:
        self.events.append("interrupt")
        self.code = -9

    def close(self) -> None:
        self.events.append("close")
        self.channel.close()
        self.release()

    # -- what the test does

    def receive(self) -> Message | None:
        """The next message from the server; None: there is none now."""
        try:
            return self.peer.receive()
        except BlockingIOError:
            return None

    def batch(self) -> "tuple[int, list[Any]] | None":
        """The next batch, with its number."""
        while (message := self.receive()) is not None:
            if message.kind == RUN:
                return message.number, list(self._reader.read(message).items())
        return None

    def finish(self, number: int, rows: "Sequence[int]", value: float = 0.0) -> None:
        """Sends the result of a batch: `value` in every element."""
        outgoing = self._writer.whole({"OUT": np.full((sum(rows), 2), value, np.float32)})
        self.peer.send(
            DONE, number, WHOLE, outgoing.meta, outgoing.size_bytes, outgoing.write, payload=outgoing.payload, times_ns=(1, 2, 3)
        )

    def end_streams(self, number: int, count: int, again: "Sequence[int]" = ()) -> None:
        """Sends the end of a batch of `count` streams; those at the places `again` are rescheduled."""
        outgoing = self._writer.apart([Rescheduled() if index in again else {} for index in range(count)], [count])
        self.peer.send(DONE, number, 0, outgoing.meta)

    def end_stream(self, number: int) -> None:
        """Sends the end of a stream."""
        outgoing = self._writer.apart([{}], [1])
        self.peer.send(DONE, number, 0, outgoing.meta)

    def respond(self, number: int, value: float, index: int = 0) -> None:
        """Sends one response to the request at place `index` of a batch."""
        blocks = Blocks()
        blocks.add([np.full(1, value, np.float32)])
        self.peer.send(RESPONSE, number, index, to_json({"n": ["OUT"], "b": blocks.entries}), blocks.size_bytes, blocks.write)

    def send_raw(self, datagram: bytes, rights: "Sequence[int]" = ()) -> None:
        """Sends bytes that need not be a message."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", rights))] if rights else []
        with socket.socket(fileno=os.dup(self.peer.descriptor)) as end:
            end.sendmsg([datagram], ancillary)

    def die(self, code: int = -11, *, keeps_channel: bool = False) -> None:
        """Ends the process. `keeps_channel`: what it has started holds its end of the channel."""
        self.code = code
        if self._exit >= 0:
            os.close(self._exit)
            self._exit = -1
        if not keeps_channel:
            self.peer.close()

    def release(self) -> None:
        """Closes what the test holds of it."""
        self.peer.close()
        if self._exit >= 0:
            os.close(self._exit)
        if self.exit_descriptor >= 0:
            os.close(self.exit_descriptor)
        self._exit = self.exit_descriptor = -1


class Results:
    """Works and their results."""

    def __init__(self) -> None:
        self.by_work: dict[int, list[BatchResult]] = {}
        self.order: list[int] = []
        self.works: list[Work] = []

    def work(self, *items: Any) -> Work:
        """A work whose results are kept."""
        number = len(self.works)
        seen = self.by_work[number] = []

        def done(result: BatchResult) -> None:
            seen.append(result)
            self.order.append(number)

        self.works.append(Work(list(items) or [item()], done))
        return self.works[-1]

    def error(self, number: int) -> ServingError:
        """The one error of a work that has failed as a whole."""
        (result,) = self.by_work[number]
        first = result.outcomes[0]
        assert isinstance(first, ServingError)
        assert all(outcome is first for outcome in result.outcomes)
        return first

    def value(self, number: int) -> float:
        """The value of a work that has succeeded."""
        (result,) = self.by_work[number]
        outcome = result.outcomes[0]
        assert not isinstance(outcome, ServingError)
        return float(outcome["OUT"].ravel()[0])


def item(rows: int = 1, size: int = 2, value: float = 1.0, **facts: Any) -> BatchItem:
    """One request."""
    return BatchItem({"IN": np.full((rows, size), value, np.float32)}, rows, ("OUT",), **facts)


class Rig:
    """A `ProcessWorker` on fake processes and timers.

    Attributes:
        processes: Those that were started, the first one first.
        failures: What the next starts raise.
        deaths: How many were counted.
        changes: The outage at each change.
    """

    def __init__(
        self,
        depth: int = 1,
        *,
        signature: ModelSignature = SIGNATURE,
        instance_timeout_s: float = 60.0,
        calls: CallHandler | None = None,
        **process: Any,
    ) -> None:
        self.depth = depth
        self._process = process
        self.timers = HandTimers()
        self.processes = [FakeProcess(depth, **process)]
        self.failures: list[Exception] = []
        self.starts = 0
        self.may_start = threading.Event()
        self.may_start.set()
        self.deaths = 0
        self.changes: list[str] = []
        self.results = Results()
        self.worker = ProcessWorker(
            self._as_process(self.processes[0]),
            self._start,
            signature,
            ProcessSettings(name="m_0", model="m", version=3, instance_timeout_s=instance_timeout_s),
            clock=self.timers,
            timers=self.timers,
            loop=asyncio.get_running_loop(),
            calls=calls,
        )
        self.worker.supervision.on_change = lambda: self.changes.append(self.worker.outage)
        self.worker.supervision.on_death = self._died

    @staticmethod
    def _as_process(process: FakeProcess) -> WorkerProcess:
        stand_in: Any = process
        return stand_in

    @property
    def process(self) -> FakeProcess:
        """The newest process."""
        return self.processes[-1]

    def submit(self, *items: Any) -> int:
        """Submits a work; returns its number."""
        work = self.results.work(*items)
        self.worker.submit(work)
        return len(self.results.works) - 1

    async def batch(self) -> "tuple[int, list[Any]]":
        """Waits for the next batch at the process."""
        found: list[tuple[int, list[Any]]] = []

        def has_arrived() -> bool:
            batch = self.process.batch()
            if batch is not None:
                found.append(batch)
            return bool(found)

        await until(has_arrived)
        return found[0]

    async def restart(self) -> None:
        """Lets the pause before a restart pass, and waits for the new process."""
        count = len(self.changes)
        await turn()
        assert self.timers.next_ns is not None
        self.timers.advance((self.timers.next_ns - self.timers.now) // 1000 + 1)
        await until(lambda: len(self.changes) > count)
        await turn()

    async def close(self) -> None:
        """Closes everything; no descriptor stays open."""
        await self.worker.close()
        for process in self.processes:
            process.channel.close()
            process.release()

    def _start(self, control: StartControl) -> WorkerProcess:
        control.started(self.may_start.set)
        assert self.may_start.wait(PATIENCE_S)
        self.starts += 1
        if self.failures:
            raise self.failures.pop(0)
        self.processes.append(FakeProcess(self.depth, **self._process))
        return self._as_process(self.processes[-1])

    def _died(self) -> None:
        self.deaths += 1


async def turn(times: int = 5) -> None:
    """Lets the loop see what has arrived."""
    for _ in range(times):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for threads, with a bound."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited too long"
        await asyncio.sleep(0.0005)


class Sink:
    """The consumer's side of a stream, as `ResponseStream` feeds it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Mapping[str, Any], Callable[[], None]]] = []
        self.read: list[float] = []
        self.is_closed = False
        self.most = 0

    def put(self, outputs: Mapping[str, Any]) -> bool:
        raise AssertionError("responses of a process are fed")

    def feed(self, outputs: Mapping[str, Any], taken: Callable[[], None]) -> None:
        if self.is_closed:
            taken()
            return
        self.waiting.append((outputs, taken))
        self.most = max(self.most, len(self.waiting))

    def take(self) -> bool:
        """Reads one response; False: none waits."""
        if not self.waiting:
            return False
        outputs, taken = self.waiting.pop(0)
        self.read.append(float(outputs["OUT"][0]))
        taken()
        return True
