"""A ready server with one ONNX model: the modules that it has not imported. Each would cost memory and start time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).resolve().parents[3] / "model_repos" / "simple"
#: typer and what it brings are for the help; FastAPI for its routes; grpc and uvicorn for --grpc-front=grpcio and --http-front=uvicorn;
#: the others for other models and tools.
UNNEEDED = (
    "stoker.compiler",
    "fastapi",
    "grpc",
    "jinja2",
    "numpy.testing",
    "onnx",
    "opentelemetry",
    "openvino",
    "pydantic",
    "pydantic_core",
    "rich",
    "starlette",
    "stoker_client",
    "typer",
    "uvicorn",
    "yaml",
    "stoker.backends.gcu.backend",
    "stoker.backends.ipu.backend",
    "stoker.backends.openvino.backend",
)
SCRIPT = """
import json, os, signal, sys
from stoker.server.main import main
from stoker.server.endpoints import ReadyFile

wait = ReadyFile.write_once_ready

async def wait_and_tell(self, *arguments):
    await wait(self, *arguments)
    print(*set(sys.argv[1].split(",")) & set(sys.modules), "onnxruntime" in sys.modules, file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)

ReadyFile.write_once_ready = wait_and_tell
main(sys.argv[2:])
"""


@pytest.mark.slow
def test_ready_server_imports_no_library_that_it_does_not_need(tmp_path: Path):
    shutil.copytree(SAMPLE, tmp_path / "models" / "simple")
    flags = [f"--model-base-path={tmp_path / 'models'}", "--grpc-port=0", "--http-port=0", f"--ready-file={tmp_path / 'ready'}"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(UNNEEDED), *flags, "--log-file", os.devnull],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == "True\n"


def test_first_signal_handlers_are_installed_before_large_imports():
    """Until they stand, a signal ends a start with a traceback."""
    late = {"asyncio", "logging", "stoker.server.flags", "stoker.server.shutdown", "socket"}
    code = f"import sys, stoker.server.main; print(*{late} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout == "\n"
