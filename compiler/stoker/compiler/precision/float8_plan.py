"""Decides which layers of a model go to eight bits, in which formats and scales, and with which codes; `float_to_fp8` then does it."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.precision import gptq
from stoker.compiler.precision.calibration import (
    LayerChoice,
    Reservoir,
    TensorChoice,
    choose_spec,
    loss_of,
    rate_spec,
    sample_values,
    thinned,
    worst_layers,
)
from stoker.compiler.precision.float8 import Float8Format, check_scale
from stoker.compiler.precision.observe import observe
from stoker.compiler.precision.representation import FLOAT8_OP_TYPES, Float8Spec, float8_use
from stoker.compiler.precision.samples import Arrays

log = logging.getLogger(__name__)

#: Bytes of GPTQ's matrices held at a time; layers beyond are observed in a further run over the samples.
_HESSIAN_BYTES: Final = 1 << 29
#: Loss by which weights get their spec where the loss asked for is none of a tensor.
_GPTQ_SPEC_LOSS: Final = "mse"


@dataclass(frozen=True, slots=True)
class Float8Params:
    """PopRT's `fp8_params`: formats and scales of inputs and weights where calibration does not choose others."""

    activation: Float8Spec
    weight: Float8Spec

    @classmethod
    def parse(cls, params: str | Sequence[Any]) -> "Float8Params":
        """Reads `F143,F143,-1,-1`, or the same four as a sequence: input format, weight format, input scale, weight scale.

        Raises:
            OptionError: it has another form, or a format or scale that does not exist.
        """
        words = params.split(",") if isinstance(params, str) else list(params)
        if len(words) != 4:
            raise OptionError(
                f"fp8_params is {params!r}; expected input format, weight format, input scale, weight scale as F143,F143,-1,-1"
            )
        formats = [word if isinstance(word, Float8Format) else Float8Format.parse(str(word)) for word in words[:2]]
        scales = []
        for word, of in zip(words[2:], ("input scale", "weight scale"), strict=True):
            try:
                scale = int(word) if isinstance(word, str) else word
            except ValueError:
                raise OptionError(f"the {of} of fp8_params is {word!r}; expected an integer") from None
            scales.append(check_scale(scale, f"the {of} of fp8_params"))
        return cls(Float8Spec(formats[0], scales[0]), Float8Spec(formats[1], scales[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Plan:
    """The planned conversions.

    Attributes:
        layers: Each layer and what was chosen for it, in the graph's order; those kept included.
        codes: Of weights that are not rounded to nearest, by the layer.
    """

    layers: tuple[tuple[ir.Node, LayerChoice], ...]
    codes: dict[ir.Node, NDArray[np.uint8]]


def float8_layers(model: ir.Model, *, skip_names: Collection[str] = (), weight_only: bool = False) -> list[ir.Node]:
    """The Conv, MatMul and Gemm of `model`, sub-graphs included, that can go to eight bits.

    Args:
        model: Its values have types.
        skip_names: Nodes left out.
        weight_only: Leaves out those without a constant weight.
    """
    found = []
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if (
            node.op_type not in FLOAT8_OP_TYPES
            or node.domain not in ("", "ai.onnx")
            or node.name in skip_names
            or float8_use(node) is not None
        ):
            continue
        if any(value is None or value.dtype not in (ir.DataType.FLOAT16, ir.DataType.FLOAT) for value in node.inputs[:2]):
            continue
        if not weight_only or weight_of(node) is not None:
            found.append(node)
    return found


def weight_of(node: ir.Node) -> ir.TensorProtocol | None:
    """The constant input 1 of `node`, if it is one that nothing overrides."""
    value = node.inputs[1]
    return None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)


def plan_float8(
    model: ir.Model,
    layers: Sequence[ir.Node],
    params: Float8Params,
    *,
    batches: Sequence[Arrays] = (),
    calibrates: bool = False,
    loss_name: str = "kld",
    keep_worst: int = 0,
    weight_only: bool = False,
) -> Float8Plan:
    """Chooses formats and scales for `layers`.

    Args:
        model: Runs on ONNX Runtime where `batches` are given.
        layers: Of `float8_layers`.
        params: Kept where there is nothing to choose by: without `calibrates`, and in sub-graphs, whose tensors cannot be observed.
        batches: Samples of the model's inputs.
        calibrates: Whether the specs of least loss are searched.
        loss_name: Which loss: `mse`, `mae`, `snr`, `kld`, `cos_dist`; `gptq` (weights only) rounds each weight for its layer's output.
        keep_worst: How many of the layers of most noise stay as they are.
        weight_only: Whether activations stay as they are.

    Raises:
        OptionError: an unknown loss, or `gptq` for activations.
        CompileError: the model cannot be run.
    """
    uses_gptq = loss_name == "gptq"
    if uses_gptq and not weight_only:
        raise OptionError("calibration loss gptq rounds weights; it goes with precision fp8_weight only")
    loss = loss_of(_GPTQ_SPEC_LOSS if uses_gptq else loss_name)
    rate = choose_spec if calibrates else _rate
    sampled = sample_values(model, list(_observable(model, layers, weight_only)), batches) if batches else {}
    rated: dict[tuple[str, Float8Spec], TensorChoice] = {}

    def choose(node: ir.Node, index: int, start: Float8Spec) -> TensorChoice:
        value = node.inputs[index]
        assert value is not None
        assert value.dtype is not None
        name = str(value.name)
        if (name, start) not in rated:
            constant = weight_of(node) if index == 1 else None
            observed = sampled.get(name)
            values = thinned(constant.numpy()) if constant is not None else None if observed is None else observed.values()
            if values is None or not values.size:
                rated[name, start] = TensorChoice(tensor=name, spec=start)
            else:
                rated[name, start] = rate(name, values, start, loss, data_type=value.dtype)
        return rated[name, start]

    chosen = []
    for node in layers:
        activation = None if weight_only else choose(node, 0, params.activation)
        # A product of two activations has no weight: its second factor is held as the first.
        weight = choose(node, 1, params.activation if weight_of(node) is None else params.weight)
        reason = _not_finite(node, sampled)
        if reason:
            log.warning("node '%s' (%s) keeps its type: %s, which no range of eight bits holds", node.name, node.op_type, reason)
        chosen.append(
            LayerChoice(
                node=str(node.name), op_type=node.op_type, activation=activation, weight=weight, is_kept=bool(reason), reason=reason
            )
        )
    kept = worst_layers(chosen, keep_worst)
    chosen = [replace(each, is_kept=each.is_kept or index in kept) for index, each in enumerate(chosen)]
    codes: dict[ir.Node, NDArray[np.uint8]] = {}
    if uses_gptq and batches:
        wanted = [(node, each) for node, each in zip(layers, chosen, strict=True) if not each.is_kept]
        codes = _gptq_codes(model, wanted, batches)
        chosen = [replace(each, method="gptq") if node in codes else each for node, each in zip(layers, chosen, strict=True)]
    return Float8Plan(layers=tuple(zip(layers, chosen, strict=True)), codes=codes)


def _not_finite(node: ir.Node, sampled: Mapping[str, Reservoir]) -> str:
    """Which of the two inputs of `node` has NaN or infinity, as a weight or over the samples; empty where none is known to."""
    for index, value in enumerate(node.inputs[:2]):
        assert value is not None
        constant = weight_of(node) if index == 1 else None
        if constant is not None and not np.all(np.isfinite(constant.numpy())):
            return f"its weight '{value.name}' has NaN or infinity"
        observed = sampled.get(str(value.name))
        if constant is None and observed is not None and observed.not_finite:
            return f"its input '{value.name}' is NaN or infinite in {observed.not_finite} place(s) over the samples"
    return ""


def _rate(tensor: str, values: NDArray[Any], start: Float8Spec, loss: Any, *, data_type: ir.DataType) -> TensorChoice:
    """Instead of `choose_spec` where the spec is given."""
    return rate_spec(tensor, values, start, loss)


def _observable(model: ir.Model, layers: Sequence[ir.Node], weight_only: bool) -> Iterator[ir.Value]:
    for node in layers:
        for index in (0, 1):
            value = node.inputs[index]
            if value is None or (index == 1 and weight_of(node) is not None) or (index == 0 and weight_only):
                continue
            if value.graph is model.graph:
                yield value


def _gptq_codes(
    model: ir.Model, layers: Sequence[tuple[ir.Node, LayerChoice]], batches: Sequence[Arrays]
) -> dict[ir.Node, NDArray[np.uint8]]:
    """Codes for those of `layers` that GPTQ can round; the others are logged and rounded to nearest."""
    codes: dict[ir.Node, NDArray[np.uint8]] = {}
    for group in _groups(model, layers):
        hessians: dict[ir.Node, NDArray[np.float32]] = {}
        values = [value for node, _ in group if (value := node.inputs[0]) is not None]
        for observed in observe(model, values, batches):
            for (node, _), value in zip(group, values, strict=True):
                rows = gptq.rows_of(node, observed[str(value.name)])
                product = rows.T @ rows
                hessians[node] = hessians[node] + product if node in hessians else product
        for node, choice in group:
            weight = weight_of(node)
            assert weight is not None
            if not np.all(np.isfinite(hessians[node])):
                raise CompileError(
                    f"node '{node.name}' ({node.op_type}): its input has values that are not finite over the calibration data"
                )
            codes[node] = gptq.round_weight(node, weight.numpy(), hessians[node], choice.weight.spec)
    return codes


def _groups(model: ir.Model, layers: Sequence[tuple[ir.Node, LayerChoice]]) -> Iterator[list[tuple[ir.Node, LayerChoice]]]:
    group: list[tuple[ir.Node, LayerChoice]] = []
    held = 0
    for node, choice in layers:
        channels = gptq.channels_of(node)
        if channels is None or node.inputs[0] is None or node.inputs[0].graph is not model.graph:
            log.info("node '%s' (%s) is not of a form that GPTQ rounds; its weight is rounded to nearest", node.name, node.op_type)
            continue
        if group and held + 4 * channels * channels > _HESSIAN_BYTES:
            yield group
            group, held = [], 0
        group.append((node, choice))
        held += 4 * channels * channels
    if group:
        yield group
