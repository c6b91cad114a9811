"""`--input NAME=VALUE` as an array of the type and shape of the model's metadata, and `--param NAME=VALUE` as a parameter."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.cli.output import CommandFailed, ExitCode
from stoker.cli.pictures import SUFFIXES, PictureLayout, Scale, read_picture

if TYPE_CHECKING:
    from stoker_client.tensors import TensorLike

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """The options for pictures; see `read_picture`."""

    scale: Scale | None = None
    invert: bool = False


def read_inputs(assignments: Sequence[str], metadata: Mapping[str, Any], pictures: PictureOptions) -> "dict[str, TensorLike]":
    """The tensors for a request, by input name.

    Args:
        assignments: Each `NAME=VALUE`; a value is a file (`.npy`, `.json` or a picture) or literal JSON.
        metadata: The model's metadata.
        pictures: The options for pictures.

    Raises:
        CommandFailed: an assignment is malformed, names no input, or does not fit the input.
    """
    specs = {str(spec["name"]): spec for spec in metadata.get("inputs", [])}
    inputs: dict[str, TensorLike] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not value:
            raise CommandFailed(f"--input {assignment}: expected NAME=VALUE", ExitCode.USAGE)
        if name not in specs:
            raise CommandFailed(
                f"model '{metadata.get('name')}' has no input '{name}'; it has {', '.join(specs) or 'none'}", ExitCode.USAGE
            )
        if name in inputs:
            raise CommandFailed(f"--input {name} is given twice", ExitCode.USAGE)
        inputs[name] = _read(name, value, str(specs[name]["datatype"]), [int(size) for size in specs[name]["shape"]], pictures)
    return inputs


def _read(name: str, value: str, datatype: str, shape: Sequence[int], pictures: PictureOptions) -> "TensorLike":
    path = Path(value)
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        array = _picture(name, path, datatype, shape, pictures)
    elif suffix == ".npy":
        array = _cast(name, _load_npy(path), datatype)
    elif suffix == ".json":
        array = _from_json(name, _load_json(path), datatype)
    else:
        array = _from_json(name, _literal(name, value, datatype), datatype)
    array = _fit(array, shape)
    if array.ndim == 0 and shape:
        raise CommandFailed(f"--input {name}: got a single value; the model takes {datatype}{list(shape)}, such as [1, 2]", ExitCode.USAGE)
    return _typed(array, datatype)


def _picture(name: str, path: Path, datatype: str, shape: Sequence[int], pictures: PictureOptions) -> Array:
    dims = list(shape)
    if len(dims) > 2 and dims[0] == -1 and not (len(dims) == 3 and dims[2] in (1, 3, 4)):
        dims = dims[1:]  # the batch dimension
    elif len(dims) == 4 and dims[0] == 1:
        dims = dims[1:]
    return read_picture(path, PictureLayout.of(name, dims), _numpy_type(name, datatype), pictures.scale, invert=pictures.invert)


def _load_npy(path: Path) -> Array:
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror or error}", ExitCode.USAGE) from error
    except ValueError as error:
        raise CommandFailed(f"{path} is not a plain .npy array: {error}", ExitCode.USAGE) from error


def _load_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror}", ExitCode.USAGE) from error
    except ValueError as error:
        raise CommandFailed(f"{path} is not JSON: {error}", ExitCode.USAGE) from error


def _literal(name: str, text: str, datatype: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        if datatype == "BYTES":
            return text
        raise CommandFailed(f"--input {name}: '{text[:60]}' is neither JSON nor a .npy, .json or picture file", ExitCode.USAGE) from error


def _from_json(name: str, value: Any, datatype: str) -> Array:
    if not _is_even(value):
        raise CommandFailed(f"--input {name}: lists of one level differ in length; expected the same number of elements", ExitCode.USAGE)
    try:
        if datatype == "BYTES":
            return np.asarray(value, dtype=np.object_)
        target = _numpy_type(name, datatype)
        array = np.asarray(value)
        if target.kind in "iub" and array.dtype.kind == "f":
            raise CommandFailed(f"--input {name}: the model takes {datatype}, got numbers with a fraction", ExitCode.USAGE)
        return np.asarray(value, dtype=target)
    except (TypeError, ValueError, OverflowError) as error:
        raise CommandFailed(f"--input {name} does not hold {datatype} values: {error}", ExitCode.USAGE) from error


def _is_even(value: Any) -> bool:
    """Whether nested lists form an array: all lists of a level have the same length."""
    try:
        np.asarray(value)
    except ValueError:
        return False
    return True


def _cast(name: str, array: Array, datatype: str) -> Array:
    """Casts an array from a file to the model's type, if that loses no value."""
    if datatype == "BYTES":
        if array.dtype.kind not in "SU":
            raise CommandFailed(f"--input {name}: the model takes BYTES, the file holds {array.dtype}", ExitCode.USAGE)
        return array
    target = _numpy_type(name, datatype)
    is_number_to_float = array.dtype.kind in "iuf" and target.kind == "f"
    if not (is_number_to_float or np.can_cast(array.dtype, target, "same_kind")):
        raise CommandFailed(f"--input {name}: the model takes {datatype}, the file holds {array.dtype}", ExitCode.USAGE)
    return array.astype(target, copy=False)


def _fit(array: Array, shape: Sequence[int]) -> Array:
    """Reshapes `array` to the model's rank, if only a leading batch dimension is missing or the elements are flat."""
    if array.ndim == len(shape):
        return array
    if shape and shape[0] == -1 and array.ndim == len(shape) - 1:
        return array[None]
    if sum(size < 0 for size in shape) <= 1:
        try:
            return array.reshape([int(size) for size in shape])
        except ValueError:
            pass  # the server's message states the expected shape
    return array


def _numpy_type(name: str, datatype: str) -> np.dtype[Any]:
    from stoker_client.datatypes import NUMPY_TYPES

    if datatype == "BF16":
        return np.dtype(np.float32)  # converted when the request is encoded
    if datatype not in NUMPY_TYPES:
        raise CommandFailed(f"input '{name}' takes {datatype}, which this command cannot make from numbers")
    return NUMPY_TYPES[datatype]


def _typed(array: Array, datatype: str) -> "TensorLike":
    from stoker_client import TypedArray, float32_to_bf16

    return TypedArray(float32_to_bf16(array), "BF16") if datatype == "BF16" else array


ParameterValue = bool | int | float | str
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,19})")


def read_parameters(assignments: Sequence[str] | None) -> dict[str, ParameterValue]:
    """The parameters of the options, by name.

    `true` and `false` are booleans, a number in JSON is a number, a JSON string (`"7"`) is its content, and any other value is a string.

    Raises:
        CommandFailed: another form, or a duplicate name.
    """
    parameters: dict[str, ParameterValue] = {}
    for assignment in assignments or ():
        name, equals, text = assignment.partition("=")
        if not (name and equals):
            raise CommandFailed(f"--param {assignment}: expected NAME=VALUE, such as sequence_id=7", ExitCode.USAGE)
        if name in parameters:
            raise CommandFailed(f"--param {name} is given twice", ExitCode.USAGE)
        parameters[name] = _value(text)
    return parameters


def _value(text: str) -> ParameterValue:
    if _INTEGER.fullmatch(text):
        return int(text)
    if text.startswith(("[", "{")):  # not a valid type of a parameter
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    # NaN, Infinity and null are not valid values of parameters; the value is the text as written.
    is_value = isinstance(value, bool | str) or (isinstance(value, float) and math.isfinite(value))
    return value if is_value else text
