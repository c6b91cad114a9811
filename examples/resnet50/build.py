"""Writes a full ResNet-50 v1 with random weights into a model repository: the size and work of the real one, for benchmarks and clients.

    python examples/resnet50/build.py --repository /tmp/models
    serve --model_base_path=/tmp/models

The weights come from a seed, so the same command writes the same model; its results mean nothing. Input `data` FP32 [3, 224, 224] per
row, normalised as for ImageNet; output `resnetv17_dense0_fwd` FP32 [1000], logits, as the public ONNX model zoo names them. Needs `onnx`.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share

from argument_types import positive
from onnx_network import Network, add_folder_options, value

CLASSES = 1000
#: Blocks, their inner width, and the stride of the first, for each of the four stages.
STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
EXPANSION = 4
#: Scale of the last normalisation in a block. Below 1, so that sixteen residual sums do not pile up.
RESIDUAL_SCALE = 0.3
#: Mean square after the stem's pooling: the largest of nine rectified unit normals that overlap.
POOLED_MEAN_SQUARE = 2.0


class ResNet50:
    """Puts the network together, following the mean square of the activations.

    Weights of variance 2 / fan-in turn inputs of mean square m into sums of variance 2m. That is what each normalisation gets as its
    running variance, so that activations keep their scale from the image to the logits, as in a trained network.
    """

    def __init__(self, seed: int) -> None:
        self._net = Network("resnet50", seed)

    def build(self) -> onnx.ModelProto:
        x = self._conv("stem", "data", 3, 64, kernel=7, stride=2, mean_square=1.0)
        x = self._net.node("Relu", [x], "stem_relu")
        x = self._net.node("MaxPool", [x], "stem_pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        channels, mean_square = 64, POOLED_MEAN_SQUARE
        for stage, (blocks, width, first_stride) in enumerate(STAGES, start=1):
            for block in range(blocks):
                stride = first_stride if block == 0 else 1
                x, mean_square = self._block(f"stage{stage}_block{block}", x, channels, width, stride, mean_square)
                channels = width * EXPANSION
        x = self._net.node("GlobalAveragePool", [x], "pool")
        x = self._net.node("Flatten", [x], "flat", axis=1)
        dense = self._net.rng.standard_normal((CLASSES, channels), dtype=np.float32) * np.float32(np.sqrt(1 / channels))
        output = "resnetv17_dense0_fwd"
        self._net.node(
            "Gemm", [x, self._net.weight("dense_w", dense), self._net.weight("dense_b", np.zeros(CLASSES, np.float32))], output, transB=1
        )
        return self._net.model([value("data", TensorProto.FLOAT, [3, 224, 224])], [value(output, TensorProto.FLOAT, [CLASSES])])

    def _block(self, name: str, x: str, channels: int, width: int, stride: int, mean_square: float) -> tuple[str, float]:
        """A bottleneck: 1x1 (with the stride), 3x3, 1x1, beside a shortcut. Returns its output and that one's mean square."""
        out = width * EXPANSION
        inner = self._net.node(
            "Relu", [self._conv(f"{name}_a", x, channels, width, stride=stride, mean_square=mean_square)], f"{name}_a_relu"
        )
        inner = self._net.node("Relu", [self._conv(f"{name}_b", inner, width, width, kernel=3, mean_square=0.5)], f"{name}_b_relu")
        inner = self._conv(f"{name}_c", inner, width, out, scale=RESIDUAL_SCALE, mean_square=0.5)
        if channels == out:
            shortcut, mean_square = x, mean_square + RESIDUAL_SCALE**2
        else:
            shortcut = self._conv(f"{name}_shortcut", x, channels, out, stride=stride, mean_square=mean_square)
            mean_square = (1 + RESIDUAL_SCALE**2) / 2
        total = self._net.node("Add", [inner, shortcut], f"{name}_sum")
        return self._net.node("Relu", [total], f"{name}_relu"), mean_square

    def _conv(
        self, name: str, x: str, channels: int, out: int, *, mean_square: float, kernel: int = 1, stride: int = 1, scale: float = 1.0
    ) -> str:
        """A convolution and its normalisation."""
        fan_in = channels * kernel * kernel
        weights = self._net.rng.standard_normal((out, channels, kernel, kernel), dtype=np.float32) * np.float32(np.sqrt(2 / fan_in))
        x = self._net.node(
            "Conv",
            [x, self._net.weight(f"{name}_w", weights)],
            f"{name}_conv",
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
        )
        statistics = (("scale", scale), ("bias", 0.0), ("mean", 0.0), ("variance", 2 * mean_square))
        parameters = [self._net.weight(f"{name}_{key}", np.full(out, number, np.float32)) for key, number in statistics]
        return self._net.node("BatchNormalization", [x, *parameters], f"{name}_norm")


def config(name: str, max_batch_size: int, instances: int) -> str:
    return f"""\
# ResNet-50 v1 with random weights. Made by examples/resnet50/build.py.
name: "{name}"
platform: "onnxruntime_onnx"
max_batch_size: {max_batch_size}
input [
  {{ name: "data" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }}
]
output [
  {{ name: "resnetv17_dense0_fwd" data_type: TYPE_FP32 dims: [ {CLASSES} ] label_filename: "labels.txt" }}
]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
dynamic_batching {{ }}
"""


def read_labels(path: Path | None) -> list[str]:
    if path is None:
        return [f"class_{number:04}" for number in range(CLASSES)]
    labels = path.read_text(encoding="utf-8").splitlines()
    if len(labels) != CLASSES:
        raise SystemExit(f"{path} has {len(labels)} lines, expected {CLASSES}: one label for each class")
    return labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_folder_options(parser, "resnet50", 32)
    parser.add_argument("--instances", type=positive, default=1, help="copies that serve side by side (default: %(default)s)")
    parser.add_argument("--labels", type=Path, metavar="FILE", help=f"{CLASSES} lines, one label each (default: class_0000 and so on)")
    options = parser.parse_args()

    labels = read_labels(options.labels)
    folder = options.repository / options.model_name
    version = folder / str(options.version)
    version.mkdir(parents=True, exist_ok=True)
    onnx.save(ResNet50(options.seed).build(), version / "model.onnx")
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    (folder / "config.pbtxt").write_text(config(options.model_name, options.max_batch_size, options.instances), encoding="utf-8")
    print(f"wrote {version / 'model.onnx'}, {(version / 'model.onnx').stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
