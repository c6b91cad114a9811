"""The Open Inference Protocol, judged by the inference clients of KServe's own SDK."""

import subprocess
from pathlib import Path

import pytest

from tests.fakes.server_process import REPOSITORY_ROOT, ServerProcess

JUDGE = Path(__file__).parent / "foreign" / "kserve_sdk.py"
PYTHON = REPOSITORY_ROOT / ".venv-kserve" / "bin" / "python"
CHECKS = "rest-health rest-infer rest-error rest-v1 grpc-health grpc-infer grpc-error"


@pytest.mark.skipif(not PYTHON.exists(), reason="KServe's SDK is not installed: run 'make kserve-client'")
def test_kserve_clients_pass_all_their_checks(server: ServerProcess):
    done = subprocess.run([PYTHON, JUDGE, server.http, server.grpc], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.split() == CHECKS.split()
