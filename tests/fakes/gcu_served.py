"""Small executables for the conformance and serving tests of the `topsinference` backend, made without the compiler."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from onnx import NodeProto, TensorProto, helper

from stoker.backends.api.tensor import DataType
from stoker.backends.gcu.executable import write_executable
from stoker.backends.gcu.program import CompiledBatch, GcuExecutable, GcuTensor

#: What an executable can hold and a client can send.
ONNX_TYPES: Mapping[DataType, int] = {
    DataType.BOOL: TensorProto.BOOL,
    DataType.UINT8: TensorProto.UINT8,
    DataType.UINT16: TensorProto.UINT16,
    DataType.UINT32: TensorProto.UINT32,
    DataType.UINT64: TensorProto.UINT64,
    DataType.INT8: TensorProto.INT8,
    DataType.INT16: TensorProto.INT16,
    DataType.INT32: TensorProto.INT32,
    DataType.INT64: TensorProto.INT64,
    DataType.FP16: TensorProto.FLOAT16,
    DataType.FP32: TensorProto.FLOAT,
    DataType.FP64: TensorProto.DOUBLE,
}

Tensors = Mapping[str, tuple[DataType, tuple[int, ...]]]


def file_of(executable: GcuExecutable) -> bytes:
    """The `model.exec` file of `executable`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.exec"
        write_executable(path, executable)
        return path.read_bytes()


def executable(
    nodes: Callable[[], Sequence[NodeProto]],
    inputs: Tensors,
    outputs: Tensors,
    *,
    batches: Sequence[int] = (1, 4, 8),
    initializers: Sequence[TensorProto] = (),
    workspace_bytes: int = 4096,
    card: str = "i20",
    name: str = "sample",
) -> GcuExecutable:
    """An executable of one graph for all `batches`; tensors have the given dims behind the batch dimension."""

    def graph(size: int) -> bytes:
        values = [
            [helper.make_tensor_value_info(name, ONNX_TYPES[dtype], (size, *dims)) for name, (dtype, dims) in side.items()]
            for side in (inputs, outputs)
        ]
        made = helper.make_model(
            helper.make_graph(list(nodes()), name, values[0], values[1], list(initializers)), opset_imports=[helper.make_opsetid("", 18)]
        )
        made.ir_version = 10
        content: bytes = made.SerializeToString()
        return content

    return GcuExecutable(
        name=name,
        card=card,
        precision="fp32",
        inputs=tuple(GcuTensor(name, dtype, dims) for name, (dtype, dims) in inputs.items()),
        outputs=tuple(GcuTensor(name, dtype, dims) for name, (dtype, dims) in outputs.items()),
        batches=tuple(
            CompiledBatch(
                batch_size=size,
                onnx=graph(size),
                workspace_bytes=workspace_bytes,
                flops=size,
                hbm_traffic_bytes=size * 8,
                run_s=tuple(size * 1e-3 / clusters for clusters in range(1, 7)),
            )
            for size in batches
        ),
    )


def echo(dtype: DataType = DataType.FP32, dims: tuple[int, ...] = (2,), *, batches: Sequence[int] = (1, 4, 8)) -> GcuExecutable:
    """`y` = `x`."""
    return executable(lambda: [helper.make_node("Identity", ["x"], ["y"])], {"x": (dtype, dims)}, {"y": (dtype, dims)}, batches=batches)


def doubling(
    *, batches: Sequence[int] = (1, 4), name: str = "doubling", width: int = 2, workspace_bytes: int = 4096, card: str = "i20"
) -> GcuExecutable:
    """FP32 `y` = `x` + `x`, `width` of each."""
    side = (DataType.FP32, (width,))
    return executable(
        lambda: [helper.make_node("Add", ["x", "x"], ["y"])],
        {"x": side},
        {"y": side},
        batches=batches,
        name=name,
        workspace_bytes=workspace_bytes,
        card=card,
    )


def pair(width: int = 2) -> GcuExecutable:
    """`p` = `a`, `q` = `b`."""
    nodes = [("a", "p"), ("b", "q")]
    side = (DataType.FP32, (width,))
    return executable(
        lambda: [helper.make_node("Identity", [source], [output]) for source, output in nodes],
        {"a": side, "b": side},
        {"p": side, "q": side},
    )


def picking() -> GcuExecutable:
    """INT64 `y` = `x`, gathered from a row of 0 to 12: 13 is out of bounds, and fails at run time."""
    row = helper.make_tensor("row", TensorProto.INT64, [13], list(range(13)))
    side = (DataType.INT64, (2,))
    return executable(lambda: [helper.make_node("Gather", ["row", "x"], ["y"])], {"x": side}, {"y": side}, initializers=[row])
