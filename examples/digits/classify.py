"""Asks a running server which digit a picture shows. Any picture with one digit on an even background will do.

    python examples/digits/classify.py examples/digits/sample.png

The picture is made into what the model knows: light ink on dark, cropped to the digit, centred, 8 pixels high, grey values 0 to 16.
Needs the extra `examples` (Pillow).
"""

import argparse
import os
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from stoker_client import StokerError, connect

SIDE = 8
WHITE = 16.0
SHADES = " ░▒▓█"


def as_digit(picture: Image.Image) -> np.ndarray:
    """`picture` as the model's input: FP32 [8, 8], 0 (background) to 16 (ink).

    Raises:
        ValueError: the picture is of one colour.
    """
    grey = _grey(picture)
    edge = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    background = float(np.median(edge))
    # Whatever differs from the background is ink, lighter or darker: on light paper this inverts.
    ink = np.abs(grey - background)
    strongest = float(ink.max())
    if strongest < 8:
        raise ValueError("the picture is of one colour: no digit to be seen")
    ink /= strongest
    ink[ink < 0.2] = 0  # paper grain, JPEG noise
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = ink.shape
    side = max(height, width)
    square = np.zeros((side, side), np.float32)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = ink
    # BOX averages: each of the 8x8 values is the share of ink in its field, which is how the training images were made.
    small = np.asarray(Image.fromarray(square).resize((SIDE, SIDE), Image.Resampling.BOX))
    return np.round(small / small.max() * WHITE).astype(np.float32)


def _grey(picture: Image.Image) -> np.ndarray:
    """Grey values [height, width] FP32, 0 to 255, transparent parts on white."""
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        picture = Image.new("RGBA", layer.size, "white")
        picture.alpha_composite(layer)
    return np.asarray(picture.convert("L"), dtype=np.float32).copy()


def in_blocks(image: np.ndarray) -> str:
    """`image` for a terminal: a character is half as wide as high, so each pixel takes two."""
    return "\n".join("".join(SHADES[round(pixel / WHITE * (len(SHADES) - 1))] * 2 for pixel in row) for row in image.tolist())


def save_enlarged(image: np.ndarray, path: Path) -> None:
    pixels = Image.fromarray((image / WHITE * 255).astype(np.uint8))
    pixels.resize((SIDE * 32, SIDE * 32), Image.Resampling.NEAREST).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, help="image file")
    parser.add_argument(
        "--server",
        default=os.environ.get("STOKER_URL") or "grpc://127.0.0.1:8500",
        metavar="URL",
        help="grpc://host:port, http://host:port, or host:port for gRPC (default: STOKER_URL, here %(default)s)",
    )
    parser.add_argument("--show", type=Path, metavar="FILE", help="also write what the model sees, enlarged, as an image file")
    options = parser.parse_args()

    try:
        with Image.open(options.picture) as picture:
            image = as_digit(picture)
    except (OSError, UnidentifiedImageError, ValueError) as error:
        raise SystemExit(f"{options.picture}: {error}") from None
    url = options.server if "://" in options.server else f"grpc://{options.server}"
    try:
        with connect(url, api_key=os.environ.get("STOKER_API_KEY") or None) as client:
            scores = client.infer("digits", {"image": image[np.newaxis]})["scores"][0]
    except (StokerError, ValueError) as error:  # ValueError: not an address
        raise SystemExit(f"{url}: {error}") from None

    print(in_blocks(image))
    print(f"\nThis is a {scores.argmax()}.")
    for digit in np.argsort(-scores)[:3]:
        print(f"  {digit}  {scores[digit]:7.2%}  {'█' * round(float(scores[digit]) * 30)}")
    if options.show is not None:
        save_enlarged(image, options.show)
        print(f"wrote {options.show}")


if __name__ == "__main__":
    main()
