"""The record of one traced request, and the caller's W3C Trace Context. Times in nanoseconds, monotonic."""

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from stoker.backends.api.model import TensorSpec
from stoker.backends.api.native import mypyc_attr
from stoker.backends.api.tensor import DataType

# Section 3.2.2: version, trace id, parent id and flags, in lower case; later versions may add fields after a dash.
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 0x01
#: Section 3.3.1.5: implementations should propagate at least this many characters; a longer value is dropped, which the section allows.
_STATE_CHARACTERS: Final = 512
#: An upper bound on the length of `traceparent`, in characters; the headers of all versions are far shorter.
_LONGEST: Final = 256


class CallerTrace(NamedTuple):
    """The client's trace context: the parent of this server's spans.

    Attributes:
        trace_id: The id of the whole trace, above 0.
        span_id: The id of the client's span, above 0.
        is_sampled: Whether the client records its trace.
        state: `tracestate` as sent, opaque to this server; empty if there is none.
    """

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""


def read_caller(parent: str | None, state: str | None = None) -> CallerTrace | None:
    """Parses the values of `traceparent` and `tracestate`; returns None if `traceparent` is missing or malformed, as the standard
    requires.
    """
    found = None if parent is None or len(parent) > _LONGEST else _FORM.fullmatch(parent.strip(" \t"))
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    kept = state if state is not None and len(state) <= _STATE_CHARACTERS else ""
    return CallerTrace(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED), kept)


def read_context(context: str) -> CallerTrace | None:
    """Parses a context in the form of `RequestTrace.context`; returns None if it is empty or malformed."""
    if not context or len(context) > _LONGEST + 2 * _STATE_CHARACTERS:
        return None
    try:
        found = json.loads(context)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    parent, state = found.get("traceparent"), found.get("tracestate")
    return read_caller(parent, state if isinstance(state, str) else None) if isinstance(parent, str) else None


def _random_id(bits: int) -> int:
    """A random id above 0."""
    return random.getrandbits(bits) or 1


#: Recorded elements of one trace's tensors, and bytes of one string: a trace must stay small beside its request.
KEPT_ELEMENTS: Final = 16_384
KEPT_STRING_BYTES: Final = 256
_Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


class TracedTensor(NamedTuple):
    """A tensor at one point of a request.

    Attributes:
        activity: The point, by Triton's name.
        name: The tensor's name.
        datatype: Its element type.
        shape: The complete shape.
        values: Copies of the first elements, flat.
    """

    activity: str
    name: str
    datatype: DataType
    shape: tuple[int, ...]
    values: _Array


@mypyc_attr(allow_interpreted_subclasses=True)
class TraceRecord:
    """The contents of one trace. Plain data.

    Attributes:
        number: Serial number of the trace, from 1.
        model_name, model_version, request_id: Of the traced request.
        caller: The client's trace context; None: the client sent none.
        trace_id: The id of the trace that this record begins as spans, above 0; 0: the span export chooses it.
        compute_id: The id of the span `compute`, above 0, if a model has it already; 0: the span export chooses it.
        file_index: The index of the trace's file; None: the file without an index.
        timestamps: Times in nanoseconds, by Triton's names of the points.
        tensors: The recorded tensors.
        steps: The traces of the steps of an ensemble.
    """

    # fmt: off
    __slots__ = (
        "caller", "compute_id", "file_index", "model_name", "model_version", "number", "request_id", "steps", "tensors", "timestamps",
        "trace_id",
    )
    # fmt: on

    def __init__(
        self, number: int, model_name: str, model_version: int, request_id: str, file_index: int | None, caller: CallerTrace | None = None
    ) -> None:
        self.number = number
        self.model_name = model_name
        self.model_version = model_version
        self.request_id = request_id
        self.file_index = file_index
        self.caller = caller
        self.trace_id = 0
        self.compute_id = 0
        self.timestamps: list[tuple[str, int]] = []
        self.tensors: list[TracedTensor] = []
        self.steps: list[TraceRecord] = []


class RequestTrace:
    """The trace of a request in progress. It is written when its last reference is dropped.

    Every end of a request drops it: a response, an error, a cancellation or a lost connection.

    Attributes:
        record: The contents of the trace.
        begun_ns: When the engine received the request, nanoseconds.
        has_timestamps, has_tensors: Which of the two are recorded.
    """

    # fmt: off
    __slots__ = (
        "_elements_left", "_ensemble", "_hand_on", "_has_spans", "_next_number", "_now_ns", "begun_ns", "has_tensors", "has_timestamps",
        "record",
    )
    # fmt: on

    def __init__(
        self,
        record: TraceRecord,
        hand_on: Callable[[TraceRecord], None],
        begun_ns: int,
        *,
        has_timestamps: bool,
        has_tensors: bool,
        next_number: Callable[[], int] | None = None,
        now_ns: Callable[[], int] | None = None,
        ensemble: "RequestTrace | None" = None,
        has_spans: bool = False,
    ) -> None:
        """Begins a trace.

        Args:
            record: The contents.
            hand_on: Takes the contents at the end.
            begun_ns: When the engine received the request, nanoseconds.
            has_timestamps: Whether time stamps are recorded.
            has_tensors: Whether tensors are recorded.
            next_number: Gives the number of a step's trace.
            now_ns: Gives the start of a step's trace.
            ensemble: The trace that a step belongs to.
            has_spans: Whether the trace becomes OpenTelemetry spans.
        """
        self.record = record
        self._next_number = next_number
        self._now_ns = now_ns
        # Keeps the trace of the ensemble until those of its steps have ended.
        self._ensemble = ensemble
        self.begun_ns = begun_ns
        self.has_timestamps = has_timestamps
        self.has_tensors = has_tensors
        self._hand_on = hand_on
        self._has_spans = has_spans and has_timestamps
        if self._has_spans and ensemble is None and record.caller is None:
            record.trace_id = _random_id(128)
        self._elements_left = KEPT_ELEMENTS
        self.mark("REQUEST_START", begun_ns)

    def child(self, model_name: str, model_version: int) -> "RequestTrace":
        """The trace of a step that begins now; it is written with this one. REQUIRES: this trace has `next_number` and `now_ns`."""
        assert self._next_number is not None
        assert self._now_ns is not None
        record = TraceRecord(self._next_number(), model_name, model_version, self.record.request_id, self.record.file_index)
        return RequestTrace(
            record,
            self.record.steps.append,
            self._now_ns(),
            has_timestamps=self.has_timestamps,
            has_tensors=self.has_tensors,
            next_number=self._next_number,
            now_ns=self._now_ns,
            ensemble=self,
            has_spans=self._has_spans,
        )

    @property
    def context(self) -> str:
        """The span `compute` as the parent of further spans: a JSON object of the headers `traceparent` and `tracestate`.

        It is empty if the trace does not become spans.
        """
        if not self._has_spans:
            return ""
        record, root = self.record, self
        while root._ensemble is not None:
            root = root._ensemble
        if not record.compute_id:
            record.compute_id = _random_id(64)
        caller = root.record.caller
        trace_id = root.record.trace_id if caller is None else caller.trace_id
        headers = {"traceparent": f"00-{trace_id:032x}-{record.compute_id:016x}-{_SAMPLED:02x}"}
        if caller is not None and caller.state:
            headers["tracestate"] = caller.state
        return json.dumps(headers)

    def end(self, outputs: Mapping[str, _Array] | None, specs: tuple[TensorSpec, ...]) -> None:
        """Records the end of the request now, with the outputs of its response, if it has one. REQUIRES: as `child`."""
        assert self._now_ns is not None
        now_ns = self._now_ns()
        if outputs is not None:
            self.mark("INFER_RESPONSE_COMPLETE", now_ns)
            self.show("TENSOR_BACKEND_OUTPUT", outputs, specs)
        self.mark("REQUEST_END", now_ns)

    def mark(self, name: str, ns: int) -> None:
        """Records that the request passed the point `name` at `ns`."""
        if self.has_timestamps:
            self.record.timestamps.append((name, ns))

    def computed(self, *, enqueued_ns: int, ended_ns: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Records the end of the request's batch. The durations are those of the batch; earlier points are computed back from its end."""
        output_start_ns = ended_ns - output_ns
        input_end_ns = output_start_ns - infer_ns
        self.mark("QUEUE_START", enqueued_ns)
        self.mark("COMPUTE_START", input_end_ns - input_ns)
        self.mark("COMPUTE_INPUT_END", input_end_ns)
        self.mark("COMPUTE_OUTPUT_START", output_start_ns)
        self.mark("COMPUTE_END", ended_ns)

    def show(self, activity: str, arrays: Mapping[str, _Array], specs: tuple[TensorSpec, ...]) -> None:
        """Records the first elements of `arrays`, which `specs` describe."""
        if not self.has_tensors:
            return
        for spec in specs:
            array = arrays.get(spec.name)
            if array is None:
                continue
            values = array.reshape(-1)[: self._elements_left].copy()
            self._elements_left -= values.size
            if spec.datatype.is_bytes:
                values = np.array(
                    [bytes(value)[:KEPT_STRING_BYTES] if isinstance(value, bytes) else value for value in values], dtype=object
                )
            self.record.tensors.append(TracedTensor(activity, spec.name, spec.datatype, array.shape, values))

    def __del__(self) -> None:
        self._hand_on(self.record)
