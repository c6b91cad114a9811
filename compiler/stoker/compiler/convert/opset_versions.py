"""Operator versions of the default ONNX domain: which versions an opset uses, and what two versions have in common."""

import functools
from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from stoker.compiler.passes.edit import traverse_nodes
from stoker.compiler.passes.simplify import EXPANDED_DOMAIN

#: ONNX's shape inference takes other defaults of their attributes than the operators have.
_WRONG_DEFAULTS = frozenset({"STFT"})


class CannotAdapt(Exception):
    """The node uses a feature that the other version of its operator cannot express; the text names it."""


#: Rewrites a node for another version of its operator; returns the resulting nodes.
Adapter = Callable[[ir.Node], list[ir.Node]]


def adapts(adapters: dict[tuple[str, int], Adapter], version: int, *op_types: str) -> Callable[[Adapter], Adapter]:
    """Registers the decorated adapter in `adapters` for operators `op_types` that `version` changed."""

    def enter(adapter: Adapter) -> Adapter:
        adapters.update({(op_type, version): adapter for op_type in op_types})
        return adapter

    return enter


def adapted(adapter: Adapter, node: ir.Node) -> list[ir.Node]:
    """Returns the nodes that `adapter` puts in place of `node`.

    Raises:
        CannotAdapt: it cannot, or the node has not the attributes and shapes that its operator says.
    """
    try:
        return adapter(node)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise CannotAdapt(f"{node.op_type} is not as ONNX defines it: {type(error).__name__}: {error}") from error


def schema_of(op_type: str, opset: int) -> OpSchema | None:
    """Returns the schema of the operator at `opset`; None if it does not exist there."""
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def next_version(op_type: str, opset: int) -> int | None:
    """Returns the first opset after `opset` that changed the operator; None if there is none."""
    return next((version for version in _versions().get(op_type, ()) if version > opset), None)


@functools.cache
def _versions() -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, []).append(schema.since_version)
    return {name: tuple(sorted(versions)) for name, versions in found.items()}


def fit(node: ir.Node, used: OpSchema, other: OpSchema) -> None:
    """Converts a node from version `used` of its operator to the adjacent version `other`, with the same meaning.

    Differing defaults are written out. Attributes that `other` lacks are dropped if they have their default value.

    Raises:
        CannotAdapt: `other` lacks something that the node uses.
    """
    is_newer = other.since_version > used.since_version
    version = max(used.since_version, other.since_version)
    when = f"{'since' if is_newer else 'before'} opset {version}"
    if other.deprecated:
        raise CannotAdapt(f"opset {version} removed {node.op_type}")
    if len(node.inputs) > other.max_input:
        if is_newer:
            raise CannotAdapt(f"it has {len(node.inputs)} inputs, opset {version} allows {other.max_input}")
        raise CannotAdapt(f"input '{used.inputs[other.max_input].name}' is new in opset {version}")
    if len(node.outputs) > other.max_output:
        raise CannotAdapt(f"it has {len(node.outputs)} outputs, opset {other.since_version} allows {other.max_output}")
    _reject_missing_inputs(node, other, when)
    for name, attribute in list(node.attributes.items()):
        if name in other.attributes:
            continue
        if not _is_default(attribute, used.attributes.get(name)):
            raise CannotAdapt(
                f"opset {version} removed attribute '{name}'" if is_newer else f"attribute '{name}' is new in opset {version}"
            )
        del node.attributes[name]
    for name, formal in other.attributes.items():
        if name in used.attributes and name not in node.attributes:
            default = used.attributes[name].default_value
            if default != formal.default_value and default.type != onnx.AttributeProto.UNDEFINED:
                node.attributes[name] = ir.from_proto(default)
        elif formal.required and name not in node.attributes:
            raise CannotAdapt(f"opset {other.since_version} needs attribute '{name}'")
    _reject_missing_types(node, other, when)


def _is_default(attribute: ir.Attr, formal: OpSchema.Attribute | None) -> bool:
    if formal is None or attribute.is_ref():
        return False
    default = formal.default_value
    if default.type == onnx.AttributeProto.UNDEFINED:  # no default value: only ONNX's pooling dilations of 1 are such a list
        return attribute.name == "dilations" and all(each == 1 for each in attribute.as_ints())
    return bool(ir.from_proto(default).value == attribute.value)


def _reject_missing_types(node: ir.Node, other: OpSchema, when: str) -> None:
    """Raises:
    CannotAdapt: an input or output has an element type that `other` does not allow; the text says `when` it does not.
    """
    allowed = {constraint.type_param_str: set(constraint.allowed_type_strs) for constraint in other.type_constraints}
    for values, formals in ((node.inputs, other.inputs), (node.outputs, other.outputs)):
        for index, value in enumerate(values):
            if value is None or value.dtype is None or not formals or not isinstance(value.type, ir.TensorType):
                continue
            formal = formals[min(index, len(formals) - 1)]
            kind = f"tensor({value.dtype.name.lower()})"
            if kind not in allowed.get(formal.type_str, {formal.type_str}):
                raise CannotAdapt(f"'{formal.name}' cannot be {kind} {when}")


def _reject_missing_inputs(node: ir.Node, other: OpSchema, when: str) -> None:
    """Raises:
    CannotAdapt: `other` needs an input that the node leaves out; the text says `when` it was or is needed.
    """
    for index, formal in enumerate(other.inputs):
        is_given = index < len(node.inputs) and node.inputs[index] is not None
        if formal.option == OpSchema.FormalParameterOption.Single and not is_given:
            raise CannotAdapt(f"input '{formal.name}' could not be left out {when}")


def replace_by_function(model: ir.Model, node: ir.Node, schema: OpSchema, opset: int) -> bool:
    """Replaces `node` by a call of a function of `model` that defines its operator; returns whether ONNX has such a function.

    Args:
        model: Whose node it is.
        node: Typed: the bodies of some operators depend on the types of the inputs.
        schema: Of its operator.
        opset: The model's.

    Raises:
        CannotAdapt: ONNX's function does not define an output that is used.
    """
    set_defaults(node, schema)
    text = _body(node, schema, opset)
    if text is None:
        return False
    proto = onnx.FunctionProto.FromString(text)
    produced = {*proto.input, *(name for each in proto.node for name in each.output)}
    there = [at for at, name in enumerate(proto.output) if name in produced]
    for at, output in enumerate(node.outputs):
        if at not in there and (output.uses() or output.is_graph_output()):
            raise CannotAdapt(f"ONNX's definition of {node.op_type} does not say what output '{output.name}' is")
    formals = [each.name for each in schema.inputs]
    # A body whose types are known may need fewer inputs than the operator has.
    taken = [formals.index(name) if name in formals else at for at, name in enumerate(proto.input)]
    outputs = [proto.output[at] for at in there]
    del proto.output[:]
    proto.output.extend(outputs)
    # ONNX gives a body anew whenever an operator in it changes: one that is older than the model is right at the model's opset too.
    del proto.opset_import[:]
    proto.opset_import.append(onnx.helper.make_opsetid("", opset))
    try:
        function = ir.from_proto(proto)
    except (ir.serde.SerdeError, ValueError) as error:
        raise CannotAdapt(f"ONNX's definition of {node.op_type} cannot be read: {_reason(error)}") from error
    function.domain, function.name = EXPANDED_DOMAIN, f"{node.op_type}_{len(model.functions)}"
    model.functions[function.identifier()] = function
    model.opset_imports[EXPANDED_DOMAIN] = 1
    _call(node, function, taken, there)
    return True


def body_operators(node: ir.Node, version: int) -> frozenset[str]:
    """Returns the operators of the function by which ONNX defines `version` of the operator of `node`; empty if there is none.

    `node` is typed: the bodies of some operators depend on the types of the inputs. Defaults of its attributes are written out.
    """
    schema = schema_of(node.op_type, version)
    if schema is None:
        return frozenset()
    set_defaults(node, schema)
    text = _body(node, schema, version)
    return frozenset() if text is None else frozenset(each.op_type for each in onnx.FunctionProto.FromString(text).node)


def set_defaults(node: ir.Node, schema: OpSchema) -> None:
    """Writes out attributes that `node` leaves at their defaults, because function bodies refer to them."""
    for name, formal in schema.attributes.items():
        if name not in node.attributes and formal.default_value.type != onnx.AttributeProto.UNDEFINED:
            node.attributes[name] = ir.from_proto(formal.default_value)


def set_defaults_of_functions(model: ir.Model) -> None:
    """Calls `set_defaults` for all nodes that ONNX defines by functions, and for those whose defaults shape inference gets wrong. It reads
    the bodies of functions and fails without the attributes.
    """
    opset = model.opset_imports[""]
    for node in traverse_nodes(model):
        schema = schema_of(node.op_type, opset) if node.domain == "" else None
        if schema is not None and (_has_reference(schema) or node.op_type in _WRONG_DEFAULTS):
            set_defaults(node, schema)


def _has_reference(schema: Any) -> bool:
    return bool(schema.has_function) and any(attribute.ref_attr_name for each in schema.function_body.node for attribute in each.attribute)


def _body(node: ir.Node, schema: Any, opset: int) -> bytes | None:
    """Returns the newest function for `opset`, serialised; None if there is none. ONNX's type stubs lack the functions of schemas."""
    fixed = [version for version in schema.function_opset_versions if version <= opset]
    by_context = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
    if fixed:
        text: bytes = schema.get_function_with_opset_version(max(fixed))
        return text
    if not by_context:
        return None
    types = [_type_bytes(value) for value in node.inputs]
    made: bytes = schema.get_context_dependent_function_with_opset_version(max(by_context), ir.to_proto(node).SerializeToString(), types)
    return made or None


def _call(node: ir.Node, function: ir.Function, taken: list[int], there: list[int]) -> None:
    graph = node.graph
    assert graph is not None, "only nodes of graphs are replaced"
    node.resize_outputs(max(len(node.outputs), *(at + 1 for at in there)))
    old = [node.outputs[at] for at in there]
    new = [ir.Value(name=output.name, shape=output.shape, type=output.type) for output in old]
    call = ir.Node(
        function.domain,
        function.name,
        [node.inputs[at] if at < len(node.inputs) else None for at in taken],
        [attribute for attribute in node.attributes.values() if attribute.name in function.attributes],
        outputs=new,
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    graph.insert_before(node, call)
    for before, after in zip(old, new, strict=True):
        before.replace_all_uses_with(after, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _type_bytes(value: ir.Value | None) -> bytes:
    if value is None or value.type is None:
        return b""
    proto = ir.serde.serialize_type(value.type)
    if value.shape is not None:
        ir.serde.serialize_shape_into(proto, value.shape)
    return bytes(proto.SerializeToString())


def _reason(error: Exception) -> str:
    return " ".join(str(error.__cause__ or error).split())
