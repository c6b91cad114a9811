"""Runs a model on ONNX Runtime and shows tensors in its middle."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, NotImplemented, RuntimeException

from stoker.compiler.custom_libraries import register_libraries
from stoker.compiler.errors import CompileError
from stoker.compiler.precision.number_types import numpy_feeds, with_numpy_types
from stoker.compiler.precision.samples import Arrays

_REFUSALS = (Fail, InvalidArgument, InvalidGraph, NotImplemented, RuntimeException)


def observe(model: ir.Model, values: Sequence[ir.Value], feeds: Iterable[Arrays]) -> Iterator[dict[str, NDArray[Any]]]:
    """For each of `feeds` the arrays of `values`, by name; nothing at all if there are no `values`. `model` stays as it was.

    BFLOAT16 comes as float32.

    Args:
        model: Its main graph has `values`.
        values: Of known types; those of sub-graphs cannot be shown.
        feeds: Inputs by name, in the model's types.

    Raises:
        CompileError: ONNX Runtime refuses the model or fails to run it; the text is its own.
    """
    if not values:
        return
    outputs = list(model.graph.outputs)
    names = list(dict.fromkeys(str(value.name) for value in values))  # none would mean all of the model's outputs
    try:
        model.graph.outputs.extend(dict.fromkeys(value for value in values if value not in outputs))
        content = with_numpy_types(ir.to_proto(model)).SerializeToString()
    finally:
        model.graph.outputs.clear()
        model.graph.outputs.extend(outputs)
    try:
        session = onnxruntime.InferenceSession(content, _options(), providers=["CPUExecutionProvider"])
        del content
        for each in feeds:
            yield dict(zip(names, session.run(names, numpy_feeds(each)), strict=True))
    except _REFUSALS as error:
        raise CompileError(f"ONNX Runtime cannot run the model to observe {len(names)} tensor(s) of it: {error}") from None


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    # Nothing that could change what the tensors hold, such as fusions that keep more digits than the model says.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    register_libraries(options)
    return options
