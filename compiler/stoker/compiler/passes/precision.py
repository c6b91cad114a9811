"""Tensors get other element types: 64 bits to 32, FP32 to FP16, FP8 or INT8."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.errors import OptionError
from stoker.compiler.passes.edit import constant_of, input_at, new_constant, remove_if_unused, unused_name
from stoker.compiler.passes.registry import Pass, model_pass, register
from stoker.compiler.passes.shape_inference import infer_shapes
from stoker.compiler.precision.calibration import write_log
from stoker.compiler.precision.drift import LayerDistance, compare_layers, write_comparison
from stoker.compiler.precision.float8_plan import Float8Params, float8_layers, plan_float8, weight_of
from stoker.compiler.precision.number_types import HalfConstants, to_int32
from stoker.compiler.precision.representation import FLOAT8_OP_TYPES, cast_activation, store_weight, use_float8_opset
from stoker.compiler.precision.retype import Retyping, overflow_prone, retype
from stoker.compiler.precision.samples import Arrays, batches_of, inputs_of, load_samples, random_batches, split

log = logging.getLogger(__name__)


@model_pass(before=("float_to_half", "float_to_mixed", "float_to_fp8", "float_to_int8"))
def double_to_float(model: ir.Model) -> bool:
    """Makes DOUBLE tensors FLOAT: constants, what is computed from them, and inputs and outputs of the model.

    Finite constants beyond the range of FLOAT are clipped to it with a warning. Results agree to FLOAT's precision, about 1e-6 relative.
    """
    infer_shapes(model)
    return retype(model, Retyping(source=ir.DataType.DOUBLE, target=ir.DataType.FLOAT, convert=_to_float))


def _to_float(value: ir.Value, readers: list[tuple[ir.Node, int]]) -> NDArray[Any]:
    assert value.const_value is not None
    array = value.const_value.numpy()
    limit = np.finfo(np.float32).max
    if np.any(np.isfinite(array) & (np.abs(array) > limit)):
        log.warning("constant '%s' has values beyond FLOAT; they are clipped to +-%g", value.name, limit)
        array = np.where(np.isfinite(array), np.clip(array, -limit, limit), array)
    return array.astype(np.float32)


@register("int64_to_int32")
class Int64ToInt32(Pass):
    """Makes INT64 tensors INT32, inputs and outputs of the model included; what ONNX defines for INT64 only gets it by a Cast.

    Constants out of range are clipped where that changes nothing (ends of a Slice) or only at the very end of the range (comparisons, with
    a warning), and rejected elsewhere. Results are the same as long as no computed value leaves INT32.
    """

    def __init__(self, *, keep_io_types: bool = False) -> None:
        """Takes whether the model's inputs and outputs stay INT64."""
        self.keeps_io_types = keep_io_types

    def run(self, model: ir.Model) -> bool:
        infer_shapes(model)
        retyping = Retyping(source=ir.DataType.INT64, target=ir.DataType.INT32, convert=to_int32, changes_io=not self.keeps_io_types)
        return retype(model, retyping)


_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})


@register("float_to_half", before=("float_to_fp8",))
class FloatToHalf(Pass):
    """Makes FLOAT tensors FLOAT16, inputs and outputs of the model included, except where an operator cannot have it or is to stay FLOAT.

    Operators of other domains than ONNX's and ONNX Runtime's stay FLOAT. Constants beyond the range are clipped to +-65500 and epsilons
    below 1e-7 lifted to it, with one warning for each. What stays FLOAT has Casts around it. Outputs agree with the source model's to a
    relative error of about 1e-2, as far as no intermediate value overflows.
    """

    def __init__(
        self,
        *,
        fp16_skip_op_types: Collection[str] = (),
        skip_op_names: Collection[str] = (),
        enable_avoid_overflow_patterns: bool = False,
        keep_io_types: bool = False,
    ) -> None:
        """Takes what is to stay FLOAT.

        Args:
            fp16_skip_op_types: Operators.
            skip_op_names: Nodes.
            enable_avoid_overflow_patterns: Whether the patterns of `stoker.compiler.precision.retype` are.
            keep_io_types: Whether the model's inputs and outputs are.
        """
        self.skip_op_types = frozenset(fp16_skip_op_types)
        self.skip_op_names = frozenset(skip_op_names)
        self.avoids_overflow = enable_avoid_overflow_patterns
        self.keeps_io_types = keep_io_types

    def run(self, model: ir.Model) -> bool:
        infer_shapes(model)
        there = {node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph)}
        for op_type in sorted(self.skip_op_types - there):
            log.warning("fp16_skip_op_types has '%s': the model has no such operator", op_type)
        prone = overflow_prone(model) if self.avoids_overflow else {}
        for node, start in prone.items():
            log.info("node '%s' (%s) stays FLOAT: pattern of %s may leave the range of FLOAT16", node.name, node.op_type, start)
        constants = HalfConstants()

        def keeps(node: ir.Node) -> bool:
            # The user's own operators: their library may well have kernels for FLOAT alone.
            if node.domain not in _KNOWN_DOMAINS:
                return True
            return node.op_type in self.skip_op_types or node.name in self.skip_op_names or node in prone

        changed = retype(
            model,
            Retyping(
                source=ir.DataType.FLOAT,
                target=ir.DataType.FLOAT16,
                convert=constants,
                keeps=keeps,
                changes_io=not self.keeps_io_types,
            ),
        )
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            if node.outputs and node.outputs[0].dtype == ir.DataType.FLOAT16:
                changed = constants.lift_epsilon(node) or changed
        constants.report()
        return changed


#: Operators that run on the device's matrix units, four times as fast in FLOAT16.
MATRIX_OP_TYPES = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@register("float_to_mixed", against=("float_to_half",), before=("float_to_fp8",))
class FloatToMixed(Pass):
    """Makes Conv, ConvTranspose, Gemm and MatMul compute in FLOAT16, weights included, with Casts around them; all else stays FLOAT.

    Inputs and outputs of the model keep their types. Outputs agree with the source model's to a relative error of about 1e-2.
    """

    def __init__(self, *, op_types: Collection[str] = tuple(sorted(MATRIX_OP_TYPES)), skip_op_names: Collection[str] = ()) -> None:
        """Takes the operators that become FLOAT16, and nodes that do not all the same."""
        self.op_types = frozenset(op_types)
        self.skip_op_names = frozenset(skip_op_names)

    def run(self, model: ir.Model) -> bool:
        infer_shapes(model)
        constants = HalfConstants()

        def keeps(node: ir.Node) -> bool:
            is_control_flow = any(each.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for each in node.attributes.values())
            return not is_control_flow and (node.op_type not in self.op_types or node.name in self.skip_op_names)

        retyping = Retyping(source=ir.DataType.FLOAT, target=ir.DataType.FLOAT16, convert=constants, keeps=keeps, changes_io=False)
        changed = retype(model, retyping)
        constants.report()
        return changed


@register("float_to_fp8")
class FloatToFp8(Pass):
    """Makes Conv, MatMul and Gemm compute in eight bits: activations get a cast, weights are converted; or only stores weights so.

    The model's opset becomes 19, the first with these types. Outputs agree with the source model's to a cosine of about 0.99; see the drift
    report for a given model.
    """

    def __init__(
        self,
        *,
        fp8_params: str | Sequence[Any] = "F143,F143,-1,-1",
        fp8_skip_op_names: Collection[str] = (),
        num_of_layers_keep_fp16: int = 0,
        calibration_with_data: bool = False,
        calibration_loss_type: str = "kld",
        data_preprocess: str | Path | Arrays | None = None,
        weight_only: bool = False,
        nan_on_overflow: bool = False,
        quantize_log: str | Path | None = None,
    ) -> None:
        """Takes PopRT's settings.

        Args:
            fp8_params: Input format, weight format, input scale, weight scale; `value = code x 2^scale`.
            fp8_skip_op_names: Nodes that keep their type.
            num_of_layers_keep_fp16: How many of the layers with the most rounding noise keep it as well.
            calibration_with_data: Whether format and scale of each tensor are searched; otherwise `fp8_params` holds for all.
            calibration_loss_type: What is minimised: mse, mae, snr, kld, cos_dist; gptq with `weight_only`, which needs no
                `calibration_with_data` to round by samples.
            data_preprocess: Samples by input name, or a pickle or .npz file of them; random ones where it is None.
            weight_only: Precision fp8_weight: weights are stored in eight bits, everything is computed as before.
            nan_on_overflow: Whether what is beyond the range becomes NaN instead of the largest value.
            quantize_log: File that gets a line of each layer.

        Raises:
            OptionError: a setting has a value that does not exist, or contradicts another.
        """
        self.params = Float8Params.parse(fp8_params)
        self.skip_names = frozenset(fp8_skip_op_names)
        self.keep_worst = num_of_layers_keep_fp16
        self.calibrates = calibration_with_data
        self.loss_name = calibration_loss_type
        self.file = data_preprocess if isinstance(data_preprocess, str | Path) else None
        self.data = load_samples(data_preprocess) if isinstance(data_preprocess, str | Path) else data_preprocess
        self.weight_only = weight_only
        self.nan_on_overflow = nan_on_overflow
        self.log_path = quantize_log
        if num_of_layers_keep_fp16 < 0:
            raise OptionError(f"num_of_layers_keep_fp16 is {num_of_layers_keep_fp16}; expected 0 or more")
        if calibration_loss_type == "gptq" and not weight_only:
            raise OptionError("calibration_loss_type gptq rounds weights; it goes with precision fp8_weight only")

    def run(self, model: ir.Model) -> bool:
        infer_shapes(model)
        self._warn_of_unknown_names(model)
        layers = float8_layers(model, skip_names=self.skip_names, weight_only=self.weight_only)
        if not layers:
            log.warning("the model has no Conv, MatMul or Gemm to convert to fp8")
            return False
        batches = self._batches(model)
        plan = plan_float8(
            model,
            layers,
            self.params,
            batches=batches,
            calibrates=self.calibrates,
            loss_name=self.loss_name,
            keep_worst=self.keep_worst,
            weight_only=self.weight_only,
        )
        choices = [choice for _, choice in plan.layers]
        for choice in choices:
            log.info("%s", choice)
        if self.log_path is not None:
            write_log(self.log_path, choices, self._facts(len(batches)))
        for node, choice in plan.layers:
            if choice.is_kept:
                continue
            if weight_of(node) is not None:
                store_weight(node, 1, choice.weight.spec, codes=plan.codes.get(node), nan_on_overflow=self.nan_on_overflow)
            else:
                cast_activation(node, 1, choice.weight.spec, saturates=not self.nan_on_overflow)
            if choice.activation is not None:
                cast_activation(node, 0, choice.activation.spec, saturates=not self.nan_on_overflow)
        use_float8_opset(model)
        return True

    def _batches(self, model: ir.Model) -> list[dict[str, Any]]:
        """Samples, where something is to be decided by them; without those held out for the report of drift."""
        if not self.calibrates and not self.keep_worst and self.loss_name != "gptq":
            return []
        inputs = inputs_of(model.graph)
        return random_batches(inputs) if self.data is None else split(batches_of(inputs, self.data, file=self.file)).calibration

    def _facts(self, batches: int) -> dict[str, object]:
        source = "random data" if self.data is None else "the data given"
        return {
            "precision": "fp8_weight" if self.weight_only else "fp8",
            "fp8_params": f"input {self.params.activation}, weight {self.params.weight} (value = code x 2^scale)",
            "calibration": f"{self.loss_name} over {batches} batch(es) of {source}" if batches else "none",
            "formats and scales": "searched" if self.calibrates else "fp8_params",
            "layers kept for their noise": self.keep_worst,
        }

    def _warn_of_unknown_names(self, model: ir.Model) -> None:
        known = {node.name for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.op_type in FLOAT8_OP_TYPES}
        for name in sorted(self.skip_names - known):
            log.warning("fp8_skip_op_names has '%s': the model has no Conv, MatMul or Gemm of that name", name)


@register("float_to_int8", against=("float_to_fp8",))
class FloatToInt8(Pass):
    """Stores constant weights of Conv, MatMul and Gemm as INT8 with a DequantizeLinear; computes as before.

    `value = (code - offset) x scale`, by one scale and offset a tensor: those given, else the symmetric ones that reach its largest value.
    Each weight changes by at most half a scale, if it is in reach.
    """

    def __init__(self, *, tensors: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """Takes `{tensor name: {"scale": s, "offset": o}}`; where it is given, only these tensors are converted.

        Raises:
            OptionError: a scale that is not finite and above 0, an offset that INT8 does not hold, or another key.
        """
        self.tensors = None if tensors is None else {name: _checked(name, each) for name, each in tensors.items()}

    def run(self, model: ir.Model) -> bool:
        infer_shapes(model)
        changed, met = False, set()
        for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
            if node.op_type not in FLOAT8_OP_TYPES or node.domain not in ("", "ai.onnx"):
                continue
            weight = input_at(node, 1)
            array = constant_of(weight)
            if weight is None or array is None or weight.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
                continue
            name = str(weight.name)
            if self.tensors is not None and name not in self.tensors:
                continue
            met.add(name)
            scale, offset = _symmetric(array) if self.tensors is None else self.tensors[name]
            _store(node, weight, array, scale, offset)
            changed = True
            if weight.dtype == ir.DataType.FLOAT16:
                use_float8_opset(model)  # the first whose DequantizeLinear gives FLOAT16
        for name in sorted((self.tensors or {}).keys() - met):
            log.warning("float_to_int8: there is no constant weight '%s' of a Conv, MatMul or Gemm", name)
        return changed


def _store(node: ir.Node, weight: ir.Value, array: np.ndarray[Any, Any], scale: float, offset: int) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    # By the scale as it is held, so that the codes are those of what is decoded.
    held_scale = np.asarray(scale, array.dtype)
    if held_scale == 0 or not np.isfinite(held_scale):
        raise OptionError(f"weight '{weight.name}' of node '{node.name}': a scale of {scale:g} is not held by {array.dtype}")
    codes = np.clip(np.rint(array.astype(np.float64) / float(held_scale)) + offset, -128, 127).astype(np.int8)
    inputs = [
        new_constant(node, each, role) for each, role in ((codes, "int8"), (held_scale, "scale"), (np.asarray(offset, np.int8), "offset"))
    ]
    decoder = ir.node("DequantizeLinear", inputs, name=f"{node.name}/1/from_int8")
    decoded = decoder.outputs[0]
    decoded.name = unused_name(graph, f"{node.outputs[0].name}_decoded")
    decoded.type, decoded.shape = weight.type, weight.shape
    graph.insert_before(node, decoder)
    node.replace_input_with(1, decoded)
    if weight.producer() is not None:
        remove_if_unused(weight.producer())
    elif weight.graph is not None and not weight.uses() and not weight.is_graph_output():
        weight.graph.initializers.pop(str(weight.name), None)


def _symmetric(array: np.ndarray[Any, Any]) -> tuple[float, int]:
    largest = float(np.max(np.abs(array), initial=0.0))
    return (largest / 127 if largest else 1.0), 0


def _checked(name: str, given: Mapping[str, float]) -> tuple[float, int]:
    if unknown := sorted(given.keys() - {"scale", "offset"}):
        raise OptionError(f"float_to_int8: tensor '{name}' has {', '.join(unknown)}; expected scale and offset")
    scale, offset = given.get("scale", 0), given.get("offset", 0)
    if not np.isfinite(scale) or scale <= 0:
        raise OptionError(f"float_to_int8: the scale of tensor '{name}' is {scale}; expected a number above 0")
    if int(offset) != offset or not -128 <= offset <= 127:
        raise OptionError(f"float_to_int8: the offset of tensor '{name}' is {offset}; expected an integer in [-128, 127]")
    return float(scale), int(offset)


@register("layer_precision_compare")
class LayerPrecisionCompare(Pass):
    """Logs the cosine distance of every Conv, MatMul and Gemm from the source model; changes nothing.

    Attributes:
        distances: Of each layer, in the source's order, once it has run.
    """

    def __init__(
        self,
        *,
        source: onnx.ModelProto | None = None,
        data_preprocess: str | Path | Arrays | None = None,
        precision_compare_log: str | Path | None = None,
    ) -> None:
        """Takes what to compare with.

        Args:
            source: The model before conversion, with the inputs of the one the pass runs on.
            data_preprocess: Samples by input name, or a pickle or .npz file of them; random ones where it is None.
            precision_compare_log: File that gets a line of each layer.

        Raises:
            OptionError: the samples cannot be read.
        """
        self.source = source
        self.file = data_preprocess if isinstance(data_preprocess, str | Path) else None
        self.data = load_samples(data_preprocess) if isinstance(data_preprocess, str | Path) else data_preprocess
        self.log_path = precision_compare_log
        self.distances: tuple[LayerDistance, ...] = ()

    def run(self, model: ir.Model) -> bool:
        if self.source is None:
            raise OptionError("pass 'layer_precision_compare' needs the source model to compare with; --precision_compare gives it")
        infer_shapes(model)
        batches: Sequence[Arrays] | None = None
        if self.data is not None:
            batches = batches_of(inputs_of(model.graph), self.data, file=self.file)
        self.distances = tuple(compare_layers(self.source, model, batches))
        for each in self.distances:
            log.info("%s", each)
        if self.log_path is not None:
            write_comparison(self.log_path, self.distances)
        return False
