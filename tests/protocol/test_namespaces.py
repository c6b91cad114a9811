"""Model namespaces over the network, judged by tritonclient."""

import subprocess
from pathlib import Path

from tests.fakes.server_process import running_server

CLIENT = Path(__file__).parent / "foreign" / "namespaces.py"
TENSORS = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
ADDING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.requests = pb_utils.MetricFamily("sample_requests", "Requests.", pb_utils.MetricFamily.COUNTER).Metric()

    def execute(self, requests):
        self.requests.increment(len(requests))
        found = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() + NUMBER for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array.astype("float32"))]) for array in found]
"""


def add_model(root: Path, name: str, number: int) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(f'backend: "python"\n{TENSORS}')
    (root / name / "1" / "model.py").write_text(ADDING.replace("NUMBER", str(number)))


def add_ensemble(root: Path, name: str, step: str, namespace: Path | None = None) -> None:
    (root / name / "1").mkdir(parents=True)
    written = "" if namespace is None else f'model_namespace: "{namespace}"'
    maps = 'input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }'
    steps = f'step [ {{ model_name: "{step}" model_version: -1 {written} {maps} }} ]'
    (root / name / "config.pbtxt").write_text(f'platform: "ensemble"\n{TENSORS}\nensemble_scheduling {{ {steps} }}')


def test_tritonclient_sees_the_models_of_all_namespaces(clients_python: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    add_model(first, "m", 1)
    add_model(second, "m", 10)
    add_model(first, "plus", 100)
    add_ensemble(first, "own", "m")
    add_ensemble(second, "own_two", "m")
    add_ensemble(first, "chosen", "m", second)
    add_ensemble(second, "unique", "plus")
    repositories = (f"--model-repository={first}", f"--model-repository={second}")
    flags = ("--model-namespacing=true", "--model-control-mode=explicit", "--load-model=*")
    with running_server(*repositories, *flags, at=tmp_path / "run") as server:
        command = [str(clients_python), str(CLIENT), server.grpc, server.http]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()[-3000:]}"
        text = server.get("/metrics")[1].decode()
        status, error = server.get("/v1/models/m")
        assert status == 400
        assert b"There are 2 identifiers of model 'm' in global map" in error
        assert len(server.json("/v1/models/plus")["model_version_status"]) == 1
    counts = [line for line in text.splitlines() if line.startswith("nv_inference_request_success{") and 'model="m"' in line]
    labels = [f'{{model="m",namespace="{root}",version="1"}}' for root in (first, second)]
    assert counts == [f"nv_inference_request_success{labels[0]} 2", f"nv_inference_request_success{labels[1]} 4"]
    series = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_two_folders_of_one_name_are_unavailable_without_namespaces(tmp_path: Path) -> None:
    roots = tmp_path / "first", tmp_path / "second"
    for number, root in enumerate(roots):
        add_model(root, "m", number)
    repositories = [f"--model-repository={root}" for root in roots]
    with running_server(*repositories, "--strict-readiness=false", at=tmp_path / "run") as server:
        status, text = server.get("/v2/repository/index", b"{}")
        assert status == 200
        assert b"the name is taken in model repositories 1 ('first') and 2 ('second')" in text
        assert server.get("/v2/models/m/ready")[0] == 400
