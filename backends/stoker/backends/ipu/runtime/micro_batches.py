"""Cuts a request's arrays into micro-batches: views, wherever the memory allows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.popef.schema import Anchor, TensorType
from stoker.backends.ipu.runtime.data_desc import user_shape
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError
from stoker.backends.ipu.runtime.runner_io import GraphIo, RunnerIo
from stoker.backends.ipu.runtime.selection import Selection

Array = npt.NDArray[Any]
OnEnd = Callable[[Exception | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The data that the device takes at a time, on its way there.

    Attributes:
        graph: The sub-graph it is for.
        inputs, outputs: Memory by stream, in the anchors' shapes.
        missing: Streams without memory, which the device will wait for in vain.
        on_end: Called when the outputs are written, or with the error; on a thread of the device.
    """

    graph: GraphIo
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    on_end: OnEnd
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class CutRequest:
    """A request as whole micro-batches.

    Attributes:
        count: How many.
        inputs, outputs: By stream, with a leading dimension that counts micro-batches.
        results: What the request is completed with, by the names it used.
        copies: Pairs of memory the device writes and memory of the user that cannot be written directly.
    """

    count: int
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    results: dict[str, Array]
    copies: list[tuple[Array, Array]] = field(default_factory=list)

    def part(self, number: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Inputs and outputs of micro-batch `number`."""
        return (
            {name: array[number, ...] for name, array in self.inputs.items()},
            {name: array[number, ...] for name, array in self.outputs.items()},
        )


def cut(io: RunnerIo, selection: Selection) -> CutRequest:
    """Cuts a request whose sizes must be whole multiples of the compiled batch.

    Raises:
        ApplicationRuntimeError: a shape or dtype is wrong; says which was expected.
    """
    anchors = {anchor.name: anchor for anchor in (*selection.graph.inputs, *selection.graph.outputs)}
    given = {**selection.inputs, **(selection.outputs or {})}
    for name, array in given.items():
        reject_violation(anchors[name], array)
    count = _count({name: _multiple(anchors[name], array) for name, array in given.items()})
    inputs = {name: _stacked(anchors[name], contiguous(array), count) for name, array in selection.inputs.items()}
    inputs |= {
        anchor.name: np.broadcast_to(io.defaults[anchor.name], (count, *anchor.tensor_info.shape))
        for anchor in selection.graph.inputs
        if anchor.name not in inputs and anchor.name in io.defaults
    }
    request = CutRequest(count, inputs, {}, {})
    for anchor in selection.graph.outputs:
        target = (selection.outputs or {}).get(anchor.name)
        if target is None and anchor.name in selection.missing:
            continue
        memory = (
            target if target is not None and is_direct(target) else np.zeros(multiplied(anchor, count), anchor.tensor_info.data_type.numpy)
        )
        if target is not None and memory is not target:
            request.copies.append((memory, target))
        if target is not None or selection.outputs is None:
            request.results[selection.given_names[anchor.name]] = memory if target is None else target
        request.outputs[anchor.name] = _stacked(anchor, memory, count)
    return request


def contiguous(array: Array) -> Array:
    """`array` itself if its memory is contiguous, else a copy of it that is."""
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def is_direct(array: Array) -> bool:
    """Whether the device can write `array` where it is."""
    return array.flags.c_contiguous and array.flags.writeable


def reject_violation(anchor: Anchor, array: object) -> None:
    """Checks what does not depend on the size of the request.

    Raises:
        ApplicationRuntimeError: `array` is no array of the anchor's dtype, or is an output that cannot be written.
    """
    expected = anchor.tensor_info.data_type.numpy
    if not isinstance(array, np.ndarray):
        raise ApplicationRuntimeError(f"'{anchor.name}' is a {type(array).__name__}, expected a numpy array of {expected}")
    if array.dtype != expected:
        raise ApplicationRuntimeError(f"'{anchor.name}' is {array.dtype}, expected {expected}")
    if anchor.type is TensorType.OUTPUT and not array.flags.writeable:
        raise ApplicationRuntimeError(f"output '{anchor.name}' is read-only memory: the result is written there")


def multiplied(anchor: Anchor, count: int) -> tuple[int, ...]:
    """Shape of `count` compiled batches of `anchor`, as users see it."""
    shape = user_shape(anchor)
    if not shape:
        return (count,) if count > 1 else ()
    return (count * shape[0], *shape[1:])


def _multiple(anchor: Anchor, array: Array) -> int:
    """How many compiled batches `array` holds; 0: any number, a scalar input is the same for all."""
    shape = user_shape(anchor)
    if array.shape == anchor.tensor_info.shape:
        return 1 if shape or anchor.type is TensorType.OUTPUT else 0
    if not shape and array.ndim == 1 and array.size:
        return int(array.size)
    if shape and array.ndim == len(shape) and array.shape[1:] == shape[1:] and array.shape[0] > 0 and array.shape[0] % shape[0] == 0:
        return int(array.shape[0]) // shape[0]
    rows = f"{shape[0]} x N" if shape else ""
    wanted = f"[{', '.join([rows, *map(str, shape[1:])])}] for any whole N from 1" if shape else "a scalar"
    raise ApplicationRuntimeError(
        f"'{anchor.name}' has shape {list(array.shape)}, expected {wanted} (batching_dim allows other batch sizes)"
    )


def _count(multiples: Mapping[str, int]) -> int:
    listed = {name: number for name, number in multiples.items() if number}
    if len(set(listed.values())) > 1:
        each = ", ".join(f"'{name}' {number}" for name, number in listed.items())
        raise ApplicationRuntimeError(f"inputs and outputs hold different numbers of compiled batches: {each}")
    return next(iter(listed.values()), 1)


def _stacked(anchor: Anchor, memory: Array, count: int) -> Array:
    """`memory` seen as micro-batches: the same bytes."""
    shape = anchor.tensor_info.shape
    if not shape and memory.ndim == 0 and count > 1:
        return np.broadcast_to(memory, (count,))
    return memory.reshape((count, *shape))
