"""`PackLayout`: what a packed model takes and gives, from the model's own note and from the runner's configuration.

`packed_transformer` leaves the note in the PopEF as opaque blob `packing`. A model that was packed by other means has none; then the
configuration names the inputs, and the shapes tell the rest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from poprt.runtime.packing import FROM_MODEL, PackAlgorithm, PackRunnerConfig, RowShape
from stoker.backends.ipu.opaques import PACKING, OpaqueError, load_facts
from stoker.backends.ipu.popef.schema import Anchor, TensorType
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError
from stoker.backends.ipu.runtime.executable import DataDesc, Executable, user_shape
from stoker.backends.ipu.runtime.inference_future import InferenceFuture, Waiters

#: Version of the JSON of the packing metadata.
NOTE_VERSION = 1
#: What other packed models call their input of positions; PopRT's examples do.
POSITION_IDS = "position_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackGroup:
    """Inputs whose lengths belong together.

    Attributes:
        dynamic: The input whose length counts.
        inputs: What requests give: [length, ...] each; `dynamic` is one of them.
        mask: The attention mask; empty if there is none.
        positions: The input of positions; empty if there is none.
        shape: The rows.
    """

    dynamic: str
    inputs: tuple[str, ...]
    mask: str
    positions: str
    shape: RowShape

    @property
    def names(self) -> tuple[str, ...]:
        """All inputs of the group."""
        return tuple(name for name in (*self.inputs, self.mask, self.positions) if name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLayout:
    """The inputs, outputs and sizes of a packed model.

    Attributes:
        groups: Inputs by group; most models have one.
        unpack_info: The input int32 [max_valid_num, 2] of (row, offset); empty if there is none.
        max_valid_num: Sequences in a batch at most.
        longest: Tokens of a sequence at most, as far as the model says.
        token_outputs: Outputs [rows, row_length, ...], with the group whose tokens they are for.
        sequence_outputs: Outputs [max_valid_num, ...].
        is_split_allowed: Whether a sequence may go over the end of a row: attention is then done sequence by sequence.
    """

    groups: tuple[PackGroup, ...]
    unpack_info: str
    max_valid_num: int
    longest: int
    token_outputs: Mapping[str, int]
    sequence_outputs: tuple[str, ...]
    is_split_allowed: bool

    @classmethod
    def of(cls, executable: Executable, config: PackRunnerConfig) -> "PackLayout":
        """Returns the layout of `executable` under `config`.

        Raises:
            ApplicationRuntimeError: they contradict each other, the note is damaged, or the model cannot be packed so.
        """
        if executable.index_anchor is not None:
            raise ApplicationRuntimeError(f"executable '{executable.name}' holds several models; a PackRunner runs one")
        program = executable.program
        names = {binding.anchor for graph in program.graphs for binding in (*graph.inputs, *graph.outputs)}
        anchors = {anchor.name: anchor for anchor in executable.metadata.anchors if anchor.name in names}
        blob = executable.model.opaques.get(PACKING)
        reading = _Reading(executable.name, anchors, config)
        layout = reading.from_shapes() if blob is None else reading.from_note(bytes(blob))
        _reject_contradiction(executable.name, layout, config)
        return layout


class _Reading:
    """One executable, and what its user says about it."""

    def __init__(self, name: str, anchors: Mapping[str, Anchor], config: PackRunnerConfig) -> None:
        self._name = name
        self._inputs = {each.name: user_shape(each) for each in anchors.values() if each.type is TensorType.INPUT}
        self._outputs = {each.name: user_shape(each) for each in anchors.values() if each.type is TensorType.OUTPUT}
        self._config = config

    def from_note(self, blob: bytes) -> PackLayout:
        try:
            note = load_facts(PACKING, blob)
        except OpaqueError as error:
            raise ApplicationRuntimeError(f"executable '{self._name}': {error}") from error
        if note.get("version") != NOTE_VERSION:
            raise self._wrong("version", f"{NOTE_VERSION}", note.get("version"))
        rows, length, limit, longest = (self._number(note, key) for key in ("rows", "row_length", "max_valid_num", "segment_max_size"))
        inputs = tuple(self._texts(note, "token_inputs"))
        mask, positions, unpack = (self._text(note, key) for key in ("mask_input", "position_input", "unpack_input"))
        self._known((*inputs, mask, positions, unpack), self._inputs, "input")
        tokens, sequences = tuple(self._texts(note, "token_outputs")), tuple(self._texts(note, "sequence_outputs"))
        self._known((*tokens, *sequences), self._outputs, "output")
        if not inputs:
            raise self._wrong("token_inputs", "at least one name", [])
        dynamic = self._config.dynamic_input_name or inputs[0]
        if dynamic not in (*inputs, mask, positions):
            raise ApplicationRuntimeError(
                f"dynamic_input_name is '{dynamic}'; executable '{self._name}' was packed over {', '.join(inputs)}"
            )
        shape = RowShape(rows, length, self._config.delimiter_num)
        return PackLayout(
            groups=(PackGroup(dynamic=dynamic, inputs=inputs, mask=mask, positions=positions, shape=shape),),
            unpack_info=unpack,
            max_valid_num=self._limit(limit),
            longest=longest or length,
            token_outputs=dict.fromkeys(tokens, 0),
            sequence_outputs=sequences,
            is_split_allowed=longest > 0,
        )

    def from_shapes(self) -> PackLayout:
        config = self._config
        unpack = config.unpack_info_input_name
        self._known((unpack,), self._inputs, "input")
        groups = tuple(self._group(names) for names in self._groups(unpack))
        limit = config.max_valid_num
        if unpack and self._inputs[unpack]:
            size = self._inputs[unpack][0]
            limit = size if limit == FROM_MODEL else min(limit, size)
        if limit == FROM_MODEL:
            limit = sum(group.shape.tokens for group in groups[:1])
        tokens: dict[str, int] = {}
        sequences: list[str] = []
        for name, shape in self._outputs.items():
            leads = [(group.shape.rows, group.shape.row_length) for group in groups]
            if shape[:2] in leads:
                tokens[name] = leads.index((shape[0], shape[1]))
            elif unpack and shape[:1] == self._inputs[unpack][:1]:
                sequences.append(name)
            else:
                raise ApplicationRuntimeError(
                    f"output '{name}' of executable '{self._name}' has shape {list(shape)}; a packed one begins with [rows, row length] = "
                    f"{list(leads[0])}, or with max_valid_num where unpack_info_input_name names an input"
                )
        return PackLayout(
            groups=groups,
            unpack_info=unpack,
            max_valid_num=limit,
            longest=groups[0].shape.row_length,
            token_outputs=tokens,
            sequence_outputs=tuple(sequences),
            is_split_allowed=False,
        )

    def _groups(self, unpack: str) -> Sequence[Sequence[str]]:
        if self._config.dynamic_group:
            return [list(names) for names in self._config.dynamic_group]
        dynamic = self._config.dynamic_input_name or next((name for name, shape in self._inputs.items() if len(shape) > 1), "")
        self._known((dynamic,), self._inputs, "input")
        if not dynamic:
            raise ApplicationRuntimeError(f"executable '{self._name}' has no input [rows, row length] that could be packed")
        lead = self._inputs[dynamic][:2]
        others = [name for name, shape in self._inputs.items() if shape[:2] == lead and name not in (dynamic, unpack)]
        return [[dynamic, *others]]

    def _group(self, names: Sequence[str]) -> PackGroup:
        self._known(names, self._inputs, "input")
        if not names or len(self._inputs[names[0]]) < 2:
            raise ApplicationRuntimeError(f"dynamic_group {list(names)}: expected names of inputs [rows, row length, ...]")
        rows, length = self._inputs[names[0]][:2]
        for name in names:
            if self._inputs[name][:2] != (rows, length):
                raise ApplicationRuntimeError(
                    f"input '{name}' has shape {list(self._inputs[name])}, '{names[0]}' in its group has {[rows, length]}"
                )
        mask = self._member(names, self._config.mask_name or self._config.single_row_input)
        positions = self._member(names, self._config.position_ids_name or POSITION_IDS)
        inputs = tuple(name for name in names if name not in (mask, positions))
        return PackGroup(
            dynamic=names[0], inputs=inputs, mask=mask, positions=positions, shape=RowShape(rows, length, self._config.delimiter_num)
        )

    def _member(self, names: Sequence[str], wanted: str) -> str:
        """The input called `wanted`; where there are several groups, the one of this group whose name contains it."""
        if not wanted or wanted in names:
            return wanted
        return next((name for name in names if wanted in name), "") if len(self._config.dynamic_group) > 1 else ""

    def _limit(self, compiled: int) -> int:
        wanted = self._config.max_valid_num
        if wanted > compiled:
            raise ApplicationRuntimeError(
                f"max_valid_num is {wanted}; executable '{self._name}' was packed for at most {compiled} sequences in a batch"
            )
        return compiled if wanted == FROM_MODEL else wanted

    def _known(self, names: Iterable[str], there: Mapping[str, object], kind: str) -> None:
        unknown = [name for name in names if name and name not in there]
        if unknown:
            raise ApplicationRuntimeError(f"executable '{self._name}' has no {kind} '{unknown[0]}'; it has {', '.join(there) or 'none'}")

    def _number(self, note: Mapping[str, object], key: str) -> int:
        value = note.get(key)
        least = 0 if key == "segment_max_size" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(key, f"a whole number from {least}", value)
        return value

    def _text(self, note: Mapping[str, object], key: str) -> str:
        value = note.get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def _texts(self, note: Mapping[str, object], key: str) -> list[str]:
        value = note.get(key)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._wrong(key, "a list of strings", value)
        return value

    def _wrong(self, key: str, expected: str, value: object) -> ApplicationRuntimeError:
        return ApplicationRuntimeError(f"executable '{self._name}', opaque blob '{PACKING}': '{key}' is {value!r}, expected {expected}")


def _reject_contradiction(name: str, layout: PackLayout, config: PackRunnerConfig) -> None:
    mask, rows = layout.groups[0].mask, layout.groups[0].shape.rows
    if config.compile_batch_size not in (FROM_MODEL, rows):
        raise ApplicationRuntimeError(f"compile_batch_size is {config.compile_batch_size}; executable '{name}' has {rows} rows")
    for field in ("mask_name", "single_row_input"):
        wanted = getattr(config, field)
        if wanted and len(layout.groups) == 1 and wanted != mask:
            raise ApplicationRuntimeError(f"{field} is '{wanted}'; the mask of executable '{name}' is {mask or 'no input'!r}")
    if config.unpack_info_input_name and config.unpack_info_input_name != layout.unpack_info:
        raise ApplicationRuntimeError(
            f"unpack_info_input_name is '{config.unpack_info_input_name}'; "
            f"executable '{name}' has {layout.unpack_info or 'no such input'!r}"
        )
    if config.padding_remove_mask:
        known = {each for group in layout.groups for each in group.names}
        unknown = [each for each in (config.padding_remove_mask, *config.padding_remove_inputs) if each not in known]
        if unknown:
            raise ApplicationRuntimeError(f"padding-remove mode names '{unknown[0]}'; executable '{name}' packs {', '.join(sorted(known))}")
    if config.algo is PackAlgorithm.end_to_end and rows > 1 and not layout.is_split_allowed:
        raise ApplicationRuntimeError(
            f"end_to_end lets sequences go over the end of rows, and attention of executable '{name}' stays within rows: "
            "pack the model with segment_max_size, or choose next_fit or first_fit"
        )


Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class PackRequest:
    """One request with a single sequence.

    Attributes:
        inputs: By name, [length, ...] each; masks and positions where they were given.
        lengths: Its tokens in each group of inputs.
        outputs: Memory of the caller, by name; None: allocated, and all outputs are wanted.
        is_batched: Whether the request gave arrays [1, length, ...]; allocated outputs then have that dimension too.
        future: Completes with the result.
    """

    inputs: Mapping[str, Array]
    lengths: tuple[int, ...]
    outputs: Mapping[str, Array] | None
    is_batched: bool
    future: InferenceFuture

    def deliver(self, layout: PackLayout, results: Mapping[str, Array], starts: tuple[int, ...], number: int) -> dict[str, Array]:
        """Copies its part of a batch's results to where the caller gets them, by name.

        Args:
            layout: Of the model.
            results: Of the whole batch.
            starts: Where its tokens begin, in each group.
            number: Which sequence of the batch it is.
        """
        delivered: dict[str, Array] = {}
        for name in results if self.outputs is None else self.outputs:
            group = layout.token_outputs.get(name)
            if group is None:
                part = results[name][number]
            else:
                rows = results[name].reshape(-1, *results[name].shape[2:])
                part = rows[starts[group] : starts[group] + self.lengths[group]]
            if self.outputs is None:
                delivered[name] = part[np.newaxis].copy() if self.is_batched else part.copy()
                continue
            target = self.outputs[name]
            memory = target[0, ...] if target.ndim > part.ndim else target
            np.copyto(memory if group is None else memory[: self.lengths[group]], part)
            delivered[name] = target
        return delivered


class RequestReader:
    """Checks requests against one packed model. Thread-safe."""

    def __init__(
        self,
        layout: PackLayout,
        config: PackRunnerConfig,
        inputs: Mapping[str, DataDesc],
        outputs: Mapping[str, DataDesc],
        waiters: Waiters,
    ) -> None:
        """Takes the model's layout, its inputs and outputs by name, and the counter of the threads that wait."""
        self._layout = layout
        self._config = config
        self._inputs = inputs
        self._outputs = outputs
        self._waiters = waiters

    def read(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None) -> PackRequest:
        """Checks one request and returns it.

        Raises:
            ApplicationRuntimeError: a name, shape, dtype or length is wrong; says which was expected.
        """
        known = [name for group in self._layout.groups for name in group.names]
        for name in inputs:
            if name not in known and name != self._layout.unpack_info:
                raise ApplicationRuntimeError(f"the packed model has no input '{name}'; it has {', '.join(known)}")
        given: dict[str, Array] = {}
        lengths: list[int] = []
        is_batched = False
        for group in self._layout.groups:
            batched = [name for name in group.names if name in inputs and self._is_batched(name, inputs[name])]
            is_batched = is_batched or bool(batched)
            arrays = {name: self._checked(name, inputs[name], group) for name in group.names if name in inputs}
            lacking = [name for name in group.inputs if name not in arrays]
            if lacking:
                raise ApplicationRuntimeError(f"the request lacks input '{lacking[0]}'")
            lengths.append(self._length(group, arrays))
            given |= self._without_padding(arrays) if self._config.padding_remove_mask in arrays else arrays
            lengths[-1] = len(given[group.dynamic]) if group.dynamic in given else lengths[-1]
            self._reject_length(group, lengths[-1])
        return PackRequest(
            given,
            tuple(lengths),
            None if outputs is None else self._checked_outputs(outputs, lengths),
            is_batched,
            InferenceFuture(self._waiters),
        )

    def _is_batched(self, name: str, array: Array) -> bool:
        return np.ndim(array) == len(self._inputs[name].shape)

    def _checked(self, name: str, array: Array, group: PackGroup) -> Array:
        """Returns `array` as [length, ...]."""
        desc = self._inputs[name]
        array = np.asarray(array)
        if name != group.mask and array.dtype != desc.numpy_data_type():
            raise ApplicationRuntimeError(f"input '{name}' is {array.dtype}, expected {desc.numpy_data_type()}")
        one = array[0, ...] if array.ndim == len(desc.shape) and array.shape[0] == 1 else array
        if one.ndim != len(desc.shape) - 1 or one.shape[1:] != tuple(desc.shape[2:]):
            rest = "".join(f", {size}" for size in desc.shape[2:])
            raise ApplicationRuntimeError(
                f"input '{name}' has shape {list(array.shape)}; a request to a PackRunner is one sequence: "
                f"[length{rest}] or [1, length{rest}]"
            )
        return one

    def _length(self, group: PackGroup, arrays: Mapping[str, Array]) -> int:
        length = len(arrays[group.dynamic] if group.dynamic in arrays else arrays[group.inputs[0]])
        for name, array in arrays.items():
            if len(array) != length:
                raise ApplicationRuntimeError(f"input '{name}' has {len(array)} tokens, '{group.dynamic}' has {length}")
        return length

    def _without_padding(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        mask = arrays[self._config.padding_remove_mask]
        kept = np.flatnonzero(mask)
        names = (self._config.padding_remove_mask, *self._config.padding_remove_inputs)
        # Inputs that were not named count tokens, as positions do: they lose their end.
        return {name: array[kept] if name in names else array[: len(kept)] for name, array in arrays.items()}

    def _reject_length(self, group: PackGroup, length: int) -> None:
        longest = min(self._layout.longest, group.shape.tokens) if len(self._layout.groups) == 1 else group.shape.row_length
        if not 1 <= length <= longest:
            raise ApplicationRuntimeError(f"input '{group.dynamic}' has {length} tokens; this model packs sequences of 1 to {longest}")

    def _checked_outputs(self, outputs: Mapping[str, Array], lengths: list[int]) -> Mapping[str, Array]:
        for name, array in outputs.items():
            desc = self._outputs.get(name)
            if desc is None:
                raise ApplicationRuntimeError(f"the packed model has no output '{name}'; it has {', '.join(self._outputs)}")
            group = self._layout.token_outputs.get(name)
            rest = tuple(desc.shape[1:] if group is None else desc.shape[2:])
            least = 0 if group is None else lengths[group]
            one = array[0, ...] if array.ndim == len(desc.shape) and array.shape[0] == 1 else array
            tail = one.shape if group is None else one.shape[1:]
            if array.dtype != desc.numpy_data_type() or tail != rest or (group is not None and (one.ndim == 0 or len(one) < least)):
                wanted = list(rest) if group is None else [f"{least} or more", *rest]
                raise ApplicationRuntimeError(
                    f"output '{name}' is {array.dtype}{list(array.shape)}, expected {desc.numpy_data_type()}"
                    f"[{', '.join(map(str, wanted))}], or a dimension of 1 before it"
                )
            if not array.flags.writeable:
                raise ApplicationRuntimeError(f"output '{name}' cannot be written to")
        return outputs
