"""Pictures on disk, for the examples that send them: which files are meant, and their pixels. Needs Pillow."""

import importlib.util
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


def sample_photographs() -> Path:
    """The folder of the two photographs that scikit-learn carries: `china.jpg` and `flower.jpg`.

    Raises:
        SystemExit: scikit-learn is not there.
    """
    # Found without importing it, which takes over a second.
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("no picture is given, and scikit-learn, which carries some, is not installed")
    return Path(found.submodule_search_locations[0]) / "datasets" / "images"


def picture_files(path: Path | None) -> list[Path]:
    """The file `path`, or the pictures in the folder `path` in order of their names; None: the sample photographs.

    Raises:
        SystemExit: there are none.
    """
    path = sample_photographs() if path is None else path
    if not path.exists():
        raise SystemExit(f"{path} does not exist")
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise SystemExit(f"{path} holds no picture; expected files with one of {', '.join(sorted(SUFFIXES))}")
    return files


def read_rgb(path: Path) -> Image.Image:
    """The picture in RGB.

    Raises:
        SystemExit: it cannot be read.
    """
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise SystemExit(f"{path}: {error}") from None


def in_layout(pixels: np.ndarray, layout: str) -> np.ndarray:
    """`pixels` [height, width, channel] as a model's `format` wants them: channels first unless it says `FORMAT_NHWC`."""
    return pixels if layout == "FORMAT_NHWC" else np.ascontiguousarray(pixels.transpose(2, 0, 1))
