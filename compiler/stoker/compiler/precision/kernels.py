"""Whether ONNX Runtime's CPU provider can run an operator with certain types. It is asked, since it publishes no list in machine's form.

Half floats: where it has no kernel of its own it casts to FLOAT and back by itself, which counts as running. Integers: an operator that it
has for INT64 may be missing for INT32.
"""

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

_known: dict[tuple[object, ...], bool] = {}


def has_kernel(
    node: ir.Node,
    inputs: Sequence[ir.TypeProtocol | None],
    outputs: Sequence[ir.TypeProtocol | None],
    opset: int,
    types_of_outputs: Mapping[str, ir.DataType],
) -> bool:
    """Whether a node like `node`, with inputs and outputs of these types, can run; each question is asked once in a process.

    Args:
        node: Its operator and attributes are what is asked about.
        inputs: The type of each; None where it is left out or unknown.
        outputs: Likewise.
        opset: Of the node's domain.
        types_of_outputs: Attributes that name an output's type, as they would be.
    """
    key = (node.domain, node.op_type, opset, tuple(map(str, inputs)), tuple(map(str, outputs)))
    if key not in _known:
        _known[key] = _can_create_session(node, inputs, outputs, opset, types_of_outputs)
    return _known[key]


def _can_create_session(
    node: ir.Node,
    inputs: Sequence[ir.TypeProtocol | None],
    outputs: Sequence[ir.TypeProtocol | None],
    opset: int,
    types_of_outputs: Mapping[str, ir.DataType],
) -> bool:
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name="asked")
    given, made = [], []
    for index, kind in enumerate(inputs):
        proto.input.append("" if kind is None else f"i{index}")
        if kind is not None:
            given.append(onnx.ValueInfoProto(name=f"i{index}", type=ir.serde.serialize_type(kind)))
    for index, kind in enumerate(outputs):
        proto.output.append("" if kind is None else f"o{index}")
        if kind is not None:
            made.append(onnx.ValueInfoProto(name=f"o{index}", type=ir.serde.serialize_type(kind)))
    for name, attribute in node.attributes.items():
        if name not in types_of_outputs and not attribute.is_ref():
            proto.attribute.append(ir.serde.serialize_attribute(attribute))
    for name, data_type in types_of_outputs.items():
        proto.attribute.append(onnx.helper.make_attribute(name, int(data_type)))
    model = onnx.helper.make_model(
        onnx.helper.make_graph([proto], "asked", given, made), opset_imports=[onnx.helper.make_opsetid(node.domain, opset)], ir_version=10
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except NoKernel:
        return False
    except Exception:  # noqa: BLE001  a node out of its graph may be refused for want of a shape or a constant: no response about the types
        return True
    return True
