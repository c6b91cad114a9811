"""The formats of model files that OpenVINO reads, and the file names by which a version's format is known. Needs no OpenVINO."""

from collections.abc import Mapping
from enum import Enum
from pathlib import PurePosixPath

#: A SavedModel is a folder; this file in it stands for it.
SAVED_MODEL_FILE = "saved_model.pb"


class ModelFormat(Enum):
    """A format; the value is its name in messages."""

    IR = "OpenVINO IR"
    ONNX = "ONNX"
    SAVED_MODEL = "TensorFlow SavedModel"
    FROZEN_GRAPH = "frozen TensorFlow graph"
    TFLITE = "TensorFlow Lite"
    PADDLE = "PaddlePaddle"


#: By suffix; any other suffix is taken for ONNX. `.json` is Paddle 3's default form, which is rejected with the remedy.
_BY_SUFFIX: Mapping[str, ModelFormat] = {
    ".xml": ModelFormat.IR,
    ".pb": ModelFormat.FROZEN_GRAPH,
    ".graphdef": ModelFormat.FROZEN_GRAPH,
    ".tflite": ModelFormat.TFLITE,
    ".pdmodel": ModelFormat.PADDLE,
    ".json": ModelFormat.PADDLE,
}

_SAVED_MODELS = (SAVED_MODEL_FILE, f"model.savedmodel/{SAVED_MODEL_FILE}")
_FROZEN_GRAPHS = ("model.graphdef", "model.pb")
_TFLITE = ("model.tflite",)
_ONNX = ("model.onnx",)
_PADDLE = ("model.pdmodel", "inference.pdmodel", "inference.json")

#: In addition to `model.xml`.
FURTHER_FILENAMES = (*_ONNX, *_SAVED_MODELS, *_FROZEN_GRAPHS, *_TFLITE, *_PADDLE)
#: The platforms of Adlik (`tensorflow`, `tensorflow_lite`, `paddle`, `onnx`) and of Triton (`tensorflow_savedmodel`,
#: `tensorflow_graphdef`), with the file names of each.
PLATFORM_FILENAMES: Mapping[str, tuple[str, ...]] = {
    "tensorflow": (*_SAVED_MODELS, *_FROZEN_GRAPHS),
    "tensorflow_savedmodel": _SAVED_MODELS,
    "tensorflow_graphdef": _FROZEN_GRAPHS,
    "tensorflow_lite": _TFLITE,
    "paddle": (*_PADDLE, "model.json"),
    "onnx": _ONNX,
}


def format_of(model_filename: str) -> ModelFormat:
    """The format of the file of that name, relative to the version folder."""
    path = PurePosixPath(model_filename)
    if path.name == SAVED_MODEL_FILE:
        return ModelFormat.SAVED_MODEL
    return _BY_SUFFIX.get(path.suffix.lower(), ModelFormat.ONNX)
