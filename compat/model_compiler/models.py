"""What lies between a request and a served model: the kinds of model that edges lead from and to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import onnx

from stoker.compiler.repository_writer import ServedTensor


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """An ONNX file, with its external data where it has some."""

    label: ClassVar[str] = "ONNX file (.onnx)"
    path: Path


@dataclass(frozen=True, slots=True)
class TorchProgramFile:
    """What `torch.export.save` writes."""

    label: ClassVar[str] = "PyTorch exported program (.pt2)"
    path: Path


@dataclass(frozen=True, slots=True)
class TorchStateFile:
    """A state dictionary that `torch.save` wrote, and the script that defines the model it belongs to."""

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
class OnnxModel:
    """An ONNX model in memory.

    Attributes:
        model: Checked, with its weights.
        origin: Where it came from, for messages.
    """

    label: ClassVar[str] = "onnx.ModelProto"
    model: onnx.ModelProto
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServableModel:
    """A compiled model on its way into the repository.

    Attributes:
        path: The file, outside the repository yet.
        filename: What it is called in a version's folder.
        config: Fields of config.pbtxt besides names and tensors.
        inputs, outputs: As clients see them.
    """

    label: ClassVar[str] = ""
    path: Path
    filename: str
    config: dict[str, Any]
    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]


class GcuEngine(ServableModel):
    """A `model.exec`."""

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
