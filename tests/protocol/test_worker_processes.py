"""Models in worker processes that crash, hang and misbehave, beside a model that must not notice."""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest

from stoker_client import DeadlineExceeded, GrpcClient, HttpClient, StokerError, Unavailable
from tests.fakes.crashing_backend import inputs, install, write_model
from tests.fakes.process_facts import descriptors, group, is_alive, resident_bytes, shared_memory, workers
from tests.fakes.server_process import ServerProcess, running_server, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

#: Instances of the model that is killed many times.
INSTANCES = 3
#: Between the requests of a client: clients that send without a pause would take the time of the processes that start.
PAUSE_S = 0.005
ROW = np.arange(16, dtype=np.float32).reshape(1, 16)
NEIGHBOUR = """
backend: "identity"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
TIMEOUT = {"instance_timeout": "1.0"}
MODELS: dict[str, dict[str, str]] = {
    **{name: {} for name in ("segv", "null", "exit", "abort", "kill", "close", "print", "fork", "deaf", "raise", "eject", "mates")},
    "loop": TIMEOUT,
    "gil": TIMEOUT,
    "memory": {},
    "limited": {"instance_memory_limit_bytes": str(1 << 30)},
    "dies": {"load_fault": "segv"},
    "exits": {"load_fault": "exit 7"},
    "tells": {"load_fault": "path"},
}


def write_repository(repository: Path) -> None:
    for name, parameters in MODELS.items():
        write_model(repository, name, **parameters)
    write_model(repository, "many", f"instance_group [ {{ count: {INSTANCES} }} ]")
    (repository / "neighbour" / "1").mkdir(parents=True)
    (repository / "neighbour" / "config.pbtxt").write_text(NEIGHBOUR)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of the neighbour; each test loads a model of its own."""
    folder = tmp_path_factory.mktemp("processes")
    write_repository(folder / "models")
    with running_server(
        f"--model_base_path={folder / 'models'}",
        "--model-control-mode=explicit",
        "--load-model=neighbour",
        at=folder / "server",
        env={"PYTHONPATH": install(folder / "installed")},
    ) as running:
        yield running


class Beside:
    """Requests to the neighbour while a test runs: none may fail."""

    def __init__(self, server: ServerProcess, clients: int = 2) -> None:
        self._address = server.http
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(clients)]
        self.sent = 0
        self.failures: list[Exception] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "Beside":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: "type[BaseException] | None", error: "BaseException | None", trace: "TracebackType | None") -> None:
        if kind is None:
            begun = self.sent
            wait_until(lambda: self.sent >= begun + 20 or bool(self.failures), what="responses of the neighbour")
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        if kind is None:
            assert self.failures == []

    def _send(self) -> None:
        with HttpClient(self._address) as client:
            while not self._is_over.wait(PAUSE_S):
                try:
                    result = client.infer("neighbour", {"IN": ROW})["OUT"]
                    assert result.tolist() == ROW.tolist()
                except Exception as error:  # any failure at all fails the test
                    self.failures.append(error)
                with self._lock:
                    self.sent += 1


class Model:
    """A loaded model under the test's commands."""

    def __init__(self, server: ServerProcess, name: str) -> None:
        self.server = server
        self.name = name
        self.sent = 0
        server.json(f"/v2/repository/models/{name}/load", {})

    def send(self, *commands: str, grpc: bool = False) -> list[str]:
        """One request; its results."""
        self.sent += 1
        if grpc:
            with GrpcClient(self.server.grpc) as client:
                return _texts(client.infer(self.name, inputs(*commands))["OUT"])
        with HttpClient(self.server.http) as client:
            return _texts(client.infer(self.name, inputs(*commands))["OUT"])

    def error(self, *commands: str, grpc: bool = False) -> StokerError:
        """The error of a request that must fail."""
        with pytest.raises(StokerError) as raised:
            self.send(*commands, grpc=grpc)
        return raised.value

    @property
    def pid(self) -> int:
        return int(self.send("pid")[0])

    @property
    def is_ready(self) -> bool:
        return self.server.get(f"/v2/models/{self.name}/ready")[0] == 200

    @property
    def reason(self) -> str:
        """Its reason in the repository index."""
        [entry] = [each for each in self.server.json("/v2/repository/index", {}) if each["name"] == self.name]
        return f"{entry.get('state', '')} {entry.get('reason', '')}"

    def outcomes(self) -> dict[str, int]:
        """The requests by outcome, as the metrics count them."""
        found = {}
        for line in self.server.get("/metrics")[1].decode().splitlines():
            if line.startswith("nv_inference_request_") and f'model="{self.name}"' in line and "duration" not in line:
                key, value = line.rsplit(" ", 1)
                found[key.partition('reason="')[2].partition('"')[0] or "success"] = int(float(value))
        return found

    def unload(self) -> None:
        self.server.json(f"/v2/repository/models/{self.name}/unload", {})


def _texts(array: Any) -> list[str]:
    return [element.decode() if isinstance(element, bytes) else str(element) for element in np.asarray(array).ravel().tolist()]


def assert_no_path(text: str) -> None:
    assert not re.search(r"(?<![\w.])/(tmp|work|root|home|usr|var|proc)\b|\.py\b", text), text


FAULTS = {
    "segv": ("segv", "signal SIGSEGV"),
    "null": ("null", "signal SIGSEGV"),
    "exit": ("exit 3", "exit code 3"),
    "abort": ("abort", "signal SIGABRT"),
    "kill": ("kill", "signal SIGKILL"),
    "close": ("close", "has ended: it "),
}


@pytest.mark.parametrize("name", FAULTS)
def test_crash_costs_its_batch_one_error_and_the_model_serves_again(server, name):
    command, how = FAULTS[name]
    with Beside(server):
        model = Model(server, name)
        first = model.pid
        for grpc in (False, True):
            error = model.error(command, grpc=grpc)
            assert isinstance(error, Unavailable)
            assert f"the worker process of model '{name}' has ended" in str(error)
            assert how in str(error)
            assert_no_path(str(error))
            # The next request waits for the restart.
            assert model.send("again", grpc=grpc) == ["again"]
        assert model.pid != first
        assert model.is_ready
        assert not is_alive(first)
    outcomes = model.outcomes()
    assert sum(outcomes.values()) == model.sent
    assert outcomes["success"] == model.sent - 2
    assert outcomes["OTHER"] == 2
    model.unload()


def test_requests_in_other_batches_are_not_affected_and_every_request_has_one_outcome(server):
    model = Model(server, "mates")
    commands = ["value"] * 15 + ["segv"] + ["value"] * 16 + ["kill"] + ["value"] * 16 + ["exit 9"] + ["value"] * 30
    seen: list[str] = []
    with Beside(server), concurrent.futures.ThreadPoolExecutor(8) as pool:

        def send(command: str) -> str:
            with HttpClient(server.http) as client:
                try:
                    return _texts(client.infer("mates", inputs(command))["OUT"])[0]
                except Unavailable as error:
                    return str(error)

        seen = list(pool.map(send, commands))
    served = sum(text == "value" for text in seen)
    failed = [text for text in seen if text != "value"]
    # Three batches of at most eight requests died.
    assert 3 <= len(failed) <= 3 * 8
    assert all("has ended" in text for text in failed)
    assert {"SIGSEGV", "SIGKILL", "exit code 9"} <= {how for text in failed for how in ("SIGSEGV", "SIGKILL", "exit code 9") if how in text}
    outcomes = model.outcomes()
    assert outcomes["success"] == served
    assert sum(outcomes.values()) == len(commands)
    model.unload()


@pytest.mark.parametrize("name", ["loop", "gil"])
def test_hang_ends_after_the_time_of_the_instance(server, name):
    with Beside(server):
        model = Model(server, name)
        for grpc in (False, True):
            error = model.error(name, grpc=grpc)
            assert isinstance(error, DeadlineExceeded)
            assert "made no progress for 1 s (instance_timeout)" in str(error)
            assert_no_path(str(error))
            assert model.send("again", grpc=grpc) == ["again"]
    assert sum(model.outcomes().values()) == model.sent
    model.unload()


def test_memory_limit_costs_the_request_that_needs_more(server):
    with Beside(server):
        model = Model(server, "limited")
        first = model.pid
        error = model.error(f"memory {2 << 30}")
        assert "MemoryError" in str(error)
        assert_no_path(str(error))
        assert model.send("memory 1000000") == ["1000000"]
        assert model.pid == first
    model.unload()


def test_model_that_prints_much_neither_fills_the_log_nor_the_memory(server):
    before = resident_bytes(server.process.pid)
    log_bytes = server.log_path.stat().st_size
    with Beside(server):
        model = Model(server, "print")
        assert model.send("print 20") == ["print"]
        assert model.send("print 1000000") == ["print"]
        assert model.send("again") == ["again"]
    assert resident_bytes(server.process.pid) - before < 16 << 20
    assert server.log_path.stat().st_size - log_bytes < 4 << 20
    model.unload()


def test_processes_that_a_model_has_started_end_with_it(server):
    with Beside(server):
        model = Model(server, "fork")
        first = model.pid
        helper = int(model.send("fork")[0])
        assert group(first) == {first, helper}
        error = model.error("segv")
        assert "signal SIGSEGV" in str(error)
        assert model.send("again") == ["again"]
        wait_until(lambda: not group(first), what="the end of the group", patience_s=5)
        second = model.pid
        model.send("fork")
        model.unload()
        wait_until(lambda: not group(second), what="the end of the group", patience_s=5)


def test_process_that_ignores_signals_ends_with_the_unload(server):
    model = Model(server, "deaf")
    pid = model.pid
    model.send("deaf")
    model.unload()
    wait_until(lambda: not is_alive(pid), what="the end of the process", patience_s=10)


def test_exception_of_the_model_costs_only_its_request(server):
    model = Model(server, "raise")
    pid = model.pid
    assert "RuntimeError: no such thing as it" in str(model.error("raise it"))
    assert model.pid == pid
    wait_until(lambda: "Traceback (most recent call last)" in server.log(), what="the traceback in the log", patience_s=5)
    model.unload()


def test_fifth_crash_in_a_minute_ejects_the_model_and_a_reload_returns_it(server):
    with Beside(server):
        model = Model(server, "eject")
        for _ in range(5):
            assert "SIGSEGV" in str(model.error("segv"))
        wait_until(lambda: "is ejected" in model.reason, what="the ejection")
        error = model.error("again")
        assert isinstance(error, Unavailable)
        assert "is ejected after repeated deaths" in str(error)
        assert_no_path(str(error) + model.reason)
        assert "SIGSEGV" in model.reason
        assert model.reason.startswith("UNAVAILABLE")
        assert not model.is_ready
        assert server.get("/v2/health/live")[0] == 200
        assert server.get("/v2/models/neighbour/ready")[0] == 200
        assert server.get("/v2/health/ready")[0] != 200
        server.json("/v2/repository/models/eject/load", {})
        assert model.is_ready
        assert server.get("/v2/health/ready")[0] == 200
        assert model.send("again") == ["again"]
    assert sum(model.outcomes().values()) == model.sent
    model.unload()


@pytest.mark.parametrize(
    ("name", "how"), [("dies", "signal SIGSEGV"), ("exits", "exit code 7"), ("tells", "RuntimeError: cannot read weights.bin")]
)
def test_process_that_fails_while_it_loads_gives_the_reason_and_leaves_nothing(server, name, how):
    before = workers(server.process.pid)
    with Beside(server):
        status, text = server.get(f"/v2/repository/models/{name}/load", b"{}")
    assert status == 400, text
    assert how in text.decode()
    assert_no_path(json.loads(text)["error"])
    [entry] = [each for each in server.json("/v2/repository/index", {}) if each["name"] == name]
    assert how in entry["reason"]
    assert_no_path(entry["reason"])
    assert workers(server.process.pid) == before


@pytest.mark.timeout(300)
def test_many_kills_leave_memory_descriptors_and_shared_memory_as_they_were(server):
    model = Model(server, "many")
    names = shared_memory()

    def kill_under_load(rounds: int) -> None:
        is_over = threading.Event()

        def send() -> None:
            with HttpClient(server.http) as client:
                while not is_over.wait(PAUSE_S):
                    with contextlib.suppress(Unavailable):
                        client.infer("many", inputs("x" * 20_000, "y"))

        senders = [threading.Thread(target=send) for _ in range(2)]
        for sender in senders:
            sender.start()
        try:
            for count in range(rounds):
                if count % 3 == 0:  # before an instance is ejected
                    server.json("/v2/repository/models/many/load", {})
                # After a reload, the processes of the old version end.
                wait_until(lambda: len(workers(server.process.pid)) == INSTANCES, what="the processes", patience_s=20)
                killed = workers(server.process.pid)
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
                wait_until(
                    lambda killed=killed: len(workers(server.process.pid) - killed) == INSTANCES and model.is_ready,
                    what="a restart",
                    patience_s=20,
                )
        finally:
            is_over.set()
            for sender in senders:
                sender.join()

    with Beside(server, clients=1):
        kill_under_load(4)
        assert model.send("again") == ["again"]
        resident, open_descriptors = resident_bytes(server.process.pid), descriptors(server.process.pid)
        kill_under_load(50 // INSTANCES + 1)
        assert model.send("again") == ["again"]
        grown = resident_bytes(server.process.pid) - resident
        # A segment more or less may be open in each direction of each channel.
        wait_until(
            lambda: abs(descriptors(server.process.pid) - open_descriptors) <= 2 * INSTANCES, what="as many descriptors", patience_s=10
        )
    assert grown <= 4 << 20
    assert shared_memory() == names
    model.unload()
    wait_until(lambda: not workers(server.process.pid), what="no process", patience_s=10)


def test_unload_and_reload_return_the_memory_of_the_process(server):
    model = Model(server, "memory")
    first = model.pid
    assert model.send(f"memory {200 << 20}") == [str(200 << 20)]
    server.json("/v2/repository/models/memory/load", {})
    assert model.pid != first
    assert not is_alive(first)
    second = model.pid
    model.unload()
    wait_until(lambda: not is_alive(second), what="the end of the process", patience_s=10)


# -- the server's own end


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of the test's own."""
    write_model(tmp_path / "models", "many")
    write_model(tmp_path / "models", "late", load_fault="sleep 60", fault_file=str(tmp_path / "slow"))
    with running_server(
        f"--model_base_path={tmp_path / 'models'}",
        "--model-control-mode=explicit",
        "--load-model=*",
        at=tmp_path / "server",
        env={"PYTHONPATH": install(tmp_path / "installed")},
    ) as running:
        yield running


def test_unload_during_a_restart_that_hangs_ends_it(own, tmp_path):
    model = Model(own, "late")
    (tmp_path / "slow").touch()
    os.kill(model.pid, signal.SIGKILL)
    wait_until(lambda: not model.is_ready, what="the death")
    wait_until(lambda: len(workers(own.process.pid)) == 2, what="the next start", patience_s=10)
    model.unload()
    wait_until(lambda: len(workers(own.process.pid)) == 1, what="the end of the start", patience_s=10)


@pytest.mark.parametrize("command", ["idle", "gil", "loop", "fork"])
def test_killed_server_leaves_no_process(own, command):
    pids = workers(own.process.pid)
    assert len(pids) == 2
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        sent = pool.submit(own.get, "/v2/models/many/infer", _body(command))
        if command in ("gil", "loop"):
            wait_until(lambda: any(_cpu_ticks(pid) > 60 + 20 for pid in pids), what="a busy process")
        else:
            sent.result()
        groups = set().union(*(group(pid) for pid in pids))
        own.process.kill()
        own.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in groups), what="the end of all processes", patience_s=5)
        if command in ("gil", "loop"):
            assert isinstance(sent.exception(), OSError)


def _body(command: str) -> bytes:
    tensor = {"name": "COMMAND", "shape": [1, 1], "datatype": "BYTES", "data": [command]}
    return json.dumps({"inputs": [tensor]}).encode()


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_terminated_server_ends_its_requests_and_processes_first(own):
    pids = workers(own.process.pid)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(own.get, "/v2/models/many/infer", _body("sleep 1")) for _ in range(3)]
        wait_until(lambda: b"\nstoker_requests_in_flight 3" in own.get("/metrics")[1], what="requests")
        assert own.stop() == 0
        assert [each.result()[0] for each in sent] == [200, 200, 200]
    assert not any(is_alive(pid) for pid in pids)


def test_reload_during_a_restart_serves_again(own, tmp_path):
    model = Model(own, "late")
    (tmp_path / "slow").touch()
    os.kill(model.pid, signal.SIGKILL)
    wait_until(lambda: not model.is_ready, what="the death")
    wait_until(lambda: len(workers(own.process.pid)) == 2, what="the next start, which takes a minute", patience_s=10)
    (tmp_path / "slow").unlink()
    own.json("/v2/repository/models/late/load", {})
    assert model.send("again") == ["again"]
    assert model.is_ready
    wait_until(lambda: len(workers(own.process.pid)) == 2, what="one process for each model", patience_s=15)
