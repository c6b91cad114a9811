"""The models in `tests/data/framework_models` as version folders: one function in the formats of several frameworks."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stoker.backends.api.backend import Arrays
from stoker.backends.api.batch import Array

FOLDER = Path(__file__).parents[1] / "data/framework_models"
#: As in `make_models.py`.
WEIGHTS = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
BIAS = np.array([0.5, -0.5], np.float32)


class VersionFolder(NamedTuple):
    """A version folder of a model, the platform that admits its format, and the names that clients use.

    Attributes:
        files: Content by name in the version folder.
        filename: The file that a backend loads.
        platform: Of Adlik or Triton.
        inputs: `pixels` and `scale`, in this order.
        outputs: `scores` and `logits`, in this order.
    """

    files: Mapping[str, bytes]
    filename: str
    platform: str
    inputs: tuple[str, str] = ("pixels", "scale")
    outputs: tuple[str, str] = ("scores", "logits")


def expected(pixels: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scores and logits, each [n,2] float32, for `pixels` [n,4] and `scale` [n,1]."""
    logits: np.ndarray = (pixels @ WEIGHTS) * scale + BIAS
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True), logits


def feeds(rows: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Some pixels and scales."""
    rng = np.random.default_rng(rows)
    return rng.random((rows, 4), np.float32), rng.random((rows, 1), np.float32)


def reference(folder: VersionFolder, inputs: Arrays) -> Mapping[str, Array]:
    """The outputs by name for inputs by name."""
    return dict(zip(folder.outputs, expected(*(inputs[name] for name in folder.inputs)), strict=True))


def tree(name: str, within: str = "") -> dict[str, bytes]:
    """The files of the folder `name`, below the folder `within`."""
    folder = FOLDER / name
    return {(Path(within) / path.relative_to(folder)).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _file(name: str, served: str) -> dict[str, bytes]:
    return {served: (FOLDER / name).read_bytes()}


_GRAPH_OUTPUTS = ("Identity_1", "Identity")
_PADDLE_OUTPUTS = ("softmax_0.tmp_0", "tmp_1")
_UNSIGNED = (("pixels", "scale"), ("Identity_1", "Identity"))

VERSION_FOLDERS: Mapping[str, VersionFolder] = {
    "SavedModel": VersionFolder(tree("saved_model"), "saved_model.pb", "tensorflow"),
    "SavedModel in a folder": VersionFolder(
        tree("saved_model", "model.savedmodel"), "model.savedmodel/saved_model.pb", "tensorflow_savedmodel"
    ),
    "frozen graph": VersionFolder(_file("model.pb", "model.pb"), "model.pb", "tensorflow", outputs=_GRAPH_OUTPUTS),
    "graphdef": VersionFolder(_file("model.pb", "model.graphdef"), "model.graphdef", "tensorflow_graphdef", outputs=_GRAPH_OUTPUTS),
    "tflite": VersionFolder(_file("model.tflite", "model.tflite"), "model.tflite", "tensorflow_lite"),
    "tflite without signature": VersionFolder(_file("unsigned.tflite", "model.tflite"), "model.tflite", "tensorflow_lite", *_UNSIGNED),
    "paddle": VersionFolder(tree("paddle"), "inference.pdmodel", "paddle", outputs=_PADDLE_OUTPUTS),
}
