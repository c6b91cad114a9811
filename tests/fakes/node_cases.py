"""ONNX's own tests of single operators, as models with inputs."""

import contextlib
import functools
import logging
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.backend.test.case.node import collect_testcases

#: Newest IR version that the converter keeps.
_IR_VERSION = 10


@dataclass(frozen=True, slots=True)
class NodeCase:
    """One test.

    Attributes:
        name: ONNX's, such as `test_abs`.
        model: Mostly of one node.
        feeds: Its inputs; None where some are no tensors.
    """

    name: str
    model: onnx.ModelProto
    feeds: dict[str, NDArray] | None

    @property
    def opset(self) -> int:
        return next(each.version for each in self.model.opset_import if each.domain == "")

    def at(self, opset: int) -> onnx.ModelProto:
        """The same nodes read as those of `opset`, without the attributes that it does not have."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self.model)
        next(each for each in copy.opset_import if each.domain == "").version = opset
        for node in copy.graph.node:
            if not onnx.defs.has(node.op_type, opset):
                continue
            known = onnx.defs.get_schema(node.op_type, opset).attributes
            kept = [attribute for attribute in node.attribute if attribute.name in known]
            del node.attribute[:]
            node.attribute.extend(kept)
        return copy


@functools.cache
def node_cases() -> tuple[NodeCase, ...]:
    """All tests of operators of ONNX's own domain, without those of the functions that define some of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests divide by zero on purpose
        collected = collect_testcases(None)
    return tuple(_cases(collected))


def _cases(collected: list) -> Iterator[NodeCase]:
    for case in collected:
        if case.model is None or "_expanded" in case.name or any(each.domain for each in case.model.opset_import):
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        model.ir_version = min(model.ir_version, _IR_VERSION)
        arrays = list(case.data_sets[0][0])
        feeds = None
        if all(isinstance(each, np.ndarray) for each in arrays):
            feeds = dict(zip((value.name for value in model.graph.input), arrays, strict=False))
        yield NodeCase(case.name, model, feeds)


@functools.cache
def changes_of_operators() -> dict[str, frozenset[int]]:
    """By operator, the opsets that changed it."""
    found: dict[str, set[int]] = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name].add(schema.since_version)
    return {name: frozenset(versions) for name, versions in found.items()}


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Silences the converter's warnings: a thousand models are converted for their failures only."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
