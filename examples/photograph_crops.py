"""Crops of the two photographs that scikit-learn carries, as backgrounds of generated pictures. Needs Pillow and scikit-learn.

Training takes the left part of each photograph and held-out pictures take the right part, so that no background is in both.
"""

from collections.abc import Sequence

import numpy as np
from picture_files import picture_files, read_rgb
from PIL import Image

#: Share of a photograph's width that training takes.
TRAINING_SHARE = 0.7
#: Sides of the crops before scaling, in pixels.
CROP_SIDES = (60, 180)


def photographs(*, held_out: bool) -> list[Image.Image]:
    """The training part or the held-out part of each photograph."""
    parts = []
    for file in picture_files(None):
        picture = read_rgb(file)
        border = round(picture.width * TRAINING_SHARE)
        parts.append(picture.crop((border, 0, picture.width, picture.height) if held_out else (0, 0, border, picture.height)))
    return parts


def crop(pictures: Sequence[Image.Image], side: int, rng: np.random.Generator) -> Image.Image:
    """A random square of one of the `pictures`, scaled to `side` pixels and mirrored half of the time."""
    picture = pictures[rng.integers(len(pictures))]
    size = int(rng.integers(*CROP_SIDES, endpoint=True))
    left, top = int(rng.integers(picture.width - size + 1)), int(rng.integers(picture.height - size + 1))
    square = picture.resize((side, side), Image.Resampling.BILINEAR, box=(left, top, left + size, top + size))
    return square.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else square


def distinct_colour(background: np.ndarray, rng: np.random.Generator, distance: float = 100) -> np.ndarray:
    """A random RGB colour whose distance from the mean of `background` [height, width, 3] is at least `distance`."""
    mean = background.reshape(-1, 3).mean(axis=0)
    while True:
        colour = rng.uniform(0, 255, 3)
        if np.linalg.norm(colour - mean) >= distance:
            return colour
