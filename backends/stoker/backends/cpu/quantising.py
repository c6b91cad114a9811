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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic
from onnxruntime.quantization.calibrate import EntropyCalibrater, MinMaxCalibrater, PercentileCalibrater, TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import save_and_reload_model_with_shape_infer

from stoker.backends.cpu.int8_operators import PRODUCTS, Selection, not_finite_constants, require_some, select, weight_bits
from stoker.backends.cpu.samples import Batches
from stoker.backends.onnx_files.runtime import ORT_ERRORS, public_text
from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions

logger = logging.getLogger(__name__)

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
#: Nodes that are listed in one warning.
_LISTED = 5


def without_infinities(model: onnx.ModelProto, chosen: Selection, batches: Batches) -> tuple[Selection, set[str]]:
    """`chosen` without the nodes that read or write a tensor that is infinite or NaN for a sample, and the names of these tensors.

    Args:
        model: In FP32, its nodes named.
        chosen: What is to be quantised.
        batches: The samples; none: only constants are looked at.

    Raises:
        CompileError: the model does not run, or nothing is left to be quantised.
    """
    tensors = not_finite_constants(model.graph) | _not_finite(model, chosen, batches)
    nodes = [node for node in model.graph.node if node.op_type in chosen.op_types and tensors & {*node.input, *node.output}]
    left = [node for node in nodes if node.name not in chosen.excluded]
    if left:
        shown = ", ".join(f"'{node.name}' ({node.op_type})" for node in left[:_LISTED])
        more = f" and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
        text = f"{len(left)} node(s) stay fp32, since a tensor that they read or write holds infinity or NaN: {shown}{more}"
        logger.warning("%s", text)
        chosen = replace(chosen, excluded=(*chosen.excluded, *(node.name for node in left)))
        require_some(model, chosen, (text,))
    return chosen, tensors


def check_scales(source: onnx.ModelProto, quantised: onnx.ModelProto) -> None:
    """Raises:
    CompileError: the quantiser made a scale, or another constant, that is not finite, or a scale that is not above zero.
    """
    known = {each.name for each in source.graph.initializer}
    made = {each.name: each for each in quantised.graph.initializer if each.name not in known}
    scales = {
        node.input[1] for node in quantised.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear") and len(node.input) > 1
    }
    for name, each in made.items():
        if each.data_type not in _FLOATS:
            continue
        array = numpy_helper.to_array(each)
        if not np.all(np.isfinite(array)) or (name in scales and not np.all(array > 0)):
            raise CompileError(
                f"the quantiser made '{name}' with a value that is no scale ({array.reshape(-1)[:3].tolist()}); nothing is written"
            )


def _not_finite(model: onnx.ModelProto, chosen: Selection, batches: Batches) -> set[str]:
    """Returns the float tensors that the chosen nodes read or write and that hold NaN or infinity: 0 times such a value is NaN."""
    probe = onnx.shape_inference.infer_shapes(model)
    constants = {each.name for each in model.graph.initializer}
    kinds = {
        each.name: each.type.tensor_type.elem_type
        for each in (*probe.graph.value_info, *probe.graph.input, *probe.graph.output)
        if each.name not in constants
    }
    names = [name for node in model.graph.node if node.op_type in chosen.op_types for name in (*node.input, *node.output)]
    watched = [name for name in dict.fromkeys(names) if kinds.get(name) in _FLOATS]
    if not watched or not batches:
        return set()
    del probe.graph.output[:]
    for kind in {kinds[name] for name in watched}:
        zero = np.zeros((), helper.tensor_dtype_to_np_dtype(kind))
        probe.graph.initializer.append(numpy_helper.from_array(zero, f"/finite/zero/{kind}"))
    for at, name in enumerate(watched):
        product, total = f"/finite/{at}/product", f"/finite/{at}"
        probe.graph.node.append(helper.make_node("Mul", [name, f"/finite/zero/{kinds[name]}"], [product]))
        probe.graph.node.append(helper.make_node("ReduceSum", [product], [total], keepdims=0))
        probe.graph.output.append(helper.make_tensor_value_info(total, kinds[name], []))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    found: set[str] = set()
    try:
        session = ort.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for batch in batches:
            sums = session.run(None, dict(batch))
            found |= {name for name, each in zip(watched, sums, strict=True) if not np.isfinite(each)}
    except ORT_ERRORS as error:
        raise CompileError(f"the model does not run over the samples: {public_text(error)}") from error
    return found


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
    chosen, _ = without_infinities(prepared, select(prepared, options, is_dynamic=True), [])
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
