"""The response cache of a running server: judged by every flavour of tritonclient, and by its metrics."""

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes.server_process import ServerProcess, running_server

FOREIGN = Path(__file__).parent / "foreign"
FLAVOURS = ("http", "grpc", "http.aio", "grpc.aio")
TENSORS = "".join(f'{kind} {{ name: "{kind.upper()}" data_type: TYPE_FP32 dims: 4 }}\n' for kind in ("input", "output"))


def write_model(repository: Path, name: str, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.identity").touch()
    (repository / name / "config.pbtxt").write_text(f'backend: "identity"\nmax_batch_size: 8\n{TENSORS}{config}')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model with a cache and one without, and a slow one."""
    at = tmp_path_factory.mktemp("cache")
    slow = 'parameters { key: "execute_delay_ms" value { string_value: "1000" } }\n'
    write_model(at / "models", "cached", "dynamic_batching { }\nresponse_cache { enable: true }\n")
    write_model(at / "models", "plain", "")
    write_model(at / "models", "slow", f"response_cache {{ enable: true }}\n{slow}")
    flags = (
        "--cache-config=local,size=1000000",
        "--metrics-config=summary_latencies=true",
        "--model-control-mode=explicit",
        "--load-model=*",
    )
    with running_server(f"--model-repository={at / 'models'}", *flags, at=at / "run") as running:
        yield running


def metric(server: ServerProcess, name: str, model: str) -> int | None:
    start = f'{name}{{model="{model}",version="1"}} '
    lines = server.get("/metrics")[1].decode().splitlines()
    return next((int(line.removeprefix(start)) for line in lines if line.startswith(start)), None)


def infer(server: ServerProcess, model: str, value: float) -> list[float]:
    body = {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}]}
    data: list[float] = server.json(f"/v2/models/{model}/infer", body)["outputs"][0]["data"]
    return data


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_unmodified_client_sees_hits_and_misses(flavour: str, server: ServerProcess, clients_python: Path):
    address = server.http if flavour.startswith("http") else server.grpc
    command = [str(clients_python), str(FOREIGN / "response_cache.py"), flavour, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()[-2000:]}"
    assert done.stdout.split() == ["config", "counts", "parameters"]


def test_equal_requests_at_the_same_time_run_once(server: ServerProcess):
    with ThreadPoolExecutor(4) as threads:
        responses = list(threads.map(lambda _: infer(server, "slow", 3.0), range(4)))
    assert responses == [[3.0] * 4] * 4
    assert metric(server, "nv_inference_exec_count", "slow") == 1
    assert metric(server, "nv_inference_request_success", "slow") == 4
    assert metric(server, "nv_cache_num_hits_per_model", "slow") == 3
    assert metric(server, "nv_cache_num_misses_per_model", "slow") == 1


def test_metrics_of_the_cache_are_those_of_models_with_a_cache_only(server: ServerProcess):
    infer(server, "cached", 5.0)
    infer(server, "cached", 5.0)
    infer(server, "plain", 5.0)
    assert (metric(server, "nv_cache_num_hits_per_model", "cached") or 0) >= 1
    assert (metric(server, "nv_cache_hit_duration_per_model", "cached"), metric(server, "nv_cache_miss_duration_per_model", "cached")) > (
        -1,
        -1,
    )
    assert metric(server, "nv_cache_num_hits_per_model", "plain") is None
    for name in ("nv_cache_hit_summary_per_model", "nv_cache_miss_summary_per_model"):
        assert (metric(server, f"{name}_count", "cached") or 0) >= 1
        assert metric(server, f"{name}_count", "plain") is None
    # Triton has no summary of whole requests for a model with a cache.
    assert metric(server, "nv_inference_request_summary_us_count", "cached") is None
    assert (metric(server, "nv_inference_queue_summary_us_count", "cached") or 0) >= 2
    assert metric(server, "nv_inference_request_summary_us_count", "plain") is not None


def test_reload_forgets_the_responses_of_the_model(server: ServerProcess):
    infer(server, "cached", 77.0)
    before = metric(server, "nv_cache_num_misses_per_model", "cached")
    assert before is not None
    infer(server, "cached", 77.0)
    assert metric(server, "nv_cache_num_misses_per_model", "cached") == before
    assert server.get("/v2/repository/models/cached/load", b"{}")[0] == 200
    infer(server, "cached", 77.0)
    assert metric(server, "nv_cache_num_misses_per_model", "cached") == before + 1


def test_server_without_a_cache_says_at_load_that_the_setting_has_no_effect(tmp_path: Path):
    write_model(tmp_path / "models", "cached", "response_cache { enable: true }\n")
    with running_server(f"--model-repository={tmp_path / 'models'}", at=tmp_path / "run") as running:
        assert "response_cache has no effect: the server has no cache" in running.log()
