"""A second opinion on FLOAT16 graphs: numpy, one operator after the other, each result rounded as a device that stores halves rounds it."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.backends.simulated.numerics import GraphRunner
from stoker.compiler.lowering.rounding import lower
from stoker.compiler.lowering.typed_graph import typed_graph

#: Operators that IEEE 754 defines to the last bit, or that compute nothing.
EXACT: Mapping[str, Callable[..., NDArray]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Sqrt": np.sqrt,
    "Neg": np.negative,
    "Abs": np.abs,
    "Relu": lambda x: np.maximum(x, np.float32(0)),
    "Max": np.maximum,
    "Min": np.minimum,
    "Identity": lambda x: x,
    "Transpose": np.transpose,
    "MatMul": np.matmul,
}


def emulate(model: onnx.ModelProto, feeds: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Outputs of a graph of `EXACT` operators on FLOAT16: computed in float32, each result rounded to float16."""
    values = {**feeds, **{each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}}
    with np.errstate(all="ignore"):
        for node in model.graph.node:
            operands = [values[name].astype(np.float32) for name in node.input]
            values[node.output[0]] = EXACT[node.op_type](*operands).astype(np.float16)
    return {output.name: values[output.name] for output in model.graph.output}


def run_lowered(model: onnx.ModelProto, feeds: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """The outputs of the lowered `model`, as a simulated device runs it."""
    runner = GraphRunner(lower(typed_graph(model)))
    return runner.run(feeds, list(runner.outputs))


def lowered_graph(model: onnx.ModelProto) -> ir.Model:
    return ir.from_proto(onnx.ModelProto.FromString(lower(typed_graph(model))))
