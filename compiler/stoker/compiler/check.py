"""Compares a converted model with its source on random data, and applies limits to the differences.

Each conversion is compared (`convert/drift_check.py`); the `--check` option prints the figures.

The measure is the signal-to-noise ratio of an output in decibels: 20 dB is an error of a tenth of the output's root mean square, 60 dB of a
thousandth. Rounding and a different summation order stay at least 10 dB above the limits in convolutions, transformers and recurrent
networks; a model that computes a different function falls far below them. For integer outputs the limit is the share of elements that may
differ. For example, the index of the larger of two almost equal scores may change.
"""

import dataclasses
import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from stoker.compiler import marks
from stoker.compiler.errors import CompileError, NotComparableError
from stoker.compiler.precision.drift import OutputDrift, random_outputs
from stoker.compiler.precision.number_types import numpy_feeds, with_numpy_types
from stoker.compiler.precision.samples import plain_options
from stoker.compiler.target import fed_inputs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputError:
    """The difference between one output of the converted model and the source's output, computed in float64 over all elements.

    Attributes:
        name: Output name.
        shape: Output shape.
        max_error: Largest absolute difference.
        mean_error: Mean absolute difference (MAE).
        mean_square_error: Mean of the squared differences (MSE).
        max_relative_error: Largest absolute difference divided by the source's largest magnitude.
        cosine: Cosine of the angle between the two outputs, over finite elements; 1 for the same direction.
        snr_db: Signal-to-noise ratio in decibels: the source's root mean square over that of the differences; infinite if there are no
            differences.
        different: The share of elements that differ, for integers, booleans and strings (all their other figures are NaN); None for floats.
        not_comparable: Why the outputs cannot be compared: `random numbers`. All figures are then NaN. Empty otherwise.
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


def compare_models(
    source: onnx.ModelProto,
    converted: onnx.ModelProto,
    *,
    seed: int = 0,
    limit_s: float | None = None,
    samples: Sequence[Mapping[str, NDArray[Any]]] = (),
) -> list[OutputError]:
    """Runs both models with the same data: standard normal floats, integers 0 and 1 (valid as indices and masks), random booleans.

    Images that the converted model takes as bytes are random pixels; the source gets the same pixels normalised as on the device. If the
    converted model concatenates several source inputs into one, the source gets them separately.

    Args:
        source: The model before conversion; its variable dimensions get the sizes of `converted`.
        converted: The model after conversion, with static shapes.
        seed: Seed of the random data.
        limit_s: Most seconds that each model may run for one batch; None for no limit.
        samples: Batches of `converted` to run instead of random data; the figures are over all of them together.

    Raises:
        NotComparableError: ONNX Runtime cannot load a model, the source does not run or a run exceeds `limit_s`, or the two do not take the
            same data or have no outputs in common.
        CompileError: the converted model fails on data that the source takes, or an output has another shape.
    """
    if is_packed(converted):
        raise NotComparableError(
            "check: the conversion packed the model (pack_args): it takes several sequences a row, which the source does not"
        )
    before, after = _session(source, "source"), _session(converted, "converted")
    if others := [each.name for each in before.get_inputs() if not each.type.startswith("tensor(")]:
        raise NotComparableError(f"check: {', '.join(others)}: only tensors are generated")
    names = {each.name for each in before.get_inputs()}
    runs = []
    for feeds in samples or [random_feeds(converted, seed)]:
        given = _taken_apart(feeds, converted)
        strange = sorted(set(given) ^ names)
        if strange:
            raise NotComparableError(
                f"check: the conversion changed the inputs ({', '.join(strange)}), so that the same data does not fit both models"
            )
        given |= _normalised(given, byte_images(converted))
        wanted = _run(before, {each.name: given[each.name].astype(_dtype(each)) for each in before.get_inputs()}, "source", limit_s)
        runs.append((wanted, _run(after, feeds, "converted", limit_s)))
    expected, actual = ({name: _joined([run[side][name] for run in runs]) for name in runs[0][side]} for side in (0, 1))
    common = [name for name in actual if name in expected]
    if not common:
        raise NotComparableError("check: the converted model has none of the source's outputs")
    random = random_outputs(source) | random_outputs(converted)
    declared = {each.name: each.shape for each in before.get_outputs()}
    return [_compared(name, expected[name], actual[name], declared[name], is_random=name in random) for name in common]


def _joined(batches: Sequence[Any]) -> Any:
    """Returns an output of several batches as one array, with the batches as its first dimension; of a single batch as it is."""
    return batches[0] if len(batches) == 1 else np.stack(batches)


def _compared(name: str, expected: Any, actual: Any, declared: Sequence[Any], *, is_random: bool) -> OutputError:
    if is_random:
        return incomparable(name, expected, "random numbers")
    # ONNX Runtime returns a sequence as a list, and an optional without a value as None.
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return incomparable(name, np.empty(()), "no tensor")
    # NonZero of a mask whose one element is true, for example: the model declares what only some data satisfies.
    if expected.shape != actual.shape and not _has_dims(expected, declared):
        return incomparable(name, expected, f"its shape is {list(expected.shape)} for random data, and declared as {list(declared)}")
    return output_error(name, expected, actual)


def _has_dims(array: NDArray[Any], declared: Sequence[Any]) -> bool:
    """Whether `array` has the sizes that are `declared`; those that are no integers are variable."""
    return len(declared) == array.ndim and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(declared, array.shape, strict=True)
    )


def incomparable(name: str, expected: NDArray[Any], reason: str) -> OutputError:
    """Returns an `OutputError` without figures, for an output that cannot be compared."""
    figures = dict.fromkeys(("max_error", "mean_error", "mean_square_error", "max_relative_error", "cosine", "snr_db"), math.nan)
    return OutputError(name=name, shape=tuple(expected.shape), not_comparable=reason, **figures)


def output_error(name: str, expected: NDArray[Any], actual: NDArray[Any]) -> OutputError:
    """Returns the error figures of one output.

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
    # NaN in both, or the same infinity in both, counts as equal; the difference of two infinities is NaN.
    same = (wanted == got) | (np.isnan(wanted) & np.isnan(got))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where(same, 0.0, np.abs(wanted - got))
        difference = np.where(np.isnan(difference), np.inf, difference)  # NaN in only one of the outputs
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
    # Scale each operand so that squaring cannot overflow; the scales are added back as logarithms.
    scale = float(np.max(np.abs(signal), initial=0.0))
    if not scale:
        return -math.inf
    power = math.log10(scale / largest) * 20
    return power + 20 * math.log10(float(np.linalg.norm(signal / scale)) / float(np.linalg.norm(noise / largest)))


def _cosine(wanted: NDArray[np.float64], got: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    """Returns the cosine over the elements that are finite in both arrays; 1 if all elements are equal."""
    if same.all():
        return 1.0
    finite = np.isfinite(wanted) & np.isfinite(got)
    wanted, got = _shortened(wanted[finite]), _shortened(got[finite])
    length = float(np.linalg.norm(wanted) * np.linalg.norm(got))
    return float(np.dot(wanted, got)) / length if length else 0.0


def _shortened(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns `values` scaled down, so that their squares cannot overflow."""
    largest = float(np.max(np.abs(values), initial=0.0))
    return values / largest if largest else values


def byte_images(converted: onnx.ModelProto) -> Mapping[str, Mapping[str, Any]]:
    """Returns the images that `eight_bits_io` changed to bytes, by input name: mean, std and axis of the colours."""
    noted = {each.key: each.value for each in converted.metadata_props}
    images: dict[str, dict[str, Any]] = json.loads(noted.get(marks.EIGHT_BITS_IO, "{}"))
    return images


def is_packed(converted: onnx.ModelProto) -> bool:
    """Returns whether a row of the model may hold several sequences. The same data then has a different meaning for the source."""
    return any(each.key == marks.PACKING for each in converted.metadata_props)


def _taken_apart(feeds: Mapping[str, NDArray[Any]], converted: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Returns `feeds` with the original inputs of the source instead of the inputs that `apply_host_concat_split` concatenated."""
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
    """Returns random data for every input of a model with static shapes, by name.

    Raises:
        NotComparableError: an input is no tensor.
    """
    generator = np.random.default_rng(seed)
    images = byte_images(model)
    feeds: dict[str, NDArray[Any]] = {}
    for value in fed_inputs(model):
        kind = value.type.tensor_type
        if not kind.elem_type:
            raise NotComparableError(f"check: input '{value.name}' is no tensor")
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
    """Returns the headings and rows of the printed table."""
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
    """Returns whether the installed ONNX Runtime has kernels for all nodes of `model`."""
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
        raise NotComparableError(f"check: ONNX Runtime cannot load the {which} model: {' '.join(str(error).split())}") from error


def _run(session: Any, feeds: Mapping[str, NDArray[Any]], which: str, limit_s: float | None) -> dict[str, NDArray[Any]]:
    names = [each.name for each in session.get_outputs()]
    options = onnxruntime.RunOptions()
    try:
        with _terminated_after(limit_s, options):
            return dict(zip(names, session.run(names, numpy_feeds(feeds), options), strict=True))
    except Exception as error:  # as above
        if options.terminate:
            raise NotComparableError(f"check: the {which} model runs longer than {limit_s:g} s") from error
        kind = NotComparableError if which == "source" else CompileError
        raise kind(f"check: the {which} model fails on ONNX Runtime: {' '.join(str(error).split())}") from error


@contextmanager
def _terminated_after(limit_s: float | None, options: onnxruntime.RunOptions) -> Iterator[None]:
    """Ends the run with `options` inside the block after `limit_s` seconds, between two of its nodes."""
    if limit_s is None:
        yield
        return
    timer = threading.Timer(limit_s, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _dtype(declared: Any) -> "np.dtype[Any]":
    """Returns the numpy dtype of an ONNX Runtime input type such as `tensor(float16)`."""
    name = declared.type.removeprefix("tensor(").removesuffix(")")
    try:
        dtype: np.dtype[Any] = np.dtype({"float": "float32", "double": "float64", "string": "object"}.get(name, name))
    except TypeError:
        raise NotComparableError(f"check: input '{declared.name}' is of {declared.type}, which numpy lacks") from None
    return dtype


LEAST_SNR_DB = {"fp32": 60.0, "fp16": 30.0, "bf16": 20.0, "fp8_weight": 15.0, "int8_dynamic": 15.0, "fp8": 10.0, "int8": 10.0}
MOST_DIFFERENT = {"fp32": 0.001, "fp16": 0.05, "bf16": 0.1, "fp8_weight": 0.2, "int8_dynamic": 0.2, "fp8": 0.5, "int8": 0.5}
#: Differences with a smaller root mean square are never an error: an output may be zero except for rounding.
_NEGLIGIBLE = 1e-7


def failure_of_check(error: OutputError, precision: str) -> str:
    """Returns the fault of an output that `--check` compared; empty if it is within the limits or not comparable."""
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
    """Returns the fault of an output that a target compared; empty if it is within the limits."""
    if drift.equal is not None:
        if 1 - drift.equal <= MOST_DIFFERENT[precision]:
            return ""
        return f"output '{drift.output}' has {drift.equal:.2%} of its strings in common with the source's"
    if drift.snr_db is None or drift.mse is None or drift.mse <= _NEGLIGIBLE**2:
        return ""
    return _below(drift.output, drift.snr_db, precision)


def _below(name: str, snr_db: float, precision: str) -> str:
    least = LEAST_SNR_DB[precision]
    if snr_db >= least:  # The comparison is False for NaN.
        return ""
    return f"output '{name}' has a signal to noise of {snr_db:.1f} dB; {precision} needs {least:g} dB"
