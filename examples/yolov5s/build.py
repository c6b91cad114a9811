"""Writes YOLOv5s with random weights into a model repository: the graph, size and work of the real one, for benchmarks and clients.

    python examples/yolov5s/build.py --repository /tmp/models
    serve --model_base_path=/tmp/models

The network is that of release 6 and later, exported for inference: 7 225 885 parameters (27.6 MiB), each convolution with its
normalisation folded in. Input `images` FP32 [3, side, side] per row, RGB from 0 to 1. Outputs: three heads, raw, FP32
[3 anchors, rows, columns, 5 + classes] at strides 8, 16 and 32; `client.py` turns them into boxes. The weights come from a seed, so the
boxes mean nothing; the heads are scaled so that some places are surer than others, as in a trained one. Needs `onnx` and `onnxruntime`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share

from onnx_network import Network, add_folder_options, value, write_folder

CLASSES = 80
ANCHORS = 3
STRIDES = (8, 16, 32)
HEADS = ("head_8", "head_16", "head_32")
#: Mean square of x * sigmoid(x) where x is a unit normal.
SILU_MEAN_SQUARE = 0.356
#: Mean and deviation of the heads' values over places: of a box, around its anchor; of classes; and of the value that says whether an
#: object is there at all, of which some dozens of a photograph's places are surer than not, as on a busy street.
BOX = (0.0, 0.4)
CLASS = (-1.0, 1.0)
OBJECTNESS = (-8.0, 2.0)


class Yolov5s:
    """Puts the network together; channel numbers and repeats are those of the published `s` model."""

    def __init__(self, seed: int, side: int = 640, width: float = 1.0) -> None:
        """With `width` below 1 all channels are narrower: a small network of the same form, for tests."""
        self._net = Network("yolov5s", seed)
        self._side = side
        self._width = width

    @property
    def parameters(self) -> int:
        """Number of weights; the published network has 7 225 885."""
        return self._net.parameters

    def build(self) -> onnx.ModelProto:
        """The model, its heads scaled."""
        c = [max(4, int(channels * self._width)) for channels in (32, 64, 128, 256, 512)]
        x = self._conv("b0", "images", 3, c[0], kernel=6, stride=2, pad=2, mean_square=1 / 3)
        x = self._c3("b2", self._conv("b1", x, c[0], c[1], kernel=3, stride=2), c[1], c[1], 1)
        p3 = self._c3("b4", self._conv("b3", x, c[1], c[2], kernel=3, stride=2), c[2], c[2], 2)
        p4 = self._c3("b6", self._conv("b5", p3, c[2], c[3], kernel=3, stride=2), c[3], c[3], 3)
        x = self._c3("b8", self._conv("b7", p4, c[3], c[4], kernel=3, stride=2), c[4], c[4], 1)
        x = self._pooled("b9", x, c[4])
        up5 = self._conv("h10", x, c[4], c[3])
        x = self._c3("h13", self._concat("h12", self._upsample("h11", up5), p4), 2 * c[3], c[3], 1, shortcut=False)
        up4 = self._conv("h14", x, c[3], c[2])
        out3 = self._c3("h17", self._concat("h16", self._upsample("h15", up4), p3), 2 * c[2], c[2], 1, shortcut=False)
        x = self._conv("h18", out3, c[2], c[2], kernel=3, stride=2)
        out4 = self._c3("h20", self._concat("h19", x, up4), 2 * c[2], c[3], 1, shortcut=False)
        x = self._conv("h21", out4, c[3], c[3], kernel=3, stride=2)
        out5 = self._c3("h23", self._concat("h22", x, up5), 2 * c[3], c[4], 1, shortcut=False)
        for head, stride, (source, channels) in zip(HEADS, STRIDES, ((out3, c[2]), (out4, c[3]), (out5, c[4])), strict=True):
            self._head(head, source, channels, self._side // stride)
        outputs = [
            value(head, TensorProto.FLOAT, [ANCHORS, self._side // stride, self._side // stride, 5 + CLASSES])
            for head, stride in zip(HEADS, STRIDES, strict=True)
        ]
        model = self._net.model([value("images", TensorProto.FLOAT, [3, self._side, self._side])], outputs)
        scale_heads(model, self._side)
        return model

    def _conv(
        self,
        name: str,
        x: str,
        channels: int,
        out: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        pad: int | None = None,
        mean_square: float = 0,
    ) -> str:
        """A convolution and SiLU. The mean square of its input is that of a SiLU's output by default."""
        deviation = (channels * kernel * kernel * (mean_square or SILU_MEAN_SQUARE)) ** -0.5
        weights = self._net.weight(f"{name}.weight", self._net.normal((out, channels, kernel, kernel), deviation))
        bias = self._net.weight(f"{name}.bias", self._net.normal((out,), 0.1))
        pads = [kernel // 2 if pad is None else pad] * 4
        y = self._net.node("Conv", [x, weights, bias], f"{name}.conv", kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)
        return self._net.node("Mul", [y, self._net.node("Sigmoid", [y], f"{name}.sigmoid")], f"{name}.out")

    def _c3(self, name: str, x: str, channels: int, out: int, repeats: int, *, shortcut: bool = True) -> str:
        """Two branches of half the width, one through `repeats` bottlenecks, joined."""
        inner = out // 2
        y = self._conv(f"{name}.cv1", x, channels, inner)
        for repeat in range(repeats):
            z = self._conv(f"{name}.m{repeat}.cv1", y, inner, inner)
            z = self._conv(f"{name}.m{repeat}.cv2", z, inner, inner, kernel=3)
            y = self._net.node("Add", [y, z], f"{name}.m{repeat}.sum") if shortcut else z
        joined = self._concat(f"{name}.joined", y, self._conv(f"{name}.cv2", x, channels, inner))
        return self._conv(f"{name}.cv3", joined, 2 * inner, out)

    def _pooled(self, name: str, x: str, channels: int) -> str:
        """The same picture at four reaches: three maxima of 5x5 fields, one upon the other."""
        levels = [self._conv(f"{name}.cv1", x, channels, channels // 2)]
        for level in range(3):
            levels.append(self._net.node("MaxPool", levels[-1:], f"{name}.pool{level}", kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
        return self._conv(f"{name}.cv2", self._concat(f"{name}.levels", *levels), 2 * channels, channels)

    def _upsample(self, name: str, x: str) -> str:
        scales = self._net.node("Constant", [], f"{name}.scales", value=numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32)))
        return self._net.node(
            "Resize", [x, "", scales], name, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )

    def _concat(self, name: str, *xs: str) -> str:
        return self._net.node("Concat", list(xs), name, axis=1)

    def _head(self, name: str, x: str, channels: int, cells: int) -> None:
        """A value for each anchor, cell and property: [batch, anchor, row, column, property]."""
        values = ANCHORS * (5 + CLASSES)
        weights = self._net.weight(f"{name}.weight", self._net.normal((values, channels, 1, 1), (channels * SILU_MEAN_SQUARE) ** -0.5))
        bias = self._net.weight(f"{name}.bias", np.zeros(values, np.float32))
        y = self._net.node("Conv", [x, weights, bias], f"{name}.conv", kernel_shape=[1, 1])
        shape = self._net.weight(f"{name}.shape", np.array([0, ANCHORS, 5 + CLASSES, cells, cells], np.int64))
        self._net.node("Transpose", [self._net.node("Reshape", [y, shape], f"{name}.split")], name, perm=[0, 1, 3, 4, 2])


def scale_heads(model: onnx.ModelProto, side: int) -> None:
    """Scales the heads' weights so that over the places of a made-up picture their values have the wanted means and deviations."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(list(HEADS), {"images": scene(side)[np.newaxis]})
    weights = {weight.name: weight for weight in model.graph.initializer}
    for head, values in zip(HEADS, found, strict=True):
        places = values[0].transpose(0, 3, 1, 2).reshape(ANCHORS * (5 + CLASSES), -1)
        wanted = np.tile([BOX] * 4 + [OBJECTNESS] + [CLASS] * CLASSES, (ANCHORS, 1)).astype(np.float32)
        gain = wanted[:, 1] / np.maximum(places.std(axis=1), 1e-6)
        kernel = numpy_helper.to_array(weights[f"{head}.weight"]) * gain[:, np.newaxis, np.newaxis, np.newaxis]
        bias = wanted[:, 0] - gain * places.mean(axis=1)
        for name, array in ((f"{head}.weight", kernel), (f"{head}.bias", bias)):
            weights[name].CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))


def scene(side: int) -> np.ndarray:
    """A picture with soft shapes of all sizes and hard edges, as photographs have them: FP32 [3, side, side], 0 to 1."""
    rng = np.random.default_rng(1)
    frequency = np.hypot(np.fft.fftfreq(side)[:, np.newaxis], np.fft.rfftfreq(side)[np.newaxis])
    frequency[0, 0] = 1
    spectrum = rng.standard_normal((3, *frequency.shape)) + 1j * rng.standard_normal((3, *frequency.shape))
    clouds = np.fft.irfft2(spectrum / frequency, s=(side, side))
    picture: np.ndarray = np.clip(0.5 + clouds / (4 * clouds.std()), 0, 1)
    for _ in range(60):
        top, left = rng.integers(0, side, 2)
        height, width = rng.integers(1, side // 4, 2)
        picture[:, top : top + height, left : left + width] = rng.random((3, 1, 1))
    return picture.astype(np.float32)


def multiple_of_32(text: str) -> int:
    number = int(text)
    if number < 32 or number % 32:
        raise argparse.ArgumentTypeError(f"{number} is not a multiple of 32")
    return number


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_folder_options(parser, "yolov5s", 30)
    parser.add_argument("--side", type=multiple_of_32, default=640, help="of the picture, in pixels (default: %(default)s)")
    options = parser.parse_args(arguments)
    model = Yolov5s(options.seed, options.side).build()
    write_folder(model, options, input_format="FORMAT_NCHW")


if __name__ == "__main__":
    main()
