"""`Pass`: one change to a graph, or one look at it; and `read_model`, which reads a model for passes.

A pass works in place on an `onnx_ir` model whose main opset is `INTERNAL_OPSET`, and says whether it changed anything. It must keep what
the model computes, within the tolerance its description states; the tests hold every pass against the source model.
"""

import abc
from typing import ClassVar, TypeVar

import onnx
import onnx_ir as ir

from stoker.compiler.passes.traverse import traverse_graphs


def read_model(model: onnx.ModelProto) -> ir.Model:
    """`model` for passes to work on. It must outlive the result, whose weights lie in it.

    `onnx_ir` shares tensors with the message they came from, and renaming a value renames its tensor: in the message too. Here tensors
    have names of their own, so that no pass changes the message; their bytes are still the message's, not a copy.
    """
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


#: Passes see models of this opset of the main domain only; the converter brings them there and back.
INTERNAL_OPSET = 18

AnyModel = TypeVar("AnyModel", onnx.ModelProto, ir.Model)


class Pass(abc.ABC):
    """One pass, made with its settings as keyword arguments of `__init__`.

    Class attributes, set by `register`:
        name: As in the registry.
        against: Passes that may not run in the same list.
        depend: Passes that must have run before this one.
        before: Passes that must not run before this one.
    """

    name: ClassVar[str] = ""
    against: ClassVar[frozenset[str]] = frozenset()
    depend: ClassVar[frozenset[str]] = frozenset()
    before: ClassVar[frozenset[str]] = frozenset()

    @abc.abstractmethod
    def run(self, model: ir.Model) -> bool:
        """Changes `model` in place, sub-graphs included; returns whether it changed.

        Raises:
            CompileError: with node, operator and reason; the model is then not to be used further.
        """

    def apply(self, model: ir.Model) -> bool:
        """What runs a pass: `run`, or what an adapter makes of it. Returns whether `model` changed."""
        return self.run(model)

    def __call__(self, model: AnyModel) -> AnyModel:
        """Runs on a model of either kind and returns one of that kind; a `ModelProto` given is left as it was."""
        if isinstance(model, ir.Model):
            self.apply(model)
            return model
        graph = read_model(model)
        self.apply(graph)
        return ir.to_proto(graph)

    @classmethod
    def description(cls) -> str:
        """The first paragraph of its docstring, in one line."""
        text = (cls.__doc__ or "").strip().split("\n\n")[0]
        return " ".join(text.split())
