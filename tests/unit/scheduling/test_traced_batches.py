"""A traced request learns from its batch when it waited and when it was computed."""

import numpy as np

from stoker.backends.api.batch import BatchResult
from stoker.backends.api.errors import BackendFailed
from stoker.backends.api.model import ModelSignature
from stoker.server.core.request import InferRequest
from stoker.server.core.trace import RequestTrace, TraceRecord
from stoker.server.scheduling.outcomes import count_batch
from stoker.server.scheduling.pending import Pending
from tests.fakes.puppet_worker import RecorderLog

SIGNATURE = ModelSignature((), (), 0)


def pending(enqueued_ns: int, trace: RequestTrace | None) -> Pending:
    request = InferRequest(model_name="m", inputs={"IN": np.zeros(1)}, output_names=(), signature=SIGNATURE, trace=trace)
    return Pending(request, None, 1, enqueued_ns, None, lambda _: None, lambda: None, lambda _: None)


def test_traced_requests_of_a_batch_get_their_timestamps_and_others_none():
    record = TraceRecord(1, "m", 1, "", None)
    trace = RequestTrace(record, lambda _: None, 5, has_timestamps=True, has_tensors=False)
    entries = [pending(10, trace), pending(11, None)]
    result = BatchResult([{}, BackendFailed("no")], executions=[2], input_ns=10, infer_ns=20, output_ns=30)
    count_batch(RecorderLog(), entries, result, 100)
    assert record.timestamps == [
        ("REQUEST_START", 5),
        ("QUEUE_START", 10),
        ("COMPUTE_START", 40),
        ("COMPUTE_INPUT_END", 50),
        ("COMPUTE_OUTPUT_START", 70),
        ("COMPUTE_END", 100),
    ]
    failed = pending(12, trace)
    count_batch(RecorderLog(), [failed], BatchResult([BackendFailed("no")], input_ns=1, infer_ns=1, output_ns=1), 200)
    assert record.timestamps[-1] == ("COMPUTE_END", 200)
