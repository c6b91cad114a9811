"""Reads models in all forms that the vendor's functions accept."""

import os
from typing import TypeAlias

import onnx
from google.protobuf.message import DecodeError

from stoker.compiler.convert.source import checked, read_onnx
from stoker.compiler.errors import CompileError

#: A path, the bytes of a file, or the message itself.
ModelSource: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto


def as_model(source: ModelSource) -> onnx.ModelProto:
    """Returns the ONNX model, with an IR version that ONNX Runtime reads.

    Raises:
        CompileError: the file cannot be read, or is no valid model.
    """
    if isinstance(source, bytes):
        source = _parsed(source)
    return checked(source, "the model") if isinstance(source, onnx.ModelProto) else read_onnx(os.fspath(source))


def _parsed(content: bytes) -> onnx.ModelProto:
    try:
        return onnx.load_model_from_string(content)
    except DecodeError as error:
        raise CompileError(f"these {len(content)} bytes are no ONNX model: {error}") from error
