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


def refuse_missing_types(node: ir.Node, other: OpSchema, when: str) -> None:
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


def refuse_missing_inputs(node: ir.Node, other: OpSchema, when: str) -> None:
    """Raises:
    CannotAdapt: `other` needs an input that the node leaves out; the text says `when` it was or is needed.
    """
    for index, formal in enumerate(other.inputs):
        is_given = index < len(node.inputs) and node.inputs[index] is not None
        if formal.option == OpSchema.FormalParameterOption.Single and not is_given:
            raise CannotAdapt(f"input '{formal.name}' could not be left out {when}")
