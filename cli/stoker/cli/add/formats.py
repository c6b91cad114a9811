"""The formats of models that `stoker add` takes, and how to recognise them by names and first bytes. Nothing is unpickled here."""

import json
import zipfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.cli.output import CommandFailed, ExitCode

#: Bytes of a file that are read to recognise it.
_START_BYTES: Final = 4096
#: Entries of a folder that are looked at.
_MOST_ENTRIES: Final = 10_000


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """A format.

    Attributes:
        title: Its name for users.
        served_as: The path in a version folder of a format that a backend serves; a folder ends in `/`. Empty: it must be converted.
        backend: The backend that serves it as it is; empty: none.
        converter: The converter to ONNX in `child.main`; empty: there is none.
        extra: The extra of this distribution that installs the converter.
    """

    title: str
    served_as: str = ""
    backend: str = ""
    converter: str = ""
    extra: str = ""


ONNX: Final = ModelFormat("ONNX", "model.onnx", "onnxruntime")
OPENVINO: Final = ModelFormat("OpenVINO IR", "model.xml", "openvino")
SAVED_MODEL: Final = ModelFormat("TensorFlow SavedModel", "model.savedmodel/", "openvino", "saved_model", "import-tensorflow")
FROZEN_GRAPH: Final = ModelFormat("frozen TensorFlow graph", "model.pb", "openvino")
TFLITE: Final = ModelFormat("TensorFlow Lite", "model.tflite", "openvino", "tflite", "import-tensorflow")
PADDLE: Final = ModelFormat("PaddlePaddle", "model.pdmodel", "openvino", "paddle", "import-paddle")
KERAS: Final = ModelFormat("Keras", converter="keras", extra="import-tensorflow")
PICKLE: Final = ModelFormat("pickle", converter="pickle", extra="import-sklearn")
XGBOOST: Final = ModelFormat("XGBoost", converter="xgboost", extra="import-xgboost")
LIGHTGBM: Final = ModelFormat("LightGBM", converter="lightgbm", extra="import-lightgbm")
CATBOOST: Final = ModelFormat("CatBoost", converter="catboost", extra="import-catboost")
TORCHSCRIPT: Final = ModelFormat("TorchScript", converter="torchscript", extra="import-torch")
TORCH_PROGRAM: Final = ModelFormat("exported PyTorch program", converter="pt2", extra="import-torch")
TORCH_PICKLE: Final = ModelFormat("pickled PyTorch module", converter="torch_pickle", extra="import-torch")
HUB: Final = ModelFormat("model-hub folder", converter="hub", extra="import-hub")
POPEF: Final = ModelFormat("PopEF executable", "executable.popef", "poplar")
EXEC: Final = ModelFormat("GCU executable", "model.exec", "topsinference")
PYTHON: Final = ModelFormat("model in Python", "model.py", "python")

_BY_SUFFIX: Final = {
    ".onnx": ONNX,
    ".tflite": TFLITE,
    ".pdmodel": PADDLE,
    ".keras": KERAS,
    ".h5": KERAS,
    ".hdf5": KERAS,
    ".pkl": PICKLE,
    ".pickle": PICKLE,
    ".joblib": PICKLE,
    ".ubj": XGBOOST,
    ".xgb": XGBOOST,
    ".cbm": CATBOOST,
    ".pt2": TORCH_PROGRAM,
    ".pb": FROZEN_GRAPH,
    ".popef": POPEF,
    ".exec": EXEC,
    ".py": PYTHON,
}
_TAKEN: Final = (
    "ONNX, scikit-learn pickles, XGBoost (.json, .ubj), LightGBM (.txt), CatBoost (.cbm), TorchScript (.pt), .pt2, SavedModel, Keras, "
    "TensorFlow Lite, OpenVINO IR, PaddlePaddle, and model-hub folders (config.json with weights)"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A recognised model.

    Attributes:
        path: The file, or the folder of a format that is a folder.
        format: Its format.
    """

    path: Path
    format: ModelFormat


def recognise(path: Path) -> Source:
    """The model at `path`; of a folder with one model file, that file.

    Raises:
        CommandFailed: nothing is there, no format fits, or more than one file does.
    """
    if path.is_dir():
        return _of_folder(path)
    if not path.is_file():
        raise CommandFailed(f"{path}: no such file or folder", ExitCode.USAGE)
    found = _of_file(path)
    if found is None:
        raise CommandFailed(f"{path}: its format is not recognised; formats are {_TAKEN}", ExitCode.USAGE)
    return Source(path, found)


def _of_folder(folder: Path) -> Source:
    files = {entry.name for entry, _ in zip(sorted(folder.iterdir()), range(_MOST_ENTRIES), strict=False) if entry.is_file()}
    if "saved_model.pb" in files:
        return Source(folder, SAVED_MODEL)
    if is_hub_folder(files):
        return Source(folder, HUB)
    if "model.py" in files:
        return Source(folder, PYTHON)
    found = [Source(folder / name, kind) for name in sorted(files) if (kind := _of_file(folder / name)) is not None]
    models = [each for each in found if each.path.suffix not in (".txt", ".json")] or found
    if len(models) == 1:
        return models[0]
    if not models:
        raise CommandFailed(f"{folder}: no model is recognised in it; formats are {_TAKEN}", ExitCode.USAGE)
    names = ", ".join(each.path.name for each in models[:10])
    raise CommandFailed(f"{folder}: it holds several models ({names}); name one", ExitCode.USAGE)


def is_hub_folder(files: Collection[str]) -> bool:
    """Whether files of these names are a model-hub folder: a config.json with weights."""
    weights = any(name.endswith((".safetensors", ".bin")) and name.startswith(("model", "pytorch_model")) for name in files)
    return "config.json" in files and weights


def _of_file(path: Path) -> ModelFormat | None:
    suffix = path.suffix.lower()
    if path.name == "saved_model.pb":
        return SAVED_MODEL
    if suffix in (".pt", ".pth"):
        return _torch(path)
    if suffix == ".json":
        return XGBOOST if _is_xgboost(path) else None
    if suffix == ".txt":
        return LIGHTGBM if _start(path).startswith(b"tree\n") else None
    if suffix == ".xml":
        return OPENVINO if path.with_suffix(".bin").is_file() and b"<net" in _start(path) else None
    if suffix in (".safetensors", ".bin"):
        return _weights(path)
    if suffix in (".h5", ".hdf5") and not _start(path).startswith(b"\x89HDF"):
        return None
    return _BY_SUFFIX.get(suffix)


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_START_BYTES)


def _torch(path: Path) -> ModelFormat:
    """The format of a file of `torch.save`, `torch.jit.save` or `torch.export.save`, by the names in its archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        return TORCH_PICKLE  # the form of torch.save before version 1.6
    if any(name.endswith(("archive_format", "serialized_exported_program.json")) for name in names):
        return TORCH_PROGRAM
    return TORCHSCRIPT if any("/code/" in name for name in names) else TORCH_PICKLE


def _is_xgboost(path: Path) -> bool:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("learner"), dict)


def _weights(path: Path) -> ModelFormat | None:
    """Weights alone: the folder around them is the model if it has their config.json."""
    if not is_hub_folder({entry.name for entry in path.parent.iterdir()}):
        return None
    raise CommandFailed(f"{path} holds weights alone; their folder is the model: stoker add {path.parent}", ExitCode.USAGE)
