"""The accuracy that conversion costs: figures of every output of a converted model against its source, over samples.

Strings are compared for equality. NaN, or the same infinity, in both models is agreement; both are counted.

How far every Conv, MatMul and Gemm of a converted model is from the same one of its source, over samples. Layers are the same where they
make a tensor of the same name, which conversions of number types keep. The error of a layer includes those of all layers before it, so that
the first large one in the graph's order is where to look.

Which outputs of two runs can be compared, and whether they agree. Outputs agree where they differ by rounding only, such as that of kernels
that sum in another order. Outputs that depend on random numbers differ from run to run, and cannot be compared.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from stoker.compiler.errors import CompileError
from stoker.compiler.precision.calibration import cosine_distance, mae, mse, snr_db
from stoker.compiler.precision.representation import FLOAT8_OP_TYPES, float8_use
from stoker.compiler.precision.samples import Arrays, cast_feeds, inputs_of, observe, random_batches

#: Relative to the largest finite value.
TOLERANCE: Final = 1e-3
#: Values above this multiple of the array's small values count as infinite, such as -1e9 or the lowest float in masks.
_MASK_RATIO: Final = 1e6
_SMALL_QUANTILE: Final = 0.1


def agree(found: NDArray[Any], wanted: NDArray[Any]) -> bool:
    """Returns whether both arrays have the same shape, NaNs and infinities, and differ elsewhere only by rounding.

    Integers, booleans and strings must be equal. The tolerance is relative to the largest value, or to the value itself for mask values, so
    that infinities and huge values do not widen it for other elements.
    """
    if found.shape != wanted.shape:
        return False
    if wanted.dtype.kind not in "fV":
        return bool(np.array_equal(found, wanted))
    one, other = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(other)
    if not np.array_equal(np.isfinite(one), finite) or not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return False
    size = np.abs(other[finite])
    return bool(np.all(np.abs(one[finite] - other[finite]) <= TOLERANCE * np.maximum(size, _scale(size))))


def _scale(size: NDArray[np.float64]) -> float:
    """The largest of `size` without masks."""
    some = size[size > 0]
    if not some.size:
        return 0.0
    return float(np.max(some[some <= _MASK_RATIO * np.quantile(some, _SMALL_QUANTILE)], initial=0.0))


_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})


def random_outputs(model: onnx.ModelProto) -> frozenset[str]:
    """Returns the outputs that depend on a random operator."""
    functions = {(each.domain, each.name) for each in model.functions if any(_is_random(node, ()) for node in each.node)}
    random: set[str] = set()
    for node in model.graph.node:
        if _is_random(node, functions) or any(name in random for name in _read(node)):
            random.update(name for name in node.output if name)
    return frozenset(value.name for value in model.graph.output if value.name in random)


def _is_random(node: onnx.NodeProto, functions: Iterable[tuple[str, str]]) -> bool:
    """Returns whether the node, a node in its sub-graphs, or the function that it calls is random."""
    if (node.op_type in _RANDOM and node.domain in ("", "ai.onnx")) or (node.domain, node.op_type) in functions:
        return True
    return any(_is_random(inner, functions) for graph in _graphs(node) for inner in graph.node)


def _read(node: onnx.NodeProto) -> Iterable[str]:
    """Returns the values that the node and the nodes in its sub-graphs read."""
    yield from node.input
    for graph in _graphs(node):
        for inner in graph.node:
            yield from _read(inner)


def _graphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDistance:
    """The distance of one layer from its counterpart.

    Attributes:
        node: Node name in the source model.
        op_type: Operator type.
        tensor: Name of the output.
        converted_as: What it computes in, such as `FLOAT16` or `fp8 F143 x 2^-1, F143 x 2^-3`; empty where it has no counterpart.
        cosine_distance: 1 - cos of source and converted output, its mean over the samples; NaN where it has no counterpart.
    """

    node: str
    op_type: str
    tensor: str
    converted_as: str
    cosine_distance: float

    def __str__(self) -> str:
        where = f"node '{self.node}' ({self.op_type}), tensor '{self.tensor}'"
        if not self.converted_as:
            return f"{where}: not in the converted model (fused or replaced)"
        return f"{where}: cosine distance {self.cosine_distance:.3e}, computed in {self.converted_as}"


def compare_layers(source: onnx.ModelProto, converted: ir.Model, batches: Sequence[Arrays] | None = None) -> list[LayerDistance]:
    """Returns the mean distances of the layers of `source`'s main graph, in its order.

    Args:
        source: The model before conversion.
        converted: The model after conversion; its values must have types.
        batches: Inputs by the source's names, of the converted model's shapes; random ones where it is None.

    Raises:
        CompileError: a model cannot be run, or an input is missing in the data.
    """
    before = ir.from_proto(onnx.shape_inference.infer_shapes(source))
    feeds = random_batches(inputs_of(converted.graph)) if batches is None else batches
    made = {str(output.name): node for node in converted.graph for output in node.outputs[:1]}
    layers = [node for node in before.graph if node.op_type in FLOAT8_OP_TYPES and node.domain in ("", "ai.onnx")]
    counterparts = [_counterpart(made, str(node.outputs[0].name)) for node in layers]
    pairs = [(node, other) for node, other in zip(layers, counterparts, strict=True) if other is not None]
    totals = {node: np.zeros(2) for node, _ in pairs}
    expected = observe(before, [node.outputs[0] for node, _ in pairs], (cast_feeds(each, inputs_of(before.graph)) for each in feeds))
    actual = observe(converted, [other.outputs[0] for _, other in pairs], (cast_feeds(each, inputs_of(converted.graph)) for each in feeds))
    for wanted, got in zip(expected, actual, strict=True):
        for node, other in pairs:
            first, second = wanted[str(node.outputs[0].name)], got[str(other.outputs[0].name)]
            # A mask's infinities, where both have them, say nothing of the layer; an infinity in only one of them is a difference.
            finite = np.isfinite(first) & np.isfinite(second)
            weight = first.size
            is_same = np.array_equal(np.isfinite(first), np.isfinite(second))
            distance = cosine_distance(first[finite], second[finite].astype(first.dtype)) if is_same else 1.0
            totals[node] += (weight * distance, weight)
    return [_distance(node, other, totals.get(node)) for node, other in zip(layers, counterparts, strict=True)]


def write_comparison(path: str | Path, distances: Sequence[LayerDistance]) -> None:
    """Writes `precision_compare.log`: one line per layer."""
    Path(path).write_text("".join(f"{each}\n" for each in distances), encoding="utf-8")


def _counterpart(made: dict[str, ir.Node], tensor: str) -> ir.Node | None:
    """The layer of the converted model that makes `tensor`; behind the Cast that gives a graph's output its old type."""
    node = made.get(tensor)
    if node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.op_type in FLOAT8_OP_TYPES else None


def _distance(node: ir.Node, other: ir.Node | None, totals: NDArray[np.float64] | None) -> LayerDistance:
    computed, distance = "", math.nan
    if other is not None:
        use = float8_use(other)
        dtype = other.outputs[0].dtype
        computed = "an unknown type" if dtype is None else dtype.name
        if use is not None:
            computed = f"fp8 {use.activation}, {use.weight}" if use.computes else f"{computed}, weight {use.weight}"
        if totals is not None and totals[1]:
            distance = float(totals[0] / totals[1])
    name = str(node.outputs[0].name)
    return LayerDistance(node=node.name or "", op_type=node.op_type, tensor=name, converted_as=computed, cosine_distance=distance)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputDrift:
    """One output, over all samples together. Figures of an output of strings are None, but for `equal`.

    Attributes:
        output: Output name.
        mse, mae, max_abs: Of the differences; infinite where an element is finite in one model only, or NaN or an infinity in one model
            and another one in the other. Elements that are the same infinity, or NaN, in both models agree, and count nowhere else.
        snr_db: Signal to noise; infinite where nothing differs, minus infinite where `max_abs` is infinite.
        cosine: Of the angle between both, over the elements that are finite in both.
        top1_agreement: Share of rows whose largest element is the same one; None unless the output looks like scores: FLOAT or
            FLOAT16 of shape [rows, classes], two classes or more.
        equal: Share of elements that are equal, of outputs of strings; None for numbers.
        not_finite: Elements that are infinite or NaN in the source.
        not_finite_differ: Elements that are infinite or NaN in one of the models, and not the same in the other.
    """

    output: str
    mse: float | None
    mae: float | None
    max_abs: float | None
    snr_db: float | None
    cosine: float | None
    top1_agreement: float | None = None
    equal: float | None = None
    not_finite: int = 0
    not_finite_differ: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class DriftReport:
    """The figures of all outputs.

    Attributes:
        outputs: Figures in the source's order.
        samples: Number of batches.
        rows: Number of samples; 0 if the caller did not state it.
        is_held_out: Whether calibration saw none of these samples; None where nothing was calibrated.
    """

    outputs: tuple[OutputDrift, ...]
    samples: int
    rows: int = 0
    is_held_out: bool | None = None

    @property
    def snr_db(self) -> float | None:
        """Returns the lowest SNR of the numeric outputs in decibels; None if there are none. NaN counts as minus infinity."""
        known = [each.snr_db for each in self.outputs if each.snr_db is not None]
        return min((-math.inf if math.isnan(each) else each for each in known), default=None)

    def about(self) -> str:
        """The data behind the figures, for people: `12 samples, none of them calibrated with`."""
        kind = {None: "", True: ", none of them calibrated with", False: ", calibrated with as well"}[self.is_held_out]
        return f"{self.rows} sample{'' if self.rows == 1 else 's'}{kind}"

    def table(self) -> Table:
        """Returns the rows of the printed table."""
        table = Table(title=f"Drift from the source model over {self.samples} batch(es)")
        has_strings = any(each.equal is not None for each in self.outputs)
        has_infinities = any(each.not_finite or each.not_finite_differ for each in self.outputs)
        headings = ["output", "mse", "mae", "max abs", "SNR dB", "cosine", "top-1 agreement"]
        headings += ["equal"] * has_strings + ["inf or NaN", "of these differ"] * has_infinities
        for heading in headings:
            table.add_column(heading, justify="left" if heading == "output" else "right")
        for each in self.outputs:
            figures = [_text(each.mse, ".3e"), _text(each.mae, ".3e"), _text(each.max_abs, ".3e"), _text(each.snr_db, ".1f")]
            figures += [_text(each.cosine, ".6f"), _text(each.top1_agreement, ".2%")]
            figures += [_text(each.equal, ".2%")] * has_strings
            figures += [str(each.not_finite), str(each.not_finite_differ)] if has_infinities else []
            table.add_row(Text(each.output), *figures)
        return table

    def to_data(self) -> dict[str, object]:
        """Returns JSON-compatible data; values that JSON cannot represent (infinity, NaN) are None."""
        outputs = [{name: _finite(value) for name, value in dataclasses.asdict(each).items()} for each in self.outputs]
        return {"samples": self.samples, "rows": self.rows, "is_held_out": self.is_held_out, "outputs": outputs}

    def to_json(self) -> str:
        """Returns `to_data` as JSON text."""
        return json.dumps(self.to_data(), indent=2, allow_nan=False)


def measure_drift(
    source: onnx.ModelProto, converted: onnx.ModelProto, batches: Sequence[Arrays] | None = None, *, is_held_out: bool | None = None
) -> DriftReport:
    """Runs both models on ONNX Runtime.

    Args:
        source: Before conversion.
        converted: After it; of static shapes if `batches` is None. It may have more outputs than the source.
        batches: Inputs by name, cast to the types of each model; random ones where it is None.
        is_held_out: Whether calibration saw none of `batches`; None where nothing was calibrated.

    Raises:
        CompileError: a model cannot be run, there is no data, or an output is missing or has another shape.
        OptionError: a value is not representable in a model's type.
    """
    before, after = ir.from_proto(source), ir.from_proto(converted)
    feeds = random_batches(inputs_of(after.graph)) if batches is None else batches
    if not feeds:
        raise CompileError("drift cannot be measured over no data")
    given = {str(value.name): value for value in after.graph.outputs}
    names = [str(value.name) for value in before.graph.outputs]
    if missing := [name for name in names if name not in given]:
        raise CompileError(f"the converted model has no output(s) {', '.join(missing)} of its source")
    expected = list(observe(before, list(before.graph.outputs), (cast_feeds(each, inputs_of(before.graph)) for each in feeds)))
    actual = list(observe(after, [given[name] for name in names], (cast_feeds(each, inputs_of(after.graph)) for each in feeds)))
    return dataclasses.replace(drift_between(names, expected, actual), rows=rows_of(feeds), is_held_out=is_held_out)


def rows_of(feeds: Sequence[Arrays]) -> int:
    """Samples in `feeds`: rows where all inputs have as many, one of each feed otherwise."""
    sizes = [{array.shape[0] if array.ndim else 1 for array in feed.values()} for feed in feeds]
    return sum(each.pop() if len(each) == 1 else 1 for each in sizes)


def drift_between(names: Sequence[str], expected: Sequence[Arrays], actual: Sequence[Arrays]) -> DriftReport:
    """Figures of outputs that are there already.

    Args:
        names: The outputs.
        expected: Of the source, for each batch its outputs by name.
        actual: Of what was made of it, likewise.

    Raises:
        CompileError: an output has another shape.
    """
    drifts = [_drift(name, [each[name] for each in expected], [each[name] for each in actual]) for name in names]
    return DriftReport(tuple(drifts), len(expected))


def _drift(name: str, expected: list[NDArray[Any]], actual: list[NDArray[Any]]) -> OutputDrift:
    for first, second in zip(expected, actual, strict=True):
        if first.shape != second.shape:
            raise CompileError(f"output '{name}' has shape {list(second.shape)} after conversion and {list(first.shape)} before")
    wanted = np.concatenate([each.reshape(-1) for each in expected])
    got = np.concatenate([each.reshape(-1) for each in actual])
    if not _is_number(wanted):
        return _equality(name, wanted, got)
    wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(wanted) & np.isfinite(got)
    differ = int(np.sum(~finite & (wanted != got) & ~(np.isnan(wanted) & np.isnan(got))))
    not_finite = int(np.sum(~np.isfinite(wanted)))
    wanted, got = wanted[finite], got[finite]
    if differ:
        figures = dict.fromkeys(("mse", "mae", "max_abs"), math.inf) | {"snr_db": -math.inf}
    else:
        with np.errstate(over="ignore"):  # of squares of DOUBLE: the figure is infinite then
            largest = float(np.max(np.abs(wanted - got), initial=0.0))
            figures = {"mse": mse(wanted, got), "mae": mae(wanted, got), "max_abs": largest, "snr_db": snr_db(wanted, got)}
    return OutputDrift(
        output=name,
        **figures,
        cosine=1 - cosine_distance(wanted, got),
        top1_agreement=_top1_agreement(expected, actual),
        not_finite=not_finite,
        not_finite_differ=differ,
    )


def _is_number(array: NDArray[Any]) -> bool:
    """Whether differences can be computed: of all types of ONNX but strings, which are objects here."""
    return array.dtype.kind not in "OUS"


def _equality(name: str, wanted: NDArray[Any], got: NDArray[Any]) -> OutputDrift:
    """The drift of an output of strings; bytes and text of the same characters are equal."""
    same = [_as_text(one) == _as_text(other) for one, other in zip(wanted.tolist(), got.tolist(), strict=True)]
    share = sum(same) / len(same) if same else 1.0
    return OutputDrift(output=name, mse=None, mae=None, max_abs=None, snr_db=None, cosine=None, equal=share)


def _as_text(value: object) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _top1_agreement(expected: list[NDArray[Any]], actual: list[NDArray[Any]]) -> float | None:
    first = expected[0]
    if first.dtype.kind != "f" or first.ndim != 2 or first.shape[1] < 2:
        return None
    same = [np.argmax(wanted, 1) == np.argmax(got, 1) for wanted, got in zip(expected, actual, strict=True)]
    return float(np.mean(np.concatenate(same)))


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
