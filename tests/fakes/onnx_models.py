"""Small ONNX files for tests, stamped with an IR version and opset that every supported ONNX Runtime reads."""

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.samples import version_files

IR_VERSION = 10
OPSET = 21

Shape = Sequence[int | str | None] | None

ONNX_TYPES: dict[DataType, int] = {
    DataType.BOOL: TensorProto.BOOL, DataType.UINT8: TensorProto.UINT8, DataType.UINT16: TensorProto.UINT16,
    DataType.UINT32: TensorProto.UINT32, DataType.UINT64: TensorProto.UINT64, DataType.INT8: TensorProto.INT8,
    DataType.INT16: TensorProto.INT16, DataType.INT32: TensorProto.INT32, DataType.INT64: TensorProto.INT64,
    DataType.FP16: TensorProto.FLOAT16, DataType.FP32: TensorProto.FLOAT, DataType.FP64: TensorProto.DOUBLE,
    DataType.BF16: TensorProto.BFLOAT16, DataType.BYTES: TensorProto.STRING,
}  # fmt: skip


def value(name: str, shape: Shape, element_type: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = OPSET,
    ir_version: int = IR_VERSION,
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="stoker-tests")
    made.ir_version = ir_version
    return made


def identity(
    datatype: DataType = DataType.FP32, shape: Shape = ("n", 2), *, opset: int = OPSET, ir_version: int = IR_VERSION
) -> onnx.ModelProto:
    """`y` = `x`."""
    kind = ONNX_TYPES[datatype]
    node = helper.make_node("Identity", ["x"], ["y"])
    return model([node], [value("x", shape, kind)], [value("y", shape, kind)], opset=opset, ir_version=ir_version)


def sum_and_difference(shape: Shape = ("n", 2)) -> onnx.ModelProto:
    """`sum` = `a` + `b`, `difference` = `a` - `b`."""
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])]
    return model(nodes, [value("a", shape), value("b", shape)], [value("sum", shape), value("difference", shape)])


def pick() -> onnx.ModelProto:
    """`y` = the elements of the row (0, 10, 20) that `x` (INT64) names; an index outside -3..2 fails at run time."""
    row = helper.make_tensor("row", TensorProto.FLOAT, [3], [0.0, 10.0, 20.0])
    node = helper.make_node("Gather", ["row", "x"], ["y"], name="/head/Gather")
    return model([node], [value("x", ("n", 2), TensorProto.INT64)], [value("y", ("n", 2))], [row])


def onnx_files(folder: Path, proto: onnx.ModelProto) -> ModelFiles:
    return version_files(folder, {"model.onnx": proto.SerializeToString()})


def load_request(files: ModelFiles, served: ModelSignature, *, graph_level: int | None = None, **parameters: str) -> LoadRequest:
    """A request for `model.onnx`; in parameter names `__` stands for a dot."""
    return LoadRequest(
        model_name="unit",
        version=1,
        files=files,
        model_filename="model.onnx",
        signature=served,
        parameters={key.replace("__", "."): text for key, text in parameters.items()},
        graph_level=graph_level,
    )
