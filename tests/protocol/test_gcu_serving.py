"""`model.exec` files behind a real server in a child process: simulated cards, real clients."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.gcu.program import GcuExecutable
from stoker_client import GrpcClient, HttpClient
from tests.fakes.gcu_served import doubling, file_of
from tests.fakes.reload_under_load import check_reloads
from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, copy_models, running_server, wait_until

HELDOUT = REPOSITORY_ROOT / "examples" / "digits" / "heldout.npz"
TENSORS = """
input { name: "x" data_type: DT_FLOAT dims: [ 2 ] }
output { name: "y" data_type: DT_FLOAT dims: [ 2 ] }
"""
CONFIG = 'platform: "topsinference" max_batch_size: 4' + TENSORS


def write_model(repository: Path, name: str, content: GcuExecutable | bytes, config: str = CONFIG) -> None:
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.exec").write_bytes(content if isinstance(content, bytes) else file_of(content))
    (repository / name / "config.pbtxt").write_text(config)


def index(server: ServerProcess) -> dict[str, tuple[str, str]]:
    entries: Any = server.json("/v2/repository/index", {})
    return {entry["name"]: (entry.get("state", ""), entry.get("reason", "")) for entry in entries}


def figure(server: ServerProcess, name: str, *labels: str) -> float:
    """The sum of all figures of that name that have the labels, such as `card="0"`."""
    lines = server.get("/metrics")[1].decode().splitlines()
    found = [line for line in lines if line.startswith(name + "{") and all(label in line for label in labels)]
    assert all('simulated="true"' in line for line in found)
    return sum(float(line.rpartition(" ")[2]) for line in found)


def doubled(server: ServerProcess, model: str, rows: int = 1) -> list[list[float]]:
    with HttpClient(server.http) as client:
        return client.infer(model, {"x": np.array([[1, 2]] * rows, np.float32)})["y"].tolist()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two cards; the digits models, two that double on cards and clusters of their own, and some that cannot be loaded."""
    repository = copy_models(SAMPLE_MODELS, tmp_path_factory.mktemp("models"), ["digits", "digits_gcu"])
    write_model(repository, "spread", doubling(name="spread"), CONFIG + "instance_group { count: 3 }")
    write_model(repository, "second", doubling(name="second"), CONFIG + "instance_group { gpus: 1 }")
    whole = file_of(doubling(name="broken"))
    write_model(repository, "corrupt", whole[:400] + bytes([whole[400] ^ 1]) + whole[401:])
    write_model(repository, "truncated", whole[:-10])
    write_model(repository, "other_card", doubling(card="i10"))
    write_model(repository, "no_such_card", doubling(), CONFIG + "instance_group { gpus: 2 }")
    write_model(repository, "too_many", doubling(), CONFIG + "instance_group { count: 7 }")
    write_model(repository, "too_large", doubling(workspace_bytes=17 << 30))
    write_model(repository, "other_type", doubling(), CONFIG.replace("DT_FLOAT", "DT_HALF"))
    flags = (f"--model_base_path={repository}", "--backend-config=topsinference,cards=2", "--strict-readiness=false")
    with running_server(*flags, at=tmp_path_factory.mktemp("server")) as running:
        yield running


def test_tritonclient_gets_the_same_results_from_the_compiled_model_and_its_source(mixed: ServerProcess, clients_python: Path) -> None:
    script = Path(__file__).parent / "foreign" / "gcu.py"
    command = [str(clients_python), str(script), mixed.grpc, mixed.http, str(HELDOUT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "ok\n", f"{done.stdout}\n{done.stderr}\n{mixed.log()[-2000:]}"


def test_example_is_as_accurate_served_as_in_process(mixed: ServerProcess) -> None:
    command = [sys.executable, str(REPOSITORY_ROOT / "examples/digits/evaluate.py"), "--model", "digits_gcu"]
    done = subprocess.run([*command, "--grpc", mixed.grpc, "--http", mixed.http], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("model", "reasons"),
    [
        ("corrupt", ["'model.exec' is no readable executable", "offset"]),
        ("truncated", ["'model.exec' is no readable executable"]),
        ("other_card", ["compiled for card i10; the simulated cards are i20"]),
        ("no_such_card", ["config.pbtxt:4: instance_group[0].gpus[0]", "has no device 2; it has 0, 1"]),
        ("too_many", ["version 1 of 'too_many' needs 1 cluster of card 0, which has 6, 0 of them without another instance of it"]),
        ("too_large", ["one instance needs 18253611136 bytes of device memory", "has 17179869184"]),
        ("other_type", ["config.pbtxt:2: input[0].data_type", "TYPE_FP16", "TYPE_FP32"]),
    ],
)
def test_unloadable_models_report_their_reason_and_affect_no_other(mixed: ServerProcess, model: str, reasons: list[str]) -> None:
    states = index(mixed)
    assert states[model][0] == "UNAVAILABLE"
    assert all(reason in states[model][1] for reason in reasons), states[model]
    assert all(states[name][0] == "READY" for name in ("digits", "digits_gcu", "spread", "second"))
    assert "/tmp" not in states[model][1]


def test_instances_use_the_cards_and_clusters_of_their_groups(mixed: ServerProcess) -> None:
    for card, clusters in (("0", [2, 2, 2, 2, 2, 2]), ("1", [3, 3, 3, 3, 3, 3])):
        found = [figure(mixed, "stoker_gcu_cluster_instances", f'card="{card}"', f'cluster="{number}"') for number in range(6)]
        assert found == clusters  # digits_gcu on all six, spread on two of them each time; second on card 1 alone
    assert doubled(mixed, "spread", 3) == [[2, 4]] * 3
    before = figure(mixed, "stoker_gcu_runs_total", 'card="1"', 'compiled_batch="1"')
    assert doubled(mixed, "second") == [[2, 4]]
    assert figure(mixed, "stoker_gcu_runs_total", 'card="1"', 'compiled_batch="1"') == before + 1
    assert figure(mixed, "stoker_gcu_hbm_used_bytes", 'card="1"') > 0
    assert figure(mixed, "stoker_gcu_copy_bytes_total", 'direction="to_host"') > 0


def test_reload_under_load_loses_no_request(tmp_path: Path) -> None:
    repository = copy_models(SAMPLE_MODELS, tmp_path / "models", ["digits_gcu"])
    model = repository / "digits_gcu"
    flags = (f"--model_base_path={repository}", "--model-control-mode=explicit", "--load-model=*")
    with running_server(*flags, at=tmp_path / "server") as server:
        used = figure(server, "stoker_gcu_hbm_used_bytes")
        check_reloads(server, model)
        wait_until(lambda: figure(server, "stoker_gcu_hbm_used_bytes") == used, what="the old version's memory back")


def test_card_that_resets_serves_again(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_model(repository, "one", doubling())
    flags = (f"--model_base_path={repository}", "--backend-config=topsinference,faults=reset@2,oom@4")
    with running_server(*flags, at=tmp_path / "server") as server:
        body = b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}'
        assert doubled(server, "one") == [[2, 4]]
        status, text = server.get("/v2/models/one/infer", body)
        assert status == 503
        assert b"TIF_ENGINE_RUN_FAILED" in text
        assert b"it is reset before the next batch" in text
        assert doubled(server, "one") == [[2, 4]]
        assert server.get("/v2/models/one/infer", body)[0] == 500
        assert doubled(server, "one") == [[2, 4]]
        assert figure(server, "stoker_gcu_resets_total") == 1


def test_bad_requests_affect_no_other_request_of_their_batch(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_model(repository, "one", doubling(), CONFIG + "dynamic_batching { max_queue_delay_microseconds: 20000 }")
    bad = (
        b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}',
        b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]}]}',
        b'{"inputs": [{"name": "z", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}',
        b'{"inputs": [{"name": "x", "shape": [5, 2], "datatype": "FP32", "data": [1, 2, 1, 2, 1, 2, 1, 2, 1, 2]}]}',
    )
    with running_server(f"--model_base_path={repository}", at=tmp_path / "server") as server, GrpcClient(server.grpc) as client:
        good = [threading.Thread(target=lambda: found.append(doubled(server, "one"))) for _ in range(6)]
        found: list[list[list[float]]] = []
        for thread in good:
            thread.start()
        answers = [server.get("/v2/models/one/infer", body) for body in bad]
        for thread in good:
            thread.join()
        assert [status for status, _ in answers] == [400] * len(bad)
        assert found == [[[2, 4]]] * 6
        assert client.infer("one", {"x": np.array([[3, 4]], np.float32)})["y"].tolist() == [[6, 8]]


def test_wrong_setting_ends_the_start_with_one_line() -> None:
    command = [sys.executable, "-m", "stoker.server.main", f"--model_base_path={SAMPLE_MODELS}", "--grpc_port=0", "--http_port=0"]
    done = subprocess.run(
        [*command, "--backend-config=gcu,cards=none"], capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY_ROOT
    )
    assert done.returncode != 0
    assert "backend 'topsinference': cards='none': expected a whole number from 1 to 64" in done.stderr
    assert "Traceback" not in done.stderr
