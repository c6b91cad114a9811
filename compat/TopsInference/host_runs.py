"""Runs whose inputs and outputs are arrays of the host; the buffers between are made and freed here."""

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.gcu.program import GcuTensor
from stoker.backends.gcu.runtime.device import Device
from stoker.backends.gcu.runtime.device_buffer import DeviceBuffer
from stoker.backends.gcu.runtime.engine import Engine
from stoker.backends.gcu.runtime.errors import Status, StatusError
from stoker.backends.gcu.runtime.stream import Stream

Array = npt.NDArray[Any]


def run_on_host(engine: Engine, inputs: Sequence[Array]) -> list[Array]:
    """The outputs for `inputs`, both in the engine's order with the samples as first dimension; returns when all is done.

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
    """As `run_on_host`, queued on `stream`; `inputs` must stay as they are until it has come to them.

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
    """How many samples `inputs` have.

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
    """Frees the buffers once what was queued already has ended."""
    ended: Future[None] = Future()
    ended.add_done_callback(lambda _: stack.close())
    try:
        stream.submit(lambda *_: None, [], ended)
    except StatusError:  # the stream has ended, and with it all that used them
        stack.close()
