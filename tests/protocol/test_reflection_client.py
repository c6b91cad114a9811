"""Reflection is sufficient to call everything: tested by a client without any message of the project."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.server_process import ServerProcess

JUDGE = Path(__file__).parent / "foreign" / "reflection.py"
CHECKS = "list describe infer tensorflow-serving adlik error"


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_client_calls_every_protocol(version: str, server: ServerProcess):
    # Isolated (-I): it finds grpcio and its reflection package, and nothing of this project.
    done = subprocess.run([sys.executable, "-I", JUDGE, version, server.grpc], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.split() == CHECKS.split()
