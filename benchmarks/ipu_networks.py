"""ResNet-50 v1 and BERT-base as the converter leaves them, in each precision; structure is all that a cost model reads.

Without a seed weights are lazy tensors that fail when read; with one they are random, of a size that keeps values in range. Normalisations
of ResNet-50 are folded into its convolutions; BERT's layer normalisations are one node each, and its GELU is either one node or the five
(Div, Erf, Add, Mul, Mul) that exporters write.
"""

import math
from collections.abc import Sequence

import onnx_ir as ir

from benchmarks.network_graph import NetworkGraph, Precision, dims

__all__ = ["Precision", "bert_base", "resnet50"]

#: Blocks, inner width and stride of the first, of ResNet-50's four stages.
_STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
_LAYERS, _HIDDEN, _HEADS, _INNER, _VOCABULARY, _POSITIONS = 12, 768, 12, 3072, 30522, 512


def resnet50(batch: int, precision: Precision, *, seed: int | None = None, inner_share: float = 1.0) -> ir.Model:
    """ResNet-50 v1, stride in the first 1x1 of a block; input [batch, 3, 224, 224], output [batch, 1000].

    With an `inner_share` below 1 the channels inside each block are pruned to that share of them; those between blocks stay.
    """
    net = NetworkGraph("resnet50", precision, seed)
    value = net.relu(net.conv(net.input("data", (batch, 3, 224, 224)), 64, kernel=7, stride=2))
    value = net.pool(value, kernel=3, stride=2)
    for blocks, width, first_stride in _STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            kept = round(width * inner_share)
            inner = net.relu(net.conv(value, kept, stride=stride))
            inner = net.relu(net.conv(inner, kept, kernel=3))
            inner = net.conv(inner, 4 * width)
            shortcut = net.conv(value, 4 * width, stride=stride) if block == 0 else value
            value = net.relu(net.binary("Add", inner, shortcut))
    channels = 4 * width
    value = net.op("GlobalAveragePool", [value], (batch, channels, 1, 1))
    value = net.op("Flatten", [value], (batch, channels))
    net.output(net.linear(value, 1000, op_type="Gemm"))
    return net.model()


def bert_base(batch: int, precision: Precision, *, sequence: int = 256, is_gelu_fused: bool = False, seed: int | None = None) -> ir.Model:
    """BERT-base for question answering: inputs [batch, sequence] of int32, outputs start and end logits [batch, sequence]."""
    net = NetworkGraph("bert_base", precision, seed)
    ids = [net.input(name, (batch, sequence), ir.DataType.INT32) for name in ("input_ids", "token_type_ids", "attention_mask")]
    hidden = (batch, sequence, _HIDDEN)
    value = net.op("Gather", [net.weight((_VOCABULARY, _HIDDEN)), ids[0]], hidden)
    value = net.binary("Add", value, net.op("Gather", [net.weight((2, _HIDDEN)), ids[1]], hidden))
    value = net.norm(net.binary("Add", value, net.weight((1, sequence, _HIDDEN))))
    mask = net.op("Unsqueeze", [ids[2], net.indices(1, 2)], (batch, 1, 1, sequence))
    mask.type = ir.TensorType(ir.DataType.INT32)
    mask = net.op("Cast", [mask], mask.shape, to=int(precision.dtype))
    mask = net.binary("Mul", net.binary("Sub", net.constant(1.0), mask), net.constant(-10000.0))
    for _ in range(_LAYERS):
        value = net.norm(net.binary("Add", net.biased(_attention(net, value, mask), _HIDDEN), value))
        inner = _gelu(net, net.biased(value, _INNER), is_fused=is_gelu_fused)
        value = net.norm(net.binary("Add", net.biased(inner, _HIDDEN), value))
    logits = net.biased(value, 2)
    for column, name in enumerate(("start_logits", "end_logits")):
        half = net.op("Slice", [logits, net.indices(column), net.indices(column + 1), net.indices(2)], (batch, sequence, 1))
        net.output(net.op("Squeeze", [half, net.indices(2)], (batch, sequence)), name)
    return net.model()


def _attention(net: NetworkGraph, value: ir.Value, mask: ir.Value) -> ir.Value:
    batch, sequence, _ = dims(value)
    size = _HIDDEN // _HEADS
    split, swapped = (batch, sequence, _HEADS, size), (batch, _HEADS, sequence, size)

    def heads(order: Sequence[int], shape: tuple[int, ...]) -> ir.Value:
        reshaped = net.op("Reshape", [net.biased(value, _HIDDEN), net.indices(*split)], split)
        return net.op("Transpose", [reshaped], shape, perm=list(order))

    query, key = heads((0, 2, 1, 3), swapped), heads((0, 2, 3, 1), (batch, _HEADS, size, sequence))
    scores = net.op("MatMul", [query, key], (batch, _HEADS, sequence, sequence))
    scores = net.binary("Add", net.binary("Mul", scores, net.constant(1 / math.sqrt(size))), mask)
    weights = net.op("Softmax", [scores], scores.shape, axis=-1)
    mixed = net.op("MatMul", [weights, heads((0, 2, 1, 3), swapped)], swapped)
    mixed = net.op("Transpose", [mixed], split, perm=[0, 2, 1, 3])
    return net.op("Reshape", [mixed, net.indices(batch, sequence, _HIDDEN)], (batch, sequence, _HIDDEN))


def _gelu(net: NetworkGraph, value: ir.Value, *, is_fused: bool) -> ir.Value:
    if is_fused:
        return net.op("Gelu", [value], value.shape, domain="com.microsoft")
    erf = net.op("Erf", [net.binary("Div", value, net.constant(math.sqrt(2)))], value.shape)
    return net.binary("Mul", net.binary("Mul", value, net.binary("Add", erf, net.constant(1.0))), net.constant(0.5))
