"""Blocks of transformer networks, put together from a `NetworkGraph`: attention, feed-forward layers, activations.

Exporters and the converter's passes write the same block in several ways. `Writing` says which one a network has: the structure decides how
many products and element-wise operators the device runs.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from benchmarks.network_graph import NetworkGraph, dims


class Activation(enum.Enum):
    """The activation between the two products of a feed-forward layer, by the nodes that the converter leaves."""

    GELU = "one Gelu"
    ERF_GELU = "Div, Erf, Add, Mul, Mul"
    QUICK_GELU = "Mul, Sigmoid, Mul"
    RELU = "one Relu"
    SWISH = "Sigmoid, Mul"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of an encoder: layers, channels of a token, heads of attention, channels inside a feed-forward layer."""

    layers: int
    hidden: int
    heads: int
    inner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """How the blocks are written.

    Attributes:
        is_attention_fused: One product computes queries, keys and values (pass `fused_attention`, or the exporter), instead of three.
        is_scaled_ahead: The factor 1/sqrt(size of a head) is in the weights of the query (pass `pre_scale`), not a node.
        is_query_scaled: The factor is a node on the queries, not on the scores.
        activation: Of feed-forward layers.
        is_biased: Whether products have biases.
    """

    is_attention_fused: bool = False
    is_scaled_ahead: bool = False
    is_query_scaled: bool = False
    activation: Activation = Activation.GELU
    is_biased: bool = True


def activated(net: NetworkGraph, value: ir.Value, activation: Activation) -> ir.Value:
    """Returns `value` after the activation."""
    match activation:
        case Activation.GELU:
            return net.op("Gelu", [value], value.shape, domain="com.microsoft")
        case Activation.ERF_GELU:
            erf = net.op("Erf", [net.binary("Div", value, net.constant(math.sqrt(2)))], value.shape)
            return net.binary("Mul", net.binary("Mul", value, net.binary("Add", erf, net.constant(1.0))), net.constant(0.5))
        case Activation.QUICK_GELU:
            scaled = net.binary("Mul", value, net.constant(1.702))
            return net.binary("Mul", value, net.op("Sigmoid", [scaled], value.shape))
        case Activation.RELU:
            return net.relu(value)
        case Activation.SWISH:
            return net.binary("Mul", value, net.op("Sigmoid", [value], value.shape))


def product(net: NetworkGraph, value: ir.Value, outer: int, writing: Writing) -> ir.Value:
    """Returns the product of `value`, [..., inner], and a weight [inner, outer], with its bias if `writing` has biases."""
    if writing.is_biased:
        return net.biased(value, outer)
    return net.op("MatMul", [value, net.weight((dims(value)[-1], outer))], (*dims(value)[:-1], outer))


def feed_forward(net: NetworkGraph, value: ir.Value, size: Size, writing: Writing) -> ir.Value:
    """Returns the two products of a feed-forward layer with the activation between them."""
    return product(net, activated(net, product(net, value, size.inner, writing), writing.activation), size.hidden, writing)


def attention(
    net: NetworkGraph,
    value: ir.Value,
    size: Size,
    writing: Writing,
    *,
    biases: Sequence[ir.Value] = (),
    rotary: "Rotary | None" = None,
) -> ir.Value:
    """Returns multi-head attention over `value`, [batch, sequence, hidden], with its output product.

    Args:
        net: The graph.
        value: The tokens.
        size: Heads and channels.
        writing: How it is written.
        biases: Values to add to the scores [batch, heads, sequence, sequence]: masks, relative positions. One of five dimensions [1, parts,
            1, sequence, sequence] differs by part of the batch.
        rotary: Rotates queries and keys by their positions.
    """
    batch, sequence, hidden = dims(value)
    width = hidden // size.heads
    split, swapped = (batch, sequence, size.heads, width), (batch, size.heads, sequence, width)
    query, key, content = _projections(net, value, writing)

    turned = (batch, size.heads, width, sequence)

    def heads(part: ir.Value, *, is_turned: bool = False) -> ir.Value:
        reshaped = net.op("Reshape", [part, net.indices(*split)], split)
        shape, order = (turned, [0, 2, 3, 1]) if is_turned else (swapped, [0, 2, 1, 3])
        return net.op("Transpose", [reshaped], shape, perm=order)

    factor = net.constant(1 / math.sqrt(width))
    if writing.is_query_scaled:
        query = net.binary("Mul", query, factor)
    query, key = heads(query), heads(key, is_turned=rotary is None)
    if rotary is not None:
        query = rotary.rotated(query)
        key = net.op("Transpose", [rotary.rotated(key)], turned, perm=[0, 1, 3, 2])
    scores = net.op("MatMul", [query, key], (batch, size.heads, sequence, sequence))
    if not writing.is_scaled_ahead and not writing.is_query_scaled:
        scores = net.binary("Mul", scores, factor)
    for each in biases:
        scores = _with_bias(net, scores, each)
    weights = net.op("Softmax", [scores], scores.shape, axis=-1)
    mixed = net.op("MatMul", [weights, heads(content)], swapped)
    mixed = net.op("Transpose", [mixed], split, perm=[0, 2, 1, 3])
    joined = net.op("Reshape", [mixed, net.indices(batch, sequence, hidden)], (batch, sequence, hidden))
    return product(net, joined, hidden, writing)


def _with_bias(net: NetworkGraph, scores: ir.Value, bias: ir.Value) -> ir.Value:
    if len(dims(bias)) == len(dims(scores)):
        return net.binary("Add", scores, bias)
    parts, (batch, *rest) = dims(bias)[1], dims(scores)
    apart = (batch // parts, parts, *rest)
    added = net.binary("Add", net.op("Reshape", [scores, net.indices(*apart)], apart), bias)
    return net.op("Reshape", [added, net.indices(batch, *rest)], scores.shape)


def _projections(net: NetworkGraph, value: ir.Value, writing: Writing) -> list[ir.Value]:
    """Returns queries, keys and values, [batch, sequence, hidden] each."""
    hidden = dims(value)[-1]
    if not writing.is_attention_fused:
        return [product(net, value, hidden, writing) for _ in range(3)]
    together = product(net, value, 3 * hidden, writing)
    last = len(dims(value)) - 1
    return [
        net.op("Slice", [together, net.indices(part * hidden), net.indices((part + 1) * hidden), net.indices(last)], value.shape)
        for part in range(3)
    ]


def pre_norm_layer(net: NetworkGraph, value: ir.Value, size: Size, writing: Writing, *, biases: Sequence[ir.Value] = ()) -> ir.Value:
    """Returns a layer that normalises before attention and before the feed-forward part (ViT, CLIP)."""
    value = net.binary("Add", attention(net, net.norm(value), size, writing, biases=biases), value)
    return net.binary("Add", feed_forward(net, net.norm(value), size, writing), value)


def post_norm_layer(net: NetworkGraph, value: ir.Value, size: Size, writing: Writing, *, biases: Sequence[ir.Value] = ()) -> ir.Value:
    """Returns a layer that normalises behind attention and behind the feed-forward part (BERT)."""
    value = net.norm(net.binary("Add", attention(net, value, size, writing, biases=biases), value))
    return net.norm(net.binary("Add", feed_forward(net, value, size, writing), value))


class Rotary:
    """Rotary position embedding; all layers share its tables."""

    def __init__(self, net: NetworkGraph, sequence: int, width: int, *, is_product: bool) -> None:
        """Makes the tables.

        Args:
            net: The graph.
            sequence: Number of positions.
            width: Channels of a head.
            is_product: Pairs are swapped by a product with a constant matrix (pass `matmul_rotary_embedding`), not by slices.
        """
        self._net = net
        self._cosine, self._sine = net.weight((1, 1, sequence, width)), net.weight((1, 1, sequence, width))
        self._swap = net.weight((width, width)) if is_product else None

    def rotated(self, value: ir.Value) -> ir.Value:
        """Returns `value`, [batch, heads, sequence, width], with each pair of channels rotated by an angle of its position."""
        net, width = self._net, dims(value)[-1]
        if self._swap is not None:
            swapped = net.op("MatMul", [value, self._swap], value.shape)
        else:
            half = (*dims(value)[:-1], width // 2)
            first, second = (
                net.op("Slice", [value, net.indices(at), net.indices(width), net.indices(3), net.indices(2)], half) for at in (0, 1)
            )
            swapped = net.op("Concat", [net.op("Neg", [second], half), first], value.shape, axis=-1)
        return net.binary("Add", net.binary("Mul", value, self._cosine), net.binary("Mul", swapped, self._sine))


def attention_mask(net: NetworkGraph, mask: ir.Value) -> ir.Value:
    """Returns what a mask [batch, sequence] of int32 adds to scores: 0 or -10000, [batch, 1, 1, sequence]."""
    batch, sequence = dims(mask)
    wide = net.op("Unsqueeze", [mask, net.indices(1, 2)], (batch, 1, 1, sequence))
    wide.type = ir.TensorType(ir.DataType.INT32)
    cast = net.op("Cast", [wide], wide.shape, to=int(net.dtype))
    return net.binary("Mul", net.binary("Sub", net.constant(1.0), cast), net.constant(-10000.0))
