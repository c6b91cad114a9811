"""How far every Conv, MatMul and Gemm of a converted model is from the same one of its source, over samples.

Layers are the same where they make a tensor of the same name, which conversions of number types keep. The error of a layer includes those
of all layers before it, so that the first large one in the graph's order is where to look.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.precision.losses import cosine_distance
from stoker.compiler.precision.observe import observe
from stoker.compiler.precision.representation import FLOAT8_OP_TYPES, float8_use
from stoker.compiler.precision.samples import Arrays, cast_feeds, inputs_of, random_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDistance:
    """One layer.

    Attributes:
        node: Its name in the source model.
        op_type: Its operator.
        tensor: Its output.
        converted_as: What it computes in, such as `FLOAT16` or `fp8 F143 x 2^-1, F143 x 2^-3`; empty where it has no counterpart.
        cosine_distance: 1 - cos of source and converted output, its mean over the samples; NaN where it has no counterpart.
    """

    node: str
    op_type: str
    tensor: str
    converted_as: str
    cosine_distance: float

    def __str__(self) -> str:
        where = f"node '{self.node}' ({self.op_type}), tensor '{self.tensor}'"
        if not self.converted_as:
            return f"{where}: not in the converted model (fused or replaced)"
        return f"{where}: cosine distance {self.cosine_distance:.3e}, computed in {self.converted_as}"


def compare_layers(source: onnx.ModelProto, converted: ir.Model, batches: Sequence[Arrays] | None = None) -> list[LayerDistance]:
    """Mean distances of the layers of `source`'s main graph, in its order.

    Args:
        source: Before conversion.
        converted: After it; its values must have types.
        batches: Inputs by the source's names, of the converted model's shapes; random ones where it is None.

    Raises:
        CompileError: a model cannot be run, or an input is missing in the data.
    """
    before = ir.from_proto(onnx.shape_inference.infer_shapes(source))
    feeds = random_batches(inputs_of(converted.graph)) if batches is None else batches
    made = {str(output.name): node for node in converted.graph for output in node.outputs[:1]}
    layers = [node for node in before.graph if node.op_type in FLOAT8_OP_TYPES and node.domain in ("", "ai.onnx")]
    counterparts = [_counterpart(made, str(node.outputs[0].name)) for node in layers]
    pairs = [(node, other) for node, other in zip(layers, counterparts, strict=True) if other is not None]
    totals = {node: np.zeros(2) for node, _ in pairs}
    expected = observe(before, [node.outputs[0] for node, _ in pairs], (cast_feeds(each, inputs_of(before.graph)) for each in feeds))
    actual = observe(converted, [other.outputs[0] for _, other in pairs], (cast_feeds(each, inputs_of(converted.graph)) for each in feeds))
    for wanted, got in zip(expected, actual, strict=True):
        for node, other in pairs:
            first, second = wanted[str(node.outputs[0].name)], got[str(other.outputs[0].name)]
            # A mask's infinities, where both have them, say nothing of the layer; an infinity in only one of them is a difference.
            finite = np.isfinite(first) & np.isfinite(second)
            weight = first.size
            is_same = np.array_equal(np.isfinite(first), np.isfinite(second))
            distance = cosine_distance(first[finite], second[finite].astype(first.dtype)) if is_same else 1.0
            totals[node] += (weight * distance, weight)
    return [_distance(node, other, totals.get(node)) for node, other in zip(layers, counterparts, strict=True)]


def write_comparison(path: str | Path, distances: Sequence[LayerDistance]) -> None:
    """Writes `precision_compare.log`: one line a layer."""
    Path(path).write_text("".join(f"{each}\n" for each in distances), encoding="utf-8")


def _counterpart(made: dict[str, ir.Node], tensor: str) -> ir.Node | None:
    """The layer of the converted model that makes `tensor`; behind the Cast that gives a graph's output its old type."""
    node = made.get(tensor)
    if node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.op_type in FLOAT8_OP_TYPES else None


def _distance(node: ir.Node, other: ir.Node | None, totals: NDArray[np.float64] | None) -> LayerDistance:
    computed, distance = "", math.nan
    if other is not None:
        use = float8_use(other)
        dtype = other.outputs[0].dtype
        computed = "an unknown type" if dtype is None else dtype.name
        if use is not None:
            computed = f"fp8 {use.activation}, {use.weight}" if use.computes else f"{computed}, weight {use.weight}"
        if totals is not None and totals[1]:
            distance = float(totals[0] / totals[1])
    name = str(node.outputs[0].name)
    return LayerDistance(node=node.name or "", op_type=node.op_type, tensor=name, converted_as=computed, cosine_distance=distance)
