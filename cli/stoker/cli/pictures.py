"""Converts a picture to an input tensor: colours, size and axes follow from the model's metadata."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stoker.cli.output import CommandFailed, ExitCode

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"})

_SCALE = re.compile(r"(?P<low>-?\d+(\.\d+)?)-(?P<high>-?\d+(\.\d+)?)", re.ASCII)
_CHANNEL_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True, slots=True)
class Scale:
    """The values of black and white in the tensor."""

    black: float
    white: float

    @classmethod
    def parse(cls, text: str) -> "Scale":
        """Reads `LOW-HIGH`, such as `0-1`, `0-255` or `-1-1`.

        Raises:
            CommandFailed: another form.
        """
        match = _SCALE.fullmatch(text)
        if match is None:
            raise CommandFailed(f"--scale {text}: expected LOW-HIGH, such as 0-1, 0-255 or -1-1", ExitCode.USAGE)
        return cls(float(match["low"]), float(match["high"]))


@dataclass(frozen=True, slots=True)
class PictureLayout:
    """The positions of height, width and channels in a model's dims (without batch); a size of -1 is the picture's own."""

    height: int
    width: int
    channels: int
    axes: str

    @classmethod
    def of(cls, name: str, dims: Sequence[int]) -> "PictureLayout":
        """The layout of an input of shape `dims`: HW, CHW or HWC.

        Raises:
            CommandFailed: such an input cannot take a picture.
        """
        if len(dims) == 2:
            return cls(dims[0], dims[1], 1, "HW")
        if len(dims) == 3 and dims[0] in _CHANNEL_MODES:
            return cls(dims[1], dims[2], dims[0], "CHW")
        if len(dims) == 3 and dims[2] in _CHANNEL_MODES:
            return cls(dims[0], dims[1], dims[2], "HWC")
        raise CommandFailed(
            f"input '{name}' has the shape {list(dims)} (without batch), which is not a picture's: expected [H,W], [C,H,W] or [H,W,C] with "
            "1, 3 or 4 channels"
        )


def read_picture(path: Path, layout: PictureLayout, dtype: np.dtype[Any], scale: Scale | None, *, invert: bool) -> np.ndarray[Any, Any]:
    """Decodes `path` and fits it to `layout`: converted to its channels, resized, scaled.

    Args:
        path: The picture.
        layout: The layout of the model's input.
        dtype: The result's dtype.
        scale: The values of black and white; None: 0-1 for floating point, 0-255 for integers.
        invert: Whether to exchange black and white first.

    Returns:
        An array of `dtype`, with the axes of `layout`.

    Raises:
        CommandFailed: it cannot be read, or Pillow is not installed.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise CommandFailed("reading pictures needs Pillow: pip install Pillow") from error
    try:
        with Image.open(path) as picture:
            converted = picture.convert(_CHANNEL_MODES[layout.channels])
    except UnidentifiedImageError as error:
        raise CommandFailed(f"{path} is not a picture that Pillow reads", ExitCode.USAGE) from error
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror or error}", ExitCode.USAGE) from error
    width = converted.width if layout.width < 0 else layout.width
    height = converted.height if layout.height < 0 else layout.height
    if (width, height) != converted.size:
        converted = converted.resize((width, height), Image.Resampling.BILINEAR)
    if scale is None:
        scale = Scale(0, 1) if dtype.kind == "f" else Scale(0, 255)
    brightness = np.asarray(converted, dtype=np.float32) / 255
    if invert:
        brightness = 1 - brightness
    values = scale.black + brightness * (scale.white - scale.black)
    if dtype.kind in "iu":
        values = np.clip(np.rint(values), np.iinfo(dtype).min, np.iinfo(dtype).max)
    if layout.axes != "HW":
        values = values.reshape(height, width, layout.channels)
    if layout.axes == "CHW":
        values = values.transpose(2, 0, 1)
    return np.ascontiguousarray(values.astype(dtype))
