"""Models in any of the forms that the vendor's functions take."""

import os
from typing import TypeAlias

import onnx

from compiler.convert.source import read_onnx

#: A path, the bytes of a file, or the message itself.
ModelSource: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto


def as_model(source: ModelSource) -> onnx.ModelProto:
    """The ONNX model.

    Raises:
        CompileError: the file cannot be read, or is no valid model.
    """
    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, bytes):
        return onnx.load_model_from_string(source)
    return read_onnx(os.fspath(source))
