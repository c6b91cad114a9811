"""A batch and its result as messages.

Requests whose tensors have the same names and row shapes cross as one block for each input, so the copy into the message joins them: the
worker's `BatchProcessor` gets them as one item and copies nothing, and the outputs cross as one block each. Other requests cross apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from stoker.backends.api import errors
from stoker.backends.api.backend import ResponseSink
from stoker.backends.api.batch import BatchResult, Outcome, Share, as_failure
from stoker.backends.api.errors import BackendFailed, LogLines, ServingError, drop_tracebacks
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.rescheduling import Rescheduled
from stoker.backends.api.response_parameters import OutputsWithParameters, check_response_parameters
from stoker.backends.worker.arrays import BYTES, Array, BlockLayout, Blocks, read_blocks, to_json
from stoker.backends.worker.channel import INLINE_BYTES, Message
from stoker.backends.worker.last_lines import relative
from stoker.backends.worker.output_segment import OutputSegment
from stoker.backends.worker.segments import Octets
from stoker.backends.worker.tracebacks import TRACEBACK_CHARACTERS, traceback_of

#: Longest `retry_after_s` of an error that crosses, seconds.
MOST_RETRY_S: Final = 86_400
#: Descriptions that are kept for later batches, and their length in bytes.
MOST_PLANS: Final = 256
KEPT_TEXT_BYTES: Final = 2048
#: The index of a DONE message whose outputs are those of all requests, one below the other.
WHOLE: Final = 1


class SequenceFacts:
    """A request's place in a sequence, as it crossed; see `SequencePlace`."""

    __slots__ = ("id", "is_end", "is_start")

    def __init__(self, id: int | str, is_start: bool, is_end: bool) -> None:
        self.id = id
        self.is_start = is_start
        self.is_end = is_end


class WorkerItem:
    """A request's share of a batch in the worker process; see `RequestShare`."""

    __slots__ = (
        "deadline_ns", "inputs", "is_cancelled", "model_name", "model_version", "output_names", "parameters", "priority", "request_id",
        "responses", "rows", "sequence", "timeout_us", "trace_context",
    )  # fmt: skip

    def __init__(self, inputs: Mapping[str, Array], rows: int, output_names: tuple[str, ...]) -> None:
        self.inputs = inputs
        self.rows = rows
        self.output_names = output_names
        self.parameters: Mapping[str, Any] = {}
        self.responses: ResponseSink | None = None
        self.model_name = ""
        self.model_version: int | None = None
        self.request_id = ""
        self.priority = 0
        self.timeout_us = 0
        self.deadline_ns: int | None = None
        self.sequence: SequenceFacts | None = None
        self.trace_context = ""
        self.is_cancelled = False


class Outgoing:
    """A message to be sent.

    Attributes:
        meta: The description.
        size_bytes: Bytes of the tensors.
        write: Writes the tensors into memory of that size; None: they are `payload`.
        entries: The description of the blocks.
        payload: The tensors, if they are small and written already.
    """

    __slots__ = ("entries", "meta", "payload", "size_bytes", "write")

    def __init__(
        self, meta: bytes, size_bytes: int, write: Callable[[memoryview], None] | None, entries: list[Any], payload: bytes = b""
    ) -> None:
        self.meta = meta
        self.size_bytes = size_bytes
        self.write = write
        self.entries = entries
        self.payload = payload


class BatchWriter:
    """Makes the messages of batches, in the server. The descriptions of batches whose shapes the signature fixes are made once."""

    def __init__(self, signature: ModelSignature, *, with_facts: bool) -> None:
        """`with_facts`: the model reads the requests' own attributes."""
        self._is_batched = signature.is_batched
        self._with_facts = with_facts
        self._is_fixed = not with_facts and all(
            spec.is_static and not (spec.optional or spec.is_ragged or spec.datatype.is_bytes) for spec in signature.inputs
        )
        self._names = [spec.name for spec in signature.inputs]
        self._plans: dict[Hashable, _Plan] = {}

    def message(self, items: Sequence[Any]) -> Outgoing:
        """The message of a batch of `items`: `Share`s; `RequestShare`s if the model reads their attributes."""
        if not self._is_fixed or (len(items) > 1 and not self._is_batched):
            return self._message(items)
        wanted = items[0].output_names
        rows: list[int] = []
        for item in items:
            if item.parameters or item.output_names != wanted:
                return self._message(items)
            rows.append(item.rows)
        key = (*rows, wanted)
        plan = self._plans.get(key)
        if plan is None:
            outgoing = self._message(items)
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = _Plan(outgoing.meta, outgoing.size_bytes, outgoing.entries)
            return outgoing
        if plan.size_bytes > INLINE_BYTES:
            blocks = Blocks()
            for name in self._names:
                blocks.add([item.inputs[name] for item in items])
            return Outgoing(plan.meta, blocks.size_bytes, blocks.write, blocks.entries)
        parts: list[bytes] = []
        for name, pad in zip(self._names, plan.pads, strict=True):
            for item in items:
                parts.append(item.inputs[name].tobytes())
            if pad:
                parts.append(pad)
        return Outgoing(plan.meta, plan.size_bytes, None, plan.entries, b"".join(parts))

    def _message(self, items: Sequence[Any]) -> Outgoing:
        blocks = Blocks()
        first: Share = items[0]
        names = self._names if self._is_fixed else list(first.inputs)
        meta: dict[str, Any] = {"n": names, "r": [item.rows for item in items]}
        if len(items) == 1 or (self._is_batched and _are_alike(items, names)):
            for name in names:
                blocks.add([item.inputs[name] for item in items])
        else:
            meta["apart"] = [{name: blocks.add([array]) for name, array in item.inputs.items()} for item in items]
        meta["b"] = blocks.entries
        wanted = [item.output_names for item in items]
        meta["w"] = wanted[:1] if all(each == wanted[0] for each in wanted) else wanted
        if self._with_facts:
            meta["f"] = [_facts(item) for item in items]
        elif any(item.parameters for item in items):
            meta["f"] = [{"p": dict(item.parameters)} for item in items]
        return Outgoing(to_json(meta), blocks.size_bytes, blocks.write, blocks.entries)


class _Plan:
    """A description that later batches share, and the padding behind each of their blocks."""

    __slots__ = ("entries", "meta", "pads", "size_bytes")

    def __init__(self, meta: bytes, size_bytes: int, entries: list[Any]) -> None:
        self.meta = meta
        self.size_bytes = size_bytes
        self.entries = entries
        starts = [entry[2] for entry in entries[1:]] + [size_bytes]
        self.pads = [bytes(start - entry[2] - entry[3]) for entry, start in zip(entries, starts, strict=True)]


def _are_alike(items: Sequence[Share], names: list[str]) -> bool:
    first = items[0].inputs
    if any(len(item.inputs) != len(names) for item in items):
        return False
    for name in names:
        row_shape = first[name].shape[1:]
        for item in items:
            array = item.inputs.get(name)
            if array is None or array.shape[1:] != row_shape:
                return False
    return True


def _facts(item: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"m": item.model_name, "v": item.model_version}
    if item.request_id:
        facts["i"] = item.request_id
    if item.parameters:
        facts["p"] = dict(item.parameters)
    if item.priority:
        facts["y"] = item.priority
    if item.timeout_us:
        facts["t"] = item.timeout_us
    if item.deadline_ns is not None:
        # CLOCK_MONOTONIC is the same in all processes of a host.
        facts["d"] = item.deadline_ns
    if item.sequence is not None:
        facts["s"] = [item.sequence.id, item.sequence.is_start, item.sequence.is_end]
    if item.trace_context:
        facts["o"] = item.trace_context
    if item.is_cancelled:
        facts["c"] = True
    return facts


class ReceivedBatch:
    """A batch in the worker process.

    Attributes:
        whole: All rows as one item, if the tensors of all requests lie one below the other; None: they do not.
        count: Requests.
    """

    __slots__ = ("_items", "_layout", "_whole_inputs", "count", "whole")

    def __init__(self, layout: _Layout, payload: Octets) -> None:
        """Raises:
        ValueError: the description does not fit `payload`.
        """
        self._layout = layout
        self._items: list[WorkerItem] | None = None
        self.count = len(layout.rows)
        arrays = layout.blocks.read(payload)
        self.whole: WorkerItem | None = None
        self._whole_inputs: dict[str, Array] = {}
        if layout.apart is None:
            self._whole_inputs = dict(zip(layout.names, arrays, strict=True))
            self.whole = WorkerItem(self._whole_inputs, layout.total_rows, layout.union)
        else:
            self._items = [WorkerItem({name: arrays[number] for name, number in inputs.items()}, 0, ()) for inputs in layout.apart]
            self._fill(self._items)

    def items(self) -> list[WorkerItem]:
        """The requests, one by one."""
        if self._items is None:
            layout = self._layout
            items: list[WorkerItem] = []
            at = 0
            for rows in layout.rows:
                end = at + rows
                inputs = self._whole_inputs
                items.append(WorkerItem(inputs if self.count == 1 else {name: each[at:end] for name, each in inputs.items()}, 0, ()))
                at = end
            self._fill(items)
            self._items = items
        return self._items

    def release(self) -> None:
        """Drops the tensors, so that the segment is free unless the model keeps a view of it."""
        self.whole = self._items = None
        self._whole_inputs = {}

    def _fill(self, items: list[WorkerItem]) -> None:
        layout = self._layout
        for position, item in enumerate(items):
            item.rows = layout.rows[position]
            item.output_names = layout.wanted[position if len(layout.wanted) > 1 else 0]
        for item, facts in zip(items, layout.facts, strict=False):
            item.model_name, item.model_version = facts.get("m", ""), facts.get("v")
            item.request_id = facts.get("i", "")
            item.parameters = facts.get("p", {})
            item.priority, item.timeout_us = facts.get("y", 0), facts.get("t", 0)
            item.deadline_ns = facts.get("d")
            item.sequence = SequenceFacts(*facts["s"]) if "s" in facts else None
            item.trace_context = facts.get("o", "")
            item.is_cancelled = facts.get("c", False)


class _Layout:
    """A batch's description, read."""

    __slots__ = ("apart", "blocks", "facts", "names", "rows", "total_rows", "union", "wanted")

    def __init__(self, meta: Any) -> None:
        self.names: list[str] = meta["n"]
        self.rows: list[int] = meta["r"]
        self.apart: list[dict[str, int]] | None = meta.get("apart")
        self.blocks = BlockLayout(meta["b"])
        self.wanted = [tuple(names) for names in meta["w"]]
        self.union = self.wanted[0] if len(self.wanted) == 1 else tuple(dict.fromkeys(name for names in self.wanted for name in names))
        self.facts = meta.get("f", ())
        self.total_rows = sum(self.rows)


class BatchReader:
    """Reads the messages of batches, in the worker process."""

    def __init__(self) -> None:
        self._layouts: dict[bytes, _Layout] = {}

    def read(self, message: Message) -> ReceivedBatch:
        """The batch of a RUN message.

        Raises:
            ValueError, KeyError, TypeError: the message is damaged.
        """
        text = message.text
        layout = self._layouts.get(text)
        if layout is None:
            layout = _Layout(message.meta)
            _keep(self._layouts, text, layout)
        return ReceivedBatch(layout, message.payload)


LayoutT = TypeVar("LayoutT")


def _keep(layouts: dict[bytes, LayoutT], text: bytes, layout: LayoutT) -> None:
    if len(text) <= KEPT_TEXT_BYTES:
        if len(layouts) >= MOST_PLANS:
            layouts.clear()
        layouts[text] = layout


class ResultWriter:
    """Makes the messages of results, in the worker process.

    Attributes:
        folders: The folders of the model on this host, which no error for a client may name.
    """

    def __init__(self, memory: OutputSegment | None = None) -> None:
        """`memory`: outputs may lie in this segment, and the messages are written into it."""
        self.folders: Sequence[Path] = ()
        self._memory = memory
        self._plans: dict[Hashable, _Plan] = {}

    def whole(self, outputs: Mapping[str, Array]) -> Outgoing:
        """The message of a result that all requests of the batch share: the rows of each, one below the other."""
        key = tuple([(name, array.shape, array.dtype) for name, array in outputs.items()])
        plan = self._plans.get(key)
        if plan is None:
            blocks = Blocks(self._memory)
            for array in outputs.values():
                blocks.add([array])
            outgoing = Outgoing(to_json({"n": list(outputs), "b": blocks.entries}), blocks.size_bytes, blocks.write, blocks.entries)
            is_placed = self._memory is not None and self._memory.used_bytes > 0
            if blocks.size_bytes <= INLINE_BYTES and not is_placed and not any(entry[0] == BYTES for entry in blocks.entries):
                if len(self._plans) >= MOST_PLANS:
                    self._plans.clear()
                self._plans[key] = _Plan(outgoing.meta, outgoing.size_bytes, outgoing.entries)
            return outgoing
        parts: list[bytes] = []
        for array, pad in zip(outputs.values(), plan.pads, strict=True):
            parts.append(array.tobytes())
            if pad:
                parts.append(pad)
        return Outgoing(plan.meta, plan.size_bytes, None, plan.entries, b"".join(parts))

    def apart(self, outcomes: Sequence[Outcome], executions: Sequence[int]) -> Outgoing:
        """The message of a result with an outcome for each request, and the rows of the executions that have ended.

        Removes the tracebacks of the errors, see `drop_tracebacks`.
        """
        blocks = Blocks(self._memory)
        described: list[Any] = []
        shared: dict[int, int] = {}
        parameters: dict[str, Any] = {}
        rescheduled: list[int] = []
        for position, outcome in enumerate(outcomes):
            if not isinstance(outcome, ServingError):
                described.append({name: blocks.add([array]) for name, array in outcome.items()})
                if isinstance(outcome, OutputsWithParameters):
                    parameters[str(position)] = outcome.parameters
                elif isinstance(outcome, Rescheduled):
                    rescheduled.append(position)
            elif id(outcome) in shared:
                # One error of several requests stays one, so that the log has it once.
                described.append(shared[id(outcome)])
            else:
                shared[id(outcome)] = position
                described.append([error_to_json(outcome, self.folders)])
                drop_tracebacks(outcome)
        meta: dict[str, Any] = {"o": described, "e": list(executions), "b": blocks.entries}
        if parameters:
            meta["p"] = parameters
        if rescheduled:
            meta["again"] = rescheduled
        return Outgoing(to_json(meta), blocks.size_bytes, blocks.write, blocks.entries)


class ResultReader:
    """Reads the messages of results, in the server."""

    def __init__(self, *, is_iterative: bool = False) -> None:
        """`is_iterative`: the model may ask for a further execution of a request."""
        self._is_iterative = is_iterative
        self._kept: dict[bytes, tuple[list[str], BlockLayout]] = {}

    def read(self, message: Message, items: Sequence[Share]) -> BatchResult:
        """The result that a DONE message says, of the batch of `items`.

        Raises:
            ValueError, KeyError, TypeError: the message is damaged.
        """
        outcomes: list[Outcome] = []
        if message.index == WHOLE:
            text = message.text
            kept = self._kept.get(text)
            if kept is None:
                meta = message.meta
                kept = (meta["n"], BlockLayout(meta["b"]))
                _keep(self._kept, text, kept)
            names, blocks = kept
            arrays = blocks.read(message.payload)
            outputs = dict(zip(names, arrays, strict=True))
            rows = 0
            if len(items) == 1:
                item = items[0]
                rows = item.rows
                outcomes.append(outputs if len(outputs) == len(item.output_names) else {name: outputs[name] for name in item.output_names})
            elif len(names) == 1:
                name = names[0]
                for item in items:
                    end = rows + item.rows
                    outcomes.append({name: arrays[0][rows:end]})
                    rows = end
            else:
                for item in items:
                    end = rows + item.rows
                    outcomes.append({name: outputs[name][rows:end] for name in item.output_names})
                    rows = end
            executions = [rows]
        else:
            meta = message.meta
            arrays = read_blocks(meta["b"], message.payload)
            for described in meta["o"]:
                if isinstance(described, dict):
                    outcomes.append({name: arrays[number] for name, number in described.items()})
                else:
                    outcomes.append(error_from_json(described[0]) if isinstance(described, list) else outcomes[described])
            if len(outcomes) != len(items):
                raise ValueError(f"a batch of {len(items)} requests has {len(outcomes)} outcomes")
            for position, parameters in meta.get("p", {}).items():
                outcome = outcomes[int(position)]
                if not isinstance(outcome, ServingError):
                    outcomes[int(position)] = OutputsWithParameters(outcome, check_response_parameters(parameters))
            for position in meta.get("again", ()):
                outcome = outcomes[position]
                if isinstance(outcome, ServingError) or not self._is_iterative:
                    raise ValueError(f"the request at place {position} cannot be rescheduled")
                outcomes[position] = Rescheduled(outcome)
            executions = meta["e"]
        input_ns, infer_ns, output_ns = message.times_ns
        return BatchResult(outcomes, executions, input_ns, infer_ns, output_ns)


def error_to_json(error: BaseException, folders: Sequence[Path] = ()) -> dict[str, Any]:
    """An error, so that `error_from_json` makes the same one: its class, its text, and its traceback for the log.

    Args:
        error: The error.
        folders: The folders of the model's files: the text and the traceback name files relative to them.
    """
    if not isinstance(error, ServingError):
        error = as_failure(error)
    text, is_of_model = traceback_of(error, folders)
    return {
        # A class of a model, such as BadRequest, is sent as the one that it extends.
        "error": next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__),
        "message": relative(error.message, folders),
        "retry_after_s": error.retry_after_s,
        "traceback": text,
        "is_of_model": error.is_of_model or is_of_model,
    }


def error_from_json(value: Mapping[str, Any]) -> ServingError:
    """The error that `value` says.

    Raises:
        KeyError, TypeError, AttributeError: it is none.
    """
    kind = getattr(errors, str(value["error"]), None)
    kind = kind if isinstance(kind, type) and issubclass(kind, ServingError) else BackendFailed
    pause_s = value.get("retry_after_s")
    is_pause = isinstance(pause_s, (int, float)) and not isinstance(pause_s, bool) and 0 <= pause_s <= MOST_RETRY_S
    error = kind(str(value["message"]), retry_after_s=pause_s if is_pause else None)
    if value.get("traceback"):
        error.__cause__ = LogLines(str(value["traceback"])[-TRACEBACK_CHARACTERS:].split("\n"))
    error.is_of_model = value.get("is_of_model") is True
    return error
