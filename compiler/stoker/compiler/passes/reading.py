"""Reads an `onnx.ModelProto` so that no pass can change it.

`onnx_ir` shares tensors with the message they came from, and renaming a value renames its tensor: in the message too. Here tensors have
names of their own; their bytes are still the message's, not a copy.
"""

import onnx
import onnx_ir as ir

from stoker.compiler.passes.traverse import traverse_graphs


def read_model(model: onnx.ModelProto) -> ir.Model:
    """`model` for passes to work on. It must outlive the result, whose weights lie in it."""
    read = ir.from_proto(model)
    for graph in traverse_graphs(read):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.TensorProtoTensor):
                value.const_value = _detached(value.const_value)
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.TensorProtoTensor):
                    node.attributes[name] = ir.AttrTensor(name, _detached(attribute.value), doc_string=attribute.doc_string)
    return read


def _detached(tensor: ir.TensorProtoTensor) -> ir.TensorProtocol:
    return ir.LazyTensor(
        lambda: tensor,
        dtype=tensor.dtype,
        shape=tensor.shape,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )
