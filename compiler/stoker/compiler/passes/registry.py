"""`Pass`: one change to a graph, or one look at it; the registry of passes; and passes that are made of functions (`node_pass`).

A pass works in place on an `onnx_ir` model whose main opset is `INTERNAL_OPSET`, and says whether it changed anything. It must keep what
the model computes, within the tolerance its description states; the tests hold every pass against the source model.
"""

import abc
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import onnx
import onnx_ir as ir

from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.errors import CompileError, PassError
from stoker.compiler.passes.edit import describe, is_op, traverse_graphs, traverse_nodes


def read_model(model: onnx.ModelProto) -> ir.Model:
    """Returns `model` as an `onnx_ir` model. `model` must outlive the result, which refers to its weights.

    `onnx_ir` shares tensors with the protobuf message, and renaming a value would rename the message's tensor. The result therefore has
    separate tensor names, so passes do not change the message; the bytes are shared.
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


#: Passes work only on models of this opset of the default domain; the converter converts to it and back.
INTERNAL_OPSET = 18

AnyModel = TypeVar("AnyModel", onnx.ModelProto, ir.Model)


class Pass(abc.ABC):
    """One pass, made with its settings as keyword arguments of `__init__`.

    Class attributes, set by `register`:
        name: Name in the registry.
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
        """Changes `model` in place, including sub-graphs; returns whether it changed.

        Raises:
            CompileError: with node, operator and reason; the model is then not to be used further.
        """

    def apply(self, model: ir.Model) -> bool:
        """Runs the pass through `run`, or through an adapter. Returns whether `model` changed."""
        return self.run(model)

    def __call__(self, model: AnyModel) -> AnyModel:
        """Runs on a model of either type and returns the same type; a `ModelProto` argument is not changed."""
        if isinstance(model, ir.Model):
            self.apply(model)
            return model
        graph = read_model(model)
        self.apply(graph)
        return ir.to_proto(graph)

    @classmethod
    def description(cls) -> str:
        """Returns the first paragraph of the pass's docstring as one line."""
        text = (cls.__doc__ or "").strip().split("\n\n")[0]
        return " ".join(text.split())


PassType = TypeVar("PassType", bound=type[Pass])

_GROUPS = ("shape", "cleanup", "precision", "fusion", "replacement", "layout", "workaround", "inspection")
_passes: dict[str, type[Pass]] = {}
_history: list[str] = []
_are_builtins_loaded = False


def register(
    name: str, *, against: Iterable[str] = (), depend: Iterable[str] = (), before: Iterable[str] = ()
) -> Callable[[PassType], PassType]:
    """Registers the decorated class as pass `name`. A later registration replaces an earlier one, so users can override built-in passes."""

    def enter(cls: PassType) -> PassType:
        cls.name = name
        cls.against, cls.depend, cls.before = frozenset(against), frozenset(depend), frozenset(before)
        _passes[name] = cls
        _history.append(name)
        return cls

    return enter


def registration_mark() -> int:
    """Returns a mark for `registered_since`; built-in passes count as registered before it."""
    load_builtin_passes()
    return len(_history)


def registered_since(mark: int) -> list[str]:
    """Returns the names registered after the mark, in order and without duplicates."""
    return list(dict.fromkeys(_history[mark:]))


@contextmanager
def temporary_registrations() -> Iterator[None]:
    """Removes passes that were registered inside the block, for tests of custom passes."""
    load_builtin_passes()
    before = dict(_passes)
    try:
        yield
    finally:
        _passes.clear()
        _passes.update(before)


def load_builtin_passes() -> None:
    """Imports every module of the groups, once. A group is a module or a folder of modules."""
    global _are_builtins_loaded
    if _are_builtins_loaded:
        return
    _are_builtins_loaded = True
    earlier = dict(_passes)
    for group in _GROUPS:
        package = importlib.import_module(f"stoker.compiler.passes.{group}")
        for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
            importlib.import_module(f"{package.__name__}.{module.name}")
    _passes.update(earlier)  # passes that were registered before the built-in ones are loaded also override them


def pass_class(name: str) -> type[Pass]:
    """Returns the class registered as `name`.

    Raises:
        PassError: there is none; the text names the nearest ones.
    """
    load_builtin_passes()
    if name not in _passes:
        raise PassError(f"there is no pass '{name}'{did_you_mean(name, _passes)}")
    return _passes[name]


def get_pass(name: str, **settings: Any) -> Pass:
    """Returns pass `name` with `settings`, callable on a model.

    Raises:
        PassError: there is none of that name, or it does not take these settings.
    """
    cls = pass_class(name)
    try:
        return cls(**settings)
    except TypeError as error:
        raise PassError(f"pass '{name}': {_what_is_wrong(cls, settings) or error}") from None


def _what_is_wrong(cls: type[Pass], settings: dict[str, Any]) -> str | None:
    """Returns which settings `cls` does not accept or requires in addition; None if the settings are valid."""
    signature = inspect.signature(cls)
    try:
        signature.bind(**settings)
    except TypeError:
        takes = list(signature.parameters)
        unknown = [each for each in settings if each not in takes]
        wrong = f"there is no setting {', '.join(map(repr, unknown))}" if unknown else "a setting is missing"
        return f"{wrong}; it takes {', '.join(takes) or 'none'}"
    return None


def get_all_pass_names() -> list[str]:
    """Returns the names of all registered passes, sorted."""
    load_builtin_passes()
    return sorted(_passes)


class NodePass(Pass):
    """Visits every node of every graph, sub-graphs and functions included, each in the graph's order."""

    @abc.abstractmethod
    def visit(self, node: ir.Node) -> bool:
        """Changes the graph around `node` or leaves it; returns whether it changed. It may remove `node` and other nodes."""

    def run(self, model: ir.Model) -> bool:
        return visit_nodes(model, self.visit)


@contextmanager
def blamed_on(node: ir.Node) -> Iterator[None]:
    """Adds the name of `node` to errors raised inside the block.

    Raises:
        PassError: instead of any exception that is not a `CompileError` already.
    """
    where = describe(node)
    try:
        yield
    except CompileError:
        raise
    except Exception as error:  # an unexpected error of a pass: the message must name the node
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


def model_pass(
    *, against: Iterable[str] = (), before: Iterable[str] = ()
) -> Callable[[Callable[[ir.Model], bool]], Callable[[ir.Model], bool]]:
    """Registers the decorated function under its own name, as a pass without settings."""

    def enter(run: Callable[[ir.Model], bool]) -> Callable[[ir.Model], bool]:
        register_function(run, run, against=against, before=before)
        return run

    return enter


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
    """Registers a pass without settings that calls `run`, with the name, description and module of `function`."""

    class FunctionPass(Pass):
        __doc__ = function.__doc__
        __module__ = function.__module__

        def run(self, model: ir.Model) -> bool:
            return run(model)

    register(function.__name__, against=against, before=before)(FunctionPass)
