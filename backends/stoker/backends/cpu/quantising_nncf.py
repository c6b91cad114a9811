"""INT8 by NNCF, Intel's quantiser, on OpenVINO's form of the model: it also corrects biases for what rounding takes from them."""

import importlib.util
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from stoker.backends.cpu.finite import without_infinities
from stoker.backends.cpu.int8_operators import Selection, select
from stoker.backends.cpu.openvino_files import read_onnx, save_ir
from stoker.backends.cpu.quantising import named
from stoker.backends.cpu.samples import Batches
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.options import CompilerOptions


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
