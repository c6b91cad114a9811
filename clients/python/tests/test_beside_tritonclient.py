"""This client and tritonclient define messages of the same names; they must live in one process, whichever is imported first.

Run in the environments that `make clients-env` makes: tritonclient with the protobuf it wants, and with the next major version.
"""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

TRITON = """
import tritonclient.grpc as triton
"""
OURS = """
import stoker_client
from stoker_client._pb import messages as pb
"""
TOGETHER = """
import google.protobuf, numpy as np
from tritonclient.grpc import service_pb2
theirs = service_pb2.ModelInferRequest(model_name="m", id="7")
assert pb.ModelInferRequest.FromString(theirs.SerializeToString()).id == "7"
assert type(theirs) is not pb.ModelInferRequest
tensor = triton.InferInput("x", [2], "FP32")
tensor.set_data_from_numpy(np.zeros(2, np.float32))
with stoker_client.connect("grpc://127.0.0.1:1") as client, stoker_client.connect("http://127.0.0.1:1"):
    pass
print(google.protobuf.__version__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", [TRITON + OURS, OURS + TRITON], ids=["tritonclient first", "stoker_client first"])
@pytest.mark.parametrize(("environment", "protobuf"), [(".venv-clients", "6."), (".venv-clients-pb7", "7.")])
def test_both_clients_import_in_one_process(environment, protobuf, order):
    python = ROOT / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {environment}: run 'make clients-env'")
    alone = subprocess.run([python, "-c", "import httpx, tritonclient.grpc"], capture_output=True, text=True, check=False)
    if alone.returncode:
        pytest.skip(f"{environment} lacks what the clients need: {alone.stderr.strip().splitlines()[-1]}")
    done = subprocess.run(
        [python, "-c", order + TOGETHER],
        env={"PYTHONPATH": str(ROOT / "clients" / "python")},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(protobuf)
