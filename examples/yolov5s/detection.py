"""From a picture to what YOLOv5 takes, and from what it gives to boxes on the picture. Arrays in, arrays out: no server, no files."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

#: Widths and heights of the boxes that each cell starts from, in pixels of the network's picture, by stride of the head. Of the published
#: models, for COCO.
ANCHORS = {
    8: ((10, 13), (16, 30), (33, 23)),
    16: ((30, 61), (62, 45), (59, 119)),
    32: ((116, 90), (156, 198), (373, 326)),
}
#: What a picture that is not square is filled up with, and how many candidates suppression looks at.
GREY = 114
MOST_CANDIDATES = 30_000
#: Boxes narrower or lower, in pixels of the network's picture, are none.
LEAST_SIDE = 2
#: Centre, width and height, and whether there is an object; the classes follow.
PROPERTIES = 5


@dataclass(frozen=True, slots=True)
class Letterbox:
    """How a picture lies in the network's square: scaled by `scale`, its corner at `left`, `top`.

    Attributes:
        size: Width and height of the picture itself.
        side: Of the square, in pixels.
    """

    size: tuple[int, int]
    side: int

    @property
    def scale(self) -> float:
        return self.side / max(self.size)

    @property
    def scaled(self) -> tuple[int, int]:
        """Width and height in the square."""
        return (max(1, round(self.size[0] * self.scale)), max(1, round(self.size[1] * self.scale)))

    @property
    def corner(self) -> tuple[int, int]:
        """Left and top in the square."""
        return (self.side - self.scaled[0]) // 2, (self.side - self.scaled[1]) // 2

    def pixels(self, picture: Image.Image) -> np.ndarray:
        """The square: FP32 [side, side, 3], 0 to 1."""
        square = Image.new("RGB", (self.side, self.side), (GREY,) * 3)
        square.paste(picture.resize(self.scaled, Image.Resampling.BILINEAR), self.corner)
        return np.asarray(square, dtype=np.float32) / 255

    def on_picture(self, boxes: np.ndarray) -> np.ndarray:
        """Boxes of the square [n, 4] (left, top, right, bottom) in pixels of the picture, cut at its edges."""
        width, height = self.size
        left, top = self.corner
        moved = (boxes - np.array([left, top, left, top], np.float32)) / np.float32(self.scale)
        return np.clip(moved, 0, np.array([width, height, width, height], np.float32))


@dataclass(frozen=True, slots=True)
class Detection:
    """One thing found.

    Attributes:
        box: Left, top, right, bottom in pixels.
        score: 0 to 1: that there is an object, times that it is of this class.
        category: Class, from 0.
    """

    box: tuple[float, float, float, float]
    score: float
    category: int

    @property
    def corner_and_size(self) -> list[float]:
        """The box as COCO writes it: left, top, width, height."""
        left, top, right, bottom = self.box
        return [left, top, right - left, bottom - top]


def decode(outputs: Sequence[np.ndarray], side: int) -> np.ndarray:
    """The network's output for one picture, as FP32 [n, 5 + classes]: centre x and y, width, height in pixels, then likelihoods.

    Args:
        outputs: One sample of each output. Raw heads, [anchors, rows, columns, 5 + classes] or [anchors * (5 + classes), rows, columns]; or
            [n, 5 + classes] where the export decodes itself, which then is all that counts.
        side: Of the network's picture, in pixels.

    Raises:
        ValueError: an output has another form.
    """
    decoded = [output for output in outputs if output.ndim == 2]
    if decoded:
        return decoded[0].astype(np.float32)
    return np.concatenate([_decode_head(output, side) for output in outputs])


def _decode_head(head: np.ndarray, side: int) -> np.ndarray:
    if head.ndim == 3:
        anchors = len(next(iter(ANCHORS.values())))
        if head.shape[0] % anchors:
            raise ValueError(f"an output of shape {list(head.shape)} is not a head of {anchors} anchors")
        head = head.reshape(anchors, -1, *head.shape[1:]).transpose(0, 2, 3, 1)
    if head.ndim != 4 or head.shape[1] != head.shape[2] or side % head.shape[1] or head.shape[3] <= PROPERTIES:
        raise ValueError(f"an output of shape {list(head.shape)} is no head of a picture of {side}x{side} pixels")
    stride = side // head.shape[1]
    if stride not in ANCHORS or head.shape[0] != len(ANCHORS[stride]):
        raise ValueError(f"an output of shape {list(head.shape)} has the stride {stride}; known are {', '.join(map(str, ANCHORS))}")
    values = sigmoid(head.astype(np.float32))
    cells = np.arange(head.shape[1], dtype=np.float32)
    corners = np.stack(np.meshgrid(cells, cells), axis=-1)
    values[..., 0:2] = (values[..., 0:2] * 2 - 0.5 + corners) * stride
    values[..., 2:4] = (values[..., 2:4] * 2) ** 2 * np.array(ANCHORS[stride], np.float32)[:, np.newaxis, np.newaxis]
    return values.reshape(-1, head.shape[3])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without its overflow."""
    return 0.5 * (1 + np.tanh(x / 2))


def detections(decoded: np.ndarray, letterbox: Letterbox, *, confidence: float, overlap: float, most: int = 300) -> list[Detection]:
    """The things found on the picture, surest first.

    Args:
        decoded: What `decode` made.
        letterbox: How the picture lay in the square.
        confidence: Scores below it are dropped.
        overlap: Of two boxes of a class whose intersection over union is above it, the less sure one is dropped.
        most: How many are kept.
    """
    decoded = decoded[(decoded[:, 4] >= confidence) & (decoded[:, 2:4] >= LEAST_SIDE).all(axis=1)]
    scores = decoded[:, PROPERTIES:] * decoded[:, 4:PROPERTIES]
    category = scores.argmax(axis=1)
    score = scores[np.arange(len(scores)), category]
    order = np.argsort(-score, kind="stable")[:MOST_CANDIDATES]
    order = order[score[order] >= confidence]
    half = decoded[order, 2:4] / 2
    boxes = np.concatenate([decoded[order, 0:2] - half, decoded[order, 0:2] + half], axis=1)
    kept = suppressed(boxes, category[order], overlap, most)
    placed = letterbox.on_picture(boxes[kept])
    return [
        Detection((float(box[0]), float(box[1]), float(box[2]), float(box[3])), float(score[at]), int(category[at]))
        for box, at in zip(placed, order[kept], strict=True)
        if (box[2:4] > box[0:2]).all()  # not all of it in the filling
    ]


def suppressed(boxes: np.ndarray, category: np.ndarray, overlap: float, most: int) -> np.ndarray:
    """Which of the `boxes` [n, 4], surest first, are left: places of those that no surer one of their category covers."""
    area = (boxes[:, 2:4] - boxes[:, 0:2]).prod(axis=1)
    left = np.arange(len(boxes))
    kept: list[int] = []
    while left.size and len(kept) < most:
        best, left = left[0], left[1:]
        kept.append(int(best))
        low = np.maximum(boxes[best, 0:2], boxes[left, 0:2])
        high = np.minimum(boxes[best, 2:4], boxes[left, 2:4])
        shared = np.clip(high - low, 0, None).prod(axis=1)
        union = area[best] + area[left] - shared
        covered = (category[left] == category[best]) & (shared > overlap * union)
        left = left[~covered]
    return np.array(kept, dtype=np.int64)
