"""Shapes of custom operators: Python functions that ONNX's own shape inference calls.

A file given by `--custom_shape_inference` registers functions:

    from stoker.compiler.convert.shape_functions import register_shape_func

    @register_shape_func(["LeakyRelu"], domain="ai.graphcore")
    def leaky_relu(node, input_types):
        return [input_types[0]]

While a model is converted, each becomes part of an ONNX schema, made for the nodes of that model, so that passes and checks know the
operator as they know ONNX's own.
"""

import importlib.machinery
import importlib.util
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from onnx import defs

from stoker.compiler.errors import CompileError, ShapeError

logger = logging.getLogger(__name__)

TypeOrShape = onnx.TypeProto | tuple[int, Sequence[int]]
ShapeFunction = Callable[[onnx.NodeProto, list[onnx.TypeProto | None]], Sequence[TypeOrShape]]
"""Given a node (operator and attributes) and the types of its inputs (None for one left out), the types of its outputs, or (element type,
shape) of each. It is called once the shapes of all inputs are known and static."""

_functions: dict[tuple[str, str | None], ShapeFunction] = {}
_ANY_TYPE = sorted(onnx.defs.get_schema("Identity").type_constraints[0].allowed_type_strs)


def register_shape_func(op_types: str | Iterable[str], domain: str | None = None) -> Callable[[ShapeFunction], ShapeFunction]:
    """Registers the decorated function for operators `op_types` of `domain` (None: any domain except ONNX's default)."""
    names = [op_types] if isinstance(op_types, str) else list(op_types)

    def enter(function: ShapeFunction) -> ShapeFunction:
        for name in names:
            _functions[name, domain] = function
        return function

    return enter


def load_shape_functions(path: str | Path) -> None:
    """Runs a Python file that calls `register_shape_func`.

    Raises:
        CompileError: there is no such file, or it fails; the text says which line.
    """
    path = Path(path)
    if not path.is_file():
        raise CompileError(f"custom_shape_inference: there is no file {path}")
    name = f"stoker_shape_functions_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=importlib.machinery.SourceFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    before = len(_functions)
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except Exception as error:  # user code may raise anything
        raise CompileError(f"custom_shape_inference: {path} failed: {type(error).__name__}: {error}") from error
    if len(_functions) == before:
        logger.warning("%s registers no new shape function; it should use @register_shape_func", path)


@contextmanager
def temporary_shape_functions() -> Iterator[None]:
    """Removes shape functions that were registered inside the block, for tests."""
    before = dict(_functions)
    try:
        yield
    finally:
        _functions.clear()
        _functions.update(before)


@contextmanager
def known_shapes(model: onnx.ModelProto) -> Iterator[None]:
    """Registers schemas in ONNX, for the duration of the block, for custom operators of `model` that have a shape function."""
    versions = {each.domain: each.version for each in model.opset_import}
    entered: list[tuple[str, int, str]] = []
    try:
        for (op_type, domain), nodes in _custom_nodes(model).items():
            function = _functions.get((op_type, domain)) or _functions.get((op_type, None))
            version = versions.get(domain, 1)
            if function is None or defs.has(op_type, version, domain):
                continue
            defs.register_schema(_schema(op_type, domain, version, nodes, function))
            entered.append((op_type, version, domain))
        yield
    finally:
        for op_type, version, domain in entered:
            defs.deregister_schema(op_type, version, domain)


def _custom_nodes(model: onnx.ModelProto) -> dict[tuple[str, str], list[onnx.NodeProto]]:
    local = {(function.name, function.domain) for function in model.functions}
    found: dict[tuple[str, str], list[onnx.NodeProto]] = {}
    graphs = [model.graph]
    for graph in graphs:
        for node in graph.node:
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            if node.domain not in ("", "ai.onnx") and (node.op_type, node.domain) not in local:
                found.setdefault((node.op_type, node.domain), []).append(node)
    return found


def _schema(op_type: str, domain: str, version: int, nodes: Sequence[onnx.NodeProto], function: ShapeFunction) -> defs.OpSchema:
    """Returns a schema that accepts these nodes: any types, any number of tensors, and the attributes that they carry."""
    kinds = defs.OpSchema
    attributes = {
        each.name: kinds.Attribute(each.name, _attribute_type(each.type), required=False) for node in nodes for each in node.attribute
    }
    schema = kinds(
        op_type,
        domain,
        version,
        inputs=[_any_number_of("inputs")] if any(node.input for node in nodes) else [],
        outputs=[_any_number_of("outputs")],
        type_constraints=[("T", _ANY_TYPE, "any tensor")],
        attributes=list(attributes.values()),
    )
    schema.set_type_and_shape_inference_function(lambda context: _infer(context, op_type, domain, attributes, function))
    return schema


def _is_static(kind: onnx.TypeProto | None) -> bool:
    if kind is None or not kind.tensor_type.HasField("shape"):
        return False
    return all(size.HasField("dim_value") for size in kind.tensor_type.shape.dim)


def _any_number_of(name: str) -> defs.OpSchema.FormalParameter:
    return defs.OpSchema.FormalParameter(
        name, "T", param_option=defs.OpSchema.FormalParameterOption.Variadic, is_homogeneous=False, min_arity=0
    )


def _attribute_type(number: int) -> defs.OpSchema.AttrType:
    kind: defs.OpSchema.AttrType = getattr(defs.OpSchema.AttrType, onnx.AttributeProto.AttributeType.Name(number))
    return kind


def _infer(context: Any, op_type: str, domain: str, attributes: Iterable[str], function: ShapeFunction) -> None:
    """Calls `function` for one node. ONNX's inference context provides the parts of the node, not the node itself."""
    node = onnx.NodeProto(op_type=op_type, domain=domain)
    for name in attributes:
        attribute = context.get_attribute(name)
        if attribute is not None:
            node.attribute.append(attribute)
    inputs = [context.get_input_type(at) if context.has_input(at) else None for at in range(context.get_num_inputs())]
    if not all(_is_static(kind) for at, kind in enumerate(inputs) if context.has_input(at)):
        return
    try:
        types = function(node, inputs)
    except Exception as error:  # user code may raise anything
        raise ShapeError(f"the shape function of {domain}.{op_type} failed: {type(error).__name__}: {error}") from error
    if len(types) != context.get_num_outputs():
        raise ShapeError(f"the shape function of {domain}.{op_type} gave {len(types)} types for {context.get_num_outputs()} outputs")
    for at, each in enumerate(types):
        kind = each if isinstance(each, onnx.TypeProto) else onnx.helper.make_tensor_type_proto(each[0], list(each[1]))
        context.set_output_type(at, kind)
