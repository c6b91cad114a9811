"""Iterative sequences over the network, in worker processes and in threads, judged by tritonclient."""

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker_client import GrpcClient, StokerError, Unavailable
from tests.fakes.server_process import ServerProcess, running_server, wait_until

FOREIGN = Path(__file__).parent / "foreign"
MODELS = Path(__file__).parents[1] / "data" / "iterative_models"


def serving(at: Path, execution: str, *, batch: int = 4) -> AbstractContextManager[ServerProcess]:
    """A server of the models, which run in batches of at most `batch` requests."""
    shutil.copytree(MODELS, at / "models")
    # The same model, with one response for all tokens.
    shutil.copytree(MODELS / "tokens" / "1", at / "models" / "all_tokens" / "1")
    for model in (at / "models").iterdir():
        config = model / "config.pbtxt"
        text = config.read_text().replace("max_batch_size: 4", f"max_batch_size: {batch}")
        config.write_text(f'{text}\nparameters {{ key: "execution" value {{ string_value: "{execution}" }} }}\n')
    return running_server(f"--model-repository={at / 'models'}", at=at / "server")


@pytest.fixture(scope="module", params=["process", "thread"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose models run in a worker process or in a thread."""
    with serving(tmp_path_factory.mktemp("iterative"), request.param) as running:
        yield running


def metric(server: ServerProcess, name: str, model: str) -> int:
    found = re.search(rf'^{name}{{model="{model}",version="1"}} (\d+)$', server.get("/metrics")[1].decode(), re.MULTILINE)
    assert found is not None, name
    return int(found[1])


def test_tritonclient_gets_the_tokens_of_requests_that_share_batches(server: ServerProcess, clients_python: Path, tmp_path: Path):
    command = [str(clients_python), str(FOREIGN / "iterative.py"), server.grpc, server.http, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()[-3000:]}"
    assert done.stdout.split() == ["single", "stream", "interleaved", "interleaved-single", "cancelled", "deadline", "state"]


def test_tokens_arrive_as_server_sent_events(server: ServerProcess, tmp_path: Path):
    body = json.dumps({"COUNT": 3, "CRASH": -1, "FOLDER": str(tmp_path)}).encode()
    status, text = server.get("/v2/models/tokens/generate_stream", body, {"content-type": "application/json"})
    events = [json.loads(line.removeprefix("data: ")) for line in text.decode().splitlines() if line]
    assert (status, [event["TOKENS"] for event in events]) == (200, [0, 1, 2])


def test_request_for_one_response_of_a_decoupled_model_is_unsupported(server: ServerProcess, tmp_path: Path):
    with GrpcClient(server.grpc) as client, pytest.raises(StokerError, match="decoupled transaction policy"):
        client.infer("tokens", inputs(tmp_path, 1))


def test_client_that_does_not_read_holds_only_its_own_request_back(server: ServerProcess, tmp_path: Path):
    counts: list[int] = []

    def stands_still() -> bool:
        counts.append(metric(server, "nv_inference_exec_count", "tokens"))
        return len(counts) > 50 and len(set(counts[-50:])) == 1

    with GrpcClient(server.grpc) as slow, GrpcClient(server.grpc) as client:
        unread = slow.stream("tokens", [inputs(tmp_path, 1 << 30) | {"REPEAT": np.array([[50_000]], np.int32)}])
        assert next(unread)["TOKENS"][0, 0] == 0
        wait_until(stands_still, what="the request to wait for its client")
        assert len(list(client.stream("tokens", [inputs(tmp_path, 40)]))) == 40
        assert [int(next(unread)["TOKENS"][0, 0]) for _ in range(200)] == list(range(1, 201))


def inputs(folder: Path, count: int, crash: int = -1) -> dict[str, Any]:
    return {
        "COUNT": np.array([[count]], np.int32),
        "CRASH": np.array([[crash]], np.int32),
        "FOLDER": np.array([[str(folder).encode()]], np.object_),
    }


class Call:
    """A stream of tokens, read by a thread."""

    def __init__(self, server: ServerProcess, folder: Path, count: int, crash: int = -1) -> None:
        self._address = server.grpc
        self._inputs = inputs(folder, count, crash)
        self.tokens: list[int] = []
        self.error: StokerError | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            with GrpcClient(self._address) as client:
                for result in client.stream("tokens", [self._inputs]):
                    self.tokens.append(int(result["TOKENS"][0, 0]))
        except StokerError as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_death_of_the_process_ends_what_it_remembers_and_nothing_else(tmp_path: Path):
    with serving(tmp_path, "process", batch=1) as server:
        (tmp_path / "hold").touch()
        between = Call(server, tmp_path, 1 << 30)
        wait_until((tmp_path / "batches").exists, what="the first step")
        calls = [between]
        for crash in (0, -1):
            calls.append(Call(server, tmp_path, 3, crash))
            waiting = len(calls) - 1
            wait_until(
                lambda waiting=waiting: metric(server, "nv_inference_pending_request_count", "tokens") == waiting,
                what="the request to wait",
            )
        (tmp_path / "hold").unlink()
        for call in calls:
            call.join()
        running, waiting_first = calls[1:]
        assert isinstance(running.error, Unavailable)
        assert "has ended" in str(running.error)
        assert isinstance(between.error, Unavailable)
        assert "the state of the request was lost when the worker process of model 'tokens' ended" in str(between.error)
        assert between.tokens == [0]
        assert (waiting_first.error, waiting_first.tokens) == (None, [0, 1, 2])
        failures = server.get("/metrics")[1].decode()
        assert 'nv_inference_request_failure{model="tokens",reason="OTHER",version="1"} 2' in failures
        assert metric(server, "nv_inference_request_success", "tokens") == 1


def test_shutdown_waits_for_the_last_step(tmp_path: Path):
    with serving(tmp_path, "process") as server:
        (tmp_path / "hold").touch()
        call = Call(server, tmp_path, 5)
        wait_until((tmp_path / "batches").exists, what="the first step")
        server.process.terminate()
        wait_until(lambda: server.get("/v2/health/ready")[0] != 200, what="the shutdown to begin")
        (tmp_path / "hold").unlink()
        call.join()
        assert (call.error, call.tokens) == (None, [0, 1, 2, 3, 4])
        assert server.process.wait(60) == 0
