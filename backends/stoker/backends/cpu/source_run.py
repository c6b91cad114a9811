"""The source model on ONNX Runtime, as numpy arrays in and out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from stoker.backends.onnx_files.runtime_errors import ORT_ERRORS
from stoker.backends.onnx_files.runtime_messages import public_text
from stoker.compiler.errors import CompileError
from stoker.compiler.precision.number_types import numpy_feeds, with_numpy_types

Run = Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]


def run_of(model: onnx.ModelProto, names: Sequence[str], *, threads: int, what: str = "the source model") -> Run:
    """What runs `model` and gives the outputs `names`; BFLOAT16 comes as float32.

    Args:
        model: Any dimensions may be open.
        names: Of its outputs.
        threads: For one operator.
        what: Names the model in messages.

    Raises:
        CompileError: ONNX Runtime refuses the model. What is returned raises it where the model does not run.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(with_numpy_types(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    except ORT_ERRORS as error:
        raise CompileError(f"{what} cannot be run to be compared with: {public_text(error)}") from error

    def run(batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        try:
            return dict(zip(names, session.run(list(names), numpy_feeds(batch)), strict=True))
        except ORT_ERRORS as error:
            raise CompileError(f"{what} does not run: {public_text(error)}") from error

    return run
