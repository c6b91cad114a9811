"""Sequences: requests that belong together, and the control inputs of a model that serves them. Plain data."""

import enum
from dataclasses import dataclass, field, replace

import numpy as np

from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


@dataclass(frozen=True, slots=True)
class SequenceMark:
    """A request's place in a sequence.

    Attributes:
        id: The sequence; 0: the client named none.
        is_start: Whether it is the first request.
        is_end: Whether it is the last.
    """

    id: int | str
    is_start: bool = False
    is_end: bool = False


class ControlKind(enum.Enum):
    """The meaning of a control input. Named as in config.pbtxt."""

    START = "CONTROL_SEQUENCE_START"
    READY = "CONTROL_SEQUENCE_READY"
    END = "CONTROL_SEQUENCE_END"
    ID = "CONTROL_SEQUENCE_CORRID"


@dataclass(frozen=True, slots=True)
class ControlInput:
    """A control input of the model: it carries one property of the sequence.

    Attributes:
        kind: The property that the input carries.
        name: The model's input, of dims [1].
        datatype: Its element type.
        values: The values for false and true; unused for an ID.
    """

    kind: ControlKind
    name: str
    datatype: DataType
    values: tuple[float, float] = (0, 1)


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A state tensor that the model carries from one request of a sequence to the next.

    Attributes:
        input: The model's input for the state.
        output: The model's output with the next state.
        initial_dims: Its dims at the start of a sequence.
        initial_file: The file with its values at the start, below the model's folder `initial_state`; empty: zeros, or empty strings.
        initial: These values, `[*initial_dims]`, once the file is read.
    """

    input: TensorSpec
    output: TensorSpec
    initial_dims: tuple[int, ...]
    initial_file: str = ""
    initial: Array | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """How the requests of sequences reach the model.

    Attributes:
        idle_us: A sequence ends after this time without a request, microseconds.
        most_sequences: Bound on the sequences in progress; further ones wait.
        controls: The control inputs of the model.
        states: The states that the server keeps for each sequence.
        is_iterative: Whether each request is a sequence of its own, which the model may execute several times.
    """

    idle_us: int
    most_sequences: int
    controls: tuple[ControlInput, ...] = ()
    states: tuple[SequenceState, ...] = ()
    is_iterative: bool = False

    @property
    def summary(self) -> str:
        """One line of text for logs and tables."""
        known = ", ".join(f"{control.kind.value} as '{control.name}'" for control in self.controls) or "no controls"
        kept = ", ".join(f"'{state.output.name}' as '{state.input.name}'" for state in self.states) or "no state"
        each = "each one request" if self.is_iterative else f"idle for at most {self.idle_us} us"
        return f"up to {self.most_sequences} sequences, {each}; controls of the model: {known}; its state: {kept}"

    def extend(self, signature: ModelSignature) -> ModelSignature:
        """Adds the tensors that only the model sees to `signature`, which is the one that clients see."""
        outputs = {spec.name for spec in signature.outputs}
        return replace(
            signature,
            inputs=(
                *signature.inputs,
                *(TensorSpec(control.name, control.datatype, (1,)) for control in self.controls),
                *(state.input for state in self.states),
            ),
            outputs=(*signature.outputs, *(state.output for state in self.states if state.output.name not in outputs)),
            is_iterative=self.is_iterative,
        )
