"""The versions of ONNX's own operators: which of them an opset uses, and what two of them have in common."""

import functools
from collections.abc import Callable

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema


class CannotAdapt(Exception):
    """The node uses something that the other version of its operator cannot express; the text says what."""


def adapted(adapter: Callable[[ir.Node], list[ir.Node]], node: ir.Node) -> list[ir.Node]:
    """What `adapter` makes of `node`.

    Raises:
        CannotAdapt: it cannot, or the node has not the attributes and shapes that its operator says.
    """
    try:
        return adapter(node)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise CannotAdapt(f"{node.op_type} is not as ONNX defines it: {type(error).__name__}: {error}") from error


def schema_of(op_type: str, opset: int) -> OpSchema | None:
    """The operator as `opset` defines it; None if it does not exist there."""
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def next_version(op_type: str, opset: int) -> int | None:
    """The first opset after `opset` that changed the operator; None if there is none."""
    return next((version for version in _versions().get(op_type, ()) if version > opset), None)


@functools.cache
def _versions() -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, []).append(schema.since_version)
    return {name: tuple(sorted(versions)) for name, versions in found.items()}


def fit(node: ir.Node, used: OpSchema, other: OpSchema) -> None:
    """Makes a node of version `used` of its operator one of version `other`, the version before or after it, with the same meaning.

    Defaults that differ are written out, and attributes that `other` lacks are dropped where they are left at their default.

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
    _refuse_missing_inputs(node, other, when)
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
    _refuse_missing_types(node, other, when)


def _is_default(attribute: ir.Attr, formal: OpSchema.Attribute | None) -> bool:
    if formal is None or attribute.is_ref():
        return False
    default = formal.default_value
    if default.type == onnx.AttributeProto.UNDEFINED:  # no default: ONNX's pooling dilations of 1 are the one list of this kind
        return attribute.name == "dilations" and all(each == 1 for each in attribute.as_ints())
    return bool(ir.from_proto(default).value == attribute.value)


def _refuse_missing_types(node: ir.Node, other: OpSchema, when: str) -> None:
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


def _refuse_missing_inputs(node: ir.Node, other: OpSchema, when: str) -> None:
    """Raises:
    CannotAdapt: `other` needs an input that the node leaves out; the text says `when` it was or is needed.
    """
    for index, formal in enumerate(other.inputs):
        is_given = index < len(node.inputs) and node.inputs[index] is not None
        if formal.option == OpSchema.FormalParameterOption.Single and not is_given:
            raise CannotAdapt(f"input '{formal.name}' could not be left out {when}")
