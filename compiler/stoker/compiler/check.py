"""`--check`: how far a converted model is from its source on random data, and how far it may be.

The figure is the signal to noise of an output, in decibels: 20 dB are an error of a tenth of the output's root mean square, 60 dB of a
thousandth. Rounding and other orders of summation stay above the limits by 10 dB or more in convolutions, transformers and recurrent
networks; another function falls far below. Integers have no noise: the limit is the share of elements that may differ, as the index of the
larger of two almost equal scores may.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from stoker.compiler import marks
from stoker.compiler.errors import CompileError
from stoker.compiler.precision.drift import OutputDrift, random_outputs
from stoker.compiler.precision.number_types import numpy_feeds, with_numpy_types
from stoker.compiler.precision.samples import plain_options
from stoker.compiler.target import fed_inputs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputError:
    """How far one output of the converted model is from the source's; computed in float64 over all elements.

    Attributes:
        name: Of the output.
        shape: Its shape.
        max_error: Largest absolute difference.
        mean_error: Mean absolute difference (MAE).
        mean_square_error: Mean of the squared differences (MSE).
        max_relative_error: Largest difference over the source's largest magnitude.
        cosine: Cosine of the angle between both, over finite elements; 1 for the same direction.
        snr_db: Signal to noise: the source's root mean square over that of the differences; infinite where nothing differs.
        different: Of integers, truth values and strings (whose other figures are NaN), the share of elements that differ; None of others.
        not_comparable: Why the figures, then NaN, say nothing: `random numbers`; empty otherwise.
    """

    name: str
    shape: tuple[int, ...]
    max_error: float
    mean_error: float
    mean_square_error: float
    max_relative_error: float
    cosine: float
    snr_db: float
    different: float | None = None
    not_comparable: str = ""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def compare_models(source: onnx.ModelProto, converted: onnx.ModelProto, *, seed: int = 0) -> list[OutputError]:
    """Runs both with the same data: standard normal floats, integers from 0 to 1 (valid as indices and masks), random booleans.

    Images that the converted model takes as bytes are random pixels; the source gets them normalised, as the device does it. Inputs that
    the converted model takes as one are given to the source one by one.

    Args:
        source: Before conversion; its variable dimensions get the sizes of `converted`.
        converted: After it; of static shapes.
        seed: Of the data.

    Raises:
        CompileError: a model does not run, or the two do not take the same data or have no outputs in common.
    """
    if is_packed(converted):
        raise CompileError(
            "check: the conversion packed the model (pack_args): it takes several sequences a row, which the source does not"
        )
    before, after = _session(source, "source"), _session(converted, "converted")
    feeds = random_feeds(converted, seed)
    given = _taken_apart(feeds, converted)
    names = {each.name for each in before.get_inputs()}
    strange = sorted(set(given) ^ names)
    if strange:
        raise CompileError(
            f"check: the conversion changed the inputs ({', '.join(strange)}), so that the same data does not fit both models"
        )
    given |= _normalised(given, byte_images(converted))
    expected = _run(before, {each.name: given[each.name].astype(_dtype(each)) for each in before.get_inputs()}, "source")
    actual = _run(after, feeds, "converted")
    common = [name for name in actual if name in expected]
    if not common:
        raise CompileError("check: the converted model has none of the source's outputs")
    random = random_outputs(source) | random_outputs(converted)
    return [
        incomparable(name, expected[name], "random numbers") if name in random else output_error(name, expected[name], actual[name])
        for name in common
    ]


def incomparable(name: str, expected: NDArray[Any], reason: str) -> OutputError:
    """An output without figures."""
    figures = dict.fromkeys(("max_error", "mean_error", "mean_square_error", "max_relative_error", "cosine", "snr_db"), math.nan)
    return OutputError(name=name, shape=tuple(expected.shape), not_comparable=reason, **figures)


def output_error(name: str, expected: NDArray[Any], actual: NDArray[Any]) -> OutputError:
    """The error figures of one output.

    Raises:
        CompileError: the two have different shapes.
    """
    if expected.shape != actual.shape:
        raise CompileError(f"check: output '{name}' is {list(actual.shape)} after conversion and {list(expected.shape)} before")
    if expected.dtype.kind in "OUS":
        equal = [one == other for one, other in zip(expected.ravel().tolist(), actual.ravel().tolist(), strict=True)]
        different = 1 - sum(equal) / len(equal) if equal else 0.0
        return dataclasses.replace(incomparable(name, expected, ""), different=different)
    wanted, got = expected.astype(np.float64).ravel(), actual.astype(np.float64).ravel()
    # Where both are NaN or the same infinity they agree; the difference of two infinities is not a number.
    same = (wanted == got) | (np.isnan(wanted) & np.isnan(got))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where(same, 0.0, np.abs(wanted - got))
        difference = np.where(np.isnan(difference), np.inf, difference)  # NaN on one side only
        squares = difference**2
    largest = float(np.max(np.abs(wanted), initial=0.0, where=np.isfinite(wanted)))
    worst = float(np.max(difference, initial=0.0))
    return OutputError(
        name=name,
        shape=tuple(expected.shape),
        max_error=worst,
        mean_error=float(np.mean(difference)) if difference.size else 0.0,
        mean_square_error=float(np.mean(squares)) if squares.size else 0.0,
        max_relative_error=worst / largest if largest else worst,
        cosine=_cosine(wanted, got, same),
        snr_db=_snr_db(wanted[np.isfinite(wanted)], difference),
        different=float(np.mean(~same)) if expected.dtype.kind in "iub" and same.size else None,
    )


def _snr_db(signal: NDArray[np.float64], noise: NDArray[np.float64]) -> float:
    largest = float(np.max(noise, initial=0.0))
    if not largest:
        return math.inf
    if not math.isfinite(largest):
        return -math.inf
    # Each is made small enough to be squared; the scales come back as logarithms.
    scale = float(np.max(np.abs(signal), initial=0.0))
    if not scale:
        return -math.inf
    power = math.log10(scale / largest) * 20
    return power + 20 * math.log10(float(np.linalg.norm(signal / scale)) / float(np.linalg.norm(noise / largest)))


def _cosine(wanted: NDArray[np.float64], got: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    """Over the elements that are finite in both; 1 where all agree."""
    if same.all():
        return 1.0
    finite = np.isfinite(wanted) & np.isfinite(got)
    wanted, got = _shortened(wanted[finite]), _shortened(got[finite])
    length = float(np.linalg.norm(wanted) * np.linalg.norm(got))
    return float(np.dot(wanted, got)) / length if length else 0.0


def _shortened(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """In the same direction, small enough to be squared."""
    largest = float(np.max(np.abs(values), initial=0.0))
    return values / largest if largest else values


def byte_images(converted: onnx.ModelProto) -> Mapping[str, Mapping[str, Any]]:
    """The images that `eight_bits_io` made bytes, by input name: mean, std and axis of the colours."""
    noted = {each.key: each.value for each in converted.metadata_props}
    images: dict[str, dict[str, Any]] = json.loads(noted.get(marks.EIGHT_BITS_IO, "{}"))
    return images


def is_packed(converted: onnx.ModelProto) -> bool:
    """Whether a row of the model may hold several sequences, so that data mean something else to it than to its source."""
    return any(each.key == marks.PACKING for each in converted.metadata_props)


def _taken_apart(feeds: Mapping[str, NDArray[Any]], converted: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """`feeds` with the inputs of the source in place of those that `apply_host_concat_split` made of them."""
    noted = {each.key: each.value for each in converted.metadata_props}
    apart = dict(feeds)
    for group in json.loads(noted.get(marks.HOST_CONCAT, "[]")):
        apart |= zip(group["input_tensor_names"], apart.pop(group["tensor_name"]), strict=True)
    return apart


def _normalised(feeds: Mapping[str, NDArray[Any]], images: Mapping[str, Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    made = {}
    for name, image in images.items():
        shape = [1] * feeds[name].ndim
        shape[image["axis"]] = -1
        mean, std = (np.asarray(image[key], np.float32).reshape(shape) for key in ("mean", "std"))
        made[name] = (feeds[name].astype(np.float32) / 255 - mean) / std
    return made


def random_feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Data for every input of a model of static shapes, by name."""
    generator = np.random.default_rng(seed)
    images = byte_images(model)
    feeds: dict[str, NDArray[Any]] = {}
    for value in fed_inputs(model):
        kind = value.type.tensor_type
        shape = [size.dim_value for size in kind.shape.dim]
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        whole = dtype.kind in "iub"
        data = (
            generator.integers(0, 256 if value.name in images else 2, shape)
            if whole
            else generator.standard_normal(shape, dtype=np.float32)
        )
        feeds[value.name] = np.asarray(data).astype(str).astype(object) if dtype.kind in "OUS" else np.asarray(data).astype(dtype)
    return feeds


def error_table(errors: Sequence[OutputError]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Headings and rows for people."""
    headings = ("output", "shape", "max error", "mae", "mse", "max relative", "cosine", "SNR dB")
    rows = [(each.name, str(list(each.shape)), *_figures(each)) for each in errors]
    return headings, [list(row) for row in rows]


def _figures(error: OutputError) -> tuple[str, ...]:
    if error.not_comparable:
        return ("not comparable:", error.not_comparable, "", "", "", "")
    if error.different is not None and math.isnan(error.snr_db):
        return (f"{1 - error.different:.2%} equal", "", "", "", "", "")
    small = (error.max_error, error.mean_error, error.mean_square_error, error.max_relative_error)
    return (*(f"{each:.3e}" for each in small), f"{error.cosine:.6f}", f"{error.snr_db:.1f}")


def is_runnable(model: onnx.ModelProto) -> bool:
    """Whether this ONNX Runtime has kernels for all nodes of `model`."""
    try:
        _session(model, "source")
    except CompileError:
        return False
    return True


def _session(model: onnx.ModelProto, which: str) -> Any:
    try:
        return onnxruntime.InferenceSession(
            with_numpy_types(model).SerializeToString(), plain_options(), providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime raises many types of its own, all derived from RuntimeError or Exception
        raise CompileError(f"check: ONNX Runtime cannot load the {which} model: {' '.join(str(error).split())}") from error


def _run(session: Any, feeds: Mapping[str, NDArray[Any]], which: str) -> dict[str, NDArray[Any]]:
    names = [each.name for each in session.get_outputs()]
    try:
        return dict(zip(names, session.run(names, numpy_feeds(feeds)), strict=True))
    except Exception as error:  # as above
        raise CompileError(f"check: the {which} model fails on ONNX Runtime: {' '.join(str(error).split())}") from error


def _dtype(declared: Any) -> "np.dtype[Any]":
    """Of an ONNX Runtime input such as `tensor(float16)`."""
    name = declared.type.removeprefix("tensor(").removesuffix(")")
    dtype: np.dtype[Any] = np.dtype({"float": "float32", "double": "float64", "string": "object"}.get(name, name))
    return dtype


LEAST_SNR_DB = {"fp32": 60.0, "fp16": 30.0, "bf16": 20.0, "fp8_weight": 15.0, "int8_dynamic": 15.0, "fp8": 10.0, "int8": 10.0}
MOST_DIFFERENT = {"fp32": 0.001, "fp16": 0.05, "bf16": 0.1, "fp8_weight": 0.2, "int8_dynamic": 0.2, "fp8": 0.5, "int8": 0.5}
#: Root mean square of the differences that is no error whatever the output: it may be zero but for rounding.
_NEGLIGIBLE = 1e-7


def failure_of_check(error: OutputError, precision: str) -> str:
    """The fault of an output that `--check` compared; empty where it is within the limits, or not comparable."""
    if error.not_comparable:
        return ""
    if error.different is not None:
        most = MOST_DIFFERENT[precision]
        allowed = max(int(most * error.elements), 0 if precision == "fp32" else 1)
        count = round(error.different * error.elements)
        return (
            f"output '{error.name}' differs in {count} of {error.elements} elements; {precision} may in {allowed}"
            if count > allowed
            else ""
        )
    if error.mean_square_error <= _NEGLIGIBLE**2:
        return ""
    return _below(error.name, error.snr_db, precision)


def failure_of_drift(drift: OutputDrift, precision: str) -> str:
    """The same of an output that a target compared."""
    if drift.equal is not None:
        if 1 - drift.equal <= MOST_DIFFERENT[precision]:
            return ""
        return f"output '{drift.output}' has {drift.equal:.2%} of its strings in common with the source's"
    if drift.snr_db is None or drift.mse is None or drift.mse <= _NEGLIGIBLE**2:
        return ""
    return _below(drift.output, drift.snr_db, precision)


def _below(name: str, snr_db: float, precision: str) -> str:
    least = LEAST_SNR_DB[precision]
    if snr_db >= least:  # False of NaN
        return ""
    return f"output '{name}' has a signal to noise of {snr_db:.1f} dB; {precision} needs {least:g} dB"
