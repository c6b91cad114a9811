"""Pictures of handwritten digits pasted on crops of photographs, made from a seed. Needs Pillow and scikit-learn.

The digits are those of scikit-learn (8x8 pixels). Held-out pictures take the digits of `examples/digits/heldout.npz`, training takes the
others.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "yolov5s"))

from average_precision import mean_average_precision
from detection import Letterbox, decode, detections
from photograph_crops import crop, distinct_colour, photographs
from picture_files import in_layout

LABELS = tuple("0123456789")
HELD_OUT_DIGITS = Path(__file__).resolve().parents[1] / "digits" / "heldout.npz"
#: Side of the pictures, which is the network's, in pixels.
SIDE = 96
#: Digits of a picture, and their heights in pixels.
DIGITS = (1, 4)
HEIGHTS = (24, 44)
#: Largest turn of a digit, in degrees, and the grey of the scaled digit (0 to 240) from which it covers the background.
TURN = 10
FULL_INK = 200
HELD_OUT_SEED = 1
HELD_OUT_PICTURES = 200
CALIBRATION_SEED = 2
#: Held-out pictures written for the client, and the least number of their digits.
EXAMPLE_PICTURES = 4
EXAMPLE_DIGITS = 3
#: Least score of a detection that counts, and the overlap above which a less sure one is dropped.
CONFIDENCE = 0.001
OVERLAP = 0.45
#: Attempts to find a free position for a digit.
ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class PastedDigit:
    """A digit of a picture.

    Attributes:
        digit: 0 to 9.
        box: Left, top, right, bottom in pixels.
    """

    digit: int
    box: tuple[int, int, int, int]


def digit_images(*, held_out: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images UINT8 [n, 8, 8], 0 to 16, and their digits [n]."""
    with np.load(HELD_OUT_DIGITS) as file:
        images, digits = file["images"], file["digits"]
    if held_out:
        return images, digits
    from sklearn.datasets import load_digits  # takes over a second

    data = load_digits()
    excluded = {image.tobytes() for image in images}
    kept = [at for at, image in enumerate(data.images.astype(np.uint8)) if image.tobytes() not in excluded]
    return data.images[kept].astype(np.uint8), data.target[kept]


def ink(image: np.ndarray, height: int, angle: float) -> np.ndarray:
    """A digit scaled, turned by `angle` degrees and cut to its ink: FP32 [about height, width], 0 to 1."""
    grey = Image.fromarray(np.pad(image, 2) * np.uint8(15)).resize((height * 12 // 8,) * 2, Image.Resampling.BICUBIC)
    strength = np.clip(np.asarray(grey.rotate(angle, Image.Resampling.BILINEAR), np.float32) / FULL_INK, 0, 1)
    rows, columns = (np.flatnonzero((strength > 0.3).any(axis=axis)) for axis in (1, 0))
    return strength[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def overlaps(box: Sequence[int], others: Sequence[PastedDigit]) -> bool:
    """Whether `box` shares pixels with the box of another digit."""
    return any(box[0] < o.box[2] and o.box[0] < box[2] and box[1] < o.box[3] and o.box[1] < box[3] for o in others)


def pictures(count: int, seed: int, *, held_out: bool) -> Iterator[tuple[Image.Image, list[PastedDigit]]]:
    """`count` pictures with their digits, which do not overlap."""
    rng = np.random.default_rng(seed)
    backgrounds = photographs(held_out=held_out)
    images, digits = digit_images(held_out=held_out)
    for _ in range(count):
        pixels = np.asarray(crop(backgrounds, SIDE, rng), np.float32).copy()
        pasted: list[PastedDigit] = []
        for _ in range(rng.integers(*DIGITS, endpoint=True)):
            at = rng.integers(len(images))
            strength = ink(images[at], int(rng.integers(*HEIGHTS, endpoint=True)), rng.uniform(-TURN, TURN))
            height, width = strength.shape
            for _ in range(ATTEMPTS):
                left, top = int(rng.integers(SIDE - width + 1)), int(rng.integers(SIDE - height + 1))
                box = (left, top, left + width, top + height)
                if not overlaps(box, pasted):
                    region = pixels[top : top + height, left : left + width]
                    region += strength[..., np.newaxis] * (distinct_colour(region, rng, 130) - region)
                    pasted.append(PastedDigit(int(digits[at]), box))
                    break
        pixels += rng.normal(0, rng.uniform(0, 10), pixels.shape)
        yield Image.fromarray(np.clip(np.round(pixels), 0, 255).astype(np.uint8)), pasted


def network_input(picture: Image.Image) -> np.ndarray:
    """`picture` as the network takes it: FP32 [3, SIDE, SIDE], 0 to 1."""
    return in_layout(Letterbox(picture.size, SIDE).pixels(picture), "FORMAT_NCHW")


def annotations(image: int, pasted: Sequence[PastedDigit]) -> list[dict[str, object]]:
    """The digits of a picture as COCO's annotations: corner, width and height."""
    boxes = ((each.digit, each.box) for each in pasted)
    return [
        {"image_id": image, "category_id": digit, "bbox": [left, top, right - left, bottom - top]}
        for digit, (left, top, right, bottom) in boxes
    ]


def held_out() -> tuple[dict[str, np.ndarray], list[dict[str, object]]]:
    """The held-out inputs by name, FP32 [n, 3, SIDE, SIDE], and COCO's annotations; `image_id` is the row."""
    made = list(pictures(HELD_OUT_PICTURES, HELD_OUT_SEED, held_out=True))
    images = np.stack([network_input(picture) for picture, _ in made])
    return {"images": images}, [each for row, (_, pasted) in enumerate(made) for each in annotations(row, pasted)]


def calibration(count: int) -> dict[str, np.ndarray]:
    """Inputs like those of training, to choose the scales of 8-bit numbers."""
    return {"images": np.stack([network_input(picture) for picture, _ in pictures(count, CALIBRATION_SEED, held_out=False)])}


def score(outputs: Mapping[str, np.ndarray], truth: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """COCO's mean average precision of `outputs`, whose `boxes` are [n, places, 5 + 10]: over overlaps of 0.5 to 0.95, and at 0.5."""
    square = Letterbox((SIDE, SIDE), SIDE)
    found = [
        {"image_id": row, "category_id": each.category, "bbox": each.corner_and_size, "score": each.score}
        for row, boxes in enumerate(outputs["boxes"])
        for each in detections(decode([boxes], SIDE), square, confidence=CONFIDENCE, overlap=OVERLAP)
    ]
    return mean_average_precision(found, truth)


def write_examples(folder: Path) -> None:
    """Writes the first held-out pictures with some digits for the client, and `truth.json` with the digits in COCO's form."""
    folder.mkdir(parents=True, exist_ok=True)
    truth = []
    several = (each for each in pictures(HELD_OUT_PICTURES, HELD_OUT_SEED, held_out=True) if len(each[1]) >= EXAMPLE_DIGITS)
    for number, (picture, pasted) in enumerate(islice(several, EXAMPLE_PICTURES)):
        picture.save(folder / f"{number}.jpeg", quality=92)
        truth += annotations(number, pasted)
    (folder / "truth.json").write_text(json.dumps({"annotations": truth}, indent=1) + "\n", encoding="utf-8")
