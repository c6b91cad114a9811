"""Distinguishes OpenVINO IR from ONNX files by name and, once it is read, by `IrFacts`. Needs no OpenVINO."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from stoker.backends.api.model import ModelFacts


def is_ir(model_filename: str) -> bool:
    """Whether the file is OpenVINO IR, by its name; else it is taken for ONNX."""
    return PurePosixPath(model_filename).suffix == ".xml"


@dataclass(frozen=True, slots=True)
class IrFacts(ModelFacts):
    """As `ModelFacts`.

    Attributes:
        inexact: Operators that compute integers inexactly; see `stoker.backends.openvino.integers`.
    """

    inexact: tuple[str, ...] = ()
