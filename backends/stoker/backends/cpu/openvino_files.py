"""OpenVINO IR: `model.xml`, the graph, and `model.bin`, its weights."""

import importlib.util
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from stoker.compiler.errors import CompileError, OptionError

WEIGHTS_NAME = "model.bin"


def check_openvino(what: str) -> None:
    """Raises:
    OptionError: the package is not installed; `what` needs it.
    """
    if importlib.util.find_spec("openvino") is None:
        raise OptionError(f"{what} needs the package 'openvino', which is not installed: pip install 'stoker[openvino]'")


def read_onnx(model: onnx.ModelProto) -> Any:
    """`model` as OpenVINO's.

    Raises:
        CompileError: OpenVINO does not read it.
    """
    from stoker.backends.openvino.runtime import (
        OPENVINO_ERRORS,  # before OpenVINO itself: the package turns its telemetry off
        public_text,
    )

    import openvino as ov  # isort: skip

    try:
        return ov.Core().read_model(model.SerializeToString())
    except OPENVINO_ERRORS as error:
        raise CompileError(f"OpenVINO does not read the converted model: {public_text(error)}") from error


def check_integers(model: onnx.ModelProto) -> None:
    """Refuses a model that backend openvino would not load; nothing is checked where OpenVINO is not installed.

    Raises:
        CompileError: OpenVINO does not read it, or computes some of its integers inexactly.
    """
    if importlib.util.find_spec("openvino") is None:
        return
    converted = read_onnx(model)
    from stoker.backends.openvino.integers import inexact_integers
    from stoker.backends.openvino.runtime import named

    inexact = inexact_integers(converted)
    if inexact:
        raise CompileError(
            f"backend openvino computes integers of {named(inexact)} in single precision or with saturation, and would not load the model: "
            "precision fp32 or int8 in format onnx is for onnxruntime, which is exact"
        )


def write_ir(model: onnx.ModelProto, path: Path) -> Mapping[str, Path]:
    """Writes `model` as IR, the graph to `path`; returns where the weights lie, by the name they must have.

    Raises:
        CompileError: OpenVINO does not read the model.
    """
    return save_ir(read_onnx(model), path)


def save_ir(model: Any, path: Path) -> Mapping[str, Path]:
    """As `write_ir`, of a model of OpenVINO's. Weights keep their type."""
    import openvino as ov

    weights = path.with_name(f"{path.name}.bin")
    with tempfile.TemporaryDirectory() as folder:
        # OpenVINO goes by the names' endings, which a draft's has not.
        written = Path(folder) / "model.xml"
        ov.save_model(model, str(written), compress_to_fp16=False)
        shutil.move(written, path)
        shutil.move(written.with_suffix(".bin"), weights)
    return {WEIGHTS_NAME: weights}
