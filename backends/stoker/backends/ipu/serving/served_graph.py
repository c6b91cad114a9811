"""`ServedGraph`: one sub-graph of an executable as clients see it.

A call of the main program always takes micro batch x device iterations x replicas rows. This product is the model's max_batch_size. Clients
see that many rows in the first dimension where every stream of the sub-graph has the same batch there; otherwise the model has no batch
dimension, a request is one micro-batch, and the rest of the call is padding.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import FileTensor
from stoker.backends.ipu.opaques import MODEL_FUSION, FusedGraph, FusionMap, OpaqueError
from stoker.backends.ipu.popef.schema import Anchor, TensorType
from stoker.backends.ipu.popef.served_types import SERVED, castable_to
from stoker.backends.ipu.program import SubGraph
from stoker.backends.ipu.runtime import Executable
from stoker.backends.ipu.runtime.executable import user_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStream:
    """One input or output.

    Attributes:
        anchor: The name in the executable.
        name: The name for clients.
        call_shape: Shape of the data of one call of the main program; micro-batches and replicas are concatenated along the first
            dimension.
        tensor: The tensor as clients see it.
    """

    anchor: Anchor
    name: str
    call_shape: tuple[int, ...]
    tensor: FileTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedGraph:
    """One sub-graph.

    Attributes:
        index: The index that selects it.
        names: Its names for the parameter `sub_graph`, besides the index: its own name and the name of its source model.
        inputs, outputs: Its streams in order.
        rows: Rows of a call; 0: no batch dimension.
        rows_note: A text on how `rows` was computed.
    """

    index: int
    names: tuple[str, ...]
    inputs: tuple[ServedStream, ...]
    outputs: tuple[ServedStream, ...]
    rows: int
    rows_note: str

    def __str__(self) -> str:
        return f"{self.index} ({', '.join(self.names)})"

    @property
    def input_tensors(self) -> tuple[FileTensor, ...]:
        """The inputs as clients see them."""
        return tuple(stream.tensor for stream in self.inputs)

    @property
    def output_tensors(self) -> tuple[FileTensor, ...]:
        """The outputs as clients see them."""
        return tuple(stream.tensor for stream in self.outputs)


def served_graphs(executable: Executable, name_map: Mapping[str, str]) -> tuple[ServedGraph, ...]:
    """Returns all sub-graphs of an executable.

    Args:
        executable: The executable.
        name_map: Served names by anchor or by an anchor's alias.

    Raises:
        ModelLoadError: the map names anchors that do not exist, a stream cannot be served, or two streams have the same name; the text
            lists all errors.
    """
    fused = _fused_graphs(executable)
    names, wrong = _names(executable, fused, name_map)
    graphs = []
    for graph in executable.program.graphs:
        naming = _Naming(executable, graph, fused.get(graph.index), names)
        graphs.append(naming.graph())
        wrong += naming.wrong
    if wrong:
        raise ModelLoadError("; ".join(wrong))
    return tuple(graphs)


def _fused_graphs(executable: Executable) -> Mapping[int, FusedGraph]:
    blob = executable.model.opaques.get(MODEL_FUSION)
    if blob is None:
        return {}
    try:
        return {graph.index: graph for graph in FusionMap.from_bytes(blob).graphs}
    except OpaqueError as error:
        raise ModelLoadError(str(error)) from error


def _names(
    executable: Executable, fused: Mapping[int, FusedGraph], name_map: Mapping[str, str]
) -> tuple[dict[tuple[TensorType, str], str], list[str]]:
    """Returns the served names that differ from their anchors' names, by side and anchor, and the errors of the name map."""
    names: dict[tuple[TensorType, str], str] = {}
    anchors_of: dict[str, list[tuple[TensorType, str]]] = {}
    bound: list[str] = []
    for graph in executable.program.graphs:
        for kind, bindings in ((TensorType.INPUT, graph.inputs), (TensorType.OUTPUT, graph.outputs)):
            for binding in bindings:
                key = (kind, binding.anchor)
                anchors_of.setdefault(binding.anchor, []).append(key)
                bound.append(binding.anchor)
                if len(executable.program.graphs) > 1:
                    names[key] = binding.anchor.removeprefix(f"{graph.name}/")
    for each in fused.values():
        for kind, anchors in ((TensorType.INPUT, each.inputs), (TensorType.OUTPUT, each.outputs)):
            for anchor in anchors:
                names[kind, anchor.anchor] = anchor.tensor
                for alias in anchor.aliases:
                    anchors_of.setdefault(alias, []).append((kind, anchor.anchor))
    wrong = []
    for given, served in name_map.items():
        if given not in anchors_of:
            wrong.append(f"'name_map.json' names anchor '{given}', which the executable does not have; it has {', '.join(bound)}")
        for key in anchors_of.get(given, ()):
            names[key] = served
    return names, wrong


class _Naming:
    """Builds a `ServedGraph` from one sub-graph and collects the errors."""

    def __init__(
        self, executable: Executable, graph: SubGraph, fused: FusedGraph | None, names: Mapping[tuple[TensorType, str], str]
    ) -> None:
        self._executable = executable
        self._graph = graph
        self._fused = fused
        self._names = names
        self.wrong: list[str] = []

    def graph(self) -> ServedGraph:
        inputs = [self._executable.anchor(binding.anchor, TensorType.INPUT) for binding in self._graph.inputs]
        outputs = [self._executable.anchor(binding.anchor, TensorType.OUTPUT) for binding in self._graph.outputs]
        rows, note = self._rows([*inputs, *outputs])
        served = ServedGraph(
            index=self._graph.index,
            names=tuple(dict.fromkeys(name for name in (self._graph.name, self._fused.model if self._fused else "") if name)),
            inputs=tuple(self._stream(anchor, is_batched=bool(rows)) for anchor in inputs),
            outputs=tuple(self._stream(anchor, is_batched=bool(rows)) for anchor in outputs),
            rows=rows,
            rows_note=note,
        )
        for side, streams in (("inputs", served.inputs), ("outputs", served.outputs)):
            self._reject_same_names(side, [stream.name for stream in streams])
        return served

    def _rows(self, anchors: list[Anchor]) -> tuple[int, str]:
        program = self._executable.program
        shapes = [user_shape(anchor) for anchor in anchors]
        leads = {shape[0] if shape else 0 for shape in shapes}
        # A fused program of models with different batch sizes states no common size.
        has_batch_axis = program.batch_axis == 0 or (len(program.graphs) > 1 and program.micro_batch_size == 0)
        if not has_batch_axis or len(leads) != 1 or leads == {0}:
            return 0, "no batch dimension"
        lead = leads.pop()
        replicas = program.replication_factor if any(anchor.is_per_replica for anchor in anchors) else 1
        iterations = program.batches_per_step
        note = f"max_batch_size {lead * iterations} = micro batch {lead // replicas} x device iterations {iterations} x replicas {replicas}"
        return lead * iterations, note

    def _stream(self, anchor: Anchor, *, is_batched: bool) -> ServedStream:
        kind, info = anchor.type, anchor.tensor_info
        name = self._names.get((kind, anchor.name), anchor.name)
        datatype = SERVED.get(info.data_type)
        if datatype is None:
            served = ", ".join(each.name for each in SERVED)
            raise ModelLoadError(
                f"{kind.name.lower()} '{anchor.name}' is {info.data_type.name}, which cannot be served; served are {served}"
            )
        shape = user_shape(anchor)
        call_shape = _multiplied(shape, self._executable.program.batches_per_step)
        has_data = kind is TensorType.INPUT and anchor.name in self._executable.model.tensors
        tensor = FileTensor(name, datatype, call_shape if is_batched else shape, optional=has_data, casts=castable_to(datatype))
        return ServedStream(anchor=anchor, name=name, call_shape=call_shape, tensor=tensor)

    def _reject_same_names(self, side: str, names: Iterable[str]) -> None:
        every = list(names)
        self.wrong += [
            f"two {side} of '{self._graph.name}' are served as '{name}'" for name in dict.fromkeys(every) if every.count(name) > 1
        ]


def _multiplied(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    if not shape:
        return (count,) if count > 1 else ()
    return (shape[0] * count, *shape[1:])
