"""Rewrites a model for an older opset, node by node and without touching weights.

For each node, version by version downwards: if its operator did not change, nothing is to be done. If it did, an adapter from
`opset_adapters` rewrites it; if there is none, the node passes when all that the newer version added is left at its default and the element
types were allowed before. An operator that did not exist yet is replaced by the function that ONNX defines it by, if there is one.
"""

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from stoker.compiler.convert.functions import replace_by_function
from stoker.compiler.convert.opset_adapters import ADAPTERS
from stoker.compiler.convert.opset_versions import CannotAdapt, adapted, refuse_missing_inputs, refuse_missing_types, schema_of
from stoker.compiler.passes.edit import describe
from stoker.compiler.passes.shape_inference import infer_shapes
from stoker.compiler.passes.simplify import fold_constants, inline_functions
from stoker.compiler.passes.traverse import traverse_nodes

#: What functions compute about shapes is smaller; weights are not to be touched.
_FOLDED_BYTES = 1024


class NoAdapter(Exception):
    """Operators that cannot be expressed at the opset wanted; the text names each with why, and the first of the nodes it is true of.

    Attributes:
        problems: Nodes by operator and reason.
    """

    def __init__(self, target: int, problems: Mapping[tuple[str, str], Sequence[ir.Node]]) -> None:
        reasons = [f"{describe(nodes[0])}{_and_others(len(nodes) - 1)}: {reason}" for (_, reason), nodes in problems.items()]
        super().__init__(f"there is no counterpart at opset {target} of {'; of '.join(reasons)}")
        self.problems = problems


def _and_others(count: int) -> str:
    return f" and {count} more" if count else ""


def lower_opset(model: ir.Model, target: int) -> None:
    """Brings `model` down to opset `target`, in place.

    Raises:
        NoAdapter: some nodes have no counterpart there; the model is then not to be used further.
    """
    current = model.opset_imports[""]
    infer_shapes(model)  # adapters go by ranks and element types
    if _expand_functions(model, current, target):
        fold_constants(model, max_tensor_size=_FOLDED_BYTES)  # bodies compute axes and shapes that were attributes in older opsets
    problems: dict[tuple[str, str], list[ir.Node]] = {}
    for node in traverse_nodes(model):
        try:
            _lower(node, current, target)
        except CannotAdapt as error:
            problems.setdefault((node.op_type, str(error)), []).append(node)
    if problems:
        raise NoAdapter(target, problems)
    model.opset_imports[""] = target
    for function in model.functions.values():
        function.opset_imports[""] = target


def _lower(node: ir.Node, current: int, target: int) -> None:
    waiting = [(node, current)]
    while waiting:
        each, level = waiting.pop()
        if each.domain != "":
            continue
        schema = schema_of(each.op_type, level)
        if schema is None:
            raise CannotAdapt(f"opset {level} has no {each.op_type}")
        since = schema.since_version
        if since <= target:
            continue
        adapter = ADAPTERS.get((each.op_type, since))
        if adapter is not None:
            waiting += [(made, since - 1) for made in adapted(adapter, each)]
            continue
        older = schema_of(each.op_type, since - 1)
        if older is None:
            raise CannotAdapt(f"{each.op_type} is new in opset {since}")
        _keep_if_compatible(each, schema, older)
        waiting.append((each, since - 1))


def _keep_if_compatible(node: ir.Node, newer: OpSchema, older: OpSchema) -> None:
    """Drops attributes that say what the older version does anyway.

    Raises:
        CannotAdapt: the node uses something that the older version does not have.
    """
    if len(node.inputs) > older.max_input:
        raise CannotAdapt(f"input '{newer.inputs[older.max_input].name}' is new in opset {newer.since_version}")
    if len(node.outputs) > older.max_output:
        raise CannotAdapt(f"it has {len(node.outputs)} outputs, opset {older.since_version} allows {older.max_output}")
    refuse_missing_inputs(node, older, f"before opset {newer.since_version}")
    for name, attribute in list(node.attributes.items()):
        if name in older.attributes:
            continue
        if not _is_default(attribute, newer.attributes.get(name)):
            raise CannotAdapt(f"attribute '{name}' is new in opset {newer.since_version}")
        del node.attributes[name]
    for name, formal_attribute in older.attributes.items():
        if name in newer.attributes and name not in node.attributes:
            default = newer.attributes[name].default_value
            if default != formal_attribute.default_value and default.type != onnx.AttributeProto.UNDEFINED:
                node.attributes[name] = ir.from_proto(default)
        elif name not in newer.attributes and formal_attribute.required:
            raise CannotAdapt(f"opset {older.since_version} needs attribute '{name}'")
    refuse_missing_types(node, older, f"before opset {newer.since_version}")


def _is_default(attribute: ir.Attr, formal: OpSchema.Attribute | None) -> bool:
    if formal is None or attribute.is_ref():
        return False
    default = formal.default_value
    if default.type == onnx.AttributeProto.UNDEFINED:  # no default: ONNX's pooling dilations of 1 are the one list of this kind
        return attribute.name == "dilations" and all(each == 1 for each in attribute.as_ints())
    return bool(ir.from_proto(default).value == attribute.value)


def _expand_functions(model: ir.Model, current: int, target: int) -> bool:
    """Replaces operators newer than `target` that have no adapter by the functions that define them; returns whether there were any.

    Raises:
        CompileError: ONNX's functions cannot be put in the place of their operators.
    """
    expanded = False
    while True:
        found = False
        for node in list(traverse_nodes(model)):
            schema = schema_of(node.op_type, current) if node.domain == "" else None
            if schema is None or not _is_to_expand(node, schema, target):
                continue
            try:
                found = replace_by_function(model, node, schema, current) or found
            except CannotAdapt:
                continue  # the walk that follows refuses the node, with all others
        if not found:
            return expanded
        expanded = True
        inline_functions(model)
        infer_shapes(model)  # the bodies of some operators depend on types


def _is_to_expand(node: ir.Node, schema: OpSchema, target: int) -> bool:
    version = schema.since_version
    if version <= target or (node.op_type, version) in ADAPTERS:
        return False
    return schema_of(node.op_type, target) is None or (node.op_type, version) in _REDEFINED


#: Operators whose meaning changed with the version given, so that the older one of the same name will not do.
_REDEFINED = frozenset({("GroupNormalization", 21)})
