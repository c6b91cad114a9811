"""The rate limiter of a running server, by tritonclient: models that share a resource, and loads that could never run."""

import subprocess
from pathlib import Path

from tests.fakes.server_process import running_server

TENSORS = "".join(f'{kind} {{ name: "{kind.upper()}" data_type: TYPE_FP32 dims: 4 }}\n' for kind in ("input", "output"))
DELAY = 'parameters { key: "execute_delay_ms" value { string_value: "400" } }\n'

SCRIPT = """
import sys
import threading
import time

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

client = grpc.InferenceServerClient(sys.argv[1])


def infer(model):
    tensor = grpc.InferInput("INPUT", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.zeros([1, 4], np.float32))
    client.infer(model, [tensor])
    done.append((model, time.monotonic()))


def together(*models):
    done.clear()
    begun = time.monotonic()
    threads = [threading.Thread(target=infer, args=[model]) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [ended - begun for _, ended in sorted(done, key=lambda each: each[1])]


done = []
first, second = together("a", "b")
assert second - first > 0.3, "they share the resource: one runs after the other"
first, second = together("a", "c")
assert second - first < 0.3, "they share nothing"
print("order")
try:
    client.load_model("large")
    raise AssertionError("the load must fail")
except InferenceServerException as error:
    assert 'Resource count for "R" is limited to 1' in str(error), error
    assert "minimum required count is 2" in str(error), error
print("load")
waited = 0
for name in ("a", "b"):
    [model] = client.get_inference_statistics(name, as_json=True)["model_stats"]
    waited += int(model["inference_stats"]["queue"]["ns"])
assert waited > 300_000_000, "the time that a model waits for its resources is time in the queue"
print("queue")
"""


def write(repository: Path, name: str, limiter: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.identity").touch()
    group = f"instance_group {{ rate_limiter {{ {limiter} }} }}\n"
    (repository / name / "config.pbtxt").write_text(f'backend: "identity"\nmax_batch_size: 8\n{TENSORS}{DELAY}{group}')


def test_models_share_resources_and_impossible_loads_fail(tmp_path: Path, clients_python: Path):
    models = tmp_path / "models"
    write(models, "a", 'resources { name: "R" count: 1 }')
    write(models, "b", 'resources { name: "R" count: 1 } priority: 2')
    write(models, "c", 'resources { name: "S" count: 1 global: true }')
    write(models, "large", 'resources { name: "R" count: 2 }')
    flags = ("--rate-limit=execution_count", "--rate-limit-resource=R:1", "--rate-limit-resource=S:1", "--model-control-mode=explicit")
    names = [f"--load-model={name}" for name in "abc"]
    with running_server(f"--model-repository={models}", *flags, *names, at=tmp_path / "run") as server:
        done = subprocess.run([str(clients_python), "-c", SCRIPT, server.grpc], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()[-2000:]}"
    assert done.stdout.split() == ["order", "load", "queue"]


def test_model_with_a_rate_limiter_says_that_the_server_has_none(tmp_path: Path):
    write(tmp_path / "models", "a", 'resources { name: "R" count: 1 }')
    with running_server(f"--model-repository={tmp_path / 'models'}", at=tmp_path / "run") as server:
        assert "rate_limiter has no effect: the rate limiter is off" in server.log()
