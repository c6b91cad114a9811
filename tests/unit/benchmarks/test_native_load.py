"""The arguments of a native load generator, and the parsing of its output."""

from pathlib import Path

import pytest

from benchmarks.front_cases import CASES, IMAGE_CASES
from benchmarks.fronts import FrontWindows, judge, peer_scale
from benchmarks.latency import summarise
from benchmarks.native_load import NativeLoadFailed, NativeWindow, grpc_payload, http_payload, read_latencies_ns, read_output

OUTPUT = """finished in 1.50s, 4000.00 req/s, 1.01MB/s
requests: 6000 total, 6000 started, 6000 done, 5998 succeeded, 2 failed, 0 errored, 0 timeout
status codes: 5998 2xx, 0 3xx, 0 4xx, 2 5xx
"""


def window(cpu_us: float) -> NativeWindow:
    return NativeWindow(requests=10, elapsed_s=1.0, server_cpu_us=cpu_us, latency=summarise([1_000_000]))


def test_successes_and_time_are_parsed():
    assert read_output(OUTPUT) == (5998, 1.5)


@pytest.mark.parametrize(("text", "seconds"), [("820.00us", 0.00082), ("12.5ms", 0.0125), ("2min", 120.0)])
def test_every_unit_of_time_is_parsed(text: str, seconds: float):
    assert read_output(OUTPUT.replace("1.50s", text))[1] == pytest.approx(seconds)


def test_output_without_a_result_is_refused():
    with pytest.raises(NativeLoadFailed, match="could not connect"):
        read_output("could not connect to the host")


def test_latencies_are_the_third_column_in_microseconds(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("1700000000000000\t200\t120\n1700000000000500\t200\t80\n", encoding="ascii")
    assert read_latencies_ns(log) == [120_000, 80_000]


def test_a_message_gets_its_prefix(tmp_path: Path):
    payload = grpc_payload(b"message", "package.Service/Name", tmp_path / "body")
    assert payload.path == "/package.Service/Name"
    assert (tmp_path / "body").read_bytes() == b"\0\0\0\0\x07message"


def test_request_has_the_headers_that_its_body_needs(tmp_path: Path):
    request = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nInference-Header-Content-Length: 2\r\n\r\n{}"
    payload = http_payload(request, tmp_path / "body")
    assert (payload.path, payload.headers, payload.is_http1) == ("/v2/models/m/infer", ("Inference-Header-Content-Length: 2",), True)
    assert (tmp_path / "body").read_bytes() == b"{}"


def test_medians_are_compared_with_the_bound(tmp_path: Path):
    found = FrontWindows(tmp_path, (), 1.0)
    case = next(each for each in CASES if each.most_cpu_us == 27)
    found.windows["stoker", case.name] = [window(20), window(90), window(26)]
    (verdict,) = judge(found, [case], {"tiny": 5.0})
    assert (verdict.measured, verdict.passed) == (26, True)


def test_model_time_is_subtracted_for_image_cases(tmp_path: Path):
    found = FrontWindows(tmp_path, (), 1.0)
    case = IMAGE_CASES[0]
    found.windows["stoker", case.name] = [window(360), window(300), window(358)]
    (verdict,) = judge(found, [case], {"tiny": 5.0, "slice": 10.0})
    assert (verdict.measured, verdict.limit, verdict.passed) == (348, 350, True)


def test_peer_figures_are_scaled_by_the_echo_of_shared_channels(tmp_path: Path):
    found = FrontWindows(tmp_path, (), 1.0)
    for case in CASES:
        found.windows["echo-bytes", case.name] = [window(1e6 if case.is_one_call_per_channel else 131)] if case.in_flight == 32 else []
    assert peer_scale(found, CASES) == pytest.approx(0.5)
