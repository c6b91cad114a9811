"""INT8 by ONNX Runtime's static quantiser: QuantizeLinear and DequantizeLinear around what computes in eight bits.

Weights are signed and symmetric with a scale for each channel, activations unsigned with a zero point: what x86's dot products of bytes
(VNNI, AMX) multiply, and what OpenVINO reads as well.
"""

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from backends.cpu.samples import Batches
from compiler.convert.option_fields import nearest
from compiler.errors import CompileError, OptionError
from compiler.options import CompilerOptions

_METHODS: Mapping[str, CalibrationMethod] = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
#: How the quantiser knows that shapes were inferred and the graph cleaned up, which it would otherwise advise to do.
_PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")


def quantised(model: onnx.ModelProto, batches: Batches, options: CompilerOptions) -> onnx.ModelProto:
    """`model` in INT8, but for the operators and nodes that options leave out.

    Args:
        model: In FP32; left as it was.
        batches: Inputs by name, to take ranges from.
        options: `calibration_method`, `int8_skip_op_types` and `int8_skip_op_names`.

    Raises:
        OptionError: a node or operator to be skipped is not in the model.
        CompileError: nothing can be quantised, or the quantiser fails.
    """
    check_skipped(model, options)
    known = {*QDQRegistry, *QLinearOpsRegistry}
    present = {node.op_type for node in model.graph.node}
    wanted = sorted((known & present) - set(options.int8_skip_op_types))
    if not {node.op_type for node in model.graph.node if node.name not in options.int8_skip_op_names} & set(wanted):
        raise CompileError(f"nothing can be quantised: of the model's operators {', '.join(sorted(present))} none is left for int8")
    prepared = onnx.ModelProto()
    prepared.CopyFrom(model)
    prepared.metadata_props.add(key=_PREPARED[0], value=_PREPARED[1])
    with tempfile.TemporaryDirectory() as folder, _without_advice():
        path = Path(folder) / "quantised.onnx"
        try:
            quantize_static(
                prepared,
                path,
                _Reader(batches),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=wanted,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=list(options.int8_skip_op_names),
                calibrate_method=_METHODS[options.calibration_method],
            )
        except Exception as error:  # what the quantiser raises is open
            raise CompileError(f"onnxruntime's quantiser fails: {type(error).__name__}: {' '.join(str(error).split())}") from error
        found = onnx.load(path)
    del found.metadata_props[:]
    found.metadata_props.extend(model.metadata_props)
    return found


def check_skipped(model: onnx.ModelProto, options: CompilerOptions) -> None:
    """Raises:
    OptionError: a node or operator to be skipped is not in the model; the nearest are named.
    """
    names = {node.name for node in model.graph.node}
    types = {node.op_type for node in model.graph.node}
    for option, asked, present in (
        ("int8_skip_op_names", options.int8_skip_op_names, names),
        ("int8_skip_op_types", options.int8_skip_op_types, types),
    ):
        for name in asked:
            if name not in present:
                raise OptionError(f"--{option}: the converted model has no '{name}'{nearest(name, sorted(present))}")


class _Reader(CalibrationDataReader):  # type: ignore[misc] # onnxruntime has no types
    """Hands the quantiser one batch after the other."""

    def __init__(self, batches: Sequence[dict[str, NDArray[Any]]]) -> None:
        self._rest = iter(batches)

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._rest, None)


@contextmanager
def _without_advice() -> Iterator[None]:
    """The quantiser talks on the root logger; what goes wrong comes as an exception."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)
