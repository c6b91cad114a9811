"""`IrFacts`: facts that were read from OpenVINO IR, and not from an ONNX file."""

from dataclasses import dataclass

from backends.api.model import ModelFacts


@dataclass(frozen=True, slots=True)
class IrFacts(ModelFacts):
    """As `ModelFacts`."""
