"""Trains a small ResNet to classify pictures of shapes, and writes it as ONNX.

    python examples/shapes/train.py

The pictures are drawn by `shape_pictures.py` from seeds. Held-out pictures have another seed and other parts of the photographs. Input
`data` FP32 [3, 64, 64] per row, normalised as for ImageNet; output `scores` FP32 [12], probabilities. Takes some minutes on one core.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share

from shape_pictures import LABELS, held_out, samples, score, write_examples
from training import batches, fit, prepare, record, run_onnx, write_onnx

SEED = 0
PICTURES = 9600
BATCH = 64
STEPS = 1800
RATE = 4e-3
MODEL = Path(__file__).resolve().parents[1] / "models" / "shapes" / "1" / "model.onnx"


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut; the first one has the stride."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class SmallResNet(nn.Module):
    """A stem and three stages of one block; returns logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            Block(16, 32, 2),
            Block(32, 64, 2),
            Block(64, 96, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(96, len(LABELS)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL, help="file to write (default: %(default)s)")
    options = parser.parse_args()

    prepare(SEED)
    print(f"drawing {PICTURES} pictures", flush=True)
    drawn, classes = samples(PICTURES, SEED, held_out=False)
    network = SmallResNet()
    data = batches((*drawn.values(), classes), BATCH, STEPS, SEED)
    fit(network, data, lambda net, x, y: nn.functional.cross_entropy(net(x), y), steps=STEPS, rate=RATE)

    inputs, truth = held_out()
    write_onnx(nn.Sequential(network, nn.Softmax(dim=1)), inputs, ["scores"], options.model)
    record(options.model, SEED, score(run_onnx(options.model, inputs), truth))
    write_examples(Path(__file__).with_name("pictures"))


if __name__ == "__main__":
    main()
