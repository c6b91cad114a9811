"""`float_to_fp8`: precisions fp8 and fp8_weight."""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from stoker.compiler.errors import OptionError
from stoker.compiler.passes.infer import infer_shapes
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.precision.calibration import write_log
from stoker.compiler.precision.float8_plan import Float8Params, float8_layers, plan_float8, weight_of
from stoker.compiler.precision.representation import FLOAT8_OP_TYPES, cast_activation, store_weight, use_float8_opset
from stoker.compiler.precision.samples import Arrays, batches_of, inputs_of, load_samples, random_batches, split

log = logging.getLogger(__name__)


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
