"""Writes the transformer as ONNX. The keys and values of earlier tokens are an input, and those of all tokens an output.

tokens   INT64 [n]                               the next tokens
past     FP32  [layers, 2, heads, m, width]      keys and values of the m tokens before; m may be 0
logits   FP32  [words]                           of the token after the last one
hidden   FP32  [n, width]                        the last layer of each token
present  FP32  [layers, 2, heads, m + n, width]  `past` of the next call
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from transformer import CONTEXT, EPSILON, HEADS, LAYERS, WIDTH, Weights

OPSET = 18
#: ONNX Runtime reads older versions only than those that the newest onnx writes.
IR_VERSION = 10
SIZE = WIDTH // HEADS


class Graph:
    """Nodes and constants, as they are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        """Adds a constant; returns its name."""
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def add(self, operator: str, *inputs: str, to: str = "", **attributes: object) -> str:
        """Adds a node; returns the name of its output."""
        output = to or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def integers(self, *values: int) -> str:
        """A vector of INT64."""
        return self.constant(f"i{len(self.constants)}", np.array(values, np.int64))

    def number(self, value: float) -> str:
        """A scalar of FP32."""
        return self.constant(f"f{len(self.constants)}", np.float32(value))

    def norm(self, x: str, gain: str) -> str:
        """As `transformer.norm`."""
        mean = self.add("ReduceMean", self.add("Mul", x, x), self.integers(-1), keepdims=1)
        return self.add("Mul", self.add("Div", x, self.add("Sqrt", self.add("Add", mean, self.number(EPSILON)))), gain)


def graph_of(weights: Weights) -> onnx.ModelProto:
    """The transformer as an ONNX model."""
    graph = Graph()
    for name, weight in weights.items():
        graph.constant(name, weight)
    zero, one = graph.constant("zero", np.int64(0)), graph.constant("one", np.int64(1))
    before = graph.add("Gather", graph.add("Shape", "past"), graph.constant("three", np.int64(3)))
    count = graph.add("Gather", graph.add("Shape", "tokens"), zero)
    total = graph.add("Add", before, count)
    places = graph.add("Range", before, total, one)
    x = graph.add("Add", graph.add("Gather", "words", "tokens"), graph.add("Gather", "places", places))
    # A token looks at itself and those before it: [n, m + n].
    is_future = graph.add("Greater", graph.add("Range", zero, total, one), graph.add("Unsqueeze", places, graph.integers(1)))
    mask = graph.add("Where", is_future, graph.number(-1e9), graph.number(0))
    presents = []
    for layer in range(LAYERS):
        normed = graph.norm(x, f"gain{2 * layer}")
        qkv = graph.add("Reshape", graph.add("MatMul", normed, f"qkv{layer}"), graph.integers(-1, 3 * HEADS, SIZE))
        graph.nodes.append(
            helper.make_node("Split", [graph.add("Transpose", qkv, perm=[1, 0, 2])], [f"q{layer}", f"k{layer}", f"v{layer}"], num_outputs=3)
        )
        kept = graph.add("Gather", "past", graph.constant(f"layer{layer}", np.int64(layer)), axis=0)
        keys = graph.add("Concat", graph.add("Gather", kept, zero, axis=0), f"k{layer}", axis=1)
        values = graph.add("Concat", graph.add("Gather", kept, one, axis=0), f"v{layer}", axis=1)
        lead = graph.integers(0)
        both = graph.add("Concat", graph.add("Unsqueeze", keys, lead), graph.add("Unsqueeze", values, lead), axis=0)
        presents.append(graph.add("Unsqueeze", both, lead))
        scores = graph.add("MatMul", f"q{layer}", graph.add("Transpose", keys, perm=[0, 2, 1]))
        scaled = graph.add("Add", graph.add("Mul", scores, graph.number(1 / np.sqrt(SIZE))), mask)
        mixed = graph.add("Transpose", graph.add("MatMul", graph.add("Softmax", scaled, axis=-1), values), perm=[1, 0, 2])
        x = graph.add("Add", x, graph.add("MatMul", graph.add("Reshape", mixed, graph.integers(-1, WIDTH)), f"out{layer}"))
        up = graph.add("MatMul", graph.norm(x, f"gain{2 * layer + 1}"), f"up{layer}")
        x = graph.add("Add", x, graph.add("MatMul", graph.add("Relu", up), f"down{layer}"))
    graph.add("Concat", *presents, axis=0, to="present")
    graph.add("Identity", graph.norm(x, f"gain{2 * LAYERS}"), to="hidden")
    last = graph.add("Gather", "hidden", graph.constant("minus", np.int64(-1)), axis=0)
    graph.add("MatMul", last, graph.add("Transpose", "words", perm=[1, 0]), to="logits")
    inputs = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("past", TensorProto.FLOAT, [LAYERS, 2, HEADS, "m", SIZE]),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, [len(weights["words"])]),
        helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["n", WIDTH]),
        helper.make_tensor_value_info("present", TensorProto.FLOAT, [LAYERS, 2, HEADS, "all", SIZE]),
    ]
    made = helper.make_model(
        helper.make_graph(graph.nodes, "tiny_transformer", inputs, outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(made, {"context": str(CONTEXT)})
    onnx.checker.check_model(made)
    return made


def write(weights: Weights, path: Path) -> None:
    """Writes the ONNX file."""
    onnx.save(graph_of(weights), str(path))
