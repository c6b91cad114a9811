"""Inputs and outputs of the host as scripts give them: lists of arrays, a dict by name, or a list of arrays for each sample."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.gcu.program import GcuExecutable, GcuTensor
from stoker.backends.gcu.runtime.errors import Status, StatusError

Array = npt.NDArray[Any]


def given_arrays(executable: GcuExecutable, inputs: Any, purpose: str) -> list[Array]:
    """One array for each input, of `inputs`: a list of arrays in order, or one dict (or a list with one dict in it) of arrays by name.

    Raises:
        StatusError: it is none of these, or names do not fit.
    """
    if isinstance(inputs, Sequence) and len(inputs) == 1 and isinstance(inputs[0], Mapping):
        inputs = inputs[0]
    if isinstance(inputs, Mapping):
        names = [tensor.name for tensor in executable.inputs]
        missing = [name for name in names if name not in inputs]
        unknown = [name for name in inputs if name not in names]
        if missing or unknown:
            said = [f"there is no input '{name}'" for name in unknown] + [f"input '{name}' is missing" for name in missing]
            raise StatusError(Status.TIF_NOT_FOUND, f"{purpose}: {', '.join(said)}; inputs are {', '.join(names)}")
        return [_array(inputs[name], f"{purpose}, input '{name}'") for name in names]
    if not isinstance(inputs, Sequence):
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: a list of arrays or a dict is needed, not {type(inputs).__name__}")
    return [_array(each, f"{purpose}, input {index}") for index, each in enumerate(inputs)]


def gathered_samples(executable: GcuExecutable, samples: int, inputs: Any, purpose: str) -> list[Array]:
    """One array for each input, of a list of samples for each: arrays of one sample, with or without a first dimension of 1.

    Raises:
        StatusError: their number, a dtype or a shape is wrong.
    """
    if not isinstance(inputs, Sequence | np.ndarray) or len(inputs) != len(executable.inputs):
        found = len(inputs) if isinstance(inputs, Sequence | np.ndarray) else type(inputs).__name__
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: {found} lists of samples for {len(executable.inputs)} inputs")
    return [
        _gathered(tensor, samples, given, f"{purpose}, input '{tensor.name}'")
        for tensor, given in zip(executable.inputs, inputs, strict=True)
    ]


def fill_outputs(executable: GcuExecutable, values: Sequence[Array], outputs: list[Any], purpose: str) -> None:
    """Puts `values` into `outputs`: appended to an empty list; else into its arrays, or lists of arrays of one sample each.

    Raises:
        StatusError: their number, or a dtype or shape is wrong, or an array is read-only.
    """
    if not outputs:
        outputs.extend(values)
        return
    check_outputs(executable, len(values[0]), outputs, purpose)
    for value, target in zip(values, outputs, strict=True):
        if isinstance(target, np.ndarray):
            target[...] = value.reshape(target.shape)
        else:
            for row, part in zip(value, target, strict=True):
                part[...] = row.reshape(part.shape)


def check_outputs(executable: GcuExecutable, samples: int, outputs: Any, purpose: str) -> None:
    """Refuses what `fill_outputs` could not fill.

    Raises:
        StatusError: see there.
    """
    if not isinstance(outputs, list) or (outputs and len(outputs) != len(executable.outputs)):
        found = f"a list of {len(outputs)}" if isinstance(outputs, list) else type(outputs).__name__
        raise StatusError(
            Status.TIF_INVALID_PARAM, f"{purpose}: outputs are {found}; expected an empty list or one of {len(executable.outputs)} arrays"
        )
    for tensor, target in zip(executable.outputs, outputs, strict=False):
        where = f"{purpose}, output '{tensor.name}'"
        if isinstance(target, list):
            if len(target) != samples:
                raise StatusError(Status.TIF_MIS_MATCHED_SHAPE_OR_DIM, f"{where}: {len(target)} arrays for {samples} samples")
            for part in target:
                _check_target(tensor, part, 1, where)
        else:
            _check_target(tensor, target, samples, where)


def _check_target(tensor: GcuTensor, array: Any, samples: int, where: str) -> None:
    _check(tensor, array, samples, where)
    if not array.flags.writeable:
        raise StatusError(Status.TIF_INVALID_PARAM, f"{where}: the array is read-only")


def _gathered(tensor: GcuTensor, samples: int, given: Any, where: str) -> Array:
    if not isinstance(given, Sequence | np.ndarray) or len(given) != samples:
        found = len(given) if isinstance(given, Sequence | np.ndarray) else type(given).__name__
        raise StatusError(Status.TIF_MIS_MATCHED_SHAPE_OR_DIM, f"{where}: {found} samples are given, {samples} are asked for")
    gathered = np.empty((samples, *tensor.dims), tensor.dtype.numpy)
    for row, sample in enumerate(given):
        part = _array(sample, f"{where}, sample {row}")
        _check(tensor, part, 1, f"{where}, sample {row}")
        gathered[row] = part.reshape(tensor.dims)
    return gathered


def _check(tensor: GcuTensor, array: Any, samples: int, where: str) -> None:
    if not isinstance(array, np.ndarray):
        raise StatusError(Status.TIF_INVALID_PARAM, f"{where}: an array is needed, not {type(array).__name__}")
    if array.dtype != tensor.dtype.numpy:
        raise StatusError(Status.TIF_MIS_MATCHED_DATA_TYPE, f"{where} is {tensor.dtype.numpy}, not {array.dtype}")
    allowed = [(samples, *tensor.dims)] + ([tensor.dims] if samples == 1 else [])
    if array.shape not in allowed:
        expected = " or ".join(str(list(shape)) for shape in allowed)
        raise StatusError(Status.TIF_MIS_MATCHED_SHAPE_OR_DIM, f"{where} has shape {list(array.shape)}; expected {expected}")


def _array(value: Any, where: str) -> Array:
    if not isinstance(value, np.ndarray):
        if isinstance(value, np.generic):
            return np.asarray(value)
        raise StatusError(Status.TIF_INVALID_PARAM, f"{where}: an array is needed, not {type(value).__name__}")
    return value
