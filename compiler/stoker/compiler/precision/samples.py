"""Inputs to calibrate and compare with: read from a file, cut into batches of the model's size, or random.

PopRT takes a pickle of `{input name: ndarray}`. A pickle is a program, so that ours is read by an unpickler that knows how to build arrays
and nothing else; a `.npz` of the same names is accepted as well.

Samples have the types of the model's inputs, or types that convert to those without loss: `exact_cast` rejects a fraction in an integer
input and a value out of range.
"""

import io
import logging
import pickle
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, NotImplemented, RuntimeException

from stoker.compiler.custom_libraries import register_libraries
from stoker.compiler.errors import CompileError, OptionError, ShapeError
from stoker.compiler.precision.number_types import numpy_feeds, with_numpy_types

logger = logging.getLogger(__name__)

Arrays = Mapping[str, NDArray[Any]]
T = TypeVar("T")

#: One in this many samples is held out of calibration, for the report of accuracy.
HELD_OUT_SHARE: Final = 4
#: Fewer batches than this are not split: all of them calibrate, and the report says that it is over the same ones.
LEAST_TO_SPLIT: Final = 4

#: All that numpy writes into the pickle of an array, by any protocol and since numpy 1; each only builds arrays, or bytes out of text.
_ADMITTED = {
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    *((module, name) for module in ("numpy.core.multiarray", "numpy._core.multiarray") for name in ("_reconstruct", "scalar")),
    *((module, "_frombuffer") for module in ("numpy.core.numeric", "numpy._core.numeric")),
}


_REJECTED = "only numpy arrays are read"


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}; {_REJECTED}")
        if module.startswith("numpy.core"):  # the name before numpy 2, whose import warns
            module = module.replace("numpy.core", "numpy._core")
        return super().find_class(module, name)


def load_samples(path: str | Path) -> dict[str, NDArray[Any]]:
    """The arrays of a pickle or `.npz` file by input name.

    Raises:
        OptionError: the file cannot be read, or holds anything but a dictionary of arrays of numbers.
    """
    where = f"calibration data '{path}'"
    try:
        content = Path(path).read_bytes()
        if zipfile.is_zipfile(io.BytesIO(content)):
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                found: Any = dict(archive)
        else:
            found = _ArrayUnpickler(io.BytesIO(content)).load()
    except pickle.UnpicklingError as error:
        reason = str(error) if _REJECTED in str(error) else "it is neither an .npz file nor a whole pickle"
        raise OptionError(f"{where} cannot be read: {reason}") from None
    except OSError as error:
        raise OptionError(f"{where}: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001  what a broken or hostile pickle raises is open; it concerns this file and nothing else
        raise OptionError(f"{where} cannot be read: {error}") from None
    if not isinstance(found, dict) or not found:
        raise OptionError(f"{where} holds a {type(found).__name__}; expected a dictionary of input name to array")
    for name, array in found.items():
        if not isinstance(name, str) or not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            kind = f"array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise OptionError(f"{where}: entry {name!r} is of kind {kind}; expected an array of numbers under an input's name")
    return found


@dataclass(frozen=True, slots=True)
class Split(Generic[T]):
    """Samples to calibrate with, and samples to report accuracy over.

    Attributes:
        calibration: Samples that ranges, formats and weights are chosen by.
        report: Samples that the outputs are compared over.
        is_held_out: Whether no sample of `report` is in `calibration`; otherwise both are all samples.
    """

    calibration: list[T]
    report: list[T]
    is_held_out: bool


def split(samples: Sequence[T], *, least: int = LEAST_TO_SPLIT) -> Split[T]:
    """Holds out every fourth sample, so that a file sorted by class keeps its classes on both sides; none of fewer than `least`."""
    if len(samples) < least:
        return Split(list(samples), list(samples), is_held_out=False)
    held_out = samples[HELD_OUT_SHARE - 1 :: HELD_OUT_SHARE]
    rest = [each for at, each in enumerate(samples) if at % HELD_OUT_SHARE != HELD_OUT_SHARE - 1]
    return Split(rest, list(held_out), is_held_out=True)


def batches_of(inputs: Sequence[ir.Value], data: Arrays, *, file: str | Path | None = None) -> list[dict[str, NDArray[Any]]]:
    """Cuts `data` into feeds of a model of static shapes, converted to its types.

    An array has the shape of its input; or any number of rows in its first dimension; or one dimension more, over the samples. Where the
    rows do not fill the last batch, it is filled up with the first rows, with a warning.

    Args:
        inputs: Of the model.
        data: By input name.
        file: Where `data` comes from, for messages.

    Raises:
        OptionError: an input has no data or no samples, the data an unknown input, the inputs different numbers of samples, or a value
            is not representable in its input's type.
        ShapeError: an array fits its input in none of these ways.
    """
    check_names(inputs, data)
    may_fill = len({(data[str(each.name)].shape[:1], each.shape[:1] if each.shape is not None else ()) for each in inputs}) == 1
    cut = {str(each.name): _samples_of(each, data[str(each.name)], may_fill, file) for each in inputs}
    counts = {name: len(samples) for name, samples in cut.items()}
    if len(set(counts.values())) > 1:
        raise OptionError(f"calibration data has different numbers of samples: {', '.join(f'{n} of {name}' for name, n in counts.items())}")
    return [{name: samples[index] for name, samples in cut.items()} for index in range(next(iter(counts.values()), 0))]


def check_names(inputs: Sequence[ir.Value], data: Arrays) -> None:
    """Raises:
    OptionError: an input has no data, or the data an unknown input.
    """
    names = {str(each.name) for each in inputs}
    if missing := sorted(names - data.keys()):
        raise OptionError(f"calibration data has nothing for input(s) {', '.join(missing)}")
    if unknown := sorted(data.keys() - names):
        raise OptionError(f"calibration data has {', '.join(unknown)}; the model's inputs are {', '.join(sorted(names))}")


def exact_cast(array: NDArray[Any], value: ir.Value, *, file: str | Path | None = None) -> NDArray[Any]:
    """`array` in the element type of input `value`. Floats may be rounded to a narrower float.

    Args:
        array: Samples or feeds.
        value: The input.
        file: Where `array` comes from, for messages.

    Raises:
        OptionError: an integer or boolean input would lose a fraction, a sign, NaN or infinity; a value is out of the type's range; or a
            narrow float turns all values into zero. The text has file, input, some of the values and what to give instead.
    """
    dtype = _dtype_of(value)
    if array.dtype == dtype:
        return array
    where = f"calibration data{f' {str(file)!r}' if file is not None else ''}, input '{value.name}'"
    assert value.dtype is not None, "_dtype_of saw it"
    kind = value.dtype.name
    if (array.dtype.kind in "UO") != (dtype.kind == "O"):
        raise OptionError(f"{where}: the samples are of {array.dtype}, and the input is {kind}")
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        found = array.astype(dtype)
        if dtype.kind == "O" or array.dtype.kind == "b":
            return found
        if value.dtype.is_floating_point():
            lost = np.isfinite(array) & ~np.isfinite(found)
            if np.any(array) and not np.any(found):
                lost = array != 0
            expected = f"numbers that {kind} holds (largest {_largest(dtype):g})"
        else:
            least, largest = _range_of(dtype)
            lost = (array < least) | (array > largest) | (found.astype(array.dtype) != array)
            expected = f"whole numbers from {least} to {largest}, as clients send them"
    if not np.any(lost):
        return found
    values = array[lost].reshape(-1)
    shown = ", ".join(f"{each:.6g}" if array.dtype.kind == "f" else str(each) for each in values[:3].tolist())
    shown += ", ..." if values.size > 3 else ""
    hint = ""
    if kind == "UINT8" and array.dtype.kind == "f" and np.min(array) >= 0 and np.max(array) <= 1:
        hint = "; these look like normalised pixels: give the bytes, as round(255 x value)"
    raise OptionError(f"{where}: {values.size} of {array.size} values do not fit {kind} ({shown}); expected {expected}{hint}")


def random_batches(inputs: Sequence[ir.Value], count: int = 4, seed: int = 0) -> list[dict[str, NDArray[Any]]]:
    """Normal floats, integers of 0 and 1, which are within any table that they may be indices of, and as text the words "0" and "1".

    Raises:
        ShapeError: an input has a dimension that is not fixed.
    """
    generator = np.random.default_rng(seed)

    def draw(value: ir.Value) -> NDArray[Any]:
        shape = _shape_of(value)
        is_float = _dtype_of(value).kind == "f" or value.dtype == ir.DataType.BFLOAT16
        drawn = np.asarray(generator.standard_normal(shape) if is_float else generator.integers(0, 2, shape))
        if value.dtype == ir.DataType.STRING:
            drawn = drawn.astype(str)
        return drawn.astype(_dtype_of(value))

    return [{str(each.name): draw(each) for each in inputs} for _ in range(count)]


def cast_feeds(feeds: Arrays, inputs: Sequence[ir.Value]) -> dict[str, NDArray[Any]]:
    """`feeds` of another conversion of the model in the types of `inputs`; what `inputs` do not name is left out.

    Raises:
        OptionError: one of `inputs` is not fed, or a value is not representable in its type.
    """
    names = [str(each.name) for each in inputs]
    if missing := [name for name in names if name not in feeds]:
        raise OptionError(f"nothing is given for input(s) {', '.join(missing)}")
    return {name: exact_cast(feeds[name], each) for name, each in zip(names, inputs, strict=True)}


def inputs_of(graph: ir.Graph) -> list[ir.Value]:
    """The inputs that must be fed: those without a default."""
    return [each for each in graph.inputs if each.name not in graph.initializers]


def _samples_of(value: ir.Value, array: NDArray[Any], may_fill: bool, file: str | Path | None) -> list[NDArray[Any]]:
    shape = _shape_of(value)
    array = exact_cast(array, value, file=file)
    if array.shape == shape:
        return [array]
    if array.ndim and not len(array):
        raise OptionError(f"calibration data for input '{value.name}' has shape {list(array.shape)}: it holds no samples")
    if array.ndim == len(shape) + 1 and array.shape[1:] == shape:
        return list(array)
    if shape and array.ndim == len(shape) and array.shape[1:] == shape[1:] and shape[0]:
        missing = -len(array) % shape[0]
        if missing and may_fill:
            logger.warning(
                "calibration data for input '%s' has %d rows, not a multiple of the batch size %d: the first %d rows are taken twice to "
                "fill the last batch", value.name, len(array), shape[0], missing,
            )  # fmt: skip
            array = np.concatenate([array, np.resize(array, (missing, *shape[1:]))])
        if not missing or may_fill:
            return np.split(array, len(array) // shape[0])
    raise ShapeError(
        f"calibration data for input '{value.name}' has shape {list(array.shape)}; expected {list(shape)}, any number of rows of that, "
        "or one dimension more in front"
    )


def _largest(dtype: np.dtype[Any]) -> float:
    """Whether the dtype is a float type, those of `ml_dtypes` included."""
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call] # ml_dtypes has no types


def _range_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Least and largest value of an integer or boolean type."""
    if dtype.kind == "b":
        return 0, 1
    info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call] # as above
    return int(info.min), int(info.max)


def _shape_of(value: ir.Value) -> tuple[int, ...]:
    if value.shape is None or not value.shape.is_static():
        raise ShapeError(f"input '{value.name}' has shape {value.shape}; its dimensions must be fixed before data can be made for it")
    return tuple(int(size) for size in value.shape.numpy())


def _dtype_of(value: ir.Value) -> np.dtype[Any]:
    if value.dtype is None:
        raise CompileError(f"input '{value.name}' has no type")
    return np.dtype(value.dtype.numpy())


_REJECTIONS = (Fail, InvalidArgument, InvalidGraph, NotImplemented, RuntimeException)


def observe(model: ir.Model, values: Sequence[ir.Value], feeds: Iterable[Arrays]) -> Iterator[dict[str, NDArray[Any]]]:
    """For each of `feeds` the arrays of `values`, by name; nothing at all if there are no `values`. `model` stays as it was.

    BFLOAT16 comes as float32.

    Args:
        model: Its main graph has `values`.
        values: Of known types; those of sub-graphs cannot be shown.
        feeds: Inputs by name, in the model's types.

    Raises:
        CompileError: ONNX Runtime rejects the model or fails to run it; the text is its own.
    """
    if not values:
        return
    outputs = list(model.graph.outputs)
    names = list(dict.fromkeys(str(value.name) for value in values))  # none would mean all of the model's outputs
    try:
        model.graph.outputs.extend(dict.fromkeys(value for value in values if value not in outputs))
        content = with_numpy_types(ir.to_proto(model)).SerializeToString()
    finally:
        model.graph.outputs.clear()
        model.graph.outputs.extend(outputs)
    try:
        session = onnxruntime.InferenceSession(content, plain_options(), providers=["CPUExecutionProvider"])
        del content
        for each in feeds:
            yield dict(zip(names, session.run(names, numpy_feeds(each)), strict=True))
    except _REJECTIONS as error:
        raise CompileError(f"ONNX Runtime cannot run the model to observe {len(names)} tensor(s) of it: {error}") from None


def plain_options() -> onnxruntime.SessionOptions:
    """For models that run as they are written, with the custom libraries in use.

    Optimised, ONNX Runtime keeps more digits than a narrow type has, and moves layout changes between a quantisation and its inverse, where
    its operators do not take 8-bit floats.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    register_libraries(options)
    return options
