"""Models with any number of responses to a request, over gRPC streams and server-sent events."""

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.fakes.server_process import ServerProcess, running_server, wait_until

FOREIGN = Path(__file__).parent / "foreign"
CONFIG = """
backend: "repeat"
model_transaction_policy { decoupled: true }
input [
  { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] optional: true },
  { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] optional: true }
]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module", params=["h2", "grpcio"])
def repeating(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of two models of the repeat backend, on either gRPC front."""
    if not entry_points(group="stoker.backends", name="repeat"):
        pytest.skip("the installed distribution is older than the repeat backend: install it again")
    repository = tmp_path_factory.mktemp("repeating")
    for name, more in (("repeat", ""), ("failing", 'parameters { key: "fail_at" value { string_value: "1" } }')):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.repeat").touch()
        (repository / name / "config.pbtxt").write_text(CONFIG + more)
    with running_server(f"--model_base_path={repository}", f"--grpc-front={request.param}", at=tmp_path_factory.mktemp("server")) as server:
        yield server


def test_tritonclient_streams_from_a_decoupled_model(repeating: ServerProcess, clients_python):
    command = [str(clients_python), str(FOREIGN / "decoupled.py"), repeating.grpc, repeating.http]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{repeating.log()[-2000:]}"
    assert done.stdout.split() == ["final", "side-by-side", "many-and-failures", "grpc-error", "refused", "aio"]


def test_events_arrive_when_they_are_produced(repeating: ServerProcess):
    connection = http.client.HTTPConnection("127.0.0.1", repeating.http_port, timeout=30)
    connection.request("POST", "/v2/models/repeat/generate_stream", json.dumps({"IN": [1, 2], "DELAY": [0, 20_000]}))
    response = connection.getresponse()
    assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
    # The second comes twenty seconds later: that the first is here now shows that it did not wait.
    assert json.loads(response.readline().removeprefix(b"data: "))["OUT"] == 1
    connection.close()


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_command_prints_each_response_and_the_error_that_ends_them(repeating: ServerProcess, scheme: str):
    def infer(model: str) -> subprocess.CompletedProcess[str]:
        words = ["infer", model, "--input", "IN=[4, 5]", "--json", "--url", f"{scheme}://{getattr(repeating, scheme)}"]
        command = [sys.executable, "-m", "stoker.cli.main", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = infer("repeat")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["outputs"]["OUT"]["data"] for line in done.stdout.splitlines()] == [[4], [5]]
    failed = infer("failing")
    assert failed.returncode == 1
    assert [json.loads(line)["outputs"]["IDX"]["data"] for line in failed.stdout.splitlines()] == [[0]]
    assert len(failed.stderr.splitlines()) == 1


def test_disconnect_of_the_client_ends_the_work(repeating: ServerProcess):
    def cancelled() -> int:
        text = repeating.get("/metrics")[1].decode()
        return int(text.partition('nv_inference_request_failure{model="repeat",reason="CANCELED",version="1"} ')[2].split()[0])

    before = cancelled()
    connection = http.client.HTTPConnection("127.0.0.1", repeating.http_port, timeout=30)
    # A hundred seconds of responses.
    connection.request("POST", "/v2/models/repeat/generate_stream", json.dumps({"IN": [1] * 2000, "DELAY": [0] + [50] * 1999}))
    assert connection.getresponse().readline().startswith(b"data: ")
    connection.close()
    wait_until(lambda: cancelled() == before + 1, what="the stream to be taken back")


def test_statistics_count_each_stream_once(repeating: ServerProcess):
    def successes() -> int:
        [stats] = repeating.json("/v2/models/repeat/stats")["model_stats"]
        return int(stats["inference_stats"]["success"]["count"])

    before = successes()
    repeating.json("/v2/models/repeat/generate", {"IN": [5]})
    wait_until(lambda: successes() == before + 1, what="the count")
