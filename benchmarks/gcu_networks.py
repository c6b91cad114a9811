"""The four networks of the published GCU tables, in fp32, of the sizes that the tables give; structure is all that a cost model reads."""

import onnx_ir as ir

from benchmarks.ipu_networks import bert_base, resnet50
from benchmarks.network_graph import NetworkGraph, Precision, dims

#: Of the channels inside ResNet-50's blocks, the share that leaves 39.8 MiB of weights; how the published one was pruned is not known.
PRUNED_SHARE = 0.4016
#: What the vendor's BERT sample takes where nothing is said (SQuAD).
BERT_SEQUENCE = 384
_SIDE, _CLASSES, _ANCHORS = 640, 80, 3
#: Channels behind each of YOLOv5s's five reductions, and how often the block that follows is repeated.
_WIDTHS, _REPEATS = (32, 64, 128, 256, 512), (1, 2, 3, 1)


def gcu_network(name: str, batch: int, *, seed: int | None = None) -> ir.Model:
    """`resnet50`, `pruned resnet50`, `yolov5s` or `bert` at a batch size; with a `seed` its weights can be read, too.

    Raises:
        ValueError: there is no such network.
    """
    match name:
        case "resnet50":
            return resnet50(batch, Precision.FP32, seed=seed)
        case "pruned resnet50":
            return resnet50(batch, Precision.FP32, inner_share=PRUNED_SHARE, seed=seed)
        case "yolov5s":
            return yolov5s(batch, seed=seed)
        case "bert":
            return bert_base(batch, Precision.FP32, sequence=BERT_SEQUENCE, seed=seed)
    raise ValueError(f"there is no network '{name}'")


def yolov5s(batch: int, *, seed: int | None = None) -> ir.Model:
    """YOLOv5s of release 6, normalisations folded; input [batch, 3, 640, 640], output [batch, 25200, 85], decoded."""
    net = NetworkGraph("yolov5s", Precision.FP32, seed)
    value = _silu(net, net.input("images", (batch, 3, _SIDE, _SIDE)), _WIDTHS[0], kernel=6, stride=2, pad=2)
    kept: list[ir.Value] = []
    for width, repeats in zip(_WIDTHS[1:], _REPEATS, strict=True):
        value = _c3(net, _silu(net, value, width, kernel=3, stride=2), width, repeats)
        kept.append(value)
    _, eighth, sixteenth, last = kept
    top = _silu(net, _pyramid_pool(net, last), 256)
    middle = _silu(net, _c3(net, _joined(net, _doubled(net, top), sixteenth), 256, 1, is_residual=False), 128)
    low = _c3(net, _joined(net, _doubled(net, middle), eighth), 128, 1, is_residual=False)
    middle = _c3(net, _joined(net, _silu(net, low, 128, kernel=3, stride=2), middle), 256, 1, is_residual=False)
    high = _c3(net, _joined(net, _silu(net, middle, 256, kernel=3, stride=2), top), 512, 1, is_residual=False)
    boxes = [_decoded(net, net.conv(each, _ANCHORS * (_CLASSES + 5))) for each in (low, middle, high)]
    places = sum(dims(each)[1] for each in boxes)
    net.output(net.op("Concat", boxes, (batch, places, _CLASSES + 5), axis=1), "output")
    return net.model()


def weight_mebibytes(model: ir.Model) -> float:
    """Size of a network's weights, by which the tables tell the networks."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None) / 2**20


def _silu(net: NetworkGraph, value: ir.Value, outer: int, *, kernel: int = 1, stride: int = 1, pad: int | None = None) -> ir.Value:
    made = net.conv(value, outer, kernel=kernel, stride=stride, pad=pad)
    return net.binary("Mul", made, net.op("Sigmoid", [made], made.shape))


def _c3(net: NetworkGraph, value: ir.Value, outer: int, repeats: int, *, is_residual: bool = True) -> ir.Value:
    half = outer // 2
    deep = _silu(net, value, half)
    for _ in range(repeats):
        made = _silu(net, _silu(net, deep, half), half, kernel=3)
        deep = net.binary("Add", deep, made) if is_residual else made
    return _silu(net, _joined(net, deep, _silu(net, value, half)), outer)


def _pyramid_pool(net: NetworkGraph, value: ir.Value) -> ir.Value:
    pooled = [_silu(net, value, 256)]
    for _ in range(3):
        pooled.append(net.pool(pooled[-1], kernel=5, stride=1))
    return _silu(net, _joined(net, *pooled), 512)


def _doubled(net: NetworkGraph, value: ir.Value) -> ir.Value:
    batch, channels, rows, columns = dims(value)
    return net.op("Resize", [value, None, net.scales(1, 1, 2, 2)], (batch, channels, 2 * rows, 2 * columns))


def _joined(net: NetworkGraph, *values: ir.Value) -> ir.Value:
    batch, _, rows, columns = dims(values[0])
    return net.op("Concat", values, (batch, sum(dims(each)[1] for each in values), rows, columns), axis=1)


def _decoded(net: NetworkGraph, head: ir.Value) -> ir.Value:
    """Boxes in pixels and scores, as the network's export computes them."""
    batch, _, rows, columns = dims(head)
    size = _CLASSES + 5
    value = net.op("Reshape", [head, net.indices(batch, _ANCHORS, size, rows, columns)], (batch, _ANCHORS, size, rows, columns))
    value = net.op("Transpose", [value], (batch, _ANCHORS, rows, columns, size), perm=[0, 1, 3, 4, 2])
    value = net.op("Sigmoid", [value], value.shape)
    shape = (batch, _ANCHORS, rows, columns)

    def cut(first: int, last: int) -> ir.Value:
        return net.op("Slice", [value, net.indices(first), net.indices(last), net.indices(4)], (*shape, last - first))

    centre = net.binary("Mul", net.binary("Add", cut(0, 2), net.weight((1, _ANCHORS, rows, columns, 2))), net.constant(8.0))
    extent = net.binary("Mul", net.binary("Pow", cut(2, 4), net.constant(2.0)), net.weight((1, _ANCHORS, rows, columns, 2)))
    boxes = net.op("Concat", [centre, extent, cut(4, size)], (*shape, size), axis=4)
    return net.op("Reshape", [boxes, net.indices(batch, _ANCHORS * rows * columns, size)], (batch, _ANCHORS * rows * columns, size))
