"""Batches and results as messages: joined and apart, the facts of requests, errors, and how often tensors are copied."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api import errors
from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.batch import BatchItem, BatchResult, Outcome, processor_for
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import BackendFailed, Overloaded, ServingError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.rescheduling import Rescheduled
from stoker.backends.api.response_parameters import OutputsWithParameters, parameters_of
from stoker.backends.api.tensor import DataType
from stoker.backends.worker.batches import (
    WHOLE,
    BatchReader,
    BatchWriter,
    Outgoing,
    ReceivedBatch,
    ResultReader,
    ResultWriter,
    SequenceFacts,
    error_from_json,
    error_to_json,
)
from stoker.backends.worker.channel import INLINE_BYTES, Channel, Message
from stoker.backends.worker.main import WorkerMain
from stoker.backends.worker.tracebacks import TRACEBACK_CHARACTERS
from tests.unit.worker.damage import strange

SIGNATURE = ModelSignature(
    (TensorSpec("A", DataType.FP32, (3,)), TensorSpec("B", DataType.INT64, (1,))), (TensorSpec("OUT", DataType.FP32, (3,)),), 8
)
OPEN = ModelSignature(
    (TensorSpec("A", DataType.FP32, (-1,)), TensorSpec("T", DataType.BYTES, (1,), optional=True)),
    (TensorSpec("OUT", DataType.FP32, (-1,)),),
    8,
)


def message(outgoing: Outgoing, *, index: int = 0) -> Message:
    """The message as the other process receives it."""
    memory = bytearray(outgoing.payload) if outgoing.write is None else bytearray(outgoing.size_bytes)
    if outgoing.write is not None:
        outgoing.write(memoryview(memory))
    assert len(memory) == outgoing.size_bytes
    return Message(4, 1, index, (1, 2, 3), outgoing.meta, np.frombuffer(memory, np.uint8))


def item(rows: int, value: float, wanted: "tuple[str, ...]" = ("OUT",), **facts: Any) -> BatchItem:
    inputs: dict[str, Any] = {"A": np.full((rows, 3), value, np.float32), "B": np.full((rows, 1), int(value), np.int64)}
    return BatchItem(inputs, rows, wanted, **facts)


def received(items: "Sequence[Any]", signature: ModelSignature = SIGNATURE, *, with_facts: bool = False) -> ReceivedBatch:
    return BatchReader().read(message(BatchWriter(signature, with_facts=with_facts).message(items)))


def assert_same_inputs(seen: "Mapping[str, Any]", sent: "Mapping[str, Any]") -> None:
    assert list(seen) == list(sent)
    for name, array in sent.items():
        assert seen[name].tolist() == array.tolist()
        assert seen[name].dtype == array.dtype


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_requests_of_equal_shapes_arrive_joined_and_one_by_one(rows):
    sent = [item(count, value) for value, count in enumerate(rows)]
    batch = received(sent)
    assert batch.count == len(rows)
    assert batch.whole is not None
    assert batch.whole.rows == sum(rows)
    assert batch.whole.inputs["B"].ravel().tolist() == [value for value, count in enumerate(rows) for _ in range(count)]
    for seen, each in zip(batch.items(), sent, strict=True):
        assert (seen.rows, seen.output_names) == (each.rows, each.output_names)
        assert_same_inputs(seen.inputs, each.inputs)


def test_later_batches_of_the_same_shapes_share_a_description_but_no_data():
    writer, reader = BatchWriter(SIGNATURE, with_facts=False), BatchReader()
    for value in range(3):
        for rows in ((1, 2), (2, 1), (300, 300)):
            sent = [item(count, value + at) for at, count in enumerate(rows)]
            batch = reader.read(message(writer.message(sent)))
            for seen, each in zip(batch.items(), sent, strict=True):
                assert_same_inputs(seen.inputs, each.inputs)


def test_requests_of_different_shapes_arrive_apart():
    sent = [BatchItem({"A": np.full((1, count), count, np.float32)}, 1, ("OUT",)) for count in (2, 5)]
    batch = received(sent, OPEN)
    assert batch.whole is None
    for seen, each in zip(batch.items(), sent, strict=True):
        assert_same_inputs(seen.inputs, each.inputs)


@pytest.mark.parametrize("first_has", [True, False])
def test_requests_of_different_inputs_arrive_apart(first_has):
    text = np.full((1, 1), b"x", np.object_)
    plain = BatchItem({"A": np.zeros((1, 2), np.float32)}, 1, ("OUT",))
    with_text = BatchItem({"A": np.ones((1, 2), np.float32), "T": text}, 1, ("OUT",))
    sent = [with_text, plain] if first_has else [plain, with_text]
    for seen, each in zip(received(sent, OPEN).items(), sent, strict=True):
        assert_same_inputs(seen.inputs, each.inputs)


def test_request_with_inputs_behind_one_without_any_arrives_whole():
    signature = ModelSignature((TensorSpec("A", DataType.FP32, (1,), optional=True),), (TensorSpec("OUT", DataType.FP32, (1,)),), 8)
    sent = [BatchItem({}, 1, ("OUT",)), BatchItem({"A": np.ones((1, 1), np.float32)}, 1, ("OUT",))]
    for seen, each in zip(received(sent, signature).items(), sent, strict=True):
        assert_same_inputs(seen.inputs, each.inputs)


def test_requests_of_a_model_without_batches_arrive_apart():
    signature = ModelSignature((TensorSpec("A", DataType.FP32, (3,)),), (TensorSpec("OUT", DataType.FP32, (3,)),), 0)
    sent = [BatchItem({"A": np.full(3, value, np.float32)}, 1, ("OUT",)) for value in range(2)]
    batch = received(sent, signature)
    assert batch.whole is None
    for seen, each in zip(batch.items(), sent, strict=True):
        assert_same_inputs(seen.inputs, each.inputs)


def test_strings_arrive_as_bytes():
    sent = [BatchItem({"T": np.array([[b"a\x00"], [b""]], np.object_)}, 2, ("OUT",)) for _ in range(2)]
    assert received(sent, OPEN).items()[1].inputs["T"].tolist() == [[b"a\x00"], [b""]]


def test_each_request_keeps_the_outputs_that_it_wants():
    batch = received([item(1, 1, ("OUT",)), item(1, 2, ("OUT", "MORE"))])
    assert [each.output_names for each in batch.items()] == [("OUT",), ("OUT", "MORE")]
    assert batch.whole is not None
    assert batch.whole.output_names == ("OUT", "MORE")


def test_facts_of_a_request_arrive():
    class Request:
        inputs = item(1, 1).inputs
        rows, output_names, responses = 1, ("OUT",), None
        parameters = MappingProxyType({"a": 1, "b": "x", "c": True, "d": 0.5})
        model_name, model_version, request_id = "m", 7, "r\u00e9q"
        priority, timeout_us, deadline_ns = 2, 3_000, 1 << 62
        sequence = SequenceFacts("s", True, False)
        trace_context = '{"traceparent": "00-1-2-01"}'
        is_cancelled = True

    (seen,) = received([Request()], with_facts=True).items()
    for name in (
        "parameters",
        "model_name",
        "model_version",
        "request_id",
        "priority",
        "timeout_us",
        "deadline_ns",
        "trace_context",
        "is_cancelled",
    ):
        assert getattr(seen, name) == getattr(Request, name), name
    assert seen.sequence is not None
    assert (seen.sequence.id, seen.sequence.is_start, seen.sequence.is_end) == ("s", True, False)


def test_request_without_facts_arrives_with_the_defaults():
    (seen,) = received([item(1, 1)], with_facts=True).items()
    assert (seen.model_version, seen.request_id, seen.deadline_ns, seen.sequence, seen.is_cancelled) == (None, "", None, None, False)
    assert seen.trace_context == ""


def test_parameters_arrive_at_models_that_read_no_other_fact():
    seen = received([item(1, 1), item(1, 2, parameters={"p": 5})]).items()
    assert [each.parameters for each in seen] == [{}, {"p": 5}]


def test_parameter_that_is_no_json_raises_before_anything_is_sent():
    with pytest.raises((TypeError, ValueError)):
        BatchWriter(SIGNATURE, with_facts=False).message([item(1, 1, parameters={"p": b"bytes"})])


# -- results


def returned(outcomes: "list[Outcome]", executions: "list[int]", items: "Sequence[Any]") -> BatchResult:
    return ResultReader().read(message(ResultWriter().apart(outcomes, executions)), items)


def test_errors_name_no_folder_of_the_host():
    writer = ResultWriter()
    writer.folders = (Path("/models/m"),)
    failure = BackendFailed("cannot read /models/m/1/w.bin in /models/m")
    seen = ResultReader().read(message(writer.apart([failure], [])), [item(1, 0)])
    assert str(seen.outcomes[0]) == "cannot read 1/w.bin in the model's folder"


def test_outcomes_arrive_in_their_order():
    outcomes: list[Outcome] = [
        {"OUT": np.ones((2, 3), np.float32)},
        BackendFailed("this one failed"),
        {"OUT": np.array([[b"x"]], np.object_), "N": np.array(3)},
    ]
    result = returned(outcomes, [2, 1], [item(2, 0), item(1, 1), item(1, 2)])
    assert result.executions == [2, 1]
    assert (result.input_ns, result.infer_ns, result.output_ns) == (1, 2, 3)
    first, second, third = result.outcomes
    assert not isinstance(first, ServingError)
    assert first["OUT"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert isinstance(second, BackendFailed)
    assert second.message == "this one failed"
    assert not isinstance(third, ServingError)
    assert third["OUT"].tolist() == [[b"x"]]
    assert third["N"].tolist() == 3


@pytest.mark.parametrize("size", [3, INLINE_BYTES])
@pytest.mark.parametrize("times", [1, 3])
def test_outputs_of_all_requests_are_cut_into_their_rows(size, times):
    writer, reader = ResultWriter(), ResultReader()
    items = [item(1, 0), item(2, 1), item(1, 2)]
    for time in range(times):
        outputs = {"OUT": np.arange(4 * size, dtype=np.float32).reshape(4, size) + time}
        result = reader.read(message(writer.whole(outputs), index=WHOLE), items)
        cut = [outcome["OUT"].tolist() for outcome in result.outcomes if not isinstance(outcome, ServingError)]
        assert cut == [outputs["OUT"][:1].tolist(), outputs["OUT"][1:3].tolist(), outputs["OUT"][3:].tolist()]


def test_each_request_gets_the_outputs_that_it_wants():
    outputs: dict[str, Any] = {"OUT": np.zeros((2, 3), np.float32), "MORE": np.ones((2, 1), np.int8)}
    items = [item(1, 0, ("MORE",)), item(1, 1, ("OUT", "MORE"))]
    result = ResultReader().read(message(ResultWriter().whole(outputs), index=WHOLE), items)
    assert [list(outcome) for outcome in result.outcomes if not isinstance(outcome, ServingError)] == [["MORE"], ["OUT", "MORE"]]
    alone = ResultReader().read(message(ResultWriter().whole(outputs), index=WHOLE), [item(2, 0, ("MORE",))])
    assert [list(outcome) for outcome in alone.outcomes if not isinstance(outcome, ServingError)] == [["MORE"]]


def test_parameters_of_responses_arrive_with_their_outputs():
    outcomes: list[Outcome] = [
        {"OUT": np.ones((1, 3), np.float32)},
        OutputsWithParameters({"OUT": np.ones((1, 3), np.float32)}, {"a": 1, "b": "é", "c": True, "d": 0.5}),
        BackendFailed("this one failed"),
    ]
    result = returned(outcomes, [2], [item(1, 0), item(1, 1), item(1, 2)])
    assert [parameters_of(each) for each in result.outcomes if not isinstance(each, ServingError)] == [
        None,
        {"a": 1, "b": "é", "c": True, "d": 0.5},
    ]
    assert isinstance(result.outcomes[2], BackendFailed)


def test_rescheduled_requests_arrive_with_their_states():
    items = [item(1, 1.0), item(1, 2.0), item(1, 3.0)]
    state = np.full((1, 3), 7, np.float32)
    outgoing = ResultWriter().apart([{"OUT": state}, Rescheduled({"is": state}), Rescheduled()], [3])
    result = ResultReader(is_iterative=True).read(message(outgoing), items)
    assert [type(outcome) for outcome in result.outcomes] == [dict, Rescheduled, Rescheduled]
    assert [list(outcome) for outcome in result.outcomes if not isinstance(outcome, ServingError)] == [["OUT"], ["is"], []]
    np.testing.assert_array_equal(result.outcomes[1]["is"], state)  # type: ignore[index]


def test_model_without_iterative_sequences_cannot_reschedule():
    outgoing = ResultWriter().apart([Rescheduled()], [1])
    with pytest.raises(ValueError, match="place 0 cannot be rescheduled"):
        ResultReader().read(message(outgoing), [item(1, 1.0)])


def test_number_of_outcomes_must_be_that_of_the_requests():
    with pytest.raises(ValueError, match="a batch of 2 requests has 1 outcomes"):
        returned([{"OUT": np.zeros((1, 3), np.float32)}], [1], [item(1, 0), item(1, 1)])


WHOLE_META: dict[str, Any] = {"n": ["OUT"], "b": [["<f4", [2, 3], 0, 24]]}
APART_META: dict[str, Any] = {
    "o": [[1, {"OUT": 0}], [0, {"error": "BackendFailed", "message": "m", "retry_after_s": None, "traceback": "t"}]],
    "e": [2],
    "b": [["<f4", [1, 3], 0, 12]],
    "p": {"0": {"a": 1}},
}


@given(st.data())
def test_any_description_of_a_result_is_an_error_or_a_result_of_all_requests(data):
    """What reads it turns every exception into a damaged message."""
    original, index = data.draw(st.sampled_from([(WHOLE_META, WHOLE), (APART_META, 0)]))
    meta = data.draw(strange(original))
    items = [item(1, 0), item(1, 1)]
    received = message(Outgoing(b"", 24, None, [], b"\x01" * 24), index=index)
    received.text = json.dumps(meta).encode()
    try:
        result = ResultReader().read(received, items)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, SyntaxError):
        return
    assert len(result.outcomes) == len(items)
    for outcome in result.outcomes:
        if not isinstance(outcome, ServingError):
            for array in outcome.values():
                array.tolist()


# -- errors


ERROR_CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ServingError)]


@pytest.mark.parametrize("kind", ERROR_CLASSES, ids=lambda kind: kind.__name__)
def test_error_arrives_as_the_same_class(kind):
    seen = error_from_json(error_to_json(kind("why", retry_after_s=2.5)))
    assert type(seen) is kind
    assert (seen.message, seen.code, seen.retry_after_s) == ("why", kind.code, 2.5)
    assert seen.__cause__ is None


def test_foreign_error_arrives_as_failure_with_its_traceback_for_the_log():
    try:
        raise FileNotFoundError(2, "No such file or directory", "/secret/folder/x")
    except FileNotFoundError as error:
        seen = error_from_json(error_to_json(error))
    assert type(seen) is BackendFailed
    assert seen.message == "FileNotFoundError: No such file or directory"
    assert "/secret/folder/x" in str(seen.__cause__)
    assert "test_foreign_error_arrives" in str(seen.__cause__)


def test_traceback_is_bounded():
    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        else:
            raise KeyError("x" * 2 * TRACEBACK_CHARACTERS)

    with pytest.raises(KeyError) as raised:
        deep(50)
    assert len(error_to_json(raised.value)["traceback"]) == TRACEBACK_CHARACTERS


@pytest.mark.parametrize("name", ["SystemExit", "ErrorCode", "re", "Path", "__builtins__", "", None, 7])
def test_class_that_is_no_error_of_the_server_becomes_a_failure(name):
    seen = error_from_json({"error": name, "message": None})
    assert type(seen) is BackendFailed


@pytest.mark.parametrize("value", ["soon", [], {}, True, float("nan"), float("inf"), -1.0])
def test_pause_that_is_no_number_is_left_out(value):
    assert error_from_json({"error": "Overloaded", "message": "m", "retry_after_s": value}).retry_after_s is None
    assert isinstance(error_from_json({"error": "Overloaded", "message": "m", "retry_after_s": 3}), Overloaded)


# -- copies


class Watcher(Instance):
    """Returns twice its input, and keeps what it was called with."""

    def __init__(self) -> None:
        self.seen: list[Arrays] = []
        self.fails = 0

    def execute(self, inputs: Arrays, output_names: "Sequence[str]") -> Arrays:
        self.seen.append(inputs)
        if self.fails:
            self.fails -= 1
            raise ValueError("it fails")
        return {"OUT": inputs["A"] * 2}

    def close(self) -> None:
        return None


class Loop:
    """A batch that crosses a channel, runs in the worker's code, and comes back."""

    def __init__(self, signature: ModelSignature = SIGNATURE) -> None:
        self.server, end = Channel.pair()
        self.worker = Channel(end)
        self.main = WorkerMain(self.worker)
        self.instance = Watcher()
        self.processor = processor_for(self.instance, signature, SystemClock())
        self.writer = BatchWriter(signature, with_facts=False)

    def run(self, items: "Sequence[BatchItem]") -> BatchResult:
        outgoing = self.writer.message(items)
        self.server.send(4, 1, 0, outgoing.meta, outgoing.size_bytes, outgoing.write, payload=outgoing.payload)
        arrived = self.worker.receive()
        self.payload = arrived.payload
        batch = BatchReader().read(arrived)
        self.main._run(self.processor, 1, batch)
        del batch, arrived
        return ResultReader().read(self.server.receive(), items)

    def close(self) -> None:
        self.server.close()
        self.worker.close()


@pytest.mark.parametrize("rows", [(1, 2), (400, 400)])
def test_model_reads_a_joined_batch_where_it_arrived(rows):
    loop = Loop()
    items = [item(count, value) for value, count in enumerate(rows)]
    result = loop.run(items)
    (inputs,) = loop.instance.seen
    for name, array in inputs.items():
        assert len(array) == sum(rows)
        assert np.shares_memory(array, loop.payload), name
    for outcome, each in zip(result.outcomes, items, strict=True):
        assert not isinstance(outcome, ServingError)
        assert outcome["OUT"].tolist() == (each.inputs["A"] * 2).tolist()
    assert result.executions == [sum(rows)]
    loop.close()


def test_failed_batch_runs_again_one_by_one_and_costs_only_the_requests_that_fail():
    loop = Loop()
    loop.instance.fails = 2  # the batch, and the first of its requests
    result = loop.run([item(1, 0), item(2, 1), item(1, 2)])
    assert [isinstance(outcome, ServingError) for outcome in result.outcomes] == [True, False, False]
    assert [len(inputs["A"]) for inputs in loop.instance.seen] == [4, 1, 2, 1]
    assert sorted(result.executions) == [1, 2]
    loop.close()


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=5))
def test_responses_belong_to_their_requests(shapes):
    loop = Loop(OPEN)
    items = [BatchItem({"A": np.full((rows, size), value, np.float32)}, rows, ("OUT",)) for value, (rows, size) in enumerate(shapes)]
    try:
        for outcome, sent in zip(loop.run(items).outcomes, items, strict=True):
            assert not isinstance(outcome, ServingError)
            assert outcome["OUT"].tolist() == (sent.inputs["A"] * 2).tolist()
    finally:
        loop.close()
