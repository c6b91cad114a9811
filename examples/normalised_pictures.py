"""Pictures as networks take them that were trained the way ImageNet's usually are."""

import numpy as np
from PIL import Image

#: Of ImageNet's pictures, by colour, as shares of full intensity.
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
#: Short side before the crop, by side of the crop.
RESIZED = 256 / 224


def preprocess(picture: Image.Image, side: int = 224) -> np.ndarray:
    """`picture` as the network takes it: its middle, normalised, FP32 [side, side, 3]."""
    short = round(side * RESIZED)
    width, height = picture.size
    size = (short, short * height // width) if width <= height else (short * width // height, short)
    picture = picture.resize(size, Image.Resampling.BILINEAR)
    left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    pixels = np.asarray(picture.crop((left, top, left + side, top + side)), dtype=np.float32)
    return (pixels / 255 - MEAN) / DEVIATION
