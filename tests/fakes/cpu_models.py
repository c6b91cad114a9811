"""Models and samples that tests compile for the CPU."""

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.fakes.graphs import parse

MODEL = """g (float[n,16] x) => (float[n,10] y) {
    wide = MatMul(x, w1) positive = Relu(wide) scores = MatMul(positive, w2) y = Softmax <axis = 1> (scores)
}"""


def network() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((16, 64)), "w2": rng.standard_normal((64, 10))}
    model = parse(MODEL, {name: array.astype(np.float32) for name, array in weights.items()})
    for node, name in zip(model.graph.node, ("first", "relu", "second", "softmax"), strict=True):
        node.name = name
    return model


def samples(rows: int = 64) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((rows, 16)).astype(np.float32)


def attention(mask: NDArray[np.float32] | None = None) -> onnx.ModelProto:
    """Attention over `s` items, which the batch leaves open too; with a mask that is added to the scores, over as many as that has."""
    sizes = "b,s,16" if mask is None else f"b,{len(mask)},16"
    masked = "masked = Identity(scores)" if mask is None else "masked = Add(scores, mask)"
    text = f"""g (float[{sizes}] x) => (float[{sizes}] y) {{
        q = MatMul(x, wq) turned = Transpose <perm = [0, 2, 1]> (x) scores = MatMul(q, turned) {masked}
        weights = Softmax <axis = -1> (masked) mixed = MatMul(weights, x) wide = MatMul(mixed, w1) bent = Relu(wide) y = MatMul(bent, w2)
    }}"""
    rng = np.random.default_rng(0)
    given = {"wq": rng.standard_normal((16, 16)) / 8, "w1": rng.standard_normal((16, 32)) / 4, "w2": rng.standard_normal((32, 16)) / 4}
    constants = {name: array.astype(np.float32) for name, array in given.items()}
    model = parse(text, constants if mask is None else {**constants, "mask": mask})
    for node in model.graph.node:
        node.name = f"make_{node.output[0]}"
    return model


def causal_mask(size: int) -> NDArray[np.float32]:
    """0 at and below the diagonal, -inf above it."""
    return np.where(np.triu(np.ones((size, size), bool), 1), -np.inf, 0).astype(np.float32)


def items(rows: int, size: int = 8) -> NDArray[np.float32]:
    """Samples for `attention`."""
    return np.random.default_rng(2).standard_normal((rows, size, 16)).astype(np.float32)
