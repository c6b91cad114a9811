"""Decides which layers of a model go to eight bits, in which formats and scales, and with which codes; `float_to_fp8` then does it.

`round_weight` rounds a layer's weight so that its output changes least over sample inputs, not each weight by itself: GPTQ. Input channels
are rounded one after the other; the error that rounding one makes in the output is made good, as far as the samples say that channels go
together, by changing those not yet rounded. What the samples say is H = X^T X over the rows X that the weight is multiplied by.

After Frantar, Ashkboos, Hoefler, Alistarh: "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (2022), with
its damping (1 % of the mean diagonal) and its blocks of columns, and with the fixed grid of an eight-bit float instead of one fitted to
each row.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from stoker.compiler.errors import CompileError, OptionError
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
from stoker.compiler.precision.float8 import Float8Format, check_scale, encode, round_to_float8
from stoker.compiler.precision.representation import FLOAT8_OP_TYPES, Float8Spec, float8_use
from stoker.compiler.precision.samples import Arrays, observe

#: Longest row of X whose H (float32) is formed: 256 MB.
MAX_CHANNELS: Final = 8192
_DAMPING: Final = 0.01
_BLOCK: Final = 128


def channels_of(node: ir.Node) -> int | None:
    """The length of the rows that the weight of `node` is multiplied by; None if the layer is not of a form that GPTQ rounds.

    These are MatMul and Gemm by a matrix, and ungrouped 2-D Conv with explicit pads.
    """
    weight = node.inputs[1]
    if weight is None or weight.shape is None or not weight.shape.is_static():
        return None
    shape = tuple(int(size) for size in weight.shape.numpy())
    if node.op_type == "Conv":
        padding = node.attributes.get_string("auto_pad", "NOTSET")
        if len(shape) != 4 or node.attributes.get_int("group", 1) != 1 or padding not in ("NOTSET", "VALID"):
            return None
        channels = shape[1] * shape[2] * shape[3]
    elif len(shape) != 2:
        return None
    else:
        channels = shape[1] if _is_transposed(node, "transB") else shape[0]
    return channels if channels <= MAX_CHANNELS else None


def rows_of(node: ir.Node, activation: NDArray[Any]) -> NDArray[np.float32]:
    """Returns X of one batch: `activation`, input 0 of `node`, as the rows that the weight is multiplied by; [rows, channels]."""
    values = activation.astype(np.float32, copy=False)
    if node.op_type == "Conv":
        return _patches(node, values)
    if _is_transposed(node, "transA"):
        values = values.T
    return values.reshape(-1, values.shape[-1])


def round_weight(node: ir.Node, weight: NDArray[Any], hessian: NDArray[np.float32], spec: Float8Spec) -> NDArray[np.uint8]:
    """Returns the codes of `weight`, input 1 of `node`, in its shape.

    Args:
        node: Of a form that `channels_of` knows.
        weight: As the node has it.
        hessian: The sum of X^T X; [channels, channels].
        spec: The grid.
    """
    is_rows_first = node.op_type == "Conv" or _is_transposed(node, "transB")
    matrix = weight.reshape(len(weight), -1) if is_rows_first else weight.T
    rounded = _round_rows(matrix.astype(np.float32), hessian, spec)
    return encode((rounded if is_rows_first else rounded.T).reshape(weight.shape), spec.float8_format, spec.scale, nan_on_overflow=False)


def _is_transposed(node: ir.Node, attribute: str) -> bool:
    return node.op_type == "Gemm" and node.attributes.get_int(attribute, 0) != 0


def _round_rows(matrix: NDArray[np.float32], hessian: NDArray[np.float32], spec: Float8Spec) -> NDArray[np.float32]:
    """Values of the grid for `matrix` [outputs, channels]."""
    work, result = matrix.copy(), np.empty_like(matrix)
    damped = hessian.astype(np.float64)
    diagonal = np.diag(damped).copy()
    is_silent = diagonal == 0  # the input was always zero, so its weight has no effect
    mean = float(np.mean(diagonal))
    damped[np.diag_indices_from(damped)] += np.where(is_silent, 1.0, 0.0) + _DAMPING * (mean if mean > 0 else 1.0)
    # The upper Cholesky factor of the inverse: row c says how the channels after c make good an error in c.
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)
    channels = matrix.shape[1]
    for first in range(0, channels, _BLOCK):
        last = min(first + _BLOCK, channels)
        errors = np.empty((len(matrix), last - first), np.float32)
        for channel in range(first, last):
            result[:, channel] = round_to_float8(work[:, channel], spec.float8_format, spec.scale)
            error = (work[:, channel] - result[:, channel]) / factor[channel, channel]
            work[:, channel:last] -= np.outer(error, factor[channel, channel:last])
            errors[:, channel - first] = error
        work[:, last:] -= errors @ factor[first:last, last:]
    return result


def _patches(node: ir.Node, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """The receptive field of every output pixel of a 2-D convolution; [batch x pixels, channels x height x width]."""
    weight = node.inputs[1]
    assert weight is not None
    assert weight.shape is not None
    height, width = (int(size) for size in weight.shape.numpy()[2:])
    strides = node.attributes.get_ints("strides", (1, 1))
    dilations = node.attributes.get_ints("dilations", (1, 1))
    top, left, bottom, right = node.attributes.get_ints("pads", (0, 0, 0, 0))
    padded = np.pad(images, ((0, 0), (0, 0), (top, bottom), (left, right)))
    spans = ((height - 1) * dilations[0] + 1, (width - 1) * dilations[1] + 1)
    windows = sliding_window_view(padded, spans, axis=(2, 3))[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    return np.ascontiguousarray(windows.transpose(0, 2, 3, 1, 4, 5)).reshape(-1, images.shape[1] * height * width)


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
    """The planned conversions to 8 bits.

    Attributes:
        layers: Each layer and what was chosen for it, in the graph's order; those kept included.
        codes: Of weights that are not rounded to nearest, by the layer.
    """

    layers: tuple[tuple[ir.Node, LayerChoice], ...]
    codes: dict[ir.Node, NDArray[np.uint8]]


def float8_layers(model: ir.Model, *, skip_names: Collection[str] = (), weight_only: bool = False) -> list[ir.Node]:
    """Returns the Conv, MatMul and Gemm nodes of `model`, including sub-graphs, that can be converted to 8 bits.

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
    """Returns the constant input 1 of `node`, if callers cannot override it."""
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
    """Returns a text that names the input of `node` with NaN or infinity, as a weight or over the samples; empty if both are finite."""
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
                rows = rows_of(node, observed[str(value.name)])
                product = rows.T @ rows
                hessians[node] = hessians[node] + product if node in hessians else product
        for node, choice in group:
            weight = weight_of(node)
            assert weight is not None
            if not np.all(np.isfinite(hessians[node])):
                raise CompileError(
                    f"node '{node.name}' ({node.op_type}): its input has values that are not finite over the calibration data"
                )
            codes[node] = round_weight(node, weight.numpy(), hessians[node], choice.weight.spec)
    return codes


def _groups(model: ir.Model, layers: Sequence[tuple[ir.Node, LayerChoice]]) -> Iterator[list[tuple[ir.Node, LayerChoice]]]:
    group: list[tuple[ir.Node, LayerChoice]] = []
    held = 0
    for node, choice in layers:
        channels = channels_of(node)
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
