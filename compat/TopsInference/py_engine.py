"""`PyEngine`: an engine under the vendor's names. It is put on a device when it first runs there."""

import operator
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

from stoker_compat.absent import WithReasons

from stoker.backends.gcu.executable import ExecutableError, write_executable
from stoker.backends.gcu.program import GcuExecutable, GcuTensor
from stoker.backends.gcu.runtime.device import Device, open_executable
from stoker.backends.gcu.runtime.device_buffer import BufferPart
from stoker.backends.gcu.runtime.engine import Engine
from stoker.backends.gcu.runtime.errors import Status, StatusError
from stoker.backends.gcu.runtime.stream import Stream
from TopsInference.constants import BY_DATA_TYPE, BufferType, DType
from TopsInference.device_memory import block_at
from TopsInference.error_manager import recorded
from TopsInference.host_runs import check_outputs, fill_outputs, gathered_samples, given_arrays, run_on_host, sample_count, submit_on_host
from TopsInference.owned_devices import PyFuture, checked_stream, find_device, owned_device

_HOST = BufferType.TIF_ENGINE_RSC_IN_HOST_OUT_HOST
_DEVICE = BufferType.TIF_ENGINE_RSC_IN_DEVICE_OUT_DEVICE


class PyEngine(WithReasons):
    """Any thread may use it; its runs go to the device of the thread that asks, or of the stream that is given."""

    _absent: ClassVar = {
        "runV3": "runV2 and run_with_batch run engines of static shapes",
        "get_max_input_shape": "engines have static shapes: get_input_shape",
        "get_min_input_shape": "engines have static shapes: get_input_shape",
    }

    def __init__(self, executable: GcuExecutable | None = None) -> None:
        """An engine for `executable`, or one that has still to be loaded."""
        self._executable = executable
        self._lock = threading.Lock()
        self._engines: dict[Device, Engine] = {}

    @recorded
    def load_tops_executable(self, path: str | Path) -> bool:
        """Takes the `model.exec` file at `path`; on to this thread's device, if it has one.

        Raises:
            StatusError: there is no such file, it is damaged, or it does not fit the device.
        """
        executable = open_executable(path)
        with self._lock:
            self._executable = executable
            replaced = tuple(self._engines.values())
            self._engines.clear()
        for engine in replaced:
            engine.discard()
        device = find_device()
        if device is not None:
            self._on(device)
        return True

    @recorded
    def save_executable(self, path: str | Path) -> bool:
        """Writes it as a `model.exec` file.

        Raises:
            StatusError: nothing is loaded, or the file cannot be written.
        """
        executable = self._loaded("save_executable")
        try:
            write_executable(path, executable)
        except ExecutableError as error:
            raise StatusError(Status.TIF_SAVE_NON_EXIST_FILE, str(error)) from error
        return True

    @recorded
    def run(self, input_list: Any, output_list: list[Any], buffer_type: int = _HOST, py_stream: Stream | None = None) -> bool:
        """Runs whole batches.

        Args:
            input_list: Arrays with the samples as first dimension, in a list or a dict by name; or addresses of device memory, which then
                holds the samples of the largest compiled batch that fits into all of it.
            output_list: Filled: an empty list gets new arrays; arrays in it are written to. Or addresses of device memory.
            buffer_type: `TIF_ENGINE_RSC_...`: which of the two.
            py_stream: Queues the run, for device memory only; None: returns when it has ended.

        Raises:
            StatusError: what is given does not fit the engine, or the run failed.
        """
        executable = self._loaded("run")
        if _buffer_type(buffer_type, "run") is _HOST:
            _reject_stream(py_stream, "run")
            arrays = given_arrays(executable, input_list, "run")
            engine = self._on(owned_device("run"))
            check_outputs(executable, sample_count(engine, arrays), output_list, "run")
            fill_outputs(executable, run_on_host(engine, arrays), output_list, "run")
            return True
        inputs, outputs = _blocks(input_list, "run, input"), _blocks(output_list, "run, output")
        self._run_on_device(_whole_batch(executable, inputs, outputs), inputs, outputs, py_stream, "run")
        return True

    @recorded
    def run_with_batch(
        self,
        sample_nums: int,
        input_list: Any,
        output_list: list[Any] | None = None,
        buffer_type: int = _HOST,
        py_stream: Stream | None = None,
    ) -> PyFuture:
        """Runs any number of samples, in compiled batches as they fit.

        Args:
            sample_nums: How many.
            input_list: For each input a list of its samples' arrays; or addresses of device memory, where they lie one behind the other.
            output_list: None or empty: the future gives new arrays, which an empty list also gets. Arrays in it are written to. With
                device memory, addresses.
            buffer_type: `TIF_ENGINE_RSC_...`: which of the two.
            py_stream: Queues the run, for device memory only; None: the future is done when this returns.

        Returns:
            Whose `get` gives the outputs: an array for each, with the samples as first dimension; the addresses, with device memory.

        Raises:
            StatusError: what is given does not fit the engine. Without a stream also what made the run fail.
        """
        executable = self._loaded("run_with_batch")
        samples = _sample_nums(sample_nums)
        if _buffer_type(buffer_type, "run_with_batch") is _HOST:
            _reject_stream(py_stream, "run_with_batch")
            arrays = gathered_samples(executable, samples, input_list, "run_with_batch")
            filled: list[Any] = [] if output_list is None else output_list
            check_outputs(executable, samples, filled, "run_with_batch")
            values = run_on_host(self._on(owned_device("run_with_batch")), arrays)
            fill_outputs(executable, values, filled, "run_with_batch")
            return PyFuture(_done(values), None)
        if output_list is None:
            raise StatusError(Status.TIF_INVALID_PARAM, "run_with_batch: output_list must hold addresses of device memory, like input_list")
        inputs, outputs = _blocks(input_list, "run_with_batch, input"), _blocks(output_list, "run_with_batch, output")
        ended = self._run_on_device(samples, inputs, outputs, py_stream, "run_with_batch")
        future: Future[list[Any]] = Future()
        future.set_running_or_notify_cancel()
        given = list(output_list)

        def end(run: "Future[None]") -> None:
            error = run.exception()
            if error is None:
                future.set_result(given)
            else:
                future.set_exception(error)

        ended.add_done_callback(end)
        return PyFuture(future, py_stream)

    @recorded
    def runV2(self, input_list: Any, py_stream: Stream | None = None) -> PyFuture:  # noqa: N802 - the vendor's name
        """Runs arrays with the samples as first dimension; their copies to and from the device are queued with the run.

        Args:
            input_list: In a list, or a dict by name; they must stay as they are until the run has ended.
            py_stream: Queues it; None: the future is done when this returns.

        Raises:
            StatusError: what is given does not fit the engine. Without a stream also what made the run fail.
        """
        arrays = given_arrays(self._loaded("runV2"), input_list, "runV2")
        if py_stream is None:
            return PyFuture(_done(run_on_host(self._on(owned_device("runV2")), arrays)), None)
        stream = checked_stream(py_stream, "runV2")
        return PyFuture(submit_on_host(self._on(self._device_of(stream, "runV2")), arrays, stream), stream)

    def get_input_num(self) -> int:
        """How many inputs it has."""
        return len(self._loaded("get_input_num").inputs)

    def get_output_num(self) -> int:
        """How many outputs it has."""
        return len(self._loaded("get_output_num").outputs)

    def get_input_name(self, index: int) -> str:
        """Name of an input."""
        return self._tensor("get_input_name", index, is_input=True).name

    def get_output_name(self, index: int) -> str:
        """Name of an output."""
        return self._tensor("get_output_name", index, is_input=False).name

    def get_input_shape(self, index: int) -> list[int]:
        """Shape of an input, with the largest compiled batch as first dimension."""
        return self._shape(self._tensor("get_input_shape", index, is_input=True))

    def get_output_shape(self, index: int) -> list[int]:
        """Shape of an output, with the largest compiled batch as first dimension."""
        return self._shape(self._tensor("get_output_shape", index, is_input=False))

    def get_input_data_type(self, index: int) -> DType:
        """Element type of an input."""
        return BY_DATA_TYPE[self._tensor("get_input_data_type", index, is_input=True).dtype]

    def get_output_data_type(self, index: int) -> DType:
        """Element type of an output."""
        return BY_DATA_TYPE[self._tensor("get_output_data_type", index, is_input=False).dtype]

    @recorded
    def get_device_memory_size(self) -> int:
        """Bytes of HBM that it takes on a device, besides the buffers of its runs."""
        executable = self._loaded("get_device_memory_size")
        return executable.weight_bytes + max(batch.workspace_bytes for batch in executable.batches)

    def _run_on_device(
        self, samples: int, inputs: Sequence[BufferPart], outputs: Sequence[BufferPart], stream: Stream | None, purpose: str
    ) -> "Future[None]":
        device = owned_device(purpose) if stream is None else self._device_of(checked_stream(stream, purpose), purpose)
        return self._on(device).run_with_batch(samples, inputs, outputs, stream)

    def _device_of(self, stream: Stream, purpose: str) -> Device:
        """This thread's device, or the one that `stream` was made on where that is on another card."""
        device = find_device()
        if device is None or device.card is not stream.card:
            raise StatusError(
                Status.TIF_NOT_INITIALIZED, f"{purpose}: stream {stream.number} is on card {stream.card.id}, which this thread has not set"
            )
        return device

    def _on(self, device: Device) -> Engine:
        """The engine on `device`, loaded if it is not there yet."""
        executable = self._loaded("run")
        with self._lock:
            for known in [each for each, engine in self._engines.items() if each.is_released or engine.is_stale]:
                del self._engines[known]
            if device not in self._engines:
                self._engines[device] = device.load(executable)
            return self._engines[device]

    def _loaded(self, purpose: str) -> GcuExecutable:
        if self._executable is None:
            raise StatusError(Status.TIF_NOT_INITIALIZED, f"{purpose}: the engine has no executable; call load_tops_executable first")
        return self._executable

    @recorded
    def _tensor(self, purpose: str, index: int, *, is_input: bool) -> GcuTensor:
        executable = self._loaded(purpose)
        tensors = executable.inputs if is_input else executable.outputs
        if not 0 <= index < len(tensors):
            kind = "input" if is_input else "output"
            raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: there is no {kind} {index}; there are {len(tensors)}, counted from 0")
        return tensors[index]

    def _shape(self, tensor: GcuTensor) -> list[int]:
        return [self._loaded("get_shape").max_batch_size, *tensor.dims]


@recorded
def load(path: str | Path) -> PyEngine:
    """The engine in the `model.exec` file at `path`.

    Raises:
        StatusError: there is no such file, it is damaged, or it does not fit this thread's device.
    """
    engine = PyEngine()
    engine.load_tops_executable(path)
    return engine


def _whole_batch(executable: GcuExecutable, inputs: Sequence[BufferPart], outputs: Sequence[BufferPart]) -> int:
    """The largest compiled batch that fits into all the memory; if none fits, the smallest, whose check then names what is missing."""
    pairs = [*zip(executable.inputs, inputs, strict=False), *zip(executable.outputs, outputs, strict=False)]
    room = min((block.size_bytes // max(tensor.sample_bytes, 1) for tensor, block in pairs), default=0)
    fitting = [batch.batch_size for batch in executable.batches if batch.batch_size <= room]
    return max(fitting, default=executable.batches[0].batch_size)


def _blocks(pointers: Any, purpose: str) -> list[BufferPart]:
    if not isinstance(pointers, Sequence):
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}s: a list of addresses is needed, not {type(pointers).__name__}")
    return [block_at(pointer, f"{purpose} {index}") for index, pointer in enumerate(pointers)]


def _buffer_type(value: Any, purpose: str) -> BufferType:
    try:
        return BufferType(value)
    except ValueError:
        known = ", ".join(each.name for each in BufferType)
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: {value!r} is no buffer type; there are {known}") from None


def _reject_stream(stream: Stream | None, purpose: str) -> None:
    if stream is not None:
        raise StatusError(
            Status.TIF_INVALID_PARAM,
            f"{purpose}: runs on buffers of the host cannot be queued on a stream; use device memory with "
            f"{_DEVICE.name}, or runV2, or give no stream",
        )


def _sample_nums(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise StatusError(Status.TIF_INVALID_PARAM, f"run_with_batch: sample_nums must be a number, not {value!r}") from None


def _done(values: list[Any]) -> "Future[list[Any]]":
    future: Future[list[Any]] = Future()
    future.set_result(values)
    return future
