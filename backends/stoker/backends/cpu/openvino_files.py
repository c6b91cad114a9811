"""OpenVINO IR: `model.xml`, the graph, and `model.bin`, its weights; and INT8 by NNCF, Intel's quantiser, which writes IR.

NNCF also corrects biases for what rounding takes from them.
"""

import importlib.util
import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from stoker.backends.cpu.int8_operators import Selection, select
from stoker.backends.cpu.quantising import named, without_infinities
from stoker.backends.cpu.samples import Batches
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.options import CompilerOptions

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
    """Rejects a model that backend openvino would not load; nothing is checked where OpenVINO is not installed.

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
    """Writes a model of OpenVINO's classes as IR; see `write_ir`. Weights keep their type."""
    import openvino as ov

    weights = path.with_name(f"{path.name}.bin")
    with tempfile.TemporaryDirectory() as folder:
        # OpenVINO chooses the format by the suffix of the name; `path` may be a temporary name without it.
        written = Path(folder) / "model.xml"
        ov.save_model(model, str(written), compress_to_fp16=False)
        shutil.move(written, path)
        shutil.move(written.with_suffix(".bin"), weights)
    return {WEIGHTS_NAME: weights}


def check_nncf() -> None:
    """Raises:
    OptionError: the package is not installed.
    """
    if importlib.util.find_spec("nncf") is None:
        raise OptionError("--quantizer nncf needs the package 'nncf', which is not installed: pip install 'stoker[nncf]'")


def write_quantised_ir(
    model: onnx.ModelProto, batches: Batches, options: CompilerOptions, path: Path
) -> tuple[Mapping[str, Path], Selection]:
    """Quantises `model` and writes it as IR, as `write_ir` does; also returns what was chosen.

    Raises:
        OptionError: a node or operator to be skipped is not in the model.
        CompileError: NNCF fails.
    """
    model = named(model)
    chosen, _ = without_infinities(model, select(model, options, is_dynamic=False), batches)
    # NNCF knows more operators than ONNX Runtime's quantiser; a preset or an option that leaves some out holds for it as well.
    left_out = (
        set(options.int8_skip_op_types) if chosen.preset == "all" else {node.op_type for node in model.graph.node} - {*chosen.op_types}
    )
    skipped = {node.name for node in model.graph.node if node.op_type in left_out} | set(chosen.excluded)
    written = _quantised(read_onnx(model), batches, sorted(skipped))
    _check_ranges(written)
    return save_ir(written, path), chosen


def _check_ranges(model: Any) -> None:
    """Raises:
    CompileError: NNCF made a range that is not finite.
    """
    for operation in model.get_ops():
        if operation.get_type_name() != "FakeQuantize":
            continue
        for port in range(1, 5):
            node = operation.input_value(port).get_node()
            if node.get_type_name() == "Constant" and not np.all(np.isfinite(node.data)):
                raise CompileError(f"NNCF made a range of '{operation.get_friendly_name()}' that is not finite; nothing is written")


def _quantised(model: Any, batches: Batches, skipped: list[str]) -> Any:
    import nncf

    nncf.set_log_level(logging.ERROR)
    scope = nncf.IgnoredScope(names=skipped, validate=False) if skipped else None
    try:
        return nncf.quantize(
            model,
            nncf.Dataset(batches),
            preset=nncf.QuantizationPreset.MIXED,
            target_device=nncf.TargetDevice.CPU,
            subset_size=len(batches),
            ignored_scope=scope,
        )
    except Exception as error:  # what the quantiser raises is open
        raise CompileError(f"NNCF's quantiser fails: {type(error).__name__}: {' '.join(str(error).split())}") from error
