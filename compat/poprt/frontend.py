"""`poprt.frontend`: reads source models as ONNX."""

import os

import onnx

from stoker.compiler.convert.source import TensorflowOptions, read_onnx, read_tensorflow


class OnnxFrontend:
    """An ONNX file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def load_model(self) -> onnx.ModelProto:
        """Returns the model with all its weights.

        Raises:
            CompileError: it cannot be read, or is not valid.
        """
        return read_onnx(self.path)


class TensorflowFrontend:
    """A SavedModel or frozen graph, converted by tf2onnx where that is installed; `options` are `TensorflowOptions`."""

    def __init__(self, path: str | os.PathLike[str], **options: object) -> None:
        self.path = os.fspath(path)
        self.options = TensorflowOptions(**options)  # type: ignore[arg-type] # rejected there by name

    def load_model(self) -> onnx.ModelProto:
        """The model as ONNX.

        Raises:
            CompileError: tf2onnx is missing or fails.
        """
        return read_tensorflow(self.path, self.options)
