"""A batch and its result as messages.

Requests whose tensors have the same names and row shapes cross as one block for each input, so the copy into the message joins them: the
worker's `BatchProcessor` finds them one below the other and copies nothing. Other requests cross apart.
"""

import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from stoker.backends.api import errors
from stoker.backends.api.backend import ResponseSink
from stoker.backends.api.batch import BatchResult, JoinedItems, Outcome, Share, as_failure
from stoker.backends.api.errors import BackendFailed, ServingError
from stoker.backends.worker.arrays import Array, Blocks, read_blocks, to_json
from stoker.backends.worker.channel import Message
from stoker.backends.worker.segments import Octets

#: Bound of a traceback that crosses to the log, characters: the last ones.
TRACEBACK_CHARACTERS: Final = 16_384


class WorkerTraceback(Exception):
    """The traceback of a worker process, for the log: the cause of a failure that crossed from there."""

    def __str__(self) -> str:
        return f"in the worker process:\n{self.args[0]}"


class SequenceFacts:
    """A request's place in a sequence, as it crossed; see `SequencePlace`."""

    __slots__ = ("id", "is_end", "is_start")

    def __init__(self, id: "int | str", is_start: bool, is_end: bool) -> None:
        self.id = id
        self.is_start = is_start
        self.is_end = is_end


class WorkerItem:
    """A request's share of a batch in the worker process; see `RequestShare`."""

    __slots__ = (
        "deadline_ns", "inputs", "is_cancelled", "model_name", "model_version", "output_names", "parameters", "priority", "request_id",
        "responses", "rows", "sequence", "timeout_us",
    )  # fmt: skip

    def __init__(self, inputs: "Mapping[str, Array]", rows: int, output_names: "tuple[str, ...]") -> None:
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
        self.is_cancelled = False


def batch_message(items: "Sequence[Any]", *, is_batched: bool, with_facts: bool) -> "tuple[bytes, Blocks]":
    """The description and the tensors of a batch.

    Args:
        items: The requests, `Share`s; `RequestShare`s if `with_facts`.
        is_batched: Whether tensors have a batch dimension.
        with_facts: Whether the model looks at the requests' own attributes.
    """
    blocks = Blocks()
    first: Share = items[0]
    names = list(first.inputs)
    meta: dict[str, Any] = {"n": names, "r": [item.rows for item in items]}
    if len(items) == 1 or (is_batched and _are_alike(items, names)):
        for name in names:
            blocks.add([item.inputs[name] for item in items])
    else:
        meta["apart"] = [{name: blocks.add([array]) for name, array in item.inputs.items()} for item in items]
    meta["b"] = blocks.entries
    wanted = [item.output_names for item in items]
    meta["w"] = wanted[:1] if all(each == wanted[0] for each in wanted) else wanted
    if with_facts:
        meta["f"] = [_facts(item) for item in items]
    elif any(item.parameters for item in items):
        meta["f"] = [{"p": dict(item.parameters)} for item in items]
    return to_json(meta), blocks


def _are_alike(items: "Sequence[Share]", names: "list[str]") -> bool:
    first = items[0].inputs
    for name in names:
        row_shape = first[name].shape[1:]
        for item in items:
            array = item.inputs.get(name)
            if array is None or array.shape[1:] != row_shape or len(item.inputs) != len(names):
                return False
    return True


def _facts(item: Any) -> "dict[str, Any]":
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
    if item.is_cancelled:
        facts["c"] = True
    return facts


def read_batch(message: Message) -> "Sequence[WorkerItem]":
    """The requests of a RUN message: `JoinedItems` if their tensors lie one below the other.

    Raises:
        ValueError, KeyError, TypeError: the message is damaged.
    """
    meta = message.meta
    whole = read_blocks(meta["b"], message.payload)
    rows, wanted = meta["r"], [tuple(names) for names in meta["w"]]
    apart = meta.get("apart")
    items = []
    at = 0
    for position, count in enumerate(rows):
        if apart is not None:
            inputs = {name: whole[number] for name, number in apart[position].items()}
        elif len(rows) == 1:
            inputs = dict(zip(meta["n"], whole, strict=True))
        else:
            inputs = {name: array[at : at + count] for name, array in zip(meta["n"], whole, strict=True)}
        at += count
        items.append(WorkerItem(inputs, count, wanted[position if len(wanted) > 1 else 0]))
    for item, facts in zip(items, meta.get("f", ()), strict=False):
        item.model_name, item.model_version = facts.get("m", ""), facts.get("v")
        item.request_id = facts.get("i", "")
        item.parameters = facts.get("p", {})
        item.priority, item.timeout_us = facts.get("y", 0), facts.get("t", 0)
        item.deadline_ns = facts.get("d")
        item.sequence = SequenceFacts(*facts["s"]) if "s" in facts else None
        item.is_cancelled = facts.get("c", False)
    if apart is None and len(items) > 1:
        return cast("Sequence[WorkerItem]", JoinedItems(items, dict(zip(meta["n"], whole, strict=True))))
    return items


def result_message(result: BatchResult) -> "tuple[bytes, Blocks]":
    """The description and the tensors of a batch's result."""
    blocks = Blocks()
    meta: dict[str, Any] = {"e": result.executions, "t": [result.input_ns, result.infer_ns, result.output_ns]}
    outcomes = result.outcomes
    joined = _joined(outcomes)
    if joined is not None:
        meta["n"] = list(joined)
        meta["r"] = [_rows_of(outcome) for outcome in outcomes]
        for arrays in joined.values():
            blocks.add(arrays)
    else:
        meta["o"] = [
            [0, error_to_json(outcome)]
            if isinstance(outcome, ServingError)
            else [1, {name: blocks.add([array]) for name, array in outcome.items()}]
            for outcome in outcomes
        ]
    meta["b"] = blocks.entries
    return to_json(meta), blocks


def _rows_of(outcome: Outcome) -> int:
    assert not isinstance(outcome, ServingError)
    return len(next(iter(outcome.values())))


def _joined(outcomes: "Sequence[Outcome]") -> "dict[str, list[Array]] | None":
    """The arrays of each output, if all requests have the same outputs with the same row shapes; None: they have not."""
    if len(outcomes) < 2:
        return None
    first = outcomes[0]
    if isinstance(first, ServingError) or not first:
        return None
    joined: dict[str, list[Array]] = {}
    rows: list[int] = []
    for name, array in first.items():
        arrays = []
        for outcome in outcomes:
            if isinstance(outcome, ServingError) or len(outcome) != len(first):
                return None
            other = outcome.get(name)
            if other is None or not other.ndim or other.shape[1:] != array.shape[1:] or other.dtype != array.dtype:
                return None
            arrays.append(other)
        counts = [len(each) for each in arrays]
        if rows and counts != rows:
            return None
        rows = counts
        joined[name] = arrays
    return joined


def read_result(meta: Any, payload: Octets, count: int) -> BatchResult:
    """The result that a DONE message says, of a batch of `count` requests.

    Raises:
        ValueError, KeyError, TypeError: the message is damaged.
    """
    whole = read_blocks(meta["b"], payload)
    outcomes: list[Outcome] = []
    if "n" in meta:
        at = 0
        for rows in meta["r"]:
            outcomes.append({name: array[at : at + rows] for name, array in zip(meta["n"], whole, strict=True)})
            at += rows
    else:
        for is_success, outcome in meta["o"]:
            outcomes.append({name: whole[number] for name, number in outcome.items()} if is_success else error_from_json(outcome))
    if len(outcomes) != count:
        raise ValueError(f"a batch of {count} requests has {len(outcomes)} outcomes")
    input_ns, infer_ns, output_ns = meta["t"]
    return BatchResult(outcomes, meta["e"], input_ns, infer_ns, output_ns)


def error_to_json(error: BaseException) -> "dict[str, Any]":
    """An error, so that `error_from_json` makes the same one: its class, its text, and its traceback for the log."""
    if not isinstance(error, ServingError):
        error = as_failure(error)
    cause = error.__cause__ or error
    text = "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))
    return {
        "error": type(error).__name__,
        "message": error.message,
        "retry_after_s": error.retry_after_s,
        "traceback": text[-TRACEBACK_CHARACTERS:] if cause.__traceback__ is not None or error.__cause__ is not None else "",
    }


def error_from_json(value: "Mapping[str, Any]") -> ServingError:
    """The error that `value` says."""
    kind = getattr(errors, str(value["error"]), None)
    kind = kind if isinstance(kind, type) and issubclass(kind, ServingError) else BackendFailed
    error = kind(str(value["message"]), retry_after_s=value.get("retry_after_s"))
    if value.get("traceback"):
        error.__cause__ = WorkerTraceback(value["traceback"])
    return error
