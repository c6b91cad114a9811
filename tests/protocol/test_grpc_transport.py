"""The promises of the gRPC port on either transport: grpcio's client, curl and h2load against a real server."""

import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from stoker.server.pb import grpc_service_pb2 as pb
from tests.fakes.server_process import SAMPLE_MODELS, ServerProcess, copy_models, running_server, wait_until

IDENTITY = """
backend: "identity"
max_batch_size: 1
input [ {{ name: "IN" data_type: TYPE_UINT8 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_UINT8 dims: [ -1 ] }} ]
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay_ms}" }} }}
"""
SERVICE = "/inference.GRPCInferenceService"
MIB = 1 << 20
LIMITLESS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
Code = grpc.StatusCode


def repository(at: Path) -> Path:
    """`echo` responds at once, `slow` in ten minutes."""
    for name, delay_ms in (("echo", 0), ("slow", 600_000)):
        (at / name / "1").mkdir(parents=True)
        (at / name / "1" / "model.identity").touch()
        (at / name / "config.pbtxt").write_text(IDENTITY.format(delay_ms=delay_ms))
    return copy_models(SAMPLE_MODELS, at, ["simple"])


@pytest.fixture(scope="module")
def echoing(tmp_path_factory: pytest.TempPathFactory, grpc_front: str) -> Iterator[ServerProcess]:
    models = repository(tmp_path_factory.mktemp("models"))
    flags = (f"--model_base_path={models}", "--grpc_reflection", grpc_front)
    with running_server(*flags, at=tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def channel(echoing: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(echoing.grpc, options=LIMITLESS) as opened:
        yield opened


def infer(channel: grpc.Channel):
    return channel.unary_unary(f"{SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString)


def request(data: bytes, model: str = "echo") -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, raw_input_contents=[data])
    message.inputs.add(name="IN", datatype="UINT8", shape=[1, len(data)])
    return message


def in_flight(server: ServerProcess) -> int:
    found = re.search(rb"^stoker_requests_in_flight (\d+)", server.get("/metrics")[1], re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Deflate, grpc.Compression.Gzip])
@pytest.mark.parametrize("size", [1, 100_000, 5 * MIB])
def test_messages_of_any_size_return_unchanged_with_every_compression(channel, compression, size: int):
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    answer = infer(channel)(request(data), compression=compression, timeout=60)
    assert answer.raw_output_contents[0] == data


def test_huge_message_returns_unchanged(channel):
    data = b"0123456789abcdef" * (4 * MIB)
    answer = infer(channel)(request(data), timeout=100)
    assert len(answer.raw_output_contents[0]) == 64 * MIB
    assert answer.raw_output_contents[0] == data


def test_concurrent_calls_of_one_connection_all_get_responses(channel):
    data = [bytes([index % 256]) * (1 + 5000 * (index % 7)) for index in range(300)]
    calls = [infer(channel).future(request(each), timeout=60) for each in data]
    assert [call.result().raw_output_contents[0] for call in calls] == data


def test_binary_and_textual_metadata_are_accepted(channel):
    metadata = (("x-text", "a, b"), ("x-bin", bytes(range(256))), ("x-bin", b""))
    assert infer(channel)(request(b"1"), metadata=metadata, timeout=60).raw_output_contents[0] == b"1"


def test_unknown_services_and_methods_are_unimplemented(channel):
    for path in ("/no.Such/Method", f"{SERVICE}/Nope"):
        for call in (channel.unary_unary(path), lambda data, at=path: next(channel.stream_stream(at)(iter([data])))):
            with pytest.raises(grpc.RpcError) as caught:
                call(b"")
            assert caught.value.code() is Code.UNIMPLEMENTED


def test_deadline_ends_the_call_and_its_work(echoing, channel):
    with pytest.raises(grpc.RpcError) as caught:
        infer(channel)(request(b"1", "slow"), timeout=0.3)
    assert caught.value.code() is Code.DEADLINE_EXCEEDED


def test_cancelled_call_leaves_the_queue(echoing, channel):
    first = infer(channel).future(request(b"1", "slow"))
    second = infer(channel).future(request(b"2", "slow"))
    wait_until(lambda: in_flight(echoing) >= 2, what="both requests to be in flight")
    before = in_flight(echoing)
    second.cancel()
    wait_until(lambda: in_flight(echoing) == before - 1, what="the cancelled request to be gone")
    first.cancel()
    wait_until(lambda: in_flight(echoing) <= before - 2, what="the other one to be gone")


def test_disconnected_client_cancels_its_calls(echoing):
    before = in_flight(echoing)
    with grpc.insecure_channel(echoing.grpc) as leaving:
        call = infer(leaving).future(request(b"1", "slow"))
        wait_until(lambda: in_flight(echoing) > before, what="the request to be in flight")
        assert not call.done()
    wait_until(lambda: in_flight(echoing) <= before, what="the request to be gone")


def test_health_check_and_watch_report_the_status(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    assert stub.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="none"))
    assert caught.value.code() is Code.NOT_FOUND
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="inference.GRPCInferenceService"), timeout=60)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def test_reflection_lists_the_services_and_their_files(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService"),
        reflection_pb2.ServerReflectionRequest(file_by_filename="none.proto"),
    ]
    listed, file, missing = stub.ServerReflectionInfo(iter(asked), timeout=60)
    names = {service.name for service in listed.list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} <= names
    assert file.file_descriptor_response.file_descriptor_proto
    assert missing.error_response.error_code == 5
    final = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    assert next(final(iter(asked), timeout=60)).list_services_response == listed.list_services_response


def test_message_and_metadata_limits_are_enforced(tmp_path, grpc_front):
    models = repository(tmp_path / "models")
    limits = ("--limit=grpc_message_bytes=100000", "--limit=grpc_concurrent_rpcs=2")
    with (
        running_server(f"--model_base_path={models}", grpc_front, *limits, at=tmp_path) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        with pytest.raises(grpc.RpcError) as caught:
            infer(channel)(request(bytes(200_000)), timeout=60)
        assert caught.value.code() is Code.RESOURCE_EXHAUSTED
        held = [infer(channel).future(request(b"1", "slow")) for _ in range(2)]
        wait_until(lambda: in_flight(server) == 2, what="two requests to be in flight")
        with pytest.raises(grpc.RpcError) as caught:
            infer(channel)(request(b"1"), timeout=60)
        assert caught.value.code() is Code.RESOURCE_EXHAUSTED
        for call in held:
            call.cancel()
        wait_until(lambda: in_flight(server) == 0, what="the requests to be gone")
        assert infer(channel)(request(b"1"), timeout=60).raw_output_contents[0] == b"1"


def test_sigterm_drains_calls_in_flight(tmp_path, grpc_front):
    models = tmp_path / "models"
    (models / "slow" / "1").mkdir(parents=True)
    (models / "slow" / "1" / "model.identity").touch()
    (models / "slow" / "config.pbtxt").write_text(IDENTITY.format(delay_ms=1000))
    with (
        running_server(f"--model_base_path={models}", grpc_front, at=tmp_path) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        watched: list[int] = []

        def watch() -> None:
            # It ends with the server, whichever way.
            try:
                watched.extend(each.status for each in stub.Watch(health_pb2.HealthCheckRequest()))
            except grpc.RpcError as error:
                watched.append(-error.code().value[0])

        watching = threading.Thread(target=watch)
        watching.start()
        call = infer(channel).future(request(b"7", "slow"))
        wait_until(lambda: in_flight(server) == 1, what="the request to be in flight")
        server.process.send_signal(signal.SIGTERM)
        assert call.result(60).raw_output_contents[0] == b"7"
        assert server.process.wait(60) == 0
        watching.join(60)
    assert watched[0] == health_pb2.HealthCheckResponse.SERVING


def test_call_beyond_the_exit_timeout_gets_unavailable(tmp_path, grpc_front):
    models = repository(tmp_path / "models")
    with (
        running_server(f"--model_base_path={models}", "--exit-timeout-secs=0.3", grpc_front, at=tmp_path) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        call = infer(channel).future(request(b"7", "slow"))
        wait_until(lambda: in_flight(server) == 1, what="the request to be in flight")
        assert server.stop() == 0
        with pytest.raises(grpc.RpcError) as caught:
            call.result(60)
        assert caught.value.code() in (Code.UNAVAILABLE, Code.CANCELLED)


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl here")
def test_curl_connects_to_the_grpc_port(echoing, grpc_front, tmp_path):
    if grpc_front.endswith("grpcio"):
        pytest.skip("grpcio answers what is not gRPC in ways of its own")
    body = pb.ModelReadyRequest(name="echo").SerializeToString()
    (tmp_path / "body").write_bytes(b"\0" + len(body).to_bytes(4, "big") + body)
    base = ["curl", "--silent", "--show-error", "--http2-prior-knowledge", "--dump-header", "-", "--output", str(tmp_path / "out")]
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    url = f"http://{echoing.grpc}{SERVICE}/ModelReady"
    output = subprocess.run(
        [*base, *headers, "--data-binary", f"@{tmp_path / 'body'}", url], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert output.startswith("HTTP/2 200")
    assert "grpc-status: 0" in output
    answer = (tmp_path / "out").read_bytes()
    assert pb.ModelReadyResponse.FromString(answer[5:]).ready
    for more, status in (([], 405), (["--data", "x"], 415)):
        output = subprocess.run([*base, *more, url], capture_output=True, text=True, timeout=60, check=True).stdout
        assert output.startswith(f"HTTP/2 {status}")


@pytest.mark.skipif(not shutil.which("h2load"), reason="no h2load here")
@pytest.mark.parametrize("shape", [("-c1", "-m32"), ("-c8", "-m1"), ("-c4", "-m100")])
def test_h2load_gets_a_response_for_every_request(echoing, shape, tmp_path):
    message = request(b"1").SerializeToString()
    (tmp_path / "body").write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    output = subprocess.run(
        ["h2load", "-n400", *shape, *headers, "-d", str(tmp_path / "body"), f"http://{echoing.grpc}{SERVICE}/ModelInfer"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "400 succeeded, 0 failed, 0 errored" in output
    assert "status codes: 400 2xx" in output
