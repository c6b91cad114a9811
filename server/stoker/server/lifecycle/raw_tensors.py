"""Tensors that files beside the version folders hold as raw bytes: warm-up data, and initial states of sequences."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from stoker.backends.api.batch import Array
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.tensor import DataType, element_count
from stoker.server.core.model_config import ModelConfig
from stoker.server.core.sequence import SequenceState
from stoker.server.lifecycle.folder import open_sibling

#: The folder of `initial_state.data_file`, below the model folder (as in Triton).
INITIAL_STATE_FOLDER: Final = "initial_state"


def read_raw(
    model_dir: Path, folder: str, name: str, datatype: DataType, shape: Sequence[int], links_root: Path | None, *, where: str
) -> Array:
    """The tensor of `shape` in the file `folder`/`name` of the model folder: little-endian, row-major. `where` begins the errors.

    Raises:
        ModelLoadError: the file is missing, outside the folder, or has another size; or the type is BYTES.
    """
    if datatype.is_bytes:
        raise ModelLoadError(f"{where}: a file can hold fixed-size types only, not BYTES")
    expected = element_count(shape) * datatype.item_bytes
    with (
        open_sibling(model_dir, f"{folder}/{name}", links_root, what=where, where=f"the model's {folder} folder") as descriptor,
        open(descriptor, "rb", closefd=False) as file,
    ):
        size = os.fstat(descriptor).st_size
        if size != expected:
            raise ModelLoadError(f"{where}: holds {size} bytes, shape {list(shape)} of {datatype.value} needs {expected}")
        array: Array = np.fromfile(file, dtype=datatype.numpy, count=element_count(shape))
    if array.size != element_count(shape):
        raise ModelLoadError(f"{where}: changed while it was read")
    return array.reshape(tuple(shape))


def with_initial_states(config: ModelConfig, model_dir: Path, links_root: Path | None = None) -> ModelConfig:
    """`config` with the initial states that files hold.

    Raises:
        ModelLoadError: as `read_raw`.
    """
    if config.sequences is None or not any(state.initial_file for state in config.sequences.states):
        return config
    states = tuple(_read(state, model_dir, links_root) for state in config.sequences.states)
    return replace(config, sequences=replace(config.sequences, states=states))


def _read(state: SequenceState, model_dir: Path, links_root: Path | None) -> SequenceState:
    if not state.initial_file:
        return state
    where = f"initial_state of '{state.input.name}', data_file '{state.initial_file}'"
    array = read_raw(model_dir, INITIAL_STATE_FOLDER, state.initial_file, state.input.datatype, state.initial_dims, links_root, where=where)
    # Every sequence begins with this array.
    array.setflags(write=False)
    return replace(state, initial=array)
