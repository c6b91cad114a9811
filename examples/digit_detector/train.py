"""Trains a small detector of digits without anchors, and writes it as ONNX.

    python examples/digit_detector/train.py

The pictures are made by `pasted_digits.py` from seeds. Held-out pictures have other digits and other parts of the photographs. Input
`images` FP32 [3, 96, 96] per row, RGB from 0 to 1; output `boxes` FP32 [144, 15]: centre x and y, width and height in pixels, the
probability of an object, and those of the digits, as YOLOv5 exports its decoded boxes. Takes some minutes on one core.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share

from pasted_digits import LABELS, SIDE, PastedDigit, held_out, pictures, score, write_examples
from training import batches, fit, prepare, record, run_onnx, write_onnx

SEED = 0
PICTURES = 8000
BATCH = 32
STEPS = 1800
RATE = 4e-3
#: Side of a cell in pixels. Each cell detects at most one digit.
STRIDE = 8
CELLS = SIDE // STRIDE
#: Before the classes: distances from the centre of the cell to the four edges, and whether a digit has its centre in the cell.
PROPERTIES = 5
#: Cells around that of the centre that learn box and digit too, though not to detect it.
NEIGHBOURS = 1
MODEL = Path(__file__).resolve().parents[1] / "models" / "digit_detector" / "1" / "model.onnx"


def convolution(channels: int, out: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, 3, stride, dilation, dilation, bias=False), nn.BatchNorm2d(out), nn.ReLU())


class Detector(nn.Module):
    """Three convolutions with stride 2 and one between them, residual ones that see more and more around a cell, and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 16, 2), convolution(16, 32, 2), convolution(32, 32), convolution(32, 64, 2))
        self.body = nn.ModuleList(nn.Sequential(convolution(64, 64), convolution(64, 64, dilation=dilation)) for dilation in (1, 2))
        self.head = nn.Conv2d(64, PROPERTIES + len(LABELS), 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Values [batch, CELLS * CELLS, 5 + classes], row by row."""
        x = self.stem(images)
        for block in self.body:
            x = x + block(x)
        return self.head(x).flatten(2).transpose(1, 2)


class Decoded(nn.Module):
    """The detector, and its values as boxes in pixels and probabilities."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector
        centres = (torch.arange(CELLS) + 0.5) * STRIDE
        self.register_buffer("centres", torch.stack([centres.repeat(CELLS), centres.repeat_interleave(CELLS)], dim=1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = self.detector(images)
        edges = torch.exp(values[..., :4]) * STRIDE
        before, after = edges[..., :2], edges[..., 2:]
        return torch.cat(
            [
                self.centres + (after - before) / 2,
                before + after,
                torch.sigmoid(values[..., 4:PROPERTIES]),
                torch.softmax(values[..., PROPERTIES:], dim=2),
            ],
            dim=2,
        )


def target(pasted: Sequence[PastedDigit]) -> np.ndarray:
    """FP32 [CELLS * CELLS, 7]: four edges in pixels, 1 where a digit has its centre, 1 where box and digit are learnt, and the digit."""
    cells = np.zeros((CELLS, CELLS, 7), np.float32)
    nearest = np.full((CELLS, CELLS), np.inf)
    for each in pasted:
        left, top, right, bottom = each.box
        column, row = int((left + right) / 2 / STRIDE), int((top + bottom) / 2 / STRIDE)
        for y in range(max(0, row - NEIGHBOURS), min(CELLS, row + NEIGHBOURS + 1)):
            for x in range(max(0, column - NEIGHBOURS), min(CELLS, column + NEIGHBOURS + 1)):
                distance = abs(y - row) + abs(x - column)
                inside = left < (x + 0.5) * STRIDE < right and top < (y + 0.5) * STRIDE < bottom
                if distance < nearest[y, x] and (inside or distance == 0):
                    nearest[y, x] = distance
                    cells[y, x] = (left, top, right, bottom, distance == 0, 1, each.digit)
    return cells.reshape(-1, 7)


def loss(network: Decoded, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of objects, digits and boxes. `images` are UINT8 [batch, SIDE, SIDE, 3], `targets` those of `target`."""
    values = network.detector(images.permute(0, 3, 1, 2).float() / 255)
    has_centre, learns = targets[..., 4], targets[..., 5] > 0
    objects = nn.functional.binary_cross_entropy_with_logits(values[..., 4], has_centre, reduction="sum") / has_centre.sum()
    digits = nn.functional.cross_entropy(values[learns][:, PROPERTIES:], targets[learns][:, 6].long())
    edges = torch.exp(values[learns][:, :4].clamp(max=5)) * STRIDE
    centres = network.centres.expand(len(images), -1, -1)[learns]
    found = torch.cat([centres - edges[:, :2], centres + edges[:, 2:]], dim=1)
    return objects + 2 * digits + 2 * (1 - overlap(found, targets[learns][:, :4])).mean()


def overlap(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Generalised intersection over union (Rezatofighi et al. 2019) of boxes [n, 4] (left, top, right, bottom): -1 to 1."""
    low, high = torch.maximum(found[:, :2], wanted[:, :2]), torch.minimum(found[:, 2:], wanted[:, 2:])
    shared = (high - low).clamp(min=0).prod(dim=1)
    union = (found[:, 2:] - found[:, :2]).prod(dim=1) + (wanted[:, 2:] - wanted[:, :2]).prod(dim=1) - shared
    hull = (torch.maximum(found[:, 2:], wanted[:, 2:]) - torch.minimum(found[:, :2], wanted[:, :2])).prod(dim=1)
    return shared / union - (hull - union) / hull


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL, help="file to write (default: %(default)s)")
    options = parser.parse_args()

    prepare(SEED)
    print(f"making {PICTURES} pictures", flush=True)
    made = list(pictures(PICTURES, SEED, held_out=False))
    images = np.stack([np.asarray(picture) for picture, _ in made])
    targets = np.stack([target(pasted) for _, pasted in made])
    network = Decoded(Detector())
    nn.init.constant_(network.detector.head.bias[4:PROPERTIES].data, -4)  # most cells have no digit
    fit(network, batches((images, targets), BATCH, STEPS, SEED), loss, steps=STEPS, rate=RATE)

    inputs, truth = held_out()
    write_onnx(network, inputs, ["boxes"], options.model)
    record(options.model, SEED, score(run_onnx(options.model, inputs), truth))
    write_examples(Path(__file__).with_name("pictures"))


if __name__ == "__main__":
    main()
