"""Writes a full ResNet-50 v1 with random weights into a model repository: the size and work of the real one, for benchmarks and clients.

    python examples/resnet50/build.py --repository /tmp/models
    serve --model_base_path=/tmp/models

The weights come from a seed, so the same command writes the same model; its answers mean nothing. Input `data` FP32 [3, 224, 224] per
row, normalised as for ImageNet; output `resnetv17_dense0_fwd` FP32 [1000], logits, as the public ONNX model zoo names them. Needs `onnx`.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 1000
#: Blocks, their inner width, and the stride of the first, for each of the four stages.
STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
EXPANSION = 4
#: Scale of the last normalisation in a block. Below 1, so that sixteen residual sums do not pile up.
RESIDUAL_SCALE = 0.3
#: Mean square after the stem's pooling: the largest of nine rectified unit normals that overlap.
POOLED_MEAN_SQUARE = 2.0


class ResNet50:
    """Collects nodes and weights, following the mean square of the activations.

    Weights of variance 2 / fan-in turn inputs of mean square m into sums of variance 2m. That is what each normalisation gets as its
    running variance, so that activations keep their scale from the image to the logits, as in a trained network.
    """

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(seed)

    def build(self) -> onnx.ModelProto:
        value = self._conv("stem", "data", 3, 64, kernel=7, stride=2, mean_square=1.0)
        value = self._node("Relu", [value], "stem_relu")
        value = self._node("MaxPool", [value], "stem_pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        channels, mean_square = 64, POOLED_MEAN_SQUARE
        for stage, (blocks, width, first_stride) in enumerate(STAGES, start=1):
            for block in range(blocks):
                stride = first_stride if block == 0 else 1
                value, mean_square = self._block(f"stage{stage}_block{block}", value, channels, width, stride, mean_square)
                channels = width * EXPANSION
        value = self._node("GlobalAveragePool", [value], "pool")
        value = self._node("Flatten", [value], "flat", axis=1)
        dense = self._rng.standard_normal((CLASSES, channels), dtype=np.float32) * np.float32(np.sqrt(1 / channels))
        output = "resnetv17_dense0_fwd"
        self._node("Gemm", [value, self._weight("dense_w", dense), self._weight("dense_b", np.zeros(CLASSES))], output, transB=1)
        graph = helper.make_graph(
            self.nodes,
            "resnet50",
            [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["batch", 3, 224, 224])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", CLASSES])],
            self.weights,
        )
        # Written out, because onnx stamps its own newest versions, which ONNX Runtime may not read yet.
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="stoker-examples")

    def _block(self, name: str, value: str, channels: int, width: int, stride: int, mean_square: float) -> tuple[str, float]:
        """A bottleneck: 1x1 (with the stride), 3x3, 1x1, beside a shortcut. Returns its output and that one's mean square."""
        out = width * EXPANSION
        inner = self._node(
            "Relu", [self._conv(f"{name}_a", value, channels, width, stride=stride, mean_square=mean_square)], f"{name}_a_relu"
        )
        inner = self._node("Relu", [self._conv(f"{name}_b", inner, width, width, kernel=3, mean_square=0.5)], f"{name}_b_relu")
        inner = self._conv(f"{name}_c", inner, width, out, scale=RESIDUAL_SCALE, mean_square=0.5)
        if channels == out:
            shortcut, mean_square = value, mean_square + RESIDUAL_SCALE**2
        else:
            shortcut = self._conv(f"{name}_shortcut", value, channels, out, stride=stride, mean_square=mean_square)
            mean_square = (1 + RESIDUAL_SCALE**2) / 2
        total = self._node("Add", [inner, shortcut], f"{name}_sum")
        return self._node("Relu", [total], f"{name}_relu"), mean_square

    def _conv(
        self, name: str, value: str, channels: int, out: int, *, mean_square: float, kernel: int = 1, stride: int = 1, scale: float = 1.0
    ) -> str:
        """A convolution and its normalisation."""
        fan_in = channels * kernel * kernel
        weights = self._rng.standard_normal((out, channels, kernel, kernel), dtype=np.float32) * np.float32(np.sqrt(2 / fan_in))
        value = self._node(
            "Conv",
            [value, self._weight(f"{name}_w", weights)],
            f"{name}_conv",
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
        )
        statistics = (("scale", scale), ("bias", 0.0), ("mean", 0.0), ("variance", 2 * mean_square))
        parameters = [self._weight(f"{name}_{key}", np.full(out, number)) for key, number in statistics]
        return self._node("BatchNormalization", [value, *parameters], f"{name}_norm")

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def _weight(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array.astype(np.float32, copy=False), name))
        return name


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


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, required=True, help="model repository to write into; made if it does not exist")
    parser.add_argument("--model-name", default="resnet50", help="name of the model and its folder (default: %(default)s)")
    parser.add_argument("--version", type=positive, default=1, help="version folder (default: %(default)s)")
    parser.add_argument("--max-batch-size", type=positive, default=32, help="for config.pbtxt (default: %(default)s)")
    parser.add_argument("--instances", type=positive, default=1, help="copies that serve side by side (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: %(default)s)")
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
