"""`RunnerIo`: the inputs and outputs of an executable as requests name them.

A fused executable has several sub-graphs with separate streams, and one input that selects the sub-graph. The program assigns the streams
to sub-graphs. Its fusion map (an opaque blob) adds further names for them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.opaques import MODEL_FUSION, FusionMap, OpaqueError
from stoker.backends.ipu.popef.schema import Anchor, TensorType
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError
from stoker.backends.ipu.runtime.executable import DataDesc, Executable, describe, user_shape

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class GraphIo:
    """The streams of one sub-graph in order, without the input that selects it."""

    index: int
    name: str
    inputs: tuple[Anchor, ...]
    outputs: tuple[Anchor, ...]


class RunnerIo:
    """The inputs and outputs of an executable. It is immutable.

    Attributes:
        executable: The executable.
        graphs: The sub-graphs by index.
        index_anchor: The input that selects one of several sub-graphs; None if there is only one.
        inputs, outputs: Streams of all sub-graphs by name, without the index input.
        defaults: Data of inputs that a request may leave out: tensor data of the file, or frozen inputs in their place.
    """

    def __init__(self, executable: Executable, frozen_inputs: Mapping[str, Array]) -> None:
        """Reads the streams of `executable`.

        Raises:
            ApplicationRuntimeError: a frozen input does not exist or does not fit, or the fusion map is damaged.
            PopefError: tensor data of the file is damaged.
        """
        self.executable = executable
        self.index_anchor = executable.index_anchor
        self.graphs: Mapping[int, GraphIo] = {
            graph.index: GraphIo(
                graph.index,
                graph.name,
                tuple(executable.anchor(binding.anchor, TensorType.INPUT) for binding in graph.inputs),
                tuple(executable.anchor(binding.anchor, TensorType.OUTPUT) for binding in graph.outputs),
            )
            for graph in executable.program.graphs
        }
        self.inputs: Mapping[str, Anchor] = _by_name(anchor for graph in self.graphs.values() for anchor in graph.inputs)
        self.outputs: Mapping[str, Anchor] = _by_name(anchor for graph in self.graphs.values() for anchor in graph.outputs)
        self._aliases = _aliases(executable)
        tensors = executable.model.tensors
        self._file_data = frozenset(name for name in self.inputs if name in tensors)
        self.defaults: dict[str, Array] = {name: tensors[name].array() for name in self._file_data}
        self.frozen_weights: dict[str, Array] = {}
        for given, data in frozen_inputs.items():
            name = self.canonical(given)
            into = self.defaults if name in self.inputs else self.frozen_weights
            into[name] = fitted(executable.anchor(name, TensorType.INPUT), data, f"frozen input '{given}'")

    def canonical(self, name: str) -> str:
        """Returns the stream's name for `name`, which may be an alias."""
        return self._aliases.get(name, name)

    def describe_inputs(self) -> list[DataDesc]:
        """Inputs in the order of the metadata, the index input included."""
        index = self.index_anchor
        return [
            describe(anchor, has_data=anchor.name in self._file_data)
            for anchor in self.executable.metadata.inputs
            if anchor.name in self.inputs or (index is not None and anchor.name == index.name)
        ]

    def describe_all_inputs(self) -> list[DataDesc]:
        """Inputs in the order of the metadata, those of load programs included."""
        tensors = self.executable.model.tensors
        return [describe(anchor, has_data=anchor.name in tensors) for anchor in self.executable.metadata.inputs]

    def describe_outputs(self) -> list[DataDesc]:
        """Outputs in the order of the metadata."""
        return [describe(anchor, has_data=False) for anchor in self.executable.metadata.outputs if anchor.name in self.outputs]

    def reject_unknown(self, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Checks that all names exist, given by canonical name.

        Raises:
            ApplicationRuntimeError: some do not; the text names them and the existing ones.
        """
        index = () if self.index_anchor is None else (self.index_anchor.name,)
        for kind, given, known in (("input", inputs, (*index, *self.inputs)), ("output", outputs, tuple(self.outputs))):
            unknown = [name for name in given if name not in known]
            if unknown:
                raise ApplicationRuntimeError(
                    f"executable '{self.executable.name}' has no {kind} {_listed(unknown)}; its {kind}s are {_listed(known)}"
                )


def fitted(anchor: Anchor, data: Array, what: str) -> Array:
    """Returns `array` as one contiguous micro-batch in the shape of `anchor`.

    Raises:
        ApplicationRuntimeError: shape or dtype differ; the text names the expected ones.
    """
    info = anchor.tensor_info
    array = np.asarray(data)
    if array.dtype != info.data_type.numpy or array.size * array.itemsize != info.size_in_bytes:
        raise ApplicationRuntimeError(
            f"{what}: {array.dtype}{list(array.shape)} given, "
            f"expected {info.data_type.numpy}{list(info.shape)} ({info.size_in_bytes} bytes)"
        )
    return np.ascontiguousarray(array).reshape(info.shape)


def _by_name(anchors: Iterable[Anchor]) -> dict[str, Anchor]:
    return {anchor.name: anchor for anchor in anchors}


def _aliases(executable: Executable) -> dict[str, str]:
    blob = executable.model.opaques.get(MODEL_FUSION)
    if blob is None:
        return {}
    try:
        fusion = FusionMap.from_bytes(blob)
    except OpaqueError as error:
        raise ApplicationRuntimeError(f"executable '{executable.name}': {error}") from error
    return {alias: anchor.anchor for graph in fusion.graphs for anchor in (*graph.inputs, *graph.outputs) for alias in anchor.aliases}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A request with canonical stream names.

    Attributes:
        graph: The sub-graph it is for.
        inputs: Data by stream, of this sub-graph only.
        outputs: Memory by stream, of this sub-graph only; None: the runner allocates it.
        given_names: The request's names of its outputs, by stream.
        missing: Streams without data. The device waits for them and the request times out.
    """

    graph: GraphIo
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array] | None
    given_names: Mapping[str, str]
    missing: tuple[str, ...]


def select(
    io: RunnerIo, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None, *, wants_all: bool, is_strict: bool = False
) -> Selection:
    """Looks up the streams that a request names.

    Args:
        io: The streams of the executable.
        inputs: Data by name or alias; the index of a fused executable may be left out if the other names identify it.
        outputs: Memory by name or alias; None: all outputs of the sub-graph.
        wants_all: Whether every input and output of the executable must be there (`validate_io_params`).
        is_strict: Whether missing streams of the sub-graph are rejected at once; otherwise the device finds out.

    Raises:
        ApplicationRuntimeError: names do not exist or are missing, or no sub-graph is selected; the text names them.
    """
    fed = _by_stream(io, inputs, "input")
    room = None if outputs is None else _by_stream(io, outputs, "output")
    io.reject_unknown(fed, room or ())
    if wants_all:
        _reject_incomplete(io, fed, room)
    graph = _graph(io, fed, room)
    missing = [anchor.name for anchor in graph.inputs if anchor.name not in fed and anchor.name not in io.defaults]
    own = [anchor.name for anchor in graph.outputs]
    if room is not None and any(name not in own for name in room):
        missing += [name for name in own if name not in room]
    if missing and is_strict:
        raise ApplicationRuntimeError(f"the request for sub-graph '{graph.name}' lacks {', '.join(missing)}")
    if (
        graph.inputs
        and len(missing) >= len(graph.inputs)
        and io.index_anchor is None
        and not any(each.name in fed for each in graph.inputs)
    ):
        raise ApplicationRuntimeError(f"the request has no data for any input; expected {', '.join(missing)}")
    return Selection(
        graph=graph,
        inputs={anchor.name: fed[anchor.name][1] for anchor in graph.inputs if anchor.name in fed},
        outputs=None if room is None else {name: room[name][1] for name in own if name in room},
        given_names={name: room[name][0] if room is not None and name in room else name for name in own},
        missing=tuple(missing),
    )


def _by_stream(io: RunnerIo, arrays: Mapping[str, Array], kind: str) -> dict[str, tuple[str, Array]]:
    found: dict[str, tuple[str, Array]] = {}
    for given, array in arrays.items():
        name = io.canonical(given)
        if name in found:
            raise ApplicationRuntimeError(f"{kind}s '{found[name][0]}' and '{given}' are the same stream '{name}': give one of them")
        found[name] = (given, array)
    return found


def _reject_incomplete(io: RunnerIo, fed: Mapping[str, object], room: Mapping[str, object] | None) -> None:
    index = () if io.index_anchor is None else (io.index_anchor.name,)
    lacking = [f"input '{name}'" for name in (*index, *io.inputs) if name not in fed and name not in io.defaults]
    if room is not None:
        lacking += [f"output '{name}'" for name in io.outputs if name not in room]
    if lacking:
        hint = "" if io.index_anchor is None else "; set validate_io_params to False to give those of one sub-graph of a fused executable"
        raise ApplicationRuntimeError(f"the request lacks {', '.join(lacking)} of executable '{io.executable.name}'{hint}")


def _graph(io: RunnerIo, fed: Mapping[str, tuple[str, Array]], room: Mapping[str, object] | None) -> GraphIo:
    anchor = io.index_anchor
    if anchor is None:
        return next(iter(io.graphs.values()))
    if anchor.name not in fed:
        return _inferred(io, fed, room or ())
    index = np.asarray(fed[anchor.name][1])
    if index.dtype.kind not in "iu" or index.size == 0 or (index != index.flat[0]).any():
        raise ApplicationRuntimeError(
            f"input '{anchor.name}' is {index.dtype}{list(index.shape)}; expected one integer that selects a sub-graph, such as "
            f"np.array([0], dtype=np.{anchor.tensor_info.data_type.numpy})"
        )
    number = int(index.flat[0])
    if number not in io.graphs:
        known = ", ".join(map(str, sorted(io.graphs)))
        raise ApplicationRuntimeError(f"input '{anchor.name}' selects sub-graph {number}; the executable has {known}")
    return io.graphs[number]


def _inferred(io: RunnerIo, fed: Iterable[str], room: Iterable[str]) -> GraphIo:
    given = {*fed, *room}
    fitting = [graph for graph in io.graphs.values() if any(each.name in given for each in (*graph.inputs, *graph.outputs))]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(graph.name for graph in fitting) or "none"
    raise ApplicationRuntimeError(
        f"the request has no input '{io.index_anchor.name if io.index_anchor else ''}', and its other names do not identify the sub-graph "
        f"is meant: they belong to {names}"
    )


OnEnd = Callable[[Exception | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The data of one micro-batch for the device.

    Attributes:
        graph: The sub-graph it is for.
        inputs, outputs: Memory by stream, in the anchors' shapes.
        missing: Streams without memory, for which the device will wait until the timeout.
        on_end: Called when the outputs are written, or with the error; on a thread of the device.
    """

    graph: GraphIo
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    on_end: OnEnd
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class CutRequest:
    """A request cut into whole micro-batches.

    Attributes:
        count: Number of micro-batches.
        inputs, outputs: By stream, with a leading dimension that counts micro-batches.
        results: Outputs of the request, by the names that it used.
        copies: Pairs of memory that the device writes, and of the user's memory that the device cannot write directly.
    """

    count: int
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    results: dict[str, Array]
    copies: list[tuple[Array, Array]] = field(default_factory=list)

    def part(self, number: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Returns the inputs and outputs of micro-batch `number`."""
        return (
            {name: array[number, ...] for name, array in self.inputs.items()},
            {name: array[number, ...] for name, array in self.outputs.items()},
        )


def cut(io: RunnerIo, selection: Selection) -> CutRequest:
    """Cuts a request whose sizes must be whole multiples of the compiled batch.

    Raises:
        ApplicationRuntimeError: a shape or dtype is wrong; the text names the expected one.
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
    """Returns `array` itself if its memory is contiguous, else a contiguous copy."""
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def is_direct(array: Array) -> bool:
    """Whether the device can write `array` directly."""
    return array.flags.c_contiguous and array.flags.writeable


def reject_violation(anchor: Anchor, array: object) -> None:
    """Checks properties that do not depend on the size of the request.

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
    """Returns the shape of `count` compiled batches of `anchor`, as users see it."""
    shape = user_shape(anchor)
    if not shape:
        return (count,) if count > 1 else ()
    return (count * shape[0], *shape[1:])


def _multiple(anchor: Anchor, array: Array) -> int:
    """Returns the number of compiled batches in `array`; 0: any number, because a scalar input is the same for all."""
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
    """Returns a view of `memory` as micro-batches."""
    shape = anchor.tensor_info.shape
    if not shape and memory.ndim == 0 and count > 1:
        return np.broadcast_to(memory, (count,))
    return memory.reshape((count, *shape))
