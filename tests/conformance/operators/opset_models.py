"""Models of each operator at each opset that changed it.

Most are ONNX's node tests, rewritten for another opset: inputs that were attributes become attributes, and attributes that the opset does
not have are left out. What such a model computes follows from ONNX Runtime or, where it rejects the model, from ONNX's reference
evaluator; a model that both reject is left out. `forms` and
`tests.fakes.old_forms` have models of forms that no node test can be rewritten to.
"""

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from onnx.defs import OpSchema

from tests.conformance.operators.case import RUNTIME_OPSET, Arrays, Case, NoReference, reference_outputs
from tests.conformance.operators.forms import FORMS
from tests.conformance.operators.node_tests import node_tests, parameters_of
from tests.fakes.graphs import parse, random_feeds
from tests.fakes.old_forms import FEEDS, OLD_FORMS

OLDEST_OPSET = 7
#: Models of each operator and opset.
MODELS = 3
#: Attributes that became inputs of another name.
_RENAMED = {"constant_value": "value"}


class _NoForm(Exception):
    """The node cannot be written at the opset."""


@functools.cache
def versions_of_operators() -> dict[str, tuple[int, ...]]:
    """Returns the opsets of 7 to 26 at which each operator has a definition of its own, the first being what it has at opset 7."""
    found: dict[str, set[int]] = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= RUNTIME_OPSET:
            found[schema.name].add(max(schema.since_version, OLDEST_OPSET))
    return {name: tuple(sorted(versions)) for name, versions in sorted(found.items()) if not _is_removed(name)}


def _is_removed(name: str) -> bool:
    return not onnx.defs.has(name, OLDEST_OPSET) and onnx.defs.get_schema(name, RUNTIME_OPSET).deprecated


def opset_models() -> tuple[Case, ...]:
    """Returns up to `MODELS` models of each operator and version, and all old forms."""
    return (*_rewritten_cases(), *_old_forms())


def uncovered(cases: Sequence[Case]) -> list[tuple[str, int]]:
    """Returns the operators and opsets of which there is no model."""
    there = {(node.op_type, case.opset) for case in cases for node in case.model.graph.node}
    return [(name, opset) for name, versions in versions_of_operators().items() for opset in versions if (name, opset) not in there]


def _rewritten_cases() -> Iterator[Case]:
    by_operator: dict[str, list[Case]] = defaultdict(list)
    for case in node_tests():
        if case.model.graph.node[-1].domain == "":
            by_operator[case.operator].append(case)
    for name, versions in versions_of_operators().items():
        for opset in versions:
            # The test closest to the opset needs the fewest changes.
            near = sorted(by_operator[name], key=lambda case: abs(case.opset - opset))
            made = 0
            for case in near:
                if made == MODELS:
                    break
                rewritten = _at(case, opset)
                if rewritten is not None:
                    made += 1
                    yield rewritten


def _at(case: Case, opset: int) -> Case | None:
    """Returns `case` at `opset`; None if it cannot be written there or nothing runs it."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", opset))
    model.ir_version = max(8, helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True))
    feeds = dict(case.feeds)
    try:
        for node in model.graph.node:
            _rewrite(node, case.opset, opset, feeds)
        taken = {name for node in model.graph.node for name in node.input}
        _keep_declared(model, taken)
        feeds = {name: array for name, array in feeds.items() if name in taken}
        onnx.checker.check_model(model, full_check=True)
        expected = reference_outputs(model, feeds)
    except (_NoForm, NoReference, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    name = f"{case.name} at {opset}"
    return Case(name, "opsets", case.operator, model, feeds, expected, parameters_of(model, feeds))


def _keep_declared(model: onnx.ModelProto, taken: set[str]) -> None:
    made = {name for node in model.graph.node for name in node.output}
    for declared, kept in ((model.graph.input, taken), (model.graph.output, made)):
        rest = [value for value in declared if value.name in kept]
        del declared[:]
        declared.extend(rest)


def _rewrite(node: onnx.NodeProto, old: int, new: int, feeds: dict[str, NDArray[Any]]) -> None:
    """Writes a node of opset `old` for opset `new`; what becomes an attribute leaves `feeds`."""
    if not onnx.defs.has(node.op_type, new) or onnx.defs.get_schema(node.op_type, new).deprecated:
        raise _NoForm
    before, after = onnx.defs.get_schema(node.op_type, old), onnx.defs.get_schema(node.op_type, new)
    if before.since_version == after.since_version:
        return
    kept = [attribute for attribute in node.attribute if attribute.name in after.attributes]
    given = _by_formal(node, before)
    if given is not None:
        inputs = []
        names = [formal.name for formal in before.inputs]
        for at, formal in enumerate(after.inputs):
            known = formal.name if formal.name in given else names[at] if at < len(names) and names[at] not in _names(after) else ""
            inputs.append(given.pop(known, ""))
        for name, actual in given.items():
            attribute = after.attributes.get(_RENAMED.get(name, name))
            if attribute is not None and actual in feeds:
                kept.append(_attribute(attribute, feeds[actual]))
        while inputs and not inputs[-1]:
            inputs.pop()
        del node.input[:]
        node.input.extend(inputs)
    # The other way: attributes that are inputs at the newer opset.
    if any(each.name not in after.attributes and each.name in _names(after) for each in node.attribute):
        raise _NoForm
    del node.attribute[:]
    node.attribute.extend(kept)
    del node.output[len(after.outputs) if len(after.outputs) < len(before.outputs) else len(node.output) :]


def _names(schema: OpSchema) -> set[str]:
    return {formal.name for formal in schema.inputs}


def _by_formal(node: onnx.NodeProto, schema: OpSchema) -> dict[str, str] | None:
    """Returns the inputs by their formal names; None if the last is variadic."""
    if any(formal.option == OpSchema.FormalParameterOption.Variadic for formal in schema.inputs):
        return None
    return {formal.name: name for formal, name in zip(schema.inputs, node.input, strict=False) if name}


def _attribute(formal: OpSchema.Attribute, array: NDArray[Any]) -> onnx.AttributeProto:
    if formal.type in (OpSchema.AttrType.INTS, OpSchema.AttrType.FLOATS):
        if not array.size:
            raise _NoForm
        return helper.make_attribute(formal.name, array.ravel().tolist())
    if array.size != 1 or formal.type not in (OpSchema.AttrType.INT, OpSchema.AttrType.FLOAT):
        raise _NoForm
    number = np.asarray(array).ravel()[0]
    return helper.make_attribute(formal.name, int(number) if formal.type == OpSchema.AttrType.INT else float(number))


def _old_forms() -> Iterator[Case]:
    forms = [(name, opset, text, weights) for name, (opsets, text, weights) in OLD_FORMS.items() for opset in opsets]
    versions = versions_of_operators()
    forms += [(name, opset, text, weights) for name, (operator, text, weights) in FORMS.items() for opset in versions[operator]]
    for name, opset, text, weights in forms:
        model = parse(text, weights, opset=opset)
        feeds: Arrays = FEEDS.get(name) or random_feeds(model)
        try:
            onnx.checker.check_model(model, full_check=True)
            expected = reference_outputs(model, feeds)
        except (NoReference, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue
        yield Case(f"{name} at {opset}", "opsets", model.graph.node[-1].op_type, model, feeds, expected)
