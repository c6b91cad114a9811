"""`select`: which sub-graph a request is for, and which streams it has data and room for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError
from stoker.backends.ipu.runtime.runner_io import GraphIo, RunnerIo

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A request by the streams' names.

    Attributes:
        graph: The sub-graph it is for.
        inputs: Data by stream, of this sub-graph only.
        outputs: Memory by stream, of this sub-graph only; None: the runner allocates it.
        given_names: What the request called its outputs, by stream.
        missing: Streams that the device will wait for in vain. Such a request times out.
    """

    graph: GraphIo
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array] | None
    given_names: Mapping[str, str]
    missing: tuple[str, ...]


def select(
    io: RunnerIo, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None, *, wants_all: bool, is_strict: bool = False
) -> Selection:
    """Looks up what a request names.

    Args:
        io: What the executable has.
        inputs: By name or alias; the index of a fused executable may be left out if the other names identify it.
        outputs: Likewise; None: all of the sub-graph.
        wants_all: Whether every input and output of the executable must be there (`validate_io_params`).
        is_strict: Whether missing streams of the sub-graph are refused at once; otherwise the device finds out.

    Raises:
        ApplicationRuntimeError: names do not exist or are missing, or no sub-graph is selected; says which.
    """
    fed = _by_stream(io, inputs, "input")
    room = None if outputs is None else _by_stream(io, outputs, "output")
    io.refuse_unknown(fed, room or ())
    if wants_all:
        _refuse_incomplete(io, fed, room)
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


def _refuse_incomplete(io: RunnerIo, fed: Mapping[str, object], room: Mapping[str, object] | None) -> None:
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
        f"the request has no input '{io.index_anchor.name if io.index_anchor else ''}', and its other names do not tell which sub-graph "
        f"is meant: they belong to {names}"
    )
