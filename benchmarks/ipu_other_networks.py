"""Networks that the cost model is not fitted on, of the sizes that Graphcore's and ByteMLPerf's benchmarks ran.

Each is built from its published architecture; structure is all that a cost model reads. What is not published is assumed, and said at the
network.
"""

import math
from collections.abc import Sequence

import onnx_ir as ir

from benchmarks.ipu_networks import BERT_BASE, span_logits
from benchmarks.network_graph import NetworkGraph, Precision, dims
from benchmarks.transformer_blocks import (
    Activation,
    Rotary,
    Size,
    Writing,
    activated,
    attention,
    attention_mask,
    feed_forward,
    post_norm_layer,
    pre_norm_layer,
    product,
)

BERT_LARGE = Size(layers=24, hidden=1024, heads=16, inner=4096)
ROFORMER_SMALL = Size(layers=6, hidden=384, heads=6, inner=1536)
CLIP_TEXT_B32 = Size(layers=12, hidden=512, heads=8, inner=2048)
#: The medium encoder of the Conformer paper: kernel 31, two feed-forward layers of four times the width.
CONFORMER_MEDIUM = Size(layers=16, hidden=256, heads=4, inner=1024)
_CONFORMER_KERNEL = 31
_CHINESE_VOCABULARY, _CLIP_VOCABULARY, _CLIP_TOKENS = 12000, 49408, 77
_CLASSES = 1000


def vit_b16(batch: int, precision: Precision, writing: Writing) -> ir.Model:
    """ViT-B/16: input [batch, 3, 224, 224], output [batch, 1000]. The padding of pass `attention_padding` is not modelled."""
    net = NetworkGraph("vit_b16", precision, None)
    value = _image_tokens(net, net.input("pixel_values", (batch, 3, 224, 224)), BERT_BASE.hidden, 16)
    for _ in range(BERT_BASE.layers):
        value = pre_norm_layer(net, value, BERT_BASE, writing)
    net.output(net.linear(_first_token(net, net.norm(value)), _CLASSES, op_type="Gemm"))
    return net.model()


def clip_b32(batch: int, texts: int, precision: Precision) -> ir.Model:
    """CLIP ViT-B/32: images [batch, 3, 224, 224] and texts [texts, 77] of int32, output the similarities [batch, texts]."""
    net = NetworkGraph("clip_b32", precision, None)
    writing = Writing(is_attention_fused=True, is_query_scaled=True, activation=Activation.QUICK_GELU)
    image = net.norm(_image_tokens(net, net.input("input", (batch, 3, 224, 224)), BERT_BASE.hidden, 32))
    for _ in range(BERT_BASE.layers):
        image = pre_norm_layer(net, image, BERT_BASE, writing)
    pictures = net.op(
        "MatMul", [_first_token(net, net.norm(image)), net.weight((BERT_BASE.hidden, CLIP_TEXT_B32.hidden))], (batch, CLIP_TEXT_B32.hidden)
    )
    ids = net.input("input/1", (texts, _CLIP_TOKENS), ir.DataType.INT32)
    text = _text_tokens(net, ids, CLIP_TEXT_B32, writing)
    words = net.op(
        "MatMul", [_first_token(net, text), net.weight((CLIP_TEXT_B32.hidden, CLIP_TEXT_B32.hidden))], (texts, CLIP_TEXT_B32.hidden)
    )
    turned = net.op("Transpose", [_unit(net, words)], (CLIP_TEXT_B32.hidden, texts), perm=[1, 0])
    net.output(net.op("MatMul", [_unit(net, pictures), turned], (batch, texts)))
    return net.model()


def clip_text_encoder(batch: int, precision: Precision) -> ir.Model:
    """The text encoder of Stable Diffusion 1 (CLIP ViT-L/14): ids [batch, 77] of int32, outputs all tokens and the pooled one."""
    net = NetworkGraph("clip_text", precision, None)
    writing = Writing(is_query_scaled=True, activation=Activation.QUICK_GELU)
    value = _text_tokens(net, net.input("input_ids", (batch, _CLIP_TOKENS), ir.DataType.INT32), BERT_BASE, writing)
    net.output(value, "last_hidden_state")
    net.output(_first_token(net, value), "pooler_output")
    return net.model()


def roformer_small(
    batch: int, precision: Precision, *, sequence: int, writing: Writing, is_rotary_product: bool, is_second: bool
) -> ir.Model:
    """RoFormer of 6 layers for classification: ids and types [batch, sequence] of int32, output [batch, 2].

    The second version (`is_second`) has normalisations without weights, no biases and Relu; it also takes a mask.
    """
    net = NetworkGraph("roformer", precision, None)
    size = ROFORMER_SMALL
    rotary = Rotary(net, sequence, size.hidden // size.heads, is_product=is_rotary_product)
    ids, types = (net.input(name, (batch, sequence), ir.DataType.INT32) for name in ("input_ids", "token_type_ids"))
    hidden = (batch, sequence, size.hidden)
    value = net.op("Gather", [net.weight((_CHINESE_VOCABULARY, size.hidden)), ids], hidden)
    value = _normalised(net, net.binary("Add", value, net.op("Gather", [net.weight((2, size.hidden)), types], hidden)), is_second)
    masks = [attention_mask(net, net.input("attention_mask", (batch, sequence), ir.DataType.INT32))] if is_second else []
    for _ in range(size.layers):
        mixed = attention(net, value, size, writing, biases=masks, rotary=rotary)
        value = _normalised(net, net.binary("Add", mixed, value), is_second)
        value = _normalised(net, net.binary("Add", feed_forward(net, value, size, writing), value), is_second)
    pooled = net.linear(_first_token(net, value), size.hidden, op_type="Gemm")
    net.output(net.linear(net.op("Tanh", [pooled], pooled.shape), 2, op_type="Gemm"))
    return net.model()


def albert_base(batch: int, precision: Precision, *, sequence: int) -> ir.Model:
    """ALBERT-base for question answering: 12 layers that share their weights, embeddings of 128 channels."""
    net = NetworkGraph("albert_base", precision, None)
    size, writing = BERT_BASE, Writing()
    ids = [net.input(name, (batch, sequence), ir.DataType.INT32) for name in ("input_ids", "token_type_ids", "attention_mask")]
    narrow = (batch, sequence, 128)
    value = net.op("Gather", [net.weight((30000, 128)), ids[0]], narrow)
    value = net.binary("Add", value, net.op("Gather", [net.weight((2, 128)), ids[1]], narrow))
    value = net.biased(net.norm(net.binary("Add", value, net.weight((1, sequence, 128)))), size.hidden)
    mask = attention_mask(net, ids[2])
    with net.shared_weights() as next_layer:
        for _ in range(size.layers):
            next_layer()
            value = post_norm_layer(net, value, size, writing, biases=[mask])
    span_logits(net, value)
    return net.model()


def deberta_base(batch: int, precision: Precision, *, sequence: int) -> ir.Model:
    """DeBERTa-base for question answering, with its two products of content and relative position in each layer.

    The relative positions' keys and queries are constants; the choice of each pair's position is one GatherElements.
    """
    net = NetworkGraph("deberta_base", precision, None)
    size, writing = BERT_BASE, Writing(is_attention_fused=True, is_query_scaled=True)
    ids = [net.input(name, (batch, sequence), ir.DataType.INT32) for name in ("input_ids", "attention_mask")]
    value = net.op("Gather", [net.weight((50265, size.hidden)), ids[0]], (batch, sequence, size.hidden))
    value, mask = net.norm(value), attention_mask(net, ids[1])
    places = net.weight((1, 1, sequence, sequence), ir.DataType.INT32)
    for _ in range(size.layers):
        value = net.norm(net.binary("Add", _disentangled(net, value, size, writing, mask, places), value))
        value = net.norm(net.binary("Add", feed_forward(net, value, size, writing), value))
    span_logits(net, value)
    return net.model()


def _disentangled(net: NetworkGraph, value: ir.Value, size: Size, writing: Writing, mask: ir.Value, places: ir.Value) -> ir.Value:
    """Returns DeBERTa's attention: scores of contents, of content and position, and of position and content."""
    batch, sequence, hidden = dims(value)
    width = hidden // size.heads
    by_head, scores = (batch, size.heads, sequence, width), (batch, size.heads, sequence, sequence)
    relative = (batch, size.heads, sequence, 2 * sequence)
    together = product(net, value, 3 * hidden, writing)
    parts = []
    for part in range(3):
        limits = [net.indices(part * hidden), net.indices((part + 1) * hidden), net.indices(2)]
        cut = net.op("Slice", [together, *limits], (batch, sequence, hidden))
        shaped = net.op("Reshape", [cut, net.indices(batch, sequence, size.heads, width)], (batch, sequence, size.heads, width))
        parts.append(net.op("Transpose", [shaped], by_head, perm=[0, 2, 1, 3]))
    query, key, content = parts
    turned = net.op("Transpose", [key], (batch, size.heads, width, sequence), perm=[0, 1, 3, 2])
    total = net.op("MatMul", [net.binary("Mul", query, net.constant(1 / math.sqrt(3 * width))), turned], scores)
    for each in (query, key):
        placed = net.op("MatMul", [each, net.weight((1, size.heads, width, 2 * sequence))], relative)
        wide = net.op("Expand", [places, net.indices(*scores)], scores)
        chosen = net.op("GatherElements", [placed, wide], scores, axis=-1)
        total = net.binary("Add", total, chosen)
    weights = net.op("Softmax", [net.binary("Add", total, mask)], scores, axis=-1)
    mixed = net.op("Transpose", [net.op("MatMul", [weights, content], by_head)], (batch, sequence, size.heads, width), perm=[0, 2, 1, 3])
    joined = net.op("Reshape", [mixed, net.indices(batch, sequence, hidden)], (batch, sequence, hidden))
    return product(net, joined, hidden, writing)


def wide_and_deep(batch: int, precision: Precision) -> ir.Model:
    """Wide & Deep on Criteo's data: pairs (feature, bucket) [26 x batch, 2] of int32, 13 numbers a row, output [batch, 2].

    The size is that of Intel's published graph for large data sets, which the inputs are those of: 26 features of 1000 buckets, embeddings
    of 32 channels, three layers of 1024, 512 and 256.
    """
    net = NetworkGraph("wide_and_deep", precision, None)
    features, buckets, channels = 26, 1000, 32
    pairs = net.input("new_categorical_placeholder", (features * batch, 2), ir.DataType.INT32)
    numbers = net.input("new_numeric_placeholder", (batch, 13))
    deep = net.op("GatherND", [net.weight((features, buckets, channels)), pairs], (features * batch, channels))
    deep = net.op("Reshape", [deep, net.indices(batch, features * channels)], (batch, features * channels))
    deep = net.op("Concat", [deep, numbers], (batch, features * channels + 13), axis=1)
    for outer in (1024, 512, 256):
        deep = net.relu(net.biased(deep, outer))
    wide = net.op("GatherND", [net.weight((features, buckets, 1)), pairs], (features * batch, 1))
    wide = net.op("Reshape", [wide, net.indices(batch, features)], (batch, features))
    wide = net.op("ReduceSum", [wide, net.indices(1)], (batch, 1), keepdims=1)
    wide = net.binary("Add", wide, net.biased(numbers, 1))
    chance = net.op("Sigmoid", [net.binary("Add", net.biased(deep, 1), wide)], (batch, 1))
    net.output(net.op("Concat", [net.binary("Sub", net.constant(1.0), chance), chance], (batch, 2), axis=1))
    return net.model()


def conformer(batch: int, precision: Precision) -> ir.Model:
    """A Conformer encoder: images [batch, 3, 64, 512] and mask [batch, 128], output [batch, 128, 256].

    Inputs and output are those of ByteMLPerf's model, whose size is not published: it is assumed to be the medium one of the Conformer
    paper, with plain attention, behind two convolutions of stride 2.
    """
    net = NetworkGraph("conformer", precision, None)
    size, writing = CONFORMER_MEDIUM, Writing(activation=Activation.SWISH)
    value = net.input("src", (batch, 3, 64, 512))
    mask = attention_mask(net, net.input("src_pad_mask", (batch, 128), ir.DataType.INT32))
    for _ in range(2):
        value = net.relu(net.conv(value, size.hidden, kernel=3, stride=2))
    _, _, height, tokens = dims(value)
    value = net.op("Transpose", [value], (batch, tokens, size.hidden, height), perm=[0, 3, 1, 2])
    value = net.op("Reshape", [value, net.indices(batch, tokens, height * size.hidden)], (batch, tokens, height * size.hidden))
    value = net.biased(value, size.hidden)
    half = net.constant(0.5)
    for _ in range(size.layers):
        value = net.binary("Add", value, net.binary("Mul", feed_forward(net, net.norm(value), size, writing), half))
        value = net.binary("Add", value, attention(net, net.norm(value), size, writing, biases=[mask]))
        value = net.binary("Add", value, _convolution_module(net, net.norm(value)))
        value = net.binary("Add", value, net.binary("Mul", feed_forward(net, net.norm(value), size, writing), half))
        value = net.norm(value)
    net.output(value, "memory")
    return net.model()


def _convolution_module(net: NetworkGraph, value: ir.Value) -> ir.Value:
    """Returns Conformer's convolution module: pointwise, gated, depthwise with its normalisation folded, swish, pointwise."""
    batch, tokens, channels = dims(value)
    wide = net.biased(value, 2 * channels)
    first, gate = (
        net.op("Slice", [wide, net.indices(at * channels), net.indices((at + 1) * channels), net.indices(2)], value.shape) for at in (0, 1)
    )
    gated = net.binary("Mul", first, net.op("Sigmoid", [gate], value.shape))
    turned = net.op("Transpose", [gated], (batch, channels, tokens), perm=[0, 2, 1])
    inputs = [turned, net.weight((channels, 1, _CONFORMER_KERNEL)), net.weight((channels,))]
    pads = [_CONFORMER_KERNEL // 2] * 2
    deep = net.op("Conv", inputs, turned.shape, kernel_shape=[_CONFORMER_KERNEL], strides=[1], pads=pads, group=channels)
    back = net.op("Transpose", [activated(net, deep, Activation.SWISH)], value.shape, perm=[0, 2, 1])
    return net.biased(back, channels)


def swin(batch: int, precision: Precision, *, width: int, depths: Sequence[int], heads: int, side: int, window: int) -> ir.Model:
    """Swin Transformer: input [batch, 3, side, side], output [batch, 1000]; every second layer's windows are shifted."""
    net = NetworkGraph("swin", precision, None)
    value = net.norm(net.patches(net.input("pixel_values", (batch, 3, side, side)), width, 4))
    field = side // 4
    for stage, depth in enumerate(depths):
        if stage:
            value, field = _merged(net, value, field), field // 2
        channels = width << stage
        size = Size(layers=depth, hidden=channels, heads=heads << stage, inner=4 * channels)
        for layer in range(depth):
            value = _window_layer(net, value, size, field, window, is_shifted=layer % 2 == 1 and field > window)
    pooled = net.op("ReduceMean", [net.norm(value), net.indices(1)], (batch, width << (len(depths) - 1)), keepdims=0)
    net.output(net.linear(pooled, _CLASSES, op_type="Gemm"))
    return net.model()


def _window_layer(net: NetworkGraph, value: ir.Value, size: Size, field: int, window: int, *, is_shifted: bool) -> ir.Value:
    """Returns a layer of Swin: attention within windows of `window` x `window` tokens, and the feed-forward part."""
    batch, tokens, channels = dims(value)
    count, area = (field // window) ** 2, window * window
    image = net.op("Reshape", [net.norm(value), net.indices(batch, field, field, channels)], (batch, field, field, channels))
    image = _rolled(net, image, window // 2) if is_shifted else image
    cut = (batch, field // window, window, field // window, window, channels)
    split = net.op("Reshape", [image, net.indices(*cut)], cut)
    swapped = tuple(cut[at] for at in (0, 1, 3, 2, 4, 5))
    windows = net.op("Transpose", [split], swapped, perm=[0, 1, 3, 2, 4, 5])
    windows = net.op("Reshape", [windows, net.indices(batch * count, area, channels)], (batch * count, area, channels))
    biases = [net.weight((1, size.heads, area, area))]
    if is_shifted:
        biases.append(net.weight((1, count, 1, area, area)))
    mixed = attention(net, windows, size, Writing(is_attention_fused=True, is_query_scaled=True), biases=biases)
    mixed = net.op("Transpose", [net.op("Reshape", [mixed, net.indices(*swapped)], swapped)], cut, perm=[0, 1, 3, 2, 4, 5])
    mixed = net.op("Reshape", [mixed, net.indices(batch, field, field, channels)], (batch, field, field, channels))
    mixed = _rolled(net, mixed, window // 2) if is_shifted else mixed
    mixed = net.op("Reshape", [mixed, net.indices(batch, tokens, channels)], (batch, tokens, channels))
    value = net.binary("Add", mixed, value)
    return net.binary("Add", feed_forward(net, net.norm(value), size, Writing()), value)


def _rolled(net: NetworkGraph, image: ir.Value, by: int) -> ir.Value:
    """Returns [batch, height, width, channels] shifted cyclically by `by` along both spatial dimensions."""
    for axis in (1, 2):
        shape = list(dims(image))
        extent = shape[axis]
        pieces = []
        for begin, end in ((by, extent), (0, by)):
            shape[axis] = end - begin
            pieces.append(net.op("Slice", [image, net.indices(begin), net.indices(end), net.indices(axis)], tuple(shape)))
        image = net.op("Concat", pieces, image.shape, axis=axis)
    return image


def _merged(net: NetworkGraph, value: ir.Value, field: int) -> ir.Value:
    """Returns the tokens of the next stage of Swin: each four neighbours become one of twice the channels."""
    batch, _, channels = dims(value)
    half = field // 2
    cut = (batch, half, 2, half, 2 * channels)
    split = net.op("Reshape", [value, net.indices(*cut)], cut)
    swapped = tuple(cut[at] for at in (0, 1, 3, 2, 4))
    near = net.op("Transpose", [split], swapped, perm=[0, 1, 3, 2, 4])
    near = net.op("Reshape", [near, net.indices(batch, half * half, 4 * channels)], (batch, half * half, 4 * channels))
    return net.op("MatMul", [net.norm(near), net.weight((4 * channels, 2 * channels))], (batch, half * half, 2 * channels))


def _image_tokens(net: NetworkGraph, image: ir.Value, hidden: int, side: int) -> ir.Value:
    """Returns the patches of an image behind a class token, with their positions added."""
    patches = net.patches(image, hidden, side)
    batch, count, _ = dims(patches)
    value = net.op("Concat", [net.weight((batch, 1, hidden)), patches], (batch, count + 1, hidden), axis=1)
    return net.binary("Add", value, net.weight((1, count + 1, hidden)))


def _text_tokens(net: NetworkGraph, ids: ir.Value, size: Size, writing: Writing) -> ir.Value:
    """Returns the tokens of CLIP's text encoder, with its causal mask."""
    batch, sequence = dims(ids)
    value = net.op("Gather", [net.weight((_CLIP_VOCABULARY, size.hidden)), ids], (batch, sequence, size.hidden))
    value = net.binary("Add", value, net.weight((1, sequence, size.hidden)))
    mask = net.weight((1, 1, sequence, sequence))
    for _ in range(size.layers):
        value = pre_norm_layer(net, value, size, writing, biases=[mask])
    return net.norm(value)


def _first_token(net: NetworkGraph, value: ir.Value) -> ir.Value:
    """Returns one token [batch, hidden] of `value`, [batch, tokens, hidden]."""
    batch, _, hidden = dims(value)
    first = net.op("Slice", [value, net.indices(0), net.indices(1), net.indices(1)], (batch, 1, hidden))
    return net.op("Reshape", [first, net.indices(batch, hidden)], (batch, hidden))


def _unit(net: NetworkGraph, value: ir.Value) -> ir.Value:
    """Returns the rows of `value` divided by their lengths."""
    rows, _ = dims(value)
    return net.binary("Div", value, net.op("ReduceL2", [value, net.indices(1)], (rows, 1), keepdims=1))


def _normalised(net: NetworkGraph, value: ir.Value, is_second: bool) -> ir.Value:
    """Returns the normalisation of RoFormer's first version, or the second's, without a mean and without weights."""
    if not is_second:
        return net.norm(value)
    return net.op("RMSNormalization", [value, net.weight(dims(value)[-1:])], value.shape, axis=-1)
