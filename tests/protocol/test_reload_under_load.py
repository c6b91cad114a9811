"""Reloads while requests pour in: good ones lose nothing, bad ones change nothing."""

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from stoker_client import GrpcClient, HttpClient
from tests.fakes.server_process import ServerProcess, running_server, wait_until

CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "X" data_type: TYPE_{dtype} dims: [ 4 ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }} ]
dynamic_batching {{ }}
"""


def write_version(model: Path, version: int, added: float, *, config: str | None = None) -> None:
    """A version that returns X + `added`, moved into place atomically."""
    shape: list[str | int | None] = ["n", 4]
    graph = helper.make_graph(
        [helper.make_node("Add", ["X", "C"], ["Y"])],
        "add",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, shape)],
        [helper.make_tensor("C", TensorProto.FLOAT, [1], [added])],
    )
    draft = model / f".draft-{version}"
    draft.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), draft / "model.onnx")
    (model / "config.pbtxt").write_text(config or CONFIG.format(dtype="FP32"))
    draft.rename(model / str(version))


class Load:
    """Clients that send requests without pause, over gRPC and HTTP, until the block ends; checks every response."""

    def __init__(self, server: ServerProcess, allowed: set[float]) -> None:
        self._server = server
        self.allowed = allowed
        self.answered = 0
        self.failures: list[str] = []
        self.seen: set[float] = set()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(kind,)) for kind in (GrpcClient, HttpClient)]

    @contextlib.contextmanager
    def running(self) -> Iterator["Load"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def wait_answers(self, more: int) -> None:
        goal = self.answered + more
        wait_until(lambda: self.answered >= goal or bool(self.failures), what="answers under load")

    def _ask(self, kind: type[GrpcClient] | type[HttpClient]) -> None:
        end = time.monotonic() + 90
        address = self._server.grpc if kind is GrpcClient else self._server.http
        with kind(address) as client:
            while not self._stop.is_set() and time.monotonic() < end and self.answered < 100_000:
                try:
                    answer = client.infer("m", {"X": np.zeros((1, 4), np.float32)})["Y"]
                except Exception as error:
                    self.failures.append(repr(error))
                    return
                self.seen.add(float(answer[0, 0]))
                if float(answer[0, 0]) not in self.allowed:
                    self.failures.append(f"answer {answer} of a version that was never right")
                    return
                self.answered += 1


@pytest.mark.slow
def test_thirty_reloads_under_load_lose_no_request(tmp_path):
    models = tmp_path / "models"
    write_version(models / "m", 1, 1.0)
    with running_server(f"--model_base_path={models}", "--model-control-mode=explicit", "--load-model=m", at=tmp_path) as server:
        load = Load(server, allowed={1.0})
        with load.running(), HttpClient(server.http) as admin:
            for number in range(2, 32):
                load.allowed.add(float(number))
                write_version(models / "m", number, float(number))
                shutil.rmtree(models / "m" / str(number - 1))
                admin.load("m")
                # After load has returned no new request reaches the old version.
                for _ in range(3):
                    assert float(admin.infer("m", {"X": np.zeros((1, 4), np.float32)})["Y"][0, 0]) == float(number)
                load.wait_answers(5)
        assert load.failures == []
        assert load.answered >= 150
        assert {1.0, 31.0} <= load.seen
        assert server.stop() == 0


def corrupt(model: Path) -> None:
    (model / "2").mkdir()
    (model / "2" / "model.onnx").write_bytes(b"\x07" * 500)


def truncated(model: Path) -> None:
    whole = (model / "1" / "model.onnx").read_bytes()
    (model / "2").mkdir()
    (model / "2" / "model.onnx").write_bytes(whole[: len(whole) // 2])


def half_copied(model: Path) -> None:
    (model / "2").mkdir()
    (model / "2" / "model.onnx.part").write_bytes(b"\x08\x0a")


def wrong_dtype(model: Path) -> None:
    (model / "config.pbtxt").write_text(CONFIG.format(dtype="INT64"))


def config_typo(model: Path) -> None:
    (model / "config.pbtxt").write_text(CONFIG.format(dtype="FP32").replace("max_batch_size", "max_batchsize"))


def missing_backend(model: Path) -> None:
    (model / "config.pbtxt").write_text(CONFIG.format(dtype="FP32").replace("onnxruntime", "no_such_engine"))


BAD_RELOADS = {
    corrupt: "model.onnx",
    truncated: "model.onnx",
    half_copied: "model.onnx",
    wrong_dtype: "INT64",
    config_typo: "max_batchsize",
    missing_backend: "no_such_engine",
}


@pytest.mark.slow
@pytest.mark.parametrize("control", ["explicit", "poll"])
def test_bad_reload_leaves_the_loaded_model_and_a_corrected_one_loads(control, tmp_path):
    models = tmp_path / "models"
    write_version(models / "m", 1, 1.0)
    flags = ["--load-model=m"] if control == "explicit" else ["--repository-poll-secs=0.2", "--settle-secs=0.1"]
    with running_server(f"--model_base_path={models}", f"--model-control-mode={control}", *flags, at=tmp_path) as server:
        load = Load(server, allowed={1.0, 9.0})
        with load.running(), HttpClient(server.http) as admin:
            for spoil, named in BAD_RELOADS.items():
                before = failures(server)
                spoil(models / "m")
                if control == "explicit":
                    status, body = server.get("/v2/repository/models/m/load", b"{}")
                    assert status == 400, body
                    assert named in json.loads(body)["error"], (spoil.__name__, body)
                wait_until(lambda before=before: failures(server) > before, what=f"{spoil.__name__} to be noticed")
                assert named in reasons(server), (spoil.__name__, reasons(server))
                assert server.get("/v2/health/ready")[0] == 200, spoil.__name__
                load.wait_answers(10)
                assert load.failures == [], spoil.__name__
                shutil.rmtree(models / "m" / "2", ignore_errors=True)
                (models / "m" / "config.pbtxt").write_text(CONFIG.format(dtype="FP32"))
                if control == "explicit":
                    admin.load("m")
                else:
                    wait_until(lambda: reasons(server) == "", what="the mended model to be taken")
            write_version(models / "m", 3, 9.0)
            if control == "explicit":
                admin.load("m")
            wait_until(lambda: 9.0 in load.seen or bool(load.failures), what="the new version to answer")
        assert load.failures == []
        assert "failed" in server.log()
        assert server.stop() == 0


def reasons(server: ServerProcess) -> str:
    return " ".join(entry.get("reason", "") for entry in server.json("/v2/repository/index", {})).strip()


def failures(server: ServerProcess) -> float:
    lines = server.get("/metrics")[1].decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith('stoker_model_load_failures_total{model="m"'))
