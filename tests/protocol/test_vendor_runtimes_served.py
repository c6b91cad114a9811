"""Models on the runtimes of vendors behind a real server: fakes of the vendors' packages under their own names, real clients."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from stoker_client import GrpcClient, StokerError
from tests.fakes.gcu_served import doubling, file_of
from tests.fakes.server_process import REPOSITORY_ROOT, ServerProcess, running_server
from tests.fakes.vendor_samples import exec_file, graph_of, popef_file

PACKAGES = REPOSITORY_ROOT / "tests" / "fakes" / "vendor_packages"
DOUBLED = graph_of({"y": ("Add", ["x", "x"])}, TensorProto.FLOAT, (2, 3))
CONFIG = """
max_batch_size: 4
input {{ name: "x" data_type: TYPE_FP32 dims: [ 3 ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ 3 ] }}
backend: "{backend}"
"""
X = np.arange(9, dtype=np.float32).reshape(3, 3)


def write(repository: Path, name: str, backend: str, filename: str, content: bytes) -> None:
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / filename).write_bytes(content)
    (folder.parent / "config.pbtxt").write_text(CONFIG.format(backend=backend))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("vendors")
    repository = folder / "models"
    write(repository, "card", "topsinference", "model.exec", exec_file(DOUBLED))
    write(repository, "ipu", "poplar", "executable.popef", popef_file(DOUBLED))
    write(repository, "simulators_file", "topsinference", "model.exec", file_of(doubling(width=3)))
    paths = os.pathsep.join([str(PACKAGES), str(REPOSITORY_ROOT), os.environ.get("PYTHONPATH", "")])
    # Runs: the probe of the load, the warm-up batches, then those of the tests.
    with running_server(
        f"--model_base_path={repository}",
        "--backend-config=topsinference,runtime=vendor",
        "--backend-config=poplar,runtime=auto",
        "--strict-readiness=false",
        at=folder,
        env={"PYTHONPATH": paths},
    ) as server:
        yield server


@pytest.mark.parametrize("model", ["card", "ipu"])
def test_model_on_the_vendors_runtime_is_served_over_grpc(server: ServerProcess, model: str):
    with GrpcClient(server.grpc) as client:
        for rows in (1, 3):
            np.testing.assert_array_equal(client.infer(model, {"x": X[:rows]})["y"], 2 * X[:rows])


def test_start_states_runtime_and_version(server: ServerProcess):
    text = server.out_path.read_text() + server.log()
    assert "'card' on 1 GCU card (runtime: vendor, TopsInference 2.4.1 (fake))" in text
    assert "'ipu' on IPUs, one device for each instance (runtime: vendor, poprt.runtime 1.5.0 (fake))" in text
    assert "runtime=auto chose vendor: package 'poprt' at " in text


def test_metrics_are_labelled_as_not_simulated(server: ServerProcess):
    lines = [line for line in server.get("/metrics")[1].decode().splitlines() if line.startswith(("stoker_gcu_", "stoker_ipu_"))]
    assert lines
    assert all('simulated="false"' in line for line in lines)


def test_file_of_the_simulator_is_rejected_with_the_reason(server: ServerProcess):
    entries: Any = server.json("/v2/repository/index", {})
    [reason] = [entry["reason"] for entry in entries if entry["name"] == "simulators_file"]
    assert "an executable of Stoker's compiler, for simulated cards" in reason
    with GrpcClient(server.grpc) as client, pytest.raises(StokerError):
        client.infer("simulators_file", {"x": X})


def test_vendor_without_its_package_keeps_the_model_from_loading(tmp_path: Path):
    write(tmp_path / "models", "card", "topsinference", "model.exec", exec_file(DOUBLED))
    flags = (f"--model_base_path={tmp_path / 'models'}", "--backend-config=topsinference,runtime=vendor", "--strict-readiness=false")
    with running_server(*flags, at=tmp_path) as server:
        entries: Any = server.json("/v2/repository/index", {})
        [reason] = [entry["reason"] for entry in entries]
    assert "runtime=vendor needs the vendor's package 'TopsInference'" in reason
