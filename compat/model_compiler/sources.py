"""Determines the kind of a request's source from `framework`, the file's name, or the content of a folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import onnx

from model_compiler.edges import Model
from model_compiler.request import CompileRequest
from stoker.compiler.convert.source import KERAS_SUFFIXES
from stoker.compiler.errors import OptionError
from stoker.compiler.repository_writer import ServedTensor


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """An ONNX file, with its external data where it has some."""

    label: ClassVar[str] = "ONNX file (.onnx)"
    path: Path


@dataclass(frozen=True, slots=True)
class TorchProgramFile:
    """A file of `torch.export.save`."""

    label: ClassVar[str] = "PyTorch exported program (.pt2)"
    path: Path


@dataclass(frozen=True, slots=True)
class TorchStateFile:
    """A state dictionary of `torch.save`, and the script that defines its model."""

    label: ClassVar[str] = "PyTorch state (.pt, .pth) with script_path"
    path: Path
    script: Path


@dataclass(frozen=True, slots=True)
class SavedModelFolder:
    """A TensorFlow SavedModel."""

    label: ClassVar[str] = "TensorFlow SavedModel (folder)"
    path: Path


@dataclass(frozen=True, slots=True)
class FrozenGraphFile:
    """A frozen TensorFlow graph."""

    label: ClassVar[str] = "TensorFlow frozen graph (.pb)"
    path: Path


@dataclass(frozen=True, slots=True)
class KerasFile:
    """A model that Keras wrote."""

    label: ClassVar[str] = "Keras model (.keras, .h5)"
    path: Path


@dataclass(frozen=True, slots=True)
class TfliteFile:
    """A TensorFlow Lite model."""

    label: ClassVar[str] = "TensorFlow Lite model (.tflite)"
    path: Path


@dataclass(frozen=True, slots=True)
class PaddleFile:
    """A PaddlePaddle model; its weights are beside it."""

    label: ClassVar[str] = "PaddlePaddle model (.pdmodel, .pdiparams)"
    path: Path


@dataclass(frozen=True, slots=True)
class IrFile:
    """An OpenVINO IR file; its weights are beside it."""

    label: ClassVar[str] = "OpenVINO IR (.xml, .bin)"
    path: Path


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """An ONNX model in memory.

    Attributes:
        model: The checked model with its weights.
        origin: Source of the model, for messages.
    """

    label: ClassVar[str] = "onnx.ModelProto"
    model: onnx.ModelProto
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServableModel:
    """A compiled model before it is written to the repository.

    Attributes:
        path: The file, still outside the repository.
        filename: Its name in a version's folder.
        config: Fields of config.pbtxt besides names and tensors.
        inputs, outputs: As clients see them.
        companions: Further files of the version, by name.
    """

    label: ClassVar[str] = ""
    path: Path
    filename: str
    config: dict[str, Any]
    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]
    companions: Mapping[str, Path] = field(default_factory=dict)


class GcuEngine(ServableModel):
    """A `model.exec` file for a simulated GCU."""

    __slots__ = ()
    label = "GCU engine (model.exec)"


class PopefExecutable(ServableModel):
    """A PopEF file."""

    __slots__ = ()
    label = "IPU executable (executable.popef)"


class ServedOnnx(ServableModel):
    """An ONNX file for ONNX Runtime."""

    __slots__ = ()
    label = "ONNX (model.onnx)"


class ServedIr(ServableModel):
    """An OpenVINO IR file with its weights."""

    __slots__ = ()
    label = "OpenVINO IR (model.xml, model.bin)"


class ServedTensorflow(ServableModel):
    """A SavedModel or frozen graph for OpenVINO's front end of TensorFlow."""

    __slots__ = ()
    label = "TensorFlow SavedModel or frozen graph (saved_model.pb, model.pb)"


class ServedTflite(ServableModel):
    """A TensorFlow Lite file for OpenVINO's front end of that format."""

    __slots__ = ()
    label = "TensorFlow Lite (model.tflite)"


class ServedPaddle(ServableModel):
    """A PaddlePaddle model for OpenVINO's front end of PaddlePaddle."""

    __slots__ = ()
    label = "PaddlePaddle (model.pdmodel, model.pdiparams)"


SOURCES = (
    OnnxFile, OnnxModel, TorchProgramFile, TorchStateFile, SavedModelFolder, FrozenGraphFile, KerasFile, TfliteFile, PaddleFile, IrFile,
)  # fmt: skip
_FRAMEWORK_OF: Mapping[str, str] = {
    ".onnx": "onnx",
    ".pt2": "torch",
    ".pth": "torch",
    ".pt": "torch",
    ".pb": "tensorflow",
    ".tflite": "tensorflow",
    **dict.fromkeys(KERAS_SUFFIXES, "tensorflow"),
    ".pdmodel": "paddle",
    ".xml": "openvino",
}


def find_source(request: CompileRequest) -> Model:
    """Returns the source of `request`.

    Raises:
        OptionError: there is no such file, or it is of no kind that can be read; the text lists those that can.
    """
    named = request.input_model
    if isinstance(named, onnx.ModelProto):
        return OnnxModel(named, "input_model")
    path = Path(named)
    if not path.exists():
        raise OptionError(f"input_model: there is no {path}")
    framework = request.framework or (_framework_of_folder(path) if path.is_dir() else _FRAMEWORK_OF.get(path.suffix.lower()))
    if framework is None:
        known = "; ".join(kind.label for kind in SOURCES)
        raise OptionError(f"input_model: the name {path} does not identify a format; give framework, or one of: {known}")
    return _OF_FRAMEWORK[framework](path, request)


def _framework_of_folder(path: Path) -> str:
    return "paddle" if any(path.glob("*.pdmodel")) else "tensorflow"


def _onnx(path: Path, _request: CompileRequest) -> Model:
    return OnnxFile(path)


def _torch(path: Path, request: CompileRequest) -> Model:
    if path.suffix.lower() == ".pt2":
        return TorchProgramFile(path)
    if request.script_path is None:
        raise OptionError(
            f"input_model: {path} is no exported program (.pt2), and a state needs script_path, a Python file that defines its class "
            "TheModelClass; whole pickled models are not read, since reading one runs whatever is in it"
        )
    script = Path(request.script_path)
    if not script.is_file():
        raise OptionError(f"script_path: there is no file {script}")
    return TorchStateFile(path, script)


def _tensorflow(path: Path, _request: CompileRequest) -> Model:
    if path.is_dir():
        if not any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
            raise OptionError(f"input_model: {path} is a folder without a saved_model.pb")
        return SavedModelFolder(path)
    suffix = path.suffix.lower()
    return KerasFile(path) if suffix in KERAS_SUFFIXES else TfliteFile(path) if suffix == ".tflite" else FrozenGraphFile(path)


def _paddle(path: Path, _request: CompileRequest) -> Model:
    """The .pdmodel file; the path may be that of its folder."""
    if not path.is_dir():
        return PaddleFile(path)
    found = sorted(path.glob("*.pdmodel"))
    if len(found) != 1:
        raise OptionError(f"input_model: {path} is a folder with {len(found)} .pdmodel files; give the path of one")
    return PaddleFile(found[0])


def _openvino(path: Path, _request: CompileRequest) -> Model:
    return IrFile(path)


_OF_FRAMEWORK: Mapping[str, Callable[[Path, CompileRequest], Model]] = {
    "onnx": _onnx,
    "torch": _torch,
    "tensorflow": _tensorflow,
    "paddle": _paddle,
    "openvino": _openvino,
}
