"""`Pass`: one change to a graph, or one look at it.

A pass works in place on an `onnx_ir` model whose main opset is `INTERNAL_OPSET`, and says whether it changed anything. It must keep what
the model computes, within the tolerance its description states; the tests hold every pass against the source model.
"""

import abc
from typing import ClassVar, TypeVar

import onnx
import onnx_ir as ir

from stoker.compiler.passes.reading import read_model

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
