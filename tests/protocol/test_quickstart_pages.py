"""The commands of docs/quickstart, run as they are written, on ports of the test's own."""

import importlib.util
from pathlib import Path

import pytest

from tests.fakes.documentation_page import commands, run_page

#: Frameworks are imported, models compiled.
pytestmark = pytest.mark.timeout(400)


def needs(*modules: str, extra: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed: extra '{extra}'")


@needs("sklearn", "skl2onnx", "xgboost", "onnxmltools", extra="import-sklearn,import-xgboost")
def test_scikit_learn_and_xgboost(tmp_path: Path) -> None:
    languages = ["python", "sh", "sh", "sh", "python", "python", "sh"]
    printed = run_page("quickstart/scikit_learn.md", at=tmp_path, links=[], languages=languages, environment=commands(tmp_path / "bin"))
    assert "iris: version 1 is in models/iris" in printed
    assert '"name":"label"' in printed
    assert "[2 0]" in printed  # Of both rows, by the Python client.
    assert "trees: version 1 is in models/trees" in printed


@needs("torch", "onnxscript", extra="import-torch")
def test_pytorch(tmp_path: Path) -> None:
    languages = ["python", "sh", "python"]
    printed = run_page("quickstart/pytorch.md", at=tmp_path, links=[], languages=languages, environment=commands(tmp_path / "bin"))
    assert "flowers: version 1 is in models/flowers" in printed
    assert "[[" in printed.rpartition("--- block 3")[2]


def test_repository_of_triton(tmp_path: Path, clients_python: Path) -> None:
    variables = commands(tmp_path / "bin", clients_python)
    languages = ["sh", "sh", "python", "sh"]
    printed = run_page("quickstart/triton.md", at=tmp_path, links=["model_repos"], languages=languages, environment=variables)
    for transport in ("grpc", "http"):
        assert f"tritonclient.{transport} [1 2 3 4] [-1  0  1  2]" in printed
    assert 'nv_inference_request_success{model="simple",version="1"} 2' in printed


def test_clients_of_tensorflow_serving(tmp_path: Path, clients_python: Path) -> None:
    variables = commands(tmp_path / "bin", clients_python)
    languages = ["sh", "sh", "python"]
    printed = run_page("quickstart/tensorflow_serving.md", at=tmp_path, links=["model_repos"], languages=languages, environment=variables)
    assert '{"predictions":[[' in printed
    assert "20 scores of version 1" in printed


def test_accelerators(tmp_path: Path) -> None:
    variables = commands(tmp_path / "bin")
    links = ["model_repos", "examples"]
    printed = run_page("quickstart/accelerator.md", at=tmp_path, links=links, languages=["sh"] * 3, environment=variables)
    assert "carries 2,000 requests/s with a p99 of" in printed
    assert (tmp_path / "plan.html").is_file()
    assert "stoker_ipu_calls_total{" in printed
    assert "stoker_gcu_runs_total{" in printed
    assert 'simulated="true"' in printed


def test_several_servers(tmp_path: Path, clients_python: Path) -> None:
    variables = commands(tmp_path / "bin", clients_python)
    printed = run_page("quickstart/cluster.md", at=tmp_path, links=["model_repos"], languages=["sh"] * 4, environment=variables)
    assert printed.count("0 failed requests, some sent") == 2, printed
    assert "too few" not in printed
