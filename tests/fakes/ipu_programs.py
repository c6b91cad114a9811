"""Small static programs and PopEF files for tests of the runtime, built by hand: no compiler is involved.

A `Part` is one sub-graph with its anchors' shapes; `write_popef` puts one or several into a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from stoker.backends.ipu.popef.program_codec import encode_program, package_hash
from stoker.backends.ipu.popef.schema import Anchor, DataType, Metadata, ProgramFlow, TensorDataInfo, TensorInfo, TensorType
from stoker.backends.ipu.popef.writer import FileWriter
from stoker.backends.ipu.program import Binding, StaticProgram, Step, StepKind, SubGraph

EXECUTABLE = "model"
LOAD, MAIN, SAVE = 0, 5, 7
CLOCK_HZ = 1_330_000_000
"""Of the M2000, which the programs are for."""
CYCLES_PER_MS = CLOCK_HZ // 1000


@dataclass(frozen=True, kw_only=True)
class Part:
    """One sub-graph.

    Attributes:
        nodes: Of the lowered graph.
        inputs, outputs: Name to shape; dtype float32 unless `dtypes` says otherwise.
        weights: Inputs that load programs bring.
        steps: The schedule of one micro-batch.
        has_variable_rows: Whether the graph takes any number of rows.
    """

    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, Sequence[int]]
    outputs: Mapping[str, Sequence[int]]
    weights: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dtypes: Mapping[str, type[np.generic]] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    initializers: Sequence[onnx.TensorProto] = ()
    has_variable_rows: bool = False

    def dtype(self, name: str) -> "np.dtype[np.generic]":
        return np.dtype(self.dtypes.get(name, np.float32))

    def onnx(self) -> bytes:
        def values(shapes: Mapping[str, Sequence[int]], *, is_user: bool) -> list[onnx.ValueInfoProto]:
            is_variable = is_user and self.has_variable_rows
            return [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(self.dtype(name)), [None, *shape[1:]] if is_variable else shape
                )
                for name, shape in shapes.items()
            ]

        inputs = [*values(self.inputs, is_user=True), *values(self.weights, is_user=False)]
        graph = helper.make_graph(list(self.nodes), "graph", inputs, values(self.outputs, is_user=True), list(self.initializers))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        model.ir_version = 10
        return model.SerializeToString()


def compute(milliseconds: float) -> Step:
    """A step of that modelled length."""
    return Step(kind=StepKind.COMPUTE, cycles=round(milliseconds * CYCLES_PER_MS))


def host_read(milliseconds: float) -> Step:
    return Step(kind=StepKind.HOST_READ, cycles=round(milliseconds * CYCLES_PER_MS))


def host_write(milliseconds: float) -> Step:
    return Step(kind=StepKind.HOST_WRITE, cycles=round(milliseconds * CYCLES_PER_MS))


def doubling(shape: Sequence[int] = (2, 3), *, steps: Sequence[Step] = (), x: str = "x", y: str = "y") -> Part:
    """`y` = `x` + `x`."""
    return Part(nodes=[helper.make_node("Add", [x, x], [y])], inputs={x: shape}, outputs={y: shape}, steps=steps)


def adding(shape: Sequence[int] = (2,), *, a: str = "a", b: str = "b", total: str = "total") -> Part:
    """`total` = `a` + `b`."""
    return Part(nodes=[helper.make_node("Add", [a, b], [total])], inputs={a: shape, b: shape}, outputs={total: shape})


def weighted(shape: Sequence[int] = (2,)) -> Part:
    """`y` = `x` * `w`, where `w` is a weight that load programs bring."""
    return Part(nodes=[helper.make_node("Mul", ["x", "w"], ["y"])], inputs={"x": shape}, outputs={"y": shape}, weights={"w": shape})


def failing(shape: Sequence[int] = (2,)) -> Part:
    """Fails at run time: gathers beyond the end wherever `x` is not 0."""
    nodes = [helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64), helper.make_node("Gather", ["row", "i"], ["y"])]
    row = helper.make_tensor("row", TensorProto.FLOAT, [1], [7.0])
    return Part(nodes=nodes, inputs={"x": shape}, outputs={"y": shape}, initializers=[row])


def static_program(
    *parts: Part,
    batches_per_step: int = 1,
    replicas: int = 1,
    num_ipus: int = 1,
    num_io_tiles: int = 0,
    ipu_version: int = 2,
    tiles_per_ipu: int = 1472,
    hash_text: str | None = None,
) -> StaticProgram:
    """The program of `parts`; several are fused, with anchors `graphN/<name>`."""
    graphs = []
    for index, part in enumerate(parts):
        prefix = f"graph{index}/" if len(parts) > 1 else ""
        graphs.append(
            SubGraph(
                index=index,
                name=f"graph{index}" if len(parts) > 1 else EXECUTABLE,
                onnx=part.onnx(),
                inputs=tuple(Binding(prefix + name, name) for name in part.inputs),
                outputs=tuple(Binding(prefix + name, name) for name in part.outputs),
                weights=tuple(Binding(prefix + name, name) for name in part.weights),
                steps=tuple(part.steps),
            )
        )
    return StaticProgram(
        package_hash=package_hash() if hash_text is None else hash_text,
        system="C600" if ipu_version == 21 else "M2000",
        ipu_version=ipu_version,
        tiles_per_ipu=tiles_per_ipu,
        graphs=tuple(graphs),
        batches_per_step=batches_per_step,
        replication_factor=replicas,
        num_ipus=num_ipus,
        num_io_tiles=num_io_tiles,
    )


def anchors_of(program: StaticProgram, *parts: Part, saved: Sequence[str] = ()) -> tuple[Anchor, ...]:
    """The anchors of a program that `static_program` made; with replicas every anchor is per replica."""
    lead = (program.replication_factor,) if program.replication_factor > 1 else ()

    def anchor(name: str, part: Part, shape: Sequence[int], kind: TensorType, number: int, full: str, *, is_weight: bool = False) -> Anchor:
        info = TensorInfo((*(() if is_weight else lead), *shape), DataType.of(part.dtype(name)))
        per_replica = bool(lead) and not is_weight
        return Anchor(name=full, handle=f"h_{full}", tensor_info=info, type=kind, is_per_replica=per_replica, programs=(number,))

    found = []
    for index, part in enumerate(parts):
        prefix = f"graph{index}/" if len(parts) > 1 else ""
        found += [anchor(name, part, shape, TensorType.INPUT, MAIN, prefix + name) for name, shape in part.inputs.items()]
        found += [anchor(name, part, shape, TensorType.INPUT, LOAD, prefix + name, is_weight=True) for name, shape in part.weights.items()]
        found += [anchor(name, part, shape, TensorType.OUTPUT, MAIN, prefix + name) for name, shape in part.outputs.items()]
        found += [
            Anchor(
                name=f"saved/{name}",
                handle=f"weight_d2h_{name}",
                tensor_info=TensorInfo(tuple(part.weights[name]), DataType.of(part.dtype(name))),
                type=TensorType.OUTPUT,
                programs=(SAVE,),
            )
            for name in saved
        ]
    if len(parts) > 1:
        info = TensorInfo((1,), DataType.U8)
        found.append(Anchor(name="index", handle="h_index", tensor_info=info, type=TensorType.INPUT, programs=(MAIN,)))
    return tuple(found)


def write_popef(
    path: Path,
    *parts: Part,
    tensor_data: Mapping[str, np.ndarray] | None = None,
    saved: Sequence[str] = (),
    name: str = EXECUTABLE,
    opaques: Mapping[str, bytes] | None = None,
    batches_per_step: int = 1,
    replicas: int = 1,
    num_ipus: int = 1,
    num_io_tiles: int = 0,
    ipu_version: int = 2,
    tiles_per_ipu: int = 1472,
    hash_text: str | None = None,
) -> Path:
    """Writes a PopEF file with the program of `parts` and tensor data for the anchors named."""
    program = static_program(
        *parts,
        batches_per_step=batches_per_step,
        replicas=replicas,
        num_ipus=num_ipus,
        num_io_tiles=num_io_tiles,
        ipu_version=ipu_version,
        tiles_per_ipu=tiles_per_ipu,
        hash_text=hash_text,
    )
    metadata = Metadata(
        executable=name,
        anchors=anchors_of(program, *parts, saved=saved),
        replication_factor=replicas,
        num_ipus=num_ipus,
        ipu_version=ipu_version,
        device_iterations=batches_per_step,
        program_flow=ProgramFlow(load=(LOAD,), main=(MAIN,), save=(SAVE,) if saved else ()),
        programs_map={LOAD: "WeightsFromHost", MAIN: "Program", SAVE: "WeightsToHost"},
    )
    with FileWriter(path) as writer:
        with writer.create_executable(name) as blob:
            blob.stream.write(encode_program(program))
        writer.write(metadata)
        for anchor, data in (tensor_data or {}).items():
            info = TensorDataInfo(anchor, TensorInfo(tuple(data.shape), DataType.of(data.dtype)))
            with writer.create_tensor_data(info, name) as blob:
                blob.stream.write(np.ascontiguousarray(data).tobytes())
        for opaque, payload in (opaques or {}).items():
            with writer.create_opaque_blob(opaque, name) as blob:
                blob.stream.write(payload)
    return path
