"""The tensors of a sequence that clients do not send: control inputs and initial states. Pure."""

from collections.abc import Mapping

import numpy as np

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.tensor import DataType
from stoker.server.core.sequence import Array, ControlInput, ControlKind, SequenceBatching, SequenceMark, SequenceState


def control_arrays(batching: SequenceBatching, mark: SequenceMark, model: str, *, is_batched: bool) -> dict[str, Array]:
    """The control tensors of a request at `mark`, by input name: shape `[1, 1]`, or `[1]` if the model is not batched.

    Raises:
        InvalidRequest: the model does not accept the id.
    """
    truth = {ControlKind.START: mark.is_start, ControlKind.READY: True, ControlKind.END: mark.is_end}
    controls: dict[str, Array] = {}
    for control in batching.controls:
        if control.kind is ControlKind.ID:
            array = id_array(control, mark.id, model)
        else:
            array = np.array([control.values[truth[control.kind]]], dtype=control.datatype.numpy)
        controls[control.name] = array.reshape(1, 1) if is_batched else array
    return controls


def id_array(control: ControlInput, sequence_id: int | str, model: str) -> Array:
    """A sequence's id in the form of the model's control input, shape `[1]`.

    Raises:
        InvalidRequest: the id has another type, or is too large.
    """
    if isinstance(sequence_id, str) is not control.datatype.is_bytes:
        wanted = "a string" if control.datatype.is_bytes else "an integer"
        raise InvalidRequest(f"sequence id '{sequence_id}' must be {wanted} for model '{model}'")
    if isinstance(sequence_id, str):
        text = np.empty(1, dtype=np.object_)
        text[0] = sequence_id.encode()
        return text
    if sequence_id > np.iinfo(control.datatype.numpy).max:
        raise InvalidRequest(f"sequence id {sequence_id} is too large for model '{model}', which takes {control.datatype.value}")
    return np.array([sequence_id], dtype=control.datatype.numpy)


def first_states(batching: SequenceBatching, *, is_batched: bool) -> dict[str, Array]:
    """The initial states of a sequence, by input name: from their files, else zeros or empty strings."""
    return {state.input.name: _first(state, (1, *state.initial_dims) if is_batched else state.initial_dims) for state in batching.states}


def sample_arrays(batching: SequenceBatching, rows: int, model: str, *, is_batched: bool) -> dict[str, Array]:
    """The tensors of `rows` sequences that consist of one request each, for a warm-up: controls and initial states, by input name."""
    has_text_id = any(control.kind is ControlKind.ID and control.datatype.is_bytes for control in batching.controls)
    mark = SequenceMark("warm-up" if has_text_id else 1, is_start=True, is_end=True)
    arrays = control_arrays(batching, mark, model, is_batched=is_batched) | first_states(batching, is_batched=is_batched)
    return {name: np.repeat(array, rows, axis=0) for name, array in arrays.items()} if is_batched and rows > 1 else arrays


def _first(state: SequenceState, shape: tuple[int, ...]) -> Array:
    return _zeros(state.input.datatype, shape) if state.initial is None else state.initial.reshape(shape)


def next_states(batching: SequenceBatching, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """The states for the next request that are in a request's `outputs`, by input name.

    Parts of a batch's array are copied: a waiting sequence must not keep the whole batch in memory.
    """
    given = {state.input.name: outputs[state.output.name] for state in batching.states if state.output.name in outputs}
    return {name: array if array.base is None else array.copy() for name, array in given.items()}


def _zeros(datatype: DataType, shape: tuple[int, ...]) -> Array:
    return np.full(shape, b"", dtype=np.object_) if datatype.is_bytes else np.zeros(shape, dtype=datatype.numpy)
