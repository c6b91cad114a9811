"""The trace context of a caller: valid forms, and its continuation."""

from typing import Any

import pytest

from stoker.backends.api.model import ModelSignature
from stoker.server.core.request import InferRequest
from stoker.server.core.trace import CallerTrace, RequestTrace, TraceRecord, read_caller, read_context
from stoker.server.observability.span_export import Collector, SpanExport
from stoker.server.observability.tracer import TraceLevel, Tracer, TraceSettings
from stoker.server.protocols.kserve.extensions import HeaderForward, HeaderReader, RequestMetadata

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
CALLER = CallerTrace(int(TRACE, 16), int(SPAN, 16), is_sampled=True)


@pytest.mark.parametrize(
    ("parent", "state", "caller"),
    [
        (PARENT, None, CALLER),
        (f" {PARENT}\t", "a=1,b=2", CALLER._replace(state="a=1,b=2")),
        (f"00-{TRACE}-{SPAN}-00", None, CALLER._replace(is_sampled=False)),
        (f"00-{TRACE}-{SPAN}-ff", None, CALLER),
        # A later version may say more than ours knows.
        (f"cc-{TRACE}-{SPAN}-01-what-comes", None, CALLER),
        (PARENT, "v=" + "x" * 600, CALLER),
    ],
)
def test_w3c_trace_context_is_parsed(parent: str, state: str | None, caller: CallerTrace) -> None:
    assert read_caller(parent, state) == caller


@pytest.mark.parametrize(
    "parent",
    [
        None,
        "",
        PARENT.upper(),
        PARENT[:-1],
        f"{PARENT}-more",
        f"cc-{TRACE}-{SPAN}-01more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0\u0661",
        f"{PARENT}\n{PARENT}",
        "cc-" + PARENT[3:] + "-" + "x" * 300,
    ],
)
def test_invalid_trace_context_is_ignored(parent: str | None) -> None:
    assert read_caller(parent, "a=1") is None


@pytest.mark.parametrize(
    ("context", "caller"),
    [
        (f'{{"traceparent": "{PARENT}"}}', CALLER),
        (f'{{"traceparent": "{PARENT}", "tracestate": "a=1"}}', CALLER._replace(state="a=1")),
        (f'{{"traceparent": "{PARENT}", "tracestate": 1}}', CALLER),
        ("", None),
        ("{", None),
        ("[]", None),
        ('{"traceparent": 1}', None),
        ('{"tracestate": "a=1"}', None),
        (f'{{"traceparent": "{PARENT}", "tracestate": "{"x" * 2000}"}}', None),
    ],
)
def test_context_of_a_model_is_parsed(context: str, caller: CallerTrace | None) -> None:
    assert read_context(context) == caller


def begun(record: TraceRecord, *, has_timestamps: bool = True, has_spans: bool = True) -> RequestTrace:
    return RequestTrace(
        record,
        lambda _: None,
        0,
        has_timestamps=has_timestamps,
        has_tensors=False,
        next_number=lambda: 2,
        now_ns=lambda: 0,
        has_spans=has_spans,
    )


def test_context_of_a_request_continues_the_trace_of_its_client() -> None:
    trace = begun(TraceRecord(1, "m", 1, "", None, CALLER._replace(state="a=1")))
    found = read_context(trace.context)
    assert found == CALLER._replace(span_id=trace.record.compute_id, state="a=1")
    assert found.span_id != CALLER.span_id
    assert trace.context == trace.context


def test_steps_of_an_ensemble_have_contexts_of_one_trace() -> None:
    ensemble = begun(TraceRecord(1, "e", 1, "", None))
    found = [read_context(each.context) for each in (ensemble, ensemble.child("m", 1), ensemble.child("m", 1))]
    assert {each.trace_id for each in found if each is not None} == {ensemble.record.trace_id}
    assert len({each.span_id for each in found if each is not None}) == 3


def test_trace_that_becomes_no_spans_has_no_context() -> None:
    assert begun(TraceRecord(1, "m", 1, "", None, CALLER), has_spans=False).context == ""
    assert begun(TraceRecord(1, "m", 1, "", None, CALLER), has_timestamps=False).context == ""
    assert request(CALLER).trace_context == ""


def request(caller: CallerTrace | None) -> InferRequest:
    return InferRequest(model_name="m", inputs={}, output_names=(), signature=ModelSignature((), (), 0), caller=caller)


class Sink:
    """Records the received traces."""

    def __init__(self) -> None:
        self.records: list[TraceRecord] = []
        self.dropped = 0

    def put(self, record: TraceRecord) -> None:
        self.records.append(record)

    def close(self) -> None:
        """Nothing waits."""


def traced(settings: TraceSettings, *callers: CallerTrace | None) -> list[CallerTrace | None]:
    """Of requests with these callers, those that are traced."""
    sink = Sink()
    tracer = Tracer(None, lambda: 0, settings, sink)
    for caller in callers:
        if tracer.is_on:
            tracer.traced(request(caller), 1, lambda _: None)
    return [record.caller for record in sink.records]


def test_request_of_a_sampled_caller_is_traced_at_any_rate_and_count() -> None:
    unkept = CALLER._replace(is_sampled=False)
    levels = (TraceLevel.TIMESTAMPS,)
    assert traced(TraceSettings(levels=levels, rate=1000, count=0), None, CALLER, unkept, CALLER) == [CALLER, CALLER]
    assert traced(TraceSettings(levels=levels, rate=2), None, unkept, CALLER) == [unkept, CALLER]
    assert traced(TraceSettings(levels=()), CALLER) == []


def test_caller_context_is_ignored_if_traces_are_written_to_a_file(tmp_path: Any) -> None:
    tracer = Tracer(tmp_path / "trace.json", lambda: 0, TraceSettings(levels=(TraceLevel.TIMESTAMPS,), rate=1000))
    asked = request(CALLER)
    assert not tracer.takes_callers
    tracer.traced(asked, 1, lambda _: None)
    assert asked.trace is None
    tracer.close()


def test_headers_supply_parameters_and_trace_context_if_each_is_enabled() -> None:
    headers = {"traceparent": PARENT, "x-team": "vision"}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    for reader, request_metadata in (
        (HeaderReader(), None),
        (HeaderReader(HeaderForward("x-.*")), RequestMetadata({"x-team": "vision"}, None)),
        (HeaderReader(takes_callers=True), RequestMetadata({}, CALLER)),
        (HeaderReader(HeaderForward("x-.*"), takes_callers=True), RequestMetadata({"x-team": "vision"}, CALLER)),
    ):
        assert reader.read(headers) == reader.read_raw(raw) == request_metadata
    assert HeaderReader(HeaderForward("x-.*"), takes_callers=True).read({"other": "1"}) is None
    asked = request(None)
    RequestMetadata({"x-team": "vision"}, CALLER).apply_to(asked)
    assert (asked.parameters, asked.caller) == ({"x-team": "vision"}, CALLER)


def test_spans_of_the_server_are_children_of_the_callers() -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    export = SpanExport(Collector(), 0, exporter)
    record = TraceRecord(1, "m", 7, "", None, CALLER._replace(state="vendor=1"))
    record.timestamps.append(("REQUEST_START", 10))
    export.put(record)
    export.close()
    assert export.dropped == 0
    spans = {span.name: span for span in exporter.get_finished_spans()}
    outer, model = spans["InferRequest"], spans["m"]
    assert outer.parent is not None
    assert (outer.parent.trace_id, outer.parent.span_id, outer.parent.is_remote) == (*CALLER[:2], True)
    assert {span.context.trace_id for span in (outer, model)} == {CALLER.trace_id}
    assert model.parent is not None
    assert model.parent.span_id == outer.context.span_id
    assert outer.context.trace_state.get("vendor") == "1"
