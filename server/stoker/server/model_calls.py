"""Calls of models to other models of this server (Triton: business logic scripting).

`LoopCalls` serves those of worker processes, `ThreadCalls` those of models in threads of the server. Both validate a call as a client's
request is validated, and pass it to the engine. They do so with loads, unloads, and questions whether a model is ready.
"""

import asyncio
import concurrent.futures
import logging
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from stoker.backends.api.calls import CallResponse, ModelCall, ModelControl
from stoker.backends.api.errors import BackendFailed, Cancelled, Internal, ServingError, TooLarge
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.worker.arrays import to_json
from stoker.backends.worker.batches import error_to_json
from stoker.backends.worker.channel import ChannelError, Message
from stoker.backends.worker.model_calls import read_call, read_control, response_message
from stoker.backends.worker.process import WorkerProcess
from stoker.backends.worker.protocol import CALL_END, CALL_RESPONSE, CONTROL, CREDITS
from stoker.server.codecs.validation import SignatureChecks, check_model_name
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest
from stoker.server.core.sequence import SequenceMark
from stoker.server.core.tasks import ShieldedTasks
from stoker.server.core.trace import read_context
from stoker.server.engine.interface import Engine
from stoker.server.execution.call_cycles import cycle_of
from stoker.server.lifecycle.servable import Servable
from stoker.server.protocols.kserve.service import read_overrides

log = logging.getLogger("stoker.server")

#: How long a response to a call waits for a free segment of shared memory, seconds.
SEGMENT_TIMEOUT_S: Final = 60.0
#: The wire's names of numpy's types; BF16 arrays are uint16.
_NAMES: Final = {datatype.numpy: datatype.value for datatype in DataType if datatype is not DataType.BF16}


class ModelRequests:
    """Makes and runs requests from calls. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        """Calls run on `engine`, within `limits`."""
        self._engine = engine
        self._limits = limits
        self._checks = SignatureChecks(engine, limits)
        self._shielded = ShieldedTasks("the load or unload of a model", log, limits.control_timeout_s)

    def request(self, call: ModelCall) -> InferRequest:
        """The request that `call` says.

        Raises:
            ServingError: no such model, or the call does not fit its signature.
        """
        servable, check = self._checks.find(call.model_name, call.model_version)
        check.input_count(len(call.inputs))
        arrays: dict[str, Array] = {}
        for name, array in call.inputs.items():
            spec = check.input(name, arrays)
            check.count_elements(spec, _datatype(array, spec), array.shape)
            arrays[name] = array
        rows = check.complete(arrays)
        check.output_count(len(call.output_names))
        wanted: list[str] = []
        for name in call.output_names:
            check.output(name, wanted)
            wanted.append(name)
        return InferRequest(
            model_name=call.model_name,
            model_version=call.model_version,
            inputs=arrays,
            output_names=tuple(wanted) or check.default_outputs,
            signature=check.signature,
            request_id=call.request_id,
            rows=rows,
            parameters=call.parameters,
            received_ns=self._engine.now_ns(),
            size_bytes=sum(array.nbytes for array in arrays.values()),
            priority=call.priority,
            timeout_us=call.timeout_us,
            caller=read_context(call.trace_context),
            sequence=SequenceMark(call.sequence_id, call.sequence_start, call.sequence_end) if call.sequence_id else None,
            servable=servable,
        )

    async def responses(self, call: ModelCall, check: Callable[[InferRequest], None] | None = None) -> AsyncIterator[CallResponse]:
        """Runs `call`; closing the iterator cancels it. `check` may reject the request before it runs.

        Raises:
            ServingError: it was rejected, or it failed.
        """
        request = self.request(call)
        if check is not None:
            check(request)
        async for response in self._engine.stream(request):
            yield CallResponse(
                model_name=response.model_name,
                model_version=response.model_version,
                outputs=response.outputs,
                parameters=response.parameters or {},
            )

    async def control(self, control: ModelControl) -> bool:
        """Whether the model is ready; True for a load or an unload that has ended. A load goes on if the caller is cancelled.

        Raises:
            ServingError: as a client's request.
        """
        name = check_model_name(control.model_name)
        if control.action == "ready":
            return self._engine.is_model_ready(name, control.model_version)
        if control.action == "unload":
            await self._shielded.run(self._engine.unload(name, unload_dependents=control.unload_dependents))
            return True
        size_bytes = sum(map(len, control.files.values())) + len(control.config_json or "")
        if size_bytes > self._limits.request_bytes:
            raise TooLarge(f"a load has {size_bytes} bytes of files, more than the {self._limits.request_bytes} of a request")
        parameters: dict[str, object] = dict(control.files)
        if control.config_json is not None:
            parameters["config"] = control.config_json
        await self._shielded.run(self._engine.load(name, read_overrides(parameters)))
        return True


def _datatype(array: Array, spec: TensorSpec) -> str:
    """The name of an array's element type: that of `spec`, if it fits."""
    name: str = spec.datatype.value if array.dtype == spec.datatype.numpy else _NAMES.get(array.dtype, str(array.dtype))
    return name


class _Call:
    """A call of a worker process that runs."""

    __slots__ = ("callee", "credits", "is_control", "may_send", "task")

    def __init__(self, *, is_control: bool) -> None:
        #: The version that it calls, once it runs.
        self.callee: Servable | None = None
        self.is_control = is_control
        self.credits = CREDITS
        self.may_send = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class LoopCalls:
    """The `CallHandler` of worker processes. Confined to: the event loop."""

    def __init__(self, requests: ModelRequests) -> None:
        self._requests = requests
        self._running: dict[tuple[WorkerProcess, int], _Call] = {}

    def begin(self, process: WorkerProcess, message: Message) -> None:
        """See `CallHandler`."""
        key = (process, message.number)
        if key in self._running:
            raise ValueError(f"call {message.number} is in work already")
        if message.kind == CONTROL:
            running = _Call(is_control=True)
            work = self._control(process, message)
        else:
            running = _Call(is_control=False)
            work = self._run(process, message.number, read_call(message), running)
        self._running[key] = running
        running.task = asyncio.get_running_loop().create_task(work)
        running.task.add_done_callback(lambda _: self._running.pop(key, None))

    def credit(self, process: WorkerProcess, number: int, count: int) -> None:
        """See `CallHandler`."""
        running = self._running.get((process, number))
        if running is not None:
            running.credits += count
            running.may_send.set()

    def cancel(self, process: WorkerProcess, number: int) -> None:
        """See `CallHandler`."""
        running = self._running.get((process, number))
        if running is not None and running.task is not None:
            running.task.cancel()

    def cancel_all(self, process: WorkerProcess) -> None:
        """See `CallHandler`."""
        for (owner, _), running in list(self._running.items()):
            if owner is process and running.task is not None:
                running.task.cancel()

    def is_controlling(self, process: WorkerProcess) -> bool:
        """See `CallHandler`."""
        return any(owner is process and running.is_control for (owner, _), running in self._running.items())

    async def _control(self, process: WorkerProcess, message: Message) -> None:
        error: ServingError | None = None
        is_ready = False
        number = message.number
        try:
            # In a thread: files may be large.
            control = await asyncio.to_thread(read_control, message)
            del message
            is_ready = await self._requests.control(control)
        except ServingError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - a defect of the server must not leave the model waiting
            error = Internal(f"the server failed: {type(raised).__name__}")
            error.__cause__ = raised
        self._end(process, number, error, index=int(is_ready))

    async def _run(self, process: WorkerProcess, number: int, call: ModelCall, running: _Call) -> None:
        error: ServingError | None = None
        try:
            responses = self._requests.responses(call, lambda request: self._check_cycle(process, running, request))
            del call
            async for response in responses:
                while not running.credits:
                    running.may_send.clear()
                    await running.may_send.wait()
                running.credits -= 1
                await self._send(process, number, response)
                del response
        except ServingError as raised:
            error = raised
        except ChannelError:
            return
        except Exception as raised:  # noqa: BLE001 - a defect of the server must not leave the model waiting
            error = Internal(f"the call failed in the server: {type(raised).__name__}")
            error.__cause__ = raised
        self._end(process, number, error)

    @staticmethod
    def _end(process: WorkerProcess, number: int, error: ServingError | None, index: int = 0) -> None:
        try:
            process.channel.send(CALL_END, number, index, b"" if error is None else to_json(error_to_json(error)))
        except (ChannelError, OSError):
            return  # the process is gone

    def _check_cycle(self, process: WorkerProcess, running: _Call, request: InferRequest) -> None:
        """Rejects a call that would wait for itself.

        Raises:
            BackendFailed: all instances of the model wait for calls that wait for this one.
        """
        callee = request.servable
        if not isinstance(callee, Servable):
            return
        waits: dict[object, list[Servable]] = {}
        for (owner, _), each in self._running.items():
            if each.callee is not None:
                waits.setdefault(owner, []).append(each.callee)
        cycle = cycle_of(process, callee, waits)
        if cycle:
            raise BackendFailed(
                f"the call to model '{callee.name}' would never run: its instances wait for calls that wait for this one "
                f"({' -> '.join(cycle)}); remove the cycle, or raise instance_group.count of a model in it"
            )
        running.callee = callee

    async def _send(self, process: WorkerProcess, number: int, response: CallResponse) -> None:
        meta, blocks = response_message(response)
        try:
            process.channel.send(CALL_RESPONSE, number, 0, meta, blocks.size_bytes, blocks.write)
        except BlockingIOError:
            # The model keeps the outputs of its earlier calls: wait for a free segment, off the loop.
            send = process.channel.send
            await asyncio.to_thread(send, CALL_RESPONSE, number, 0, meta, blocks.size_bytes, blocks.write, SEGMENT_TIMEOUT_S)


class ThreadCalls:
    """`ModelCalls` for models that run in threads of the server."""

    def __init__(self, requests: ModelRequests, loop: asyncio.AbstractEventLoop) -> None:
        """Runs the calls on `loop`."""
        self._requests = requests
        self._loop = loop

    def call(self, call: ModelCall) -> Iterator[CallResponse]:
        """See `ModelCalls`. Not for the thread of the event loop."""
        arrived: queue.SimpleQueue[CallResponse | BaseException | None] = queue.SimpleQueue()
        # Created on the loop, which alone uses it.
        permits = asyncio.Semaphore(CREDITS)
        running = asyncio.run_coroutine_threadsafe(self._pump(call, arrived.put, permits), self._loop)
        try:
            while (item := arrived.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
                self._loop.call_soon_threadsafe(permits.release)
        finally:
            running.cancel()

    def control(self, control: ModelControl) -> bool:
        """See `ModelCalls`. Not for the thread of the event loop."""
        try:
            return asyncio.run_coroutine_threadsafe(self._requests.control(control), self._loop).result()
        except concurrent.futures.CancelledError:
            raise Cancelled("the server is shutting down") from None

    async def _pump(self, call: ModelCall, put: Callable[[CallResponse | BaseException | None], None], permits: asyncio.Semaphore) -> None:
        try:
            async for response in self._requests.responses(call):
                await permits.acquire()
                put(response)
        except asyncio.CancelledError:
            put(Cancelled("the call was cancelled"))
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, the model's thread waits for it
            put(error)
        else:
            put(None)
