"""INT8 by NNCF, Intel's quantiser, on OpenVINO's form of the model: it also corrects biases for what rounding takes from them."""

import importlib.util
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from backends.cpu.openvino_files import read_onnx, save_ir
from backends.cpu.quantising import check_skipped
from backends.cpu.samples import Batches
from compiler.errors import CompileError, OptionError
from compiler.options import CompilerOptions


def check_nncf() -> None:
    """Raises:
    OptionError: the package is not installed.
    """
    if importlib.util.find_spec("nncf") is None:
        raise OptionError("--quantizer nncf needs the package 'nncf', which is not installed: pip install 'stoker[nncf]'")


def write_quantised_ir(model: onnx.ModelProto, batches: Batches, options: CompilerOptions, path: Path) -> Mapping[str, Path]:
    """Quantises `model` and writes it as IR, as `write_ir` does.

    Raises:
        OptionError: a node or operator to be skipped is not in the model.
        CompileError: NNCF fails.
    """
    check_skipped(model, options)
    read = read_onnx(model)
    skipped = {node.name for node in model.graph.node if node.op_type in options.int8_skip_op_types} | set(options.int8_skip_op_names)
    return save_ir(_quantised(read, batches, sorted(skipped)), path)


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
