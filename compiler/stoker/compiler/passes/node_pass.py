"""`NodePass`: a pass that decides about one node at a time."""

import abc
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir

from stoker.compiler.errors import CompileError, PassError
from stoker.compiler.passes.edit import describe
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.traverse import traverse_nodes


class NodePass(Pass):
    """Visits every node of every graph, sub-graphs and functions included, each in the graph's order."""

    @abc.abstractmethod
    def visit(self, node: ir.Node) -> bool:
        """Changes the graph around `node` or leaves it; returns whether it changed. It may remove `node` and any other."""

    def run(self, model: ir.Model) -> bool:
        changed = False
        for node in traverse_nodes(model):
            with blamed_on(node):
                changed = self.visit(node) or changed
        return changed


@contextmanager
def blamed_on(node: ir.Node) -> Iterator[None]:
    """Whatever goes wrong inside names `node`.

    Raises:
        PassError: instead of any exception that is not a `CompileError` already.
    """
    where = describe(node)
    try:
        yield
    except CompileError:
        raise
    except Exception as error:  # a pass met something that its author did not foresee: say where, whatever it was
        raise PassError(f"{where}: {type(error).__name__}: {error}") from error
