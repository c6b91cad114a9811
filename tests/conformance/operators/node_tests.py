"""ONNX's own tests of single operators."""

import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

from tests.conformance.operators.case import Case

#: Newest IR version that ONNX Runtime reads.
_IR_VERSION = 13
#: Names of formal inputs that exporters write as constants.
PARAMETERS = frozenset(
    {
        "axes",
        "axis",
        "depth",
        "dft_length",
        "ends",
        "frame_length",
        "frame_step",
        "hop_length",
        "K",
        "k",
        "kernel_shape",
        "max_output_boxes_per_class",
        "n_offset",
        "num_mel_bins",
        "sample_rate",
        "lower_edge_hertz",
        "upper_edge_hertz",
        "output_shape",
        "pad_value",
        "pads",
        "ratio",
        "repeats",
        "roi",
        "scales",
        "shape",
        "size",
        "sizes",
        "split",
        "starts",
        "steps",
        "training_mode",
        "trip_count",
        "M",
        "start",
        "limit",
        "delta",
        "min",
        "max",
        "image_shape",
        "block_shape",
        "constant_value",
    }
)


@functools.cache
def node_tests() -> tuple[Case, ...]:
    """All tests of operators that are neither expanded functions nor previews, and whose inputs and outputs are tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests divide by zero on purpose
        collected = collect_testcases(None)
    return tuple(_cases(collected))


def _cases(collected: Sequence[Any]) -> Iterator[Case]:
    for each in collected:
        if each.model is None or "_expanded" in each.name or any("preview" in opset.domain for opset in each.model.opset_import):
            continue
        inputs, outputs = (list(arrays) for arrays in each.data_sets[0])
        if not all(isinstance(array, np.ndarray | np.generic) for array in (*inputs, *outputs)):
            continue
        model = onnx.ModelProto()
        model.CopyFrom(each.model)
        model.ir_version = min(model.ir_version, _IR_VERSION)
        feeds = {value.name: np.asarray(array) for value, array in zip(model.graph.input, inputs, strict=False)}
        node = model.graph.node[-1]
        yield Case(
            name=each.name.removeprefix("test_"),
            part="nodes",
            operator=node.op_type,
            model=model,
            feeds=feeds,
            expected=[np.asarray(array) for array in outputs],
            parameters=parameters_of(model, feeds),
        )


def parameters_of(model: onnx.ModelProto, feeds: Any) -> tuple[str, ...]:
    """Returns the inputs of `model` that an exporter would write as constants."""
    found = []
    for node in model.graph.node:
        opset = next((each.version for each in model.opset_import if each.domain == node.domain), 1)
        if not onnx.defs.has(node.op_type, opset, node.domain):
            continue
        formals = onnx.defs.get_schema(node.op_type, opset, node.domain).inputs
        found += [name for name, formal in zip(node.input, formals, strict=False) if name in feeds and formal.name in PARAMETERS]
    return tuple(dict.fromkeys(found))
