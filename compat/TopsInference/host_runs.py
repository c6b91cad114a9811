"""Runs with inputs and outputs in host arrays; device buffers are allocated and freed per run."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.gcu.program import GcuExecutable, GcuTensor
from stoker.backends.gcu.runtime.device import Device
from stoker.backends.gcu.runtime.device_buffer import DeviceBuffer
from stoker.backends.gcu.runtime.engine import Engine
from stoker.backends.gcu.runtime.errors import Status, StatusError
from stoker.backends.gcu.runtime.stream import Stream

Array = npt.NDArray[Any]


def given_arrays(executable: GcuExecutable, inputs: Any, purpose: str) -> list[Array]:
    """One array for each input, of `inputs`: a list of arrays in order, or one dict (or a list with one dict in it) of arrays by name.

    Raises:
        StatusError: it is none of these, or names do not fit.
    """
    if isinstance(inputs, Sequence) and len(inputs) == 1 and isinstance(inputs[0], Mapping):
        inputs = inputs[0]
    if isinstance(inputs, Mapping):
        names = [tensor.name for tensor in executable.inputs]
        missing = [name for name in names if name not in inputs]
        unknown = [name for name in inputs if name not in names]
        if missing or unknown:
            said = [f"there is no input '{name}'" for name in unknown] + [f"input '{name}' is missing" for name in missing]
            raise StatusError(Status.TIF_NOT_FOUND, f"{purpose}: {', '.join(said)}; inputs are {', '.join(names)}")
        return [_array(inputs[name], f"{purpose}, input '{name}'") for name in names]
    if not isinstance(inputs, Sequence):
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: a list of arrays or a dict is needed, not {type(inputs).__name__}")
    return [_array(each, f"{purpose}, input {index}") for index, each in enumerate(inputs)]


def gathered_samples(executable: GcuExecutable, samples: int, inputs: Any, purpose: str) -> list[Array]:
    """Returns one array for each input, from a list of samples for each: arrays of one sample, with or without a first dimension of 1.

    Raises:
        StatusError: their number, a dtype or a shape is wrong.
    """
    if not isinstance(inputs, Sequence | np.ndarray) or len(inputs) != len(executable.inputs):
        found = len(inputs) if isinstance(inputs, Sequence | np.ndarray) else type(inputs).__name__
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: {found} lists of samples for {len(executable.inputs)} inputs")
    return [
        _gathered(tensor, samples, given, f"{purpose}, input '{tensor.name}'")
        for tensor, given in zip(executable.inputs, inputs, strict=True)
    ]


def fill_outputs(executable: GcuExecutable, values: Sequence[Array], outputs: list[Any], purpose: str) -> None:
    """Writes `values` to `outputs`: appended to an empty list, else into its arrays, or into lists of arrays of one sample each.

    Raises:
        StatusError: their number, or a dtype or shape is wrong, or an array is read-only.
    """
    if not outputs:
        outputs.extend(values)
        return
    check_outputs(executable, len(values[0]), outputs, purpose)
    for value, target in zip(values, outputs, strict=True):
        if isinstance(target, np.ndarray):
            target[...] = value.reshape(target.shape)
        else:
            for row, part in zip(value, target, strict=True):
                part[...] = row.reshape(part.shape)


def check_outputs(executable: GcuExecutable, samples: int, outputs: Any, purpose: str) -> None:
    """Rejects outputs that `fill_outputs` cannot fill.

    Raises:
        StatusError: see there.
    """
    if not isinstance(outputs, list) or (outputs and len(outputs) != len(executable.outputs)):
        found = f"a list of {len(outputs)}" if isinstance(outputs, list) else type(outputs).__name__
        raise StatusError(
            Status.TIF_INVALID_PARAM, f"{purpose}: outputs are {found}; expected an empty list or one of {len(executable.outputs)} arrays"
        )
    for tensor, target in zip(executable.outputs, outputs, strict=False):
        where = f"{purpose}, output '{tensor.name}'"
        if isinstance(target, list):
            if len(target) != samples:
                raise StatusError(Status.TIF_MIS_MATCHED_SHAPE_OR_DIM, f"{where}: {len(target)} arrays for {samples} samples")
            for part in target:
                _check_target(tensor, part, 1, where)
        else:
            _check_target(tensor, target, samples, where)


def _check_target(tensor: GcuTensor, array: Any, samples: int, where: str) -> None:
    _check_arrays(tensor, array, samples, where)
    if not array.flags.writeable:
        raise StatusError(Status.TIF_INVALID_PARAM, f"{where}: the array is read-only")


def _gathered(tensor: GcuTensor, samples: int, given: Any, where: str) -> Array:
    if not isinstance(given, Sequence | np.ndarray) or len(given) != samples:
        found = len(given) if isinstance(given, Sequence | np.ndarray) else type(given).__name__
        raise StatusError(Status.TIF_MIS_MATCHED_SHAPE_OR_DIM, f"{where}: {found} samples are given, {samples} are asked for")
    gathered = np.empty((samples, *tensor.dims), tensor.dtype.numpy)
    for row, sample in enumerate(given):
        part = _array(sample, f"{where}, sample {row}")
        _check_arrays(tensor, part, 1, f"{where}, sample {row}")
        gathered[row] = part.reshape(tensor.dims)
    return gathered


def _check_arrays(tensor: GcuTensor, array: Any, samples: int, where: str) -> None:
    if not isinstance(array, np.ndarray):
        raise StatusError(Status.TIF_INVALID_PARAM, f"{where}: an array is needed, not {type(array).__name__}")
    if array.dtype != tensor.dtype.numpy:
        raise StatusError(Status.TIF_MIS_MATCHED_DATA_TYPE, f"{where} is {tensor.dtype.numpy}, not {array.dtype}")
    allowed = [(samples, *tensor.dims)] + ([tensor.dims] if samples == 1 else [])
    if array.shape not in allowed:
        expected = " or ".join(str(list(shape)) for shape in allowed)
        raise StatusError(Status.TIF_MIS_MATCHED_SHAPE_OR_DIM, f"{where} has shape {list(array.shape)}; expected {expected}")


def _array(value: Any, where: str) -> Array:
    if not isinstance(value, np.ndarray):
        if isinstance(value, np.generic):
            return np.asarray(value)
        raise StatusError(Status.TIF_INVALID_PARAM, f"{where}: an array is needed, not {type(value).__name__}")
    return value


def run_on_host(engine: Engine, inputs: Sequence[Array]) -> list[Array]:
    """Runs `inputs` and returns the outputs, both in the engine's order with samples as the first dimension.

    Raises:
        StatusError: an input is of the wrong dtype or shape, memory runs out, or the run failed.
    """
    samples = sample_count(engine, inputs)
    outputs = _empty(engine, samples)
    with ExitStack() as stack:
        given = [_buffer(engine, array, stack) for array in inputs]
        taken = [_buffer(engine, array, stack) for array in outputs]
        for array, buffer in zip(inputs, given, strict=True):
            _device(engine).copy_to_device(np.ascontiguousarray(array), buffer)
        engine.run_with_batch(samples, given, taken)
        for array, buffer in zip(outputs, taken, strict=True):
            _device(engine).copy_to_host(buffer, array)
    return outputs


def submit_on_host(engine: Engine, inputs: Sequence[Array], stream: Stream) -> "Future[list[Array]]":
    """Queues a run like `run_on_host` on `stream`; `inputs` must not change until they were copied to it.

    Raises:
        StatusError: as `run_on_host`, except for what makes the run fail; that is the future's.
    """
    samples = sample_count(engine, inputs)
    outputs = _empty(engine, samples)
    future: Future[list[Array]] = Future()
    future.set_running_or_notify_cancel()
    stack = ExitStack()
    try:
        given = [_buffer(engine, array, stack) for array in inputs]
        taken = [_buffer(engine, array, stack) for array in outputs]
        for array, buffer in zip(inputs, given, strict=True):
            stream.copy_to_device(np.ascontiguousarray(array), buffer)
        engine.run_with_batch(samples, given, taken, stream)
        for array, buffer in zip(outputs, taken, strict=True):
            stream.copy_to_host(buffer, array)
        ended: Future[None] = Future()

        def end(done: "Future[None]") -> None:
            error = done.exception()
            stack.close()
            if error is None:
                future.set_result(outputs)
            else:
                future.set_exception(error)

        ended.add_done_callback(end)
        stream.submit(lambda *_: None, [], ended)
    except BaseException:
        _abandon(stack, stream)
        raise
    return future


def sample_count(engine: Engine, inputs: Sequence[Array]) -> int:
    """Returns the number of samples in `inputs`.

    Raises:
        StatusError: there are too many or too few of them, or one is of the wrong dtype or shape.
    """
    name = f"engine '{engine.executable.name}'"
    if len(inputs) != len(engine.inputs):
        names = ", ".join(f"'{tensor.name}'" for tensor in engine.inputs)
        raise StatusError(Status.TIF_INVALID_PARAM, f"{name}: {len(inputs)} arrays for {len(engine.inputs)} inputs ({names})")
    for tensor, array in zip(engine.inputs, inputs, strict=True):
        _check(tensor, array, f"{name}, input '{tensor.name}'")
    counts = {len(array) for array in inputs}
    if len(counts) > 1:
        found = ", ".join(f"'{tensor.name}' {len(array)}" for tensor, array in zip(engine.inputs, inputs, strict=True))
        raise StatusError(Status.TIF_MIS_MATCHED_SHAPE_OR_DIM, f"{name}: inputs have different numbers of samples: {found}")
    return counts.pop()


def _check(tensor: GcuTensor, array: Array, where: str) -> None:
    if array.dtype != tensor.dtype.numpy:
        raise StatusError(Status.TIF_MIS_MATCHED_DATA_TYPE, f"{where} is {tensor.dtype.numpy}, not {array.dtype}")
    if array.ndim != len(tensor.dims) + 1 or array.shape[1:] != tensor.dims or not len(array):
        expected = ", ".join(["samples", *map(str, tensor.dims)])
        raise StatusError(Status.TIF_MIS_MATCHED_SHAPE_OR_DIM, f"{where} has shape {list(array.shape)}; expected [{expected}]")


def _device(engine: Engine) -> Device:
    assert isinstance(engine.device, Device)
    return engine.device


def _empty(engine: Engine, samples: int) -> list[Array]:
    return [np.zeros((samples, *tensor.dims), tensor.dtype.numpy) for tensor in engine.outputs]


def _buffer(engine: Engine, array: Array, stack: ExitStack) -> DeviceBuffer:
    buffer = _device(engine).allocate(array.nbytes)
    stack.callback(buffer.discard)
    return buffer


def _abandon(stack: ExitStack, stream: Stream) -> None:
    """Frees the buffers after the queued work ended."""
    ended: Future[None] = Future()
    ended.add_done_callback(lambda _: stack.close())
    try:
        stream.submit(lambda *_: None, [], ended)
    except StatusError:  # the stream has ended, and with it all that used them
        stack.close()
