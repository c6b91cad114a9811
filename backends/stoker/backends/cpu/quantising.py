"""INT8 by ONNX Runtime's quantisers.

`static`: QuantizeLinear and DequantizeLinear around what computes in eight bits, by ranges over samples. `dynamic`: MatMul and Gemm with
constant weights, whose inputs get their scale when the model runs. Weights are signed and symmetric with a scale for each channel,
activations unsigned with a zero point: what x86's dot products of bytes (VNNI, AMX) multiply, and what OpenVINO reads as well.
"""

import io
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic
from onnxruntime.quantization.calibrate import EntropyCalibrater, MinMaxCalibrater, PercentileCalibrater, TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import save_and_reload_model_with_shape_infer

from stoker.backends.cpu.finite import check_scales, without_infinities
from stoker.backends.cpu.int8_operators import PRODUCTS, Selection, select, weight_bits
from stoker.backends.cpu.samples import Batches
from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions

#: How the quantiser knows that shapes were inferred and the graph cleaned up, which it would otherwise advise to do.
_PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")


def quantised(model: onnx.ModelProto, batches: Batches, options: CompilerOptions) -> tuple[onnx.ModelProto, Selection]:
    """`model` in INT8, but for the operators and nodes that options leave out and those of tensors that are not finite; and what was
    chosen.

    Args:
        model: In FP32; left as it was.
        batches: Inputs by name, to take ranges from.
        options: `calibration_method`, `int8_preset`, `int8_weight_bits`, `int8_skip_op_types` and `int8_skip_op_names`.

    Raises:
        OptionError: a node to be skipped is not in the model.
        CompileError: nothing can be quantised, the quantiser fails, or makes a scale that is none.
    """
    prepared = _prepared(model)
    chosen, unbounded = without_infinities(prepared, select(prepared, options, is_dynamic=False), batches)
    with tempfile.TemporaryDirectory() as folder, _quantiser():
        path = Path(folder) / "quantised.onnx"
        ranges = _ranges(prepared, chosen, unbounded, batches, options.calibration_method, Path(folder))
        quantiser = QDQQuantizer(
            save_and_reload_model_with_shape_infer(prepared),
            True,  # a scale for each channel
            weight_bits(options)[0] < 8,
            QuantType.QInt8,
            QuantType.QUInt8,
            ranges,
            [],  # nodes: all
            list(chosen.excluded),
            list(chosen.op_types),
            # Sums of products go on in FP32: more exact, and what follows, Softmax too, is no operator between bytes then.
            {} if chosen.preset == "all" else {"OpTypesToExcludeOutputQuantization": sorted(PRODUCTS)},
        )
        quantiser.quantize_model()
        quantiser.model.save_model_to_file(path, False)
        return _finished(model, onnx.load(path)), chosen


def quantised_dynamically(model: onnx.ModelProto, options: CompilerOptions) -> tuple[onnx.ModelProto, Selection]:
    """`model` with INT8 weights in MatMul and Gemm, whose other inputs are quantised when it runs; and what was chosen. Needs no samples.

    Raises:
        OptionError: as `quantised`.
        CompileError: as `quantised`.
    """
    prepared = _prepared(model)
    _share_no_weights(prepared.graph)
    prepared.graph.ClearField("value_info")  # the quantiser transposes weights, and leaves the old shapes here
    chosen, _ = without_infinities(prepared, select(prepared, options, is_dynamic=True), ())
    skipped = {node.name for node in prepared.graph.node if node.op_type in options.int8_skip_op_types} | set(chosen.excluded)
    with tempfile.TemporaryDirectory() as folder, _quantiser():
        path = Path(folder) / "quantised.onnx"
        quantize_dynamic(
            prepared,
            path,
            op_types_to_quantize=["MatMul"],  # which the quantiser makes of a Gemm, named so
            per_channel=True,
            reduce_range=weight_bits(options)[0] < 8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=[*skipped, *(f"{name}_MatMul" for name in skipped)],
        )
        return _finished(model, onnx.load(path)), chosen


def _prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that the quantiser takes as it is; it leaves nodes out by their names."""
    prepared = named(model)
    prepared.metadata_props.add(key=_PREPARED[0], value=_PREPARED[1])
    return prepared


def named(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose nodes all have a name of their own."""
    prepared = onnx.ModelProto()
    prepared.CopyFrom(model)
    taken: set[str] = set()
    for at, node in enumerate(prepared.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}/{at}"
        taken.add(node.name)
    return prepared


def _share_no_weights(graph: onnx.GraphProto) -> None:
    """Gives each Gemm with a transposed weight a copy of its own where others read that too: the quantiser transposes it in place."""
    constants = {each.name: each for each in graph.initializer}
    reads = [name for node in graph.node for name in node.input]
    for node in graph.node:
        if node.op_type != "Gemm" or node.input[1] not in constants or reads.count(node.input[1]) == 1:
            continue
        own = onnx.TensorProto()
        own.CopyFrom(constants[node.input[1]])
        own.name = f"{own.name}/of/{node.name}"
        graph.initializer.append(own)
        node.input[1] = own.name


def _ranges(model: onnx.ModelProto, chosen: Selection, unbounded: set[str], batches: Batches, method: str, folder: Path) -> TensorsData:
    """Ranges of the tensors that chosen operators read and write, without the `unbounded` ones, for which there is none."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    made = {"minmax": MinMaxCalibrater, "entropy": EntropyCalibrater, "percentile": PercentileCalibrater}[method]
    settings = {"symmetric": True} if method == "percentile" else {}
    calibrator = made(path, list(chosen.op_types), augmented_model_path=str(folder / "augmented.onnx"), **settings)
    candidates, infos = calibrator.select_tensors_to_calibrate(calibrator.model)
    calibrator.select_tensors_to_calibrate = lambda _: (candidates - unbounded, infos)
    calibrator.augment_graph()
    calibrator.create_inference_session()
    for batch in batches:  # one by one, since they may have different numbers of rows
        calibrator.collect_data(_Reader([batch]))
    return calibrator.compute_data()


def _finished(source: onnx.ModelProto, found: onnx.ModelProto) -> onnx.ModelProto:
    """`found` with what `source` notes of itself.

    Raises:
        CompileError: nothing became INT8, such as where all that was left only passes values on; or a scale is none.
    """
    if _quantised_nodes(found) <= _quantised_nodes(source):
        present = ", ".join(sorted({node.op_type for node in source.graph.node}))
        raise CompileError(f"nothing can be quantised: the quantiser left the model's operators {present} as they are")
    check_scales(source, found)
    del found.metadata_props[:]
    found.metadata_props.extend(source.metadata_props)
    return found


def _quantised_nodes(model: onnx.ModelProto) -> int:
    return sum(node.op_type in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear") for node in model.graph.node)


class _Reader(CalibrationDataReader):  # type: ignore[misc] # onnxruntime has no types
    """Hands the quantiser one batch after the other."""

    def __init__(self, batches: Sequence[dict[str, NDArray[Any]]]) -> None:
        self._rest = iter(batches)

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._rest, None)


@contextmanager
def _quantiser() -> Iterator[None]:
    """Makes one error of whatever the quantiser raises; it prints, logs on the root logger, and warns of numbers that are checked later."""
    root, silent = logging.getLogger(), logging.NullHandler()
    before = root.level
    root.setLevel(logging.ERROR)
    root.addHandler(silent)  # without one, logging's own functions would add one that stays, and prints all of our messages again
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    except CompileError:
        raise
    except Exception as error:  # what the quantiser raises is open
        raise CompileError(f"onnxruntime's quantiser fails: {type(error).__name__}: {' '.join(str(error).split())}") from error
    finally:
        root.removeHandler(silent)
        root.setLevel(before)
