"""The body that h2load posts, and the parsing of its output."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.h2load import NativeLoadFailed, read_log, succeeded, write_body
from benchmarks.models import BenchModel
from benchmarks.requests import GRPC, HTTP_BINARY, request_of

MODEL = BenchModel(name="m", path=Path("m.onnx"), input_name="x", row=np.ones((2, 4), np.float32))
OUTPUT = """finished in 1.50s, 4000.00 req/s, 1.01MB/s
requests: 6000 total, 6000 started, 6000 done, 5998 succeeded, 2 failed, 0 errored, 0 timeout
status codes: 5998 2xx, 0 3xx, 0 4xx, 2 5xx
"""


def test_number_of_successes_is_read():
    assert succeeded(OUTPUT) == 5998


def test_output_without_a_result_is_refused():
    with pytest.raises(NativeLoadFailed, match="could not connect"):
        succeeded("could not connect to the host")


def test_latencies_and_the_length_of_the_run_are_read_from_the_log(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("1700000000000500\t200\t80\n1700000000000000\t200\t1500\n", encoding="ascii")
    assert read_log(log) == ([80_000, 1_500_000], pytest.approx(0.0015))


def test_grpc_message_gets_its_prefix(tmp_path: Path):
    request = request_of(MODEL, GRPC)
    path, headers = write_body(request, tmp_path / "body")
    message = request.call.request.message.SerializeToString()
    assert (path, headers["content-type"]) == ("/inference.GRPCInferenceService/ModelInfer", "application/grpc")
    assert (tmp_path / "body").read_bytes() == b"\0" + len(message).to_bytes(4, "big") + message


def test_http_request_keeps_the_headers_that_its_body_needs(tmp_path: Path):
    path, headers = write_body(request_of(MODEL, HTTP_BINARY), tmp_path / "body")
    body = (tmp_path / "body").read_bytes()
    assert path == "/v2/models/m/infer"
    assert body[int(headers["inference-header-content-length"]) :] == MODEL.row.tobytes()
