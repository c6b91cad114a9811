"""The gRPC port tested by HTTP/2 tools without gRPC: curl and nghttp print each header and trailer, h2load sends load."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.server.pb import grpc_service_pb2 as pb
from tests.fakes.server_process import SAMPLE_MODELS, ServerProcess, running_server

SERVICE = "inference.GRPCInferenceService"
GRPC_HEADERS = ("-H", "content-type: application/grpc", "-H", "te: trailers")
A, B = np.arange(16, dtype=np.int32), np.full(16, 3, np.int32)


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


def framed(message: bytes) -> bytes:
    """A gRPC message as it lies in an HTTP/2 body: not compressed, its length, itself."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def infer(model: str = "simple") -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[A.tobytes(), B.tobytes()])
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
    return request


def check_sum(body: bytes) -> None:
    assert framed(body[5:]) == body
    answer = pb.ModelInferResponse.FromString(body[5:])
    assert list(answer.raw_output_contents) == [(A + B).tobytes(), (A - B).tobytes()]


def run(*command: str | Path) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


def curl(server: ServerProcess, method: str, body: bytes, at: Path, *flags: str) -> tuple[str, bytes]:
    """The headers and trailers that curl prints, and the response's body."""
    (at / "request").write_bytes(body)
    url = f"http://{server.grpc}/{SERVICE}/{method}"
    sent = (*GRPC_HEADERS, *flags, "--data-binary", f"@{at / 'request'}")
    done = run("curl", "-sS", "--http2-prior-knowledge", "--dump-header", at / "headers", "-o", at / "answer", *sent, url)
    assert done.returncode == 0, done.stderr
    answer = at / "answer"
    return (at / "headers").read_text().replace("\r", ""), answer.read_bytes() if answer.exists() else b""


@needs("curl")
def test_curl_reads_header_message_and_trailers(server: ServerProcess, tmp_path: Path):
    head, body = curl(server, "ModelInfer", framed(infer().SerializeToString()), tmp_path)
    header, _, trailers = head.partition("\n\n")
    assert header.splitlines()[0].strip() == "HTTP/2 200"
    assert "content-type: application/grpc" in header.splitlines()
    assert "grpc-status" not in header
    assert "grpc-status: 0" in trailers.splitlines()
    check_sum(body)


@needs("curl")
def test_curl_reads_an_error_with_its_text_percent_encoded(server: ServerProcess, tmp_path: Path):
    head, body = curl(server, "ModelInfer", framed(infer("gh\u00f6st").SerializeToString()), tmp_path)
    lines = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    assert head.splitlines()[0].strip() == "HTTP/2 200"
    assert lines["grpc-status"] == "5"
    # grpcio's server sends an empty message with an error; none needs it.
    assert body in (b"", framed(b""))
    assert "unknown model: 'gh%C3%B6st'" in lines["grpc-message"]


@needs("curl")
def test_body_that_is_not_a_grpc_message_gets_a_grpc_error(server: ServerProcess, tmp_path: Path):
    head, _ = curl(server, "ModelInfer", framed(b"\xff\xff\xff"), tmp_path)
    assert re.search(r"^grpc-status: (3|13)$", head, re.MULTILINE), head


#: Ways of HTTP/2 that gRPC's own clients never take: small windows, padded frames, priorities, trailers.
WAYS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "small windows": ("-w", "4", "-W", "16"),
    "padding": ("-b", "64"),
    "priority": ("-p", "7"),
    "no dynamic table": ("-c", "0"),
    "trailers of the client's": ("--trailer", "x-mine: 1"),
}


@needs("nghttp")
@pytest.mark.parametrize("way", WAYS)
def test_nghttp_gets_a_response_with_every_option(way: str, server: ServerProcess, grpc_front: str, tmp_path: Path):
    if way == "padding" and grpc_front.endswith("grpcio"):
        pytest.skip("grpcio's server fails on padded HEADERS frames")
    (tmp_path / "request").write_bytes(framed(infer().SerializeToString()))
    url = f"http://{server.grpc}/{SERVICE}/ModelInfer"
    output = run("nghttp", "-v", "-n", "-m", "3", *WAYS[way], *GRPC_HEADERS, "-d", tmp_path / "request", url)
    shown = output.stdout.decode(errors="replace")
    assert output.returncode == 0, shown
    for line in (r":status: 200", r"content-type: application/grpc", r"grpc-status: 0"):
        assert len(re.findall(rf"recv \(stream_id=\d+\) {line}$", shown, re.MULTILINE)) == 3, shown
    assert "RST_STREAM" not in shown, shown
    got = run("nghttp", *WAYS[way], *GRPC_HEADERS, "-d", tmp_path / "request", url)
    check_sum(got.stdout)


@needs("nghttp")
def test_header_blocks_of_several_frames_are_decoded(grpc_front: str, tmp_path: Path):
    (tmp_path / "request").write_bytes(framed(infer().SerializeToString()))
    # nghttp's test of CONTINUATION sends 24 KiB of fields, which the default limit refuses.
    flags = (f"--model_base_path={SAMPLE_MODELS}", "--limit=grpc_metadata_bytes=32768", grpc_front)
    with running_server(*flags, at=tmp_path / "run") as server:
        url = f"http://{server.grpc}/{SERVICE}/ModelInfer"
        check_sum(run("nghttp", "--continuation", *GRPC_HEADERS, "-d", tmp_path / "request", url).stdout)


@needs("nghttp")
def test_too_many_header_bytes_are_refused_and_the_server_continues(server: ServerProcess, grpc_front: str, tmp_path: Path):
    (tmp_path / "request").write_bytes(framed(infer().SerializeToString()))
    command = ("nghttp", "-v", *GRPC_HEADERS, "-d", tmp_path / "request")
    url = f"http://{server.grpc}/{SERVICE}/ModelInfer"
    answer = run(*command, "--continuation", url).stdout
    # grpcio draws lots for calls a little above its limit, so that clients learn of it early.
    assert b"grpc-status: 8" in answer or ("grpcio" in grpc_front and b"grpc-status: 0" in answer)
    assert b"grpc-status: 0" in run(*command, url).stdout


def successes(server: ServerProcess) -> int:
    statistics: Any = server.json("/v2/models/simple/stats")
    return int(statistics["model_stats"][0]["inference_stats"]["success"]["count"])


LOADS: dict[str, tuple[str, ...]] = {
    "streams": ("-c", "2", "-m", "100"),
    "connections": ("-c", "50", "-m", "1"),
    "small windows": ("-c", "4", "-m", "10", "-w", "6", "-W", "16"),
    "no tables": ("-c", "4", "-m", "10", "--header-table-size=0", "--encoder-header-table-size=0"),
}


@needs("h2load")
@pytest.mark.parametrize("load", LOADS)
def test_h2load_requests_all_get_responses_and_are_counted(load: str, server: ServerProcess, tmp_path: Path):
    count = 3000
    (tmp_path / "request").write_bytes(framed(infer().SerializeToString()))
    before = successes(server)
    url = f"http://{server.grpc}/{SERVICE}/ModelInfer"
    done = run("h2load", "-n", str(count), *LOADS[load], *GRPC_HEADERS, "-d", tmp_path / "request", url)
    shown = done.stdout.decode()
    assert done.returncode == 0, shown
    assert f"{count} done, {count} succeeded, 0 failed, 0 errored, 0 timeout" in shown
    assert f"status codes: {count} 2xx" in shown
    # Its own count is of HTTP's status, which gRPC's errors share: the server's is of requests that ended well.
    assert successes(server) - before == count


@pytest.mark.skipif(not all(map(shutil.which, ("curl", "h2load"))), reason="curl or h2load is not installed")
def test_unix_socket_responds_to_the_same_tools(grpc_front: str, tmp_path: Path):
    (tmp_path / "request").write_bytes(framed(infer().SerializeToString()))
    socket = tmp_path / "g.sock"
    with running_server(f"--model_base_path={SAMPLE_MODELS}", f"--grpc_socket_path={socket}", grpc_front, at=tmp_path / "run") as server:
        sent = (*GRPC_HEADERS, "--data-binary", f"@{tmp_path / 'request'}", f"http://localhost/{SERVICE}/ModelInfer")
        check_sum(run("curl", "-sS", "--http2-prior-knowledge", "--unix-socket", socket, *sent).stdout)
        load = ("-n", "500", "-c", "5", "-m", "10", "-d", tmp_path / "request", f"--base-uri=unix:{socket}")
        shown = run("h2load", *GRPC_HEADERS, *load, f"http://localhost/{SERVICE}/ModelInfer").stdout.decode()
        assert "500 done, 500 succeeded, 0 failed, 0 errored, 0 timeout" in shown
        assert successes(server) == 501
