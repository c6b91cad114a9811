"""PopEF models behind a real server in a child process: simulated IPUs, real clients."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.compiler.cli import main as compile_command
from stoker_client import GrpcClient, HttpClient
from tests.fakes.ipu_programs import doubling
from tests.fakes.ipu_served import popef
from tests.fakes.reload_under_load import check_reloads
from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, copy_models, running_server

HELDOUT = REPOSITORY_ROOT / "examples" / "digits" / "heldout.npz"
CONFIG = """
backend: "ipu"
max_batch_size: 2
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
FUSION = """
target: ipu
export_popef: true
model_repository: {repository}
model_name: pair
output_dir: {scratch}
batch_axis: 0
model_fusion:
 - {{ input_model: {models}/digits/1/model.onnx, batch_size: 32, precision: fp16 }}
 - {{ input_model: {models}/simple/1/model.onnx, batch_size: 8 }}
"""


def write_model(repository: Path, name: str, content: bytes, config: str = CONFIG) -> None:
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "executable.popef").write_bytes(content)
    (repository / name / "config.pbtxt").write_text(config)


def index(server: ServerProcess) -> dict[str, tuple[str, str]]:
    entries: Any = server.json("/v2/repository/index", {})
    return {entry["name"]: (entry.get("state", ""), entry.get("reason", "")) for entry in entries}


def figure(server: ServerProcess, name: str) -> float:
    """The sum over all devices."""
    lines = server.get("/metrics")[1].decode().splitlines()
    found = [line for line in lines if line.startswith(name + "{")]
    assert all('simulated="true"' in line for line in found)
    return sum(float(line.rpartition(" ")[2]) for line in found)


def doubled(server: ServerProcess, model: str) -> list[float]:
    with HttpClient(server.http) as client:
        return client.infer(model, {"x": np.array([[1, 2]], np.float32)})["y"][0].tolist()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One simulated IPU; the digits models, two more that double, and some that cannot be loaded."""
    repository = copy_models(SAMPLE_MODELS, tmp_path_factory.mktemp("models"), ["digits", "digits_ipu"])
    write_model(repository, "one", popef(doubling((2, 2)), name="one"))
    write_model(repository, "two", popef(doubling((2, 2)), name="two"))
    whole = popef(doubling((2, 2)), name="broken")
    write_model(repository, "corrupt", whole[:400] + bytes([whole[400] ^ 1]) + whole[401:])
    write_model(repository, "truncated", whole[:-10])
    write_model(repository, "old", popef(doubling((2, 2)), hash_text="00ff00ff"))
    write_model(repository, "large", popef(doubling((2, 2)), num_ipus=16))
    write_model(repository, "larger_batch", popef(doubling((4, 2))))
    flags = (f"--model_base_path={repository}", "--backend-config=poplar,sim_num_IPUs=1", "--strict-readiness=false")
    with running_server(*flags, at=tmp_path_factory.mktemp("server")) as running:
        yield running


def test_tritonclient_gets_the_same_results_from_the_compiled_model_and_its_source(mixed: ServerProcess, clients_python: Path) -> None:
    script = Path(__file__).parent / "foreign" / "ipu.py"
    command = [str(clients_python), str(script), mixed.grpc, mixed.http, str(HELDOUT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "ok\n", f"{done.stdout}\n{done.stderr}\n{mixed.log()[-2000:]}"


@pytest.mark.parametrize("model", ["digits", "digits_ipu"])
def test_example_is_as_accurate_served_as_in_process(mixed: ServerProcess, model: str) -> None:
    command = [sys.executable, str(REPOSITORY_ROOT / "examples/digits/evaluate.py"), "--model", model]
    done = subprocess.run([*command, "--grpc", mixed.grpc, "--http", mixed.http], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("model", "reasons"),
    [
        ("corrupt", ["'executable.popef' is no readable PopEF file", "offset"]),
        ("truncated", ["'executable.popef' is no readable PopEF file", "offset"]),
        ("old", ["package hash is 00ff00ff, this runtime's is "]),
        ("large", ["wanted 16 IPU(s)", "1 usable IPU(s)"]),
        ("larger_batch", ["max_batch_size", "fixed to max_batch_size"]),
    ],
)
def test_unloadable_models_report_their_reason_and_affect_no_other(mixed: ServerProcess, model: str, reasons: list[str]) -> None:
    states = index(mixed)
    assert states[model][0] == "UNAVAILABLE"
    assert all(reason in states[model][1] for reason in reasons), states[model]
    assert all(states[name][0] == "READY" for name in ("digits", "digits_ipu", "one", "two"))
    assert "/tmp" not in states[model][1]


def test_models_that_share_an_ipu_evict_each_other_and_the_start_reports_it(mixed: ServerProcess) -> None:
    evictions, loading_s = figure(mixed, "stoker_ipu_evictions_total"), figure(mixed, "stoker_ipu_load_seconds_total")
    for _ in range(2):
        assert doubled(mixed, "one") == [2, 4]
        assert doubled(mixed, "two") == [2, 4]
    assert figure(mixed, "stoker_ipu_evictions_total") >= evictions + 3
    assert figure(mixed, "stoker_ipu_load_seconds_total") > loading_s
    [note] = [line for line in mixed.out_path.read_text().splitlines() if "is shared by" in line]
    assert note.startswith("note: simulated IPU 0 is shared by 3 executables (")
    assert all(f"'{name}'" in note for name in ("digits_ipu", "one", "two"))


def test_fused_executable_is_served_as_one_model_a_sub_graph(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    (tmp_path / "fusion.yaml").write_text(FUSION.format(repository=repository, scratch=tmp_path / "out", models=SAMPLE_MODELS))
    assert compile_command(["--config_yaml", str(tmp_path / "fusion.yaml")]) == 0
    with running_server(f"--model_base_path={repository}", at=tmp_path / "server") as server, GrpcClient(server.grpc) as client:
        left, right = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)
        for rows in (1, 32):
            scores = client.infer("pair_graph0", {"image": np.zeros((rows, 8, 8), np.float32)})["scores"]
            assert scores.shape == (rows, 10)
            found = client.infer("pair_graph1", {"INPUT0": left, "INPUT1": right})
            assert found["OUTPUT0"].tolist() == (left + right).tolist()
            assert found["OUTPUT1"].tolist() == (left - right).tolist()
        assert figure(server, "stoker_ipu_executables") == 1
        assert figure(server, "stoker_ipu_loads_total") == 1


def test_reload_under_load_loses_no_request(tmp_path: Path) -> None:
    repository = copy_models(SAMPLE_MODELS, tmp_path / "models", ["digits_ipu"])
    model = repository / "digits_ipu"
    flags = (f"--model_base_path={repository}", "--model-control-mode=explicit", "--load-model=*")
    with running_server(*flags, at=tmp_path / "server") as server:
        check_reloads(server, model)


def test_device_that_resets_serves_again(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_model(repository, "one", popef(doubling((2, 2))))
    flags = (f"--model_base_path={repository}", "--backend-config=poplar,faults=reset@2,reset@4")
    with running_server(*flags, at=tmp_path / "server") as server:
        body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
        assert doubled(server, "one") == [2, 4]
        status, text = server.get("/v2/models/one/infer", str(body).replace("'", '"').encode())
        assert status == 503
        assert b"IPU_RESET; it is reset before the next batch" in text
        assert doubled(server, "one") == [2, 4]
        assert figure(server, "stoker_ipu_faults_total") == 1


def test_wrong_setting_ends_the_start_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stoker.server.main", f"--model_base_path={SAMPLE_MODELS}", "--grpc_port=0", "--http_port=0"]
    done = subprocess.run(
        [*command, "--backend-config=poplar,sim_num_IPUs=none"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=REPOSITORY_ROOT,
    )
    assert done.returncode != 0
    assert "sim_num_IPUs='none'" in done.stderr
    assert "Traceback" not in done.stderr
