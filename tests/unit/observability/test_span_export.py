"""Traces as OpenTelemetry spans; skipped where the SDK, which is no dependency, is not installed."""

from typing import Any

import pytest

from stoker.server.core.trace import TraceRecord
from stoker.server.observability.span_export import Collector, SpanExport, missing_packages

OFFSET_NS = 1_000_000


def test_missing_package_is_named_by_its_distribution(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stoker.server.observability.span_export.NEEDED", {"no-such-thing": "no_such_package.part", "here": "json"})
    assert missing_packages() == ["no-such-thing"]


def exported(record: TraceRecord) -> list[Any]:
    pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    export = SpanExport(Collector(resource={"service.name": "mine"}), OFFSET_NS, exporter)
    export.put(record)
    export.close()
    assert export.dropped == 0
    return list(exporter.get_finished_spans())


def test_request_is_three_spans_with_events_at_their_times():
    record = TraceRecord(1, "m", 7, "r", None)
    stamps = {
        "HTTP_RECV_START": 1,
        "REQUEST_START": 10,
        "QUEUE_START": 11,
        "COMPUTE_START": 20,
        "COMPUTE_INPUT_END": 21,
        "COMPUTE_OUTPUT_START": 29,
        "COMPUTE_END": 30,
        "REQUEST_END": 31,
        "HTTP_SEND_END": 40,
    }
    record.timestamps.extend(stamps.items())
    spans = {span.name: span for span in exported(record)}
    outer, model, compute = spans["InferRequest"], spans["m"], spans["compute"]
    assert [(span.start_time - OFFSET_NS, span.end_time - OFFSET_NS) for span in (outer, model, compute)] == [(1, 40), (10, 31), (20, 30)]
    assert outer.parent is None
    assert model.parent.span_id == outer.context.span_id
    assert compute.parent.span_id == model.context.span_id
    events = {event.name: event.timestamp - OFFSET_NS for span in spans.values() for event in span.events}
    assert events == stamps
    assert dict(outer.attributes) == {"triton.model_name": "m", "triton.model_version": 7, "triton.request_id": "r"}
    assert outer.resource.attributes["service.name"] == "mine"


def test_steps_of_an_ensemble_are_children_of_its_span():
    record, step = TraceRecord(1, "e", 1, "r", None), TraceRecord(2, "m", 7, "r", None)
    record.timestamps.extend({"HTTP_RECV_START": 1, "REQUEST_START": 10, "REQUEST_END": 31}.items())
    step.timestamps.extend({"REQUEST_START": 12, "COMPUTE_START": 20, "COMPUTE_END": 28, "REQUEST_END": 30}.items())
    record.steps.append(step)
    spans = {span.name: span for span in exported(record)}
    assert set(spans) == {"InferRequest", "e", "m", "compute"}
    assert spans["m"].parent.span_id == spans["e"].context.span_id
    assert spans["compute"].parent.span_id == spans["m"].context.span_id
    assert spans["m"].context.trace_id == spans["InferRequest"].context.trace_id
    assert (spans["m"].start_time - OFFSET_NS, spans["m"].end_time - OFFSET_NS) == (12, 30)


def test_spans_have_the_ids_that_the_model_got():
    record, step = TraceRecord(1, "e", 1, "r", None), TraceRecord(2, "m", 7, "r", None)
    record.trace_id, step.compute_id = 5, 6
    record.timestamps.extend({"REQUEST_START": 10, "REQUEST_END": 31}.items())
    step.timestamps.extend({"REQUEST_START": 12, "COMPUTE_START": 20, "COMPUTE_END": 28, "REQUEST_END": 30}.items())
    record.steps.append(step)
    spans = {span.name: span for span in exported(record)}
    assert {span.context.trace_id for span in spans.values()} == {5}
    assert [name for name, span in spans.items() if span.context.span_id == 6] == ["compute"]
    assert len({span.context.span_id for span in spans.values()}) == 4


def test_model_that_failed_has_the_id_of_its_context():
    record = TraceRecord(1, "m", 1, "r", None)
    record.trace_id, record.compute_id = 5, 6
    record.timestamps.extend({"REQUEST_START": 10, "REQUEST_END": 31}.items())
    assert [span.name for span in exported(record) if span.context.span_id == 6] == ["m"]


def test_unfinished_request_has_only_the_spans_that_it_started():
    record = TraceRecord(1, "m", 7, "", None)
    assert exported(record) == []
    record.timestamps.append(("REQUEST_START", 10))
    assert {span.name for span in exported(record)} == {"InferRequest", "m"}


def test_exception_of_the_sdk_fails_no_request():
    pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    export = SpanExport(Collector(), OFFSET_NS, InMemorySpanExporter())
    broken = TraceRecord(1, "m", 7, "", None)
    broken.timestamps.append(("REQUEST_START", "no number"))  # type: ignore[arg-type]
    export.put(broken)
    assert export.dropped == 1
    export.close()
