"""Inputs to calibrate and compare with: read from a file, cut into batches of the model's size, or random.

PopRT takes a pickle of `{input name: ndarray}`. A pickle is a program, so that ours is read by an unpickler that knows how to build arrays
and nothing else; a `.npz` of the same names is accepted as well.
"""

import io
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from compiler.errors import CompileError, OptionError, ShapeError

Arrays = Mapping[str, NDArray[Any]]

#: All that numpy writes into the pickle of an array, by any protocol and since numpy 1; each only builds arrays, or bytes out of text.
_ADMITTED = {
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    *((module, name) for module in ("numpy.core.multiarray", "numpy._core.multiarray") for name in ("_reconstruct", "scalar")),
    *((module, "_frombuffer") for module in ("numpy.core.numeric", "numpy._core.numeric")),
}


_REFUSED = "only numpy arrays are read"


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}; {_REFUSED}")
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
        reason = str(error) if _REFUSED in str(error) else "it is neither an .npz file nor a whole pickle"
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


def batches_of(inputs: Sequence[ir.Value], data: Arrays) -> list[dict[str, NDArray[Any]]]:
    """Cuts `data` into feeds of the model, cast to its types.

    An array has the shape of its input; or any multiple of its first dimension; or one dimension more, over the samples.

    Raises:
        OptionError: an input has no data or no samples, the data an unknown input, or the inputs different numbers of samples.
        ShapeError: an array fits its input in none of these ways.
    """
    names = {str(each.name) for each in inputs}
    if missing := sorted(names - data.keys()):
        raise OptionError(f"calibration data has nothing for input(s) {', '.join(missing)}")
    if unknown := sorted(data.keys() - names):
        raise OptionError(f"calibration data has {', '.join(unknown)}; the model's inputs are {', '.join(sorted(names))}")
    cut = {str(each.name): _samples_of(each, data[str(each.name)]) for each in inputs}
    counts = {name: len(samples) for name, samples in cut.items()}
    if len(set(counts.values())) > 1:
        raise OptionError(f"calibration data has different numbers of samples: {', '.join(f'{n} of {name}' for name, n in counts.items())}")
    return [{name: samples[index] for name, samples in cut.items()} for index in range(next(iter(counts.values()), 0))]


def random_batches(inputs: Sequence[ir.Value], count: int = 4, seed: int = 0) -> list[dict[str, NDArray[Any]]]:
    """Normal floats, and integers of 0 and 1, which are within any table that they may be indices of.

    Raises:
        ShapeError: an input has a dimension that is not fixed.
    """
    generator = np.random.default_rng(seed)

    def draw(value: ir.Value) -> NDArray[Any]:
        shape = _shape_of(value)
        is_float = _dtype_of(value).kind == "f" or value.dtype == ir.DataType.BFLOAT16
        drawn = generator.standard_normal(shape) if is_float else generator.integers(0, 2, shape)
        return np.asarray(drawn).astype(_dtype_of(value))

    return [{str(each.name): draw(each) for each in inputs} for _ in range(count)]


def cast_feeds(feeds: Arrays, inputs: Sequence[ir.Value]) -> dict[str, NDArray[Any]]:
    """`feeds` of another conversion of the model in the types of `inputs`; what `inputs` do not name is left out.

    Raises:
        OptionError: one of `inputs` is not fed.
    """
    names = [str(each.name) for each in inputs]
    if missing := [name for name in names if name not in feeds]:
        raise OptionError(f"nothing is given for input(s) {', '.join(missing)}")
    return {name: feeds[name].astype(_dtype_of(each), copy=False) for name, each in zip(names, inputs, strict=True)}


def inputs_of(graph: ir.Graph) -> list[ir.Value]:
    """The inputs that must be fed: those without a default."""
    return [each for each in graph.inputs if each.name not in graph.initializers]


def _samples_of(value: ir.Value, array: NDArray[Any]) -> list[NDArray[Any]]:
    shape = _shape_of(value)
    array = array.astype(_dtype_of(value))
    if array.shape == shape:
        return [array]
    if array.ndim and not len(array):
        raise OptionError(f"calibration data for input '{value.name}' has shape {list(array.shape)}: it holds no samples")
    if array.ndim == len(shape) + 1 and array.shape[1:] == shape:
        return list(array)
    if shape and array.ndim == len(shape) and array.shape[1:] == shape[1:] and shape[0] and len(array) % shape[0] == 0:
        return np.split(array, len(array) // shape[0])
    raise ShapeError(
        f"calibration data for input '{value.name}' has shape {list(array.shape)}; expected {list(shape)}, a multiple of its first "
        "dimension, or one dimension more in front"
    )


def _shape_of(value: ir.Value) -> tuple[int, ...]:
    if value.shape is None or not value.shape.is_static():
        raise ShapeError(f"input '{value.name}' has shape {value.shape}; its dimensions must be fixed before data can be made for it")
    return tuple(int(size) for size in value.shape.numpy())


def _dtype_of(value: ir.Value) -> np.dtype[Any]:
    if value.dtype is None:
        raise CompileError(f"input '{value.name}' has no type")
    return np.dtype(value.dtype.numpy())
