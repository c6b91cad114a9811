"""Traces as OpenTelemetry spans, sent to a collector over OTLP/HTTP by the SDK's own batching thread.

A request is a span `InferRequest` from its first time stamp to its last. Its child, named like the model, covers the time in the engine;
the child of that is `compute`. The steps of an ensemble are children of the ensemble's span. The stamps between are events. The SDK is no
dependency of the server: `missing_packages` lists the packages that are not installed.
"""

import importlib.util
import logging
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from stoker.server.core.trace import CallerTrace, TraceRecord

#: The packages that mode opentelemetry needs, by distribution and module.
NEEDED: Final = {
    "opentelemetry-sdk": "opentelemetry.sdk.trace",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
_FLUSH_MS: Final = 2000
_log = logging.getLogger("stoker.tracing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """The destination of spans.

    Attributes:
        url: The collector's traces endpoint.
        resource: The attributes of the resource, including `service.name`.
        max_queue_size: Spans that may wait to be sent; further ones are dropped.
        schedule_delay_ms: Longest time that a span waits for others, milliseconds.
        max_export_batch_size: Spans in one batch.
    """

    url: str = "http://localhost:4318/v1/traces"
    resource: Mapping[str, str] = field(default_factory=lambda: {"service.name": "stoker"})
    max_queue_size: int = 2048
    schedule_delay_ms: int = 5000
    max_export_batch_size: int = 512


def missing_packages() -> list[str]:
    """The distributions needed to send spans that are not installed."""
    return [name for name, module in NEEDED.items() if not _is_there(module)]


class SpanExport:
    """Converts traces to spans, which the SDK sends. `put` may be called in any thread."""

    def __init__(self, collector: Collector, wall_offset_ns: int, exporter: Any = None) -> None:
        """Makes an exporter to `collector`.

        Args:
            collector: The destination.
            wall_offset_ns: The difference between the time since the epoch and the monotonic time, nanoseconds.
            exporter: For tests: replaces the SDK's exporter over OTLP/HTTP.
        """
        # Imported here, by name: a server without the SDK imports this module, too.
        sdk, export = import_module("opentelemetry.sdk.trace"), import_module("opentelemetry.sdk.trace.export")
        resources = import_module("opentelemetry.sdk.resources")
        self._api = import_module("opentelemetry.trace")
        self._in_context = self._api.set_span_in_context
        if exporter is None:
            exporter = import_module(NEEDED["opentelemetry-exporter-otlp-proto-http"]).OTLPSpanExporter(endpoint=collector.url)
        # Requests are sampled before this point: every span is sent, independent of the environment's sampling settings.
        self._ids = _Ids()
        self._provider = sdk.TracerProvider(
            id_generator=self._ids,
            resource=resources.Resource.create(dict(collector.resource)),
            sampler=import_module("opentelemetry.sdk.trace.sampling").ALWAYS_ON,
            shutdown_on_exit=False,
        )
        processor = export.BatchSpanProcessor(
            exporter,
            max_queue_size=collector.max_queue_size,
            schedule_delay_millis=collector.schedule_delay_ms,
            max_export_batch_size=collector.max_export_batch_size,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("stoker")
        self._offset_ns = wall_offset_ns
        self._not_made = 0

    @property
    def dropped(self) -> int:
        """Traces for which no span could be made."""
        return self._not_made

    def put(self, record: TraceRecord) -> None:
        """Makes and ends the spans of `record`."""
        try:
            self._make(record)
        except Exception:  # noqa: BLE001 - foreign code: whatever it raises must not fail the traced request
            if not self._not_made:
                _log.exception("a trace cannot be made spans of")
            self._not_made += 1

    def close(self) -> None:
        """Sends pending spans, for two seconds at most."""
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()

    def _make(self, record: TraceRecord, ensemble: Any = None) -> None:
        """Makes the spans of `record`; `ensemble` is the context of the span of the ensemble whose step it is."""
        stamps = sorted(record.timestamps, key=lambda stamp: stamp[1])
        if not stamps:
            return
        attributes = {"triton.model_name": record.model_name, "triton.model_version": record.model_version}
        if record.request_id:
            attributes["triton.request_id"] = record.request_id[:256].encode(errors="backslashreplace").decode()
        at = dict(stamps)
        compute = [stamp for stamp in stamps if stamp[0].startswith("COMPUTE_")]
        core = [stamp for stamp in stamps if stamp[0].startswith(("REQUEST_", "QUEUE_"))]
        outer = [stamp for stamp in stamps if stamp not in compute and stamp not in core]
        if ensemble is not None:
            core += outer
        context = ensemble if record.caller is None else self._context_of(record.caller)
        # The spans that the model made itself are children of `compute`, or of the model's span if the model did not compute to the end.
        has_compute = "COMPUTE_START" in at and "COMPUTE_END" in at
        ends: list[tuple[Any, int]] = []
        for name, events, span in (
            *((("InferRequest", outer, (stamps[0][1], stamps[-1][1])),) if ensemble is None else ()),
            (record.model_name, core, (at.get("REQUEST_START"), at.get("REQUEST_END", stamps[-1][1]))),
            ("compute", compute, (at.get("COMPUTE_START"), at.get("COMPUTE_END"))),
        ):
            begin, end = span
            if begin is None or end is None:
                continue
            self._ids.trace_id = record.trace_id if ensemble is None and record.caller is None else 0
            self._ids.span_id = record.compute_id if events is (compute if has_compute else core) else 0
            made = self._tracer.start_span(name, context=context, attributes=attributes, start_time=begin + self._offset_ns)
            self._note(made, events)
            context = self._in_context(made)
            ends.append((made, end + self._offset_ns))
            if events is core:
                for step in record.steps:
                    self._make(step, context)
        for made, end_ns in reversed(ends):
            made.end(end_time=end_ns)

    def _context_of(self, caller: CallerTrace) -> Any:
        """A context that makes spans children of the caller's span."""
        api = self._api
        state = api.TraceState.from_header([caller.state]) if caller.state else None
        flags = api.TraceFlags(api.TraceFlags.SAMPLED if caller.is_sampled else api.TraceFlags.DEFAULT)
        parent = api.SpanContext(caller.trace_id, caller.span_id, is_remote=True, trace_flags=flags, trace_state=state)
        return self._in_context(api.NonRecordingSpan(parent))

    def _note(self, span: Any, events: Sequence[tuple[str, int]]) -> None:
        for name, ns in events:
            span.add_event(name, timestamp=ns + self._offset_ns)


class _Ids(threading.local):
    """The SDK's `IdGenerator`, with the ids of the next span if they are fixed.

    Attributes:
        trace_id, span_id: The ids of the next span that the thread makes; 0: random ones.
    """

    trace_id = 0
    span_id = 0

    def generate_span_id(self) -> int:
        """The id of a span, 64 bits."""
        return self.span_id or random.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        """The id of a trace, 128 bits."""
        return self.trace_id or random.getrandbits(128) or 1

    def is_trace_id_random(self) -> bool:
        """Whether the ids of traces are random."""
        return True


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # one of its parents is missing
        return False
