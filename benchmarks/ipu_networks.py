"""ResNet-50 v1 and BERT-base as the converter leaves them, in each precision; structure is all that a cost model reads.

Without a seed weights are lazy tensors that fail when read; with one they are random, of a size that keeps values in range. Normalisations
of ResNet-50 are folded into its convolutions; BERT's layer normalisations are one node each, and its GELU is either one node or the five
(Div, Erf, Add, Mul, Mul) that exporters write.
"""

import onnx_ir as ir

from benchmarks.network_graph import NetworkGraph, Precision, dims
from benchmarks.transformer_blocks import Activation, Size, Writing, attention_mask, post_norm_layer

__all__ = ["BERT_BASE", "Precision", "bert", "bert_base", "resnet50"]

#: Blocks, inner width and stride of the first, of ResNet-50's four stages.
_STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
BERT_BASE = Size(layers=12, hidden=768, heads=12, inner=3072)
_VOCABULARY = 30522


def resnet50(
    batch: int, precision: Precision, *, seed: int | None = None, inner_share: float = 1.0, is_input_uint8: bool = False
) -> ir.Model:
    """ResNet-50 v1, stride in the first 1x1 of a block; input [batch, 3, 224, 224], output [batch, 1000].

    With an `inner_share` below 1 the channels inside each block are pruned to that share of them; those between blocks stay. An input of
    uint8 is cast and normalised on the device.
    """
    net = NetworkGraph("resnet50", precision, seed)
    shape = (batch, 3, 224, 224)
    value = net.input("data", shape, ir.DataType.UINT8 if is_input_uint8 else None)
    if is_input_uint8:
        pixels = net.op("Cast", [value], shape, to=int(net.dtype))
        value = net.binary("Sub", net.binary("Mul", pixels, net.weight((1, 3, 1, 1))), net.weight((1, 3, 1, 1)))
    value = net.relu(net.conv(value, 64, kernel=7, stride=2))
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


def bert_base(
    batch: int, precision: Precision, *, sequence: int = 256, is_gelu_fused: bool = False, seed: int | None = None, size: Size = BERT_BASE
) -> ir.Model:
    """BERT-base for question answering as PopRT's default passes leave it: see `bert`."""
    writing = Writing(activation=Activation.GELU if is_gelu_fused else Activation.ERF_GELU)
    return bert(batch, precision, size=size, writing=writing, sequence=sequence, seed=seed)


def bert(
    batch: int,
    precision: Precision,
    *,
    size: Size,
    writing: Writing,
    sequence: int,
    vocabulary: int = _VOCABULARY,
    seed: int | None = None,
) -> ir.Model:
    """A BERT for question answering: inputs [batch, sequence] of int32, outputs start and end logits [batch, sequence]."""
    net = NetworkGraph("bert", precision, seed)
    ids = [net.input(name, (batch, sequence), ir.DataType.INT32) for name in ("input_ids", "token_type_ids", "attention_mask")]
    hidden = (batch, sequence, size.hidden)
    value = net.op("Gather", [net.weight((vocabulary, size.hidden)), ids[0]], hidden)
    value = net.binary("Add", value, net.op("Gather", [net.weight((2, size.hidden)), ids[1]], hidden))
    value = net.norm(net.binary("Add", value, net.weight((1, sequence, size.hidden))))
    mask = attention_mask(net, ids[2])
    for _ in range(size.layers):
        value = post_norm_layer(net, value, size, writing, biases=[mask])
    span_logits(net, value)
    return net.model()


def span_logits(net: NetworkGraph, value: ir.Value) -> None:
    """Adds the head of question answering to tokens [batch, sequence, hidden], with its two outputs [batch, sequence]."""
    batch, sequence, _ = dims(value)
    logits = net.biased(value, 2)
    for column, name in enumerate(("start_logits", "end_logits")):
        half = net.op("Slice", [logits, net.indices(column), net.indices(column + 1), net.indices(2)], (batch, sequence, 1))
        net.output(net.op("Squeeze", [half, net.indices(2)], (batch, sequence)), name)
