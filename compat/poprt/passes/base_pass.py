"""`Pass`: what custom passes derive from; they see `onnx.ModelProto` and `onnx.GraphProto`."""

import logging
from collections.abc import Callable
from typing import Any

import onnx

from stoker.compiler.passes import ProtoPass
from stoker.compiler.passes import get_pass as stoker_pass

Transform = Callable[[onnx.GraphProto, bool], onnx.GraphProto]


class Pass(ProtoPass):
    """A pass whose `run` takes an `onnx.ModelProto` and returns one."""

    @property
    def logger(self) -> logging.Logger:
        """The logger of the pass. It is below `compiler`, so `--logging_level` applies to it."""
        return logging.getLogger(f"compiler.custom.{type(self).__name__}")

    @staticmethod
    def get_pass(name: str, **settings: Any) -> "BoundPass":
        """The registered pass `name`."""
        return get_pass(name, **settings)

    def traverse_graph(self, graph: onnx.GraphProto, transform: Transform, is_main_graph: bool = True) -> onnx.GraphProto:
        """`graph` after `transform(graph, is_main_graph)`, which its sub-graphs have been through before it."""
        for node in graph.node:
            for attribute in node.attribute:
                for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                    inner.CopyFrom(self.traverse_graph(inner, transform, False))
        return transform(graph, is_main_graph)


#: A pass that looks only; nothing hinders it from changing the model.
ImmutablePass = Pass


class BoundPass:
    """A registered pass with its settings; it can be called or `run`, on `onnx.ModelProto`."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self._pass = stoker_pass(name, **settings)

    def __call__(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The changed model; the one given stays as it was.

        Raises:
            CompileError: with node, operator and reason.
        """
        return self._pass(model)

    run = __call__


def get_pass(name: str, **settings: Any) -> BoundPass:
    """The registered pass `name`.

    Raises:
        PassError: there is none, or it does not take these settings; the text names the nearest ones.
    """
    return BoundPass(name, settings)
