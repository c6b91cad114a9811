"""Passes that decide about one node at a time: the class `NodePass`, and `node_pass`, which makes one of a function."""

import abc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import onnx_ir as ir

from stoker.compiler.errors import CompileError, PassError
from stoker.compiler.passes.edit import describe, is_op
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import traverse_nodes


class NodePass(Pass):
    """Visits every node of every graph, sub-graphs and functions included, each in the graph's order."""

    @abc.abstractmethod
    def visit(self, node: ir.Node) -> bool:
        """Changes the graph around `node` or leaves it; returns whether it changed. It may remove `node` and any other."""

    def run(self, model: ir.Model) -> bool:
        return visit_nodes(model, self.visit)


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


def visit_nodes(model: ir.Model, visit: Callable[[ir.Node], bool], *op_types: str) -> bool:
    """Calls `visit` with every node of these operators (main domain; any operator if none is named), sub-graphs included.

    Nodes come in graph order, and those that an earlier call removed are passed over. Returns whether any call changed the model.
    """
    changed = False
    for node in traverse_nodes(model):
        if not op_types or is_op(node, *op_types):
            with blamed_on(node):
                changed = visit(node) or changed
    return changed


def node_pass(*op_types: str) -> Callable[[Callable[[ir.Node], bool]], Callable[[ir.Node], bool]]:
    """Registers the decorated function under its own name, as a pass that `visit_nodes` of these operators with it."""

    def enter(visit: Callable[[ir.Node], bool]) -> Callable[[ir.Node], bool]:
        register_function(visit, lambda model: visit_nodes(model, visit, *op_types))
        return visit

    return enter


def register_function(
    function: Callable[..., bool],
    run: Callable[[ir.Model], bool],
    *,
    against: Iterable[str] = (),
    before: Iterable[str] = (),
) -> None:
    """Registers a pass without settings that does `run`, with the name, the description and the module of `function`."""

    class FunctionPass(Pass):
        __doc__ = function.__doc__
        __module__ = function.__module__

        def run(self, model: ir.Model) -> bool:
            return run(model)

    register(function.__name__, against=against, before=before)(FunctionPass)
