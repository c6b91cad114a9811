"""Pictures of shapes, drawn from a seed: a turned shape of one colour on a crop of a photograph, with noise.

Needs Pillow and scikit-learn.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share

from normalised_pictures import preprocess
from photograph_crops import crop, distinct_colour, photographs
from picture_files import in_layout

#: The classes, in order of their numbers.
LABELS = ("arrow", "circle", "crescent", "cross", "ellipse", "heart", "hexagon", "lightning", "ring", "square", "star", "triangle")
#: Side of a drawn picture, and of the network's, in pixels.
PICTURE_SIDE = 96
SIDE = 64
HELD_OUT_SEED = 1
HELD_OUT_PICTURES = 600
CALIBRATION_SEED = 2
#: Shapes are drawn larger by this factor, then scaled down: edges become smooth.
_OVERSAMPLING = 3


def regular(corners: int, radius: float = 1.0) -> np.ndarray:
    """A regular polygon around the origin: [corners, 2]."""
    angles = np.arange(corners) * 2 * np.pi / corners
    return radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def outline(label: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Corners [n, 2] of a shape within the unit circle, and those of what is cut out of it."""
    round_ = regular(60)
    match label:
        case "circle":
            return round_, None
        case "ring":
            return round_, regular(60, 0.6)
        case "crescent":
            return round_, regular(60, 0.85) + np.array([0.5, 0])
        case "ellipse":
            return round_ * (1, 0.5), None
        case "triangle" | "square" | "hexagon":
            return regular({"triangle": 3, "square": 4, "hexagon": 6}[label]), None
        case "star":
            star = regular(10)
            star[1::2] *= 0.42
            return star, None
        case "cross":
            arm, end = 0.3, 0.92
            quarter = np.array([(arm, arm), (arm, end), (-arm, end)])
            turn = np.array([(0, 1), (-1, 0)])
            return np.concatenate([quarter @ np.linalg.matrix_power(turn, times) for times in range(4)]), None
        case "arrow":
            return np.array([(-1, -0.2), (0.1, -0.2), (0.1, -0.6), (1, 0), (0.1, 0.6), (0.1, 0.2), (-1, 0.2)]), None
        case "heart":
            at = np.arange(60) * 2 * np.pi / 60
            high = 13 * np.cos(at) - 5 * np.cos(2 * at) - 2 * np.cos(3 * at) - np.cos(4 * at)
            return np.stack([16 * np.sin(at) ** 3, high], axis=1) / 17, None
        case "lightning":
            return np.array([(0.3, -1), (-0.6, 0.1), (-0.1, 0.1), (-0.3, 1), (0.6, -0.2), (0.1, -0.2)]), None
    raise ValueError(f"'{label}' is none of {', '.join(LABELS)}")


def drawn(label: str, background: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A picture of the shape `label` on `background`, which is square."""
    side = background.width
    angle, radius = rng.uniform(0, 2 * np.pi), rng.uniform(0.24, 0.38) * side
    centre = side / 2 + rng.uniform(-0.06, 0.06, 2) * side
    turn = np.array([(np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))])
    mask = Image.new("L", (side * _OVERSAMPLING,) * 2)
    for corners, fill in zip(outline(label), (255, 0), strict=True):
        if corners is not None:
            placed = (corners @ turn * radius + centre) * _OVERSAMPLING
            ImageDraw.Draw(mask).polygon([(float(x), float(y)) for x, y in placed], fill=fill)
    cover = np.asarray(mask.resize((side, side), Image.Resampling.BOX), np.float32)[..., np.newaxis] / 255
    pixels = np.asarray(background, np.float32)
    pixels = pixels + cover * (distinct_colour(pixels, rng) - pixels)
    pixels = pixels + rng.normal(0, rng.uniform(0, 15), pixels.shape)
    return Image.fromarray(np.clip(np.round(pixels), 0, 255).astype(np.uint8))


def pictures(count: int, seed: int, *, held_out: bool) -> Iterator[tuple[Image.Image, int]]:
    """`count` pictures with their classes, the classes in turn."""
    rng = np.random.default_rng(seed)
    backgrounds = photographs(held_out=held_out)
    for at in range(count):
        category = at % len(LABELS)
        yield drawn(LABELS[category], crop(backgrounds, PICTURE_SIDE, rng), rng), category


def network_input(picture: Image.Image) -> np.ndarray:
    """`picture` as the network takes it: FP32 [3, SIDE, SIDE]."""
    return in_layout(preprocess(picture, SIDE), "FORMAT_NCHW")


def samples(count: int, seed: int, *, held_out: bool) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs by name, FP32 [count, 3, SIDE, SIDE], and the classes [count]."""
    images, classes = zip(*pictures(count, seed, held_out=held_out), strict=True)
    return {"data": np.stack([network_input(picture) for picture in images])}, np.array(classes)


def held_out() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The held-out inputs and their classes."""
    return samples(HELD_OUT_PICTURES, HELD_OUT_SEED, held_out=True)


def calibration(count: int) -> dict[str, np.ndarray]:
    """Inputs like those of training, to choose the scales of 8-bit numbers."""
    return samples(count, CALIBRATION_SEED, held_out=False)[0]


def score(outputs: Mapping[str, np.ndarray], classes: np.ndarray) -> dict[str, float]:
    """The accuracy of `outputs`, whose `scores` are [n, len(LABELS)]."""
    return {"accuracy": float((outputs["scores"].argmax(axis=1) == classes).mean())}


def write_examples(folder: Path) -> None:
    """Writes one held-out picture of each class for the client, and `truth.txt` with lines of file name and class."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for picture, category in pictures(len(LABELS), HELD_OUT_SEED, held_out=True):
        name = f"{LABELS[category]}.jpeg"
        picture.save(folder / name, quality=92)
        lines.append(f"{name} {category}\n")
    (folder / "truth.txt").write_text("".join(lines), encoding="utf-8")
