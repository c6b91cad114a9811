"""What conversion costs in accuracy: figures of every output of a converted model against its source, over samples."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from rich.table import Table

from compiler.errors import CompileError
from compiler.precision.losses import cosine_distance, mae, mse, snr_db
from compiler.precision.observe import observe
from compiler.precision.samples import Arrays, cast_feeds, inputs_of, random_batches


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputDrift:
    """One output, over all samples together.

    Attributes:
        output: Its name.
        mse, mae, max_abs: Of the differences.
        snr_db: Signal to noise; infinite where nothing differs.
        cosine: Of the angle between both.
        top1_agreement: Share of rows whose largest element is the same one; None unless the output looks like scores: FLOAT or
            FLOAT16 of shape [rows, classes], two classes or more.
    """

    output: str
    mse: float
    mae: float
    max_abs: float
    snr_db: float
    cosine: float
    top1_agreement: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DriftReport:
    """Figures of all outputs.

    Attributes:
        outputs: In the source's order.
        samples: Batches they are over.
    """

    outputs: tuple[OutputDrift, ...]
    samples: int

    def table(self) -> Table:
        """For people."""
        table = Table(title=f"Drift from the source model over {self.samples} batch(es)")
        for heading in ("output", "mse", "mae", "max abs", "SNR dB", "cosine", "top-1 agreement"):
            table.add_column(heading, justify="left" if heading == "output" else "right")
        for each in self.outputs:
            top1 = "" if each.top1_agreement is None else f"{each.top1_agreement:.2%}"
            figures = (f"{each.mse:.3e}", f"{each.mae:.3e}", f"{each.max_abs:.3e}", f"{each.snr_db:.1f}", f"{each.cosine:.6f}")
            table.add_row(each.output, *figures, top1)
        return table

    def to_data(self) -> dict[str, object]:
        """For programs; a figure that JSON cannot hold (an infinite SNR, NaN) is None."""
        outputs = [{name: _finite(value) for name, value in dataclasses.asdict(each).items()} for each in self.outputs]
        return {"samples": self.samples, "outputs": outputs}

    def to_json(self) -> str:
        """`to_data` as text."""
        return json.dumps(self.to_data(), indent=2, allow_nan=False)


def measure_drift(source: onnx.ModelProto, converted: onnx.ModelProto, batches: Sequence[Arrays] | None = None) -> DriftReport:
    """Runs both models on ONNX Runtime.

    Args:
        source: Before conversion.
        converted: After it; of static shapes if `batches` is None. It may have more outputs than the source.
        batches: Inputs by name, cast to the types of each model; random ones where it is None.

    Raises:
        CompileError: a model cannot be run, there is no data, or an output is missing or has another shape.
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
    return drift_between(names, expected, actual)


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
    wanted = np.concatenate([each.reshape(-1) for each in expected]).astype(np.float64)
    got = np.concatenate([each.reshape(-1) for each in actual]).astype(np.float64)
    return OutputDrift(
        output=name,
        mse=mse(wanted, got),
        mae=mae(wanted, got),
        max_abs=float(np.max(np.abs(wanted - got), initial=0.0)),
        snr_db=snr_db(wanted, got),
        cosine=1 - cosine_distance(wanted, got),
        top1_agreement=_top1_agreement(expected, actual),
    )


def _top1_agreement(expected: list[NDArray[Any]], actual: list[NDArray[Any]]) -> float | None:
    first = expected[0]
    if first.dtype.kind != "f" or first.ndim != 2 or first.shape[1] < 2:
        return None
    same = [np.argmax(wanted, 1) == np.argmax(got, 1) for wanted, got in zip(expected, actual, strict=True)]
    return float(np.mean(np.concatenate(same)))


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
