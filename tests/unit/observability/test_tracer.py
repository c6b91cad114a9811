"""The choice of traced requests, the content of a trace, and its files."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.errors import BackendFailed
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.request import EngineResult, InferRequest, InferResponse
from stoker.server.core.trace import KEPT_ELEMENTS, KEPT_STRING_BYTES, RequestTrace, TracedTensor, TraceRecord
from stoker.server.observability.tracer import TraceLevel, Tracer, TraceSettings, TraceWriter, trace_objects

BOTH = (TraceLevel.TIMESTAMPS, TraceLevel.TENSORS)
SIGNATURE = ModelSignature((TensorSpec("IN", DataType.INT32, (-1,)),), (TensorSpec("OUT", DataType.INT32, (-1,)),), 0)


class Clock:
    """Counts its calls."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


def request(model: str = "m", request_id: str = "", **inputs: Any) -> InferRequest:
    arrays = {"IN": np.arange(3, dtype=np.int32), **inputs}
    return InferRequest(model_name=model, request_id=request_id, inputs=arrays, output_names=("OUT",), signature=SIGNATURE)


def ignore(_answer: EngineResult) -> None:
    """Ignores its argument."""


def traced(tracer: Tracer, *requests: InferRequest) -> list[bool]:
    """Passes requests to the tracer; returns which were traced."""
    taken = []
    for each in requests:
        if tracer.is_on:
            tracer.traced(each, 1, ignore)
        taken.append(each.trace is not None)
        each.trace = None
    return taken


def written(path: Path) -> Any:
    return json.loads(path.read_text())


def ids(path: Path) -> list[int]:
    return [part["id"] for part in written(path) if "model_name" in part]


def test_one_of_every_rate_requests_is_traced_up_to_count(tmp_path: Path):
    tracer = Tracer(tmp_path / "t", Clock(), TraceSettings(levels=BOTH, rate=3, count=2))
    assert traced(tracer, *(request() for _ in range(12))) == [False, False, True, False, False, True] + [False] * 6
    assert not tracer.is_on
    assert tracer.left("m") == 0
    tracer.close()
    assert ids(tmp_path / "t") == [1, 2]


def test_tracing_is_off_without_a_file_or_a_level(tmp_path: Path):
    assert not Tracer(None, Clock(), TraceSettings(levels=BOTH, rate=1)).is_on
    tracer = Tracer(tmp_path / "t", Clock(), TraceSettings(rate=1))
    assert not tracer.is_on
    tracer.close()
    assert not (tmp_path / "t").exists()


def test_model_may_have_its_own_settings(tmp_path: Path):
    tracer = Tracer(tmp_path / "t", Clock())
    tracer.set(TraceSettings(), {"loud": TraceSettings(levels=BOTH, rate=1)})
    assert traced(tracer, request("loud"), request("quiet"), request("loud")) == [True, False, True]
    tracer.set(TraceSettings(levels=BOTH, rate=1), {"loud": TraceSettings()})
    assert traced(tracer, request("loud"), request("quiet")) == [False, True]
    tracer.close()


def test_counting_continues_if_settings_are_unchanged(tmp_path: Path):
    tracer = Tracer(tmp_path / "t", Clock(), TraceSettings(levels=BOTH, rate=1, count=3))
    traced(tracer, request())
    tracer.set(TraceSettings(levels=BOTH, rate=1, count=3), {"other": TraceSettings()})
    assert tracer.left("m") == 2
    tracer.set(TraceSettings(levels=BOTH, rate=1, count=5), {})
    assert tracer.left("m") == 5
    tracer.close()


def test_log_frequency_fills_numbered_files_one_after_the_other(tmp_path: Path):
    tracer = Tracer(tmp_path / "t", Clock(), TraceSettings(levels=BOTH, rate=1, log_frequency=2))
    traced(tracer, *(request() for _ in range(5)))
    tracer.close()
    assert {path.name: ids(path) for path in tmp_path.iterdir()} == {"t.0": [1, 2], "t.1": [3, 4], "t.2": [5]}


def test_trace_has_tritons_content(tmp_path: Path):
    tracer = Tracer(tmp_path / "t", Clock(), TraceSettings(levels=BOTH, rate=1))
    answers: list[EngineResult] = []
    one = request(request_id="r\n1")
    done = tracer.traced(one, 7, answers.append)
    assert one.trace is not None
    one.trace.computed(enqueued_ns=100, ended_ns=200, input_ns=10, infer_ns=20, output_ns=30)
    response = InferResponse(model_name="m", model_version=7, request_id="r", outputs={"OUT": np.array([5], np.int32)}, signature=SIGNATURE)
    done(response)
    assert answers == [response]
    one.trace = None
    del done
    tracer.close()
    parts = written(tmp_path / "t")
    assert parts[0] == {"id": 1, "model_name": "m", "model_version": 7, "request_id": "r\n1"}
    stamps = {part["timestamps"][0]["name"]: part["timestamps"][0]["ns"] for part in parts if "timestamps" in part}
    assert stamps == {
        "REQUEST_START": 1,
        "INFER_RESPONSE_COMPLETE": 2,
        "REQUEST_END": 2,
        "QUEUE_START": 100,
        "COMPUTE_START": 140,
        "COMPUTE_INPUT_END": 150,
        "COMPUTE_OUTPUT_START": 170,
        "COMPUTE_END": 200,
    }
    assert [part for part in parts if "tensor" in part] == [
        {"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": {"name": "IN", "data": "0,1,2", "shape": "3", "dtype": "INT32"}},
        {"id": 1, "activity": "TENSOR_BACKEND_OUTPUT", "tensor": {"name": "OUT", "data": "5", "shape": "1", "dtype": "INT32"}},
    ]


@pytest.mark.parametrize(("level", "stamps", "tensors"), [(TraceLevel.TIMESTAMPS, 2, 0), (TraceLevel.TENSORS, 0, 1)])
def test_trace_contains_only_its_level(tmp_path: Path, level: TraceLevel, stamps: int, tensors: int):
    tracer = Tracer(tmp_path / "t", Clock(), TraceSettings(levels=(level,), rate=1))
    one = request()
    tracer.traced(one, 1, ignore)(BackendFailed("no answer, but the end is noted"))
    one.trace = None
    tracer.close()
    parts = written(tmp_path / "t")
    assert [sum(kind in part for part in parts) for kind in ("timestamps", "tensor")] == [stamps, tensors]


def test_request_without_response_is_traced_up_to_its_last_stamp(tmp_path: Path):
    tracer = Tracer(tmp_path / "t", Clock(), TraceSettings(levels=(TraceLevel.TIMESTAMPS,), rate=1))
    traced(tracer, request())
    tracer.close()
    assert [part["timestamps"][0]["name"] for part in written(tmp_path / "t")[1:]] == ["REQUEST_START"]


def test_large_tensors_are_traced_in_part():
    records: list[TraceRecord] = []
    trace = RequestTrace(TraceRecord(1, "m", 1, "", None), records.append, 0, has_timestamps=False, has_tensors=True)
    large = np.arange(KEPT_ELEMENTS * 2, dtype=np.int32).reshape(2, -1)
    trace.show(
        "A", {"x": large, "y": np.ones(4, np.int32)}, (TensorSpec("x", DataType.INT32, (-1,)), TensorSpec("y", DataType.INT32, (-1,)))
    )
    del trace
    first, second = records[0].tensors
    assert (first.shape, first.values.size, second.values.size) == (large.shape, KEPT_ELEMENTS, 0)
    large[:] = 0
    assert first.values[-1] == KEPT_ELEMENTS - 1
    strings = RequestTrace(TraceRecord(2, "m", 1, "", None), records.append, 0, has_timestamps=False, has_tensors=True)
    strings.show("A", {"s": np.array([b"x" * 1000], dtype=object)}, (TensorSpec("s", DataType.BYTES, (1,)),))
    assert strings.record.tensors[0].values[0] == b"x" * KEPT_STRING_BYTES


@pytest.mark.parametrize(
    ("datatype", "values", "text"),
    [
        (DataType.BOOL, np.array([True, False]), "1,0"),
        (DataType.UINT8, np.array([0, 255], np.uint8), "0,255"),
        (DataType.FP32, np.array([0.5, np.nan], np.float32), "0.5,nan"),
        (DataType.FP16, np.array([1.5], np.float16), "1.5"),
        (DataType.BF16, np.array([0x3FC0], np.uint16), "1.5"),
        (DataType.BYTES, np.array([b"a", b"\xff"], dtype=object), '"a","\\xff"'),
    ],
)
def test_values_are_printed_by_their_type(datatype: DataType, values: Any, text: str):
    record = TraceRecord(1, "m", 1, "", None)
    record.tensors.append(TracedTensor("A", "t", datatype, values.shape, values))
    *_, shown = trace_objects(record)
    assert shown["tensor"] == {"name": "t", "data": text, "shape": str(values.size), "dtype": datatype.value}


def test_file_is_complete_after_every_trace_and_starts_empty_with_the_server(tmp_path: Path):
    path = tmp_path / "t"
    path.write_text("of an earlier run")
    for numbers in ((1,), (1, 2, 3)):
        writer = TraceWriter(path)
        for number in numbers:
            writer.put(TraceRecord(number, "m", 1, "\ud800", None))
        writer.close()
        assert ids(path) == list(numbers)
        assert writer.dropped == 0


def test_unwritable_trace_is_counted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    writer = TraceWriter(tmp_path / "absent" / "t")
    for number in (1, 2):
        writer.put(TraceRecord(number, "m", 1, "", None))
    writer.close()
    assert writer.dropped == 2
    assert [line.message for line in caplog.records] == ["a trace cannot be written", "traces were dropped"]


def test_full_queue_drops_traces_and_never_waits(tmp_path: Path):
    is_writing, may_write = threading.Event(), threading.Event()

    class SlowRecord(TraceRecord):
        """A record whose writing begins and then waits."""

        @property
        def is_written(self) -> bool:
            is_writing.set()
            return may_write.wait(30)

        def __getattribute__(self, name: str) -> Any:
            if name == "timestamps":
                object.__getattribute__(self, "is_written")
            return super().__getattribute__(name)

    writer = TraceWriter(tmp_path / "t", queue_traces=1)
    writer.put(SlowRecord(0, "m", 1, "", None))
    assert is_writing.wait(30)
    for number in range(1, 6):
        writer.put(TraceRecord(number, "m", 1, "", None))
    assert writer.dropped == 4
    may_write.set()
    writer.close()
    assert writer.dropped == 4
