"""A complete server whose event loop is blocked: the first signal ends it, and so does the flag."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.child_processes import Children
from tests.fakes.server_process import PATIENCE_S, REPOSITORY_ROOT, SAMPLE_MODELS, copy_models, running_server

pytestmark = pytest.mark.protocol

#: A server that, once ready, is blocked in C code that holds the interpreter lock.
SCRIPT = """
import ctypes, sys
from stoker.server.main import main
from stoker.server.endpoints import ReadyFile

write = ReadyFile.write_once_ready

async def write_and_block(self, *arguments):
    await write(self, *arguments)
    mutex = ctypes.create_string_buffer(256)
    print("blocking", flush=True)
    while True:
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)

ReadyFile.write_once_ready = write_and_block
main(sys.argv[1:])
"""


def blocked(children: Children, tmp_path: Path, *flags: str) -> "subprocess.Popen[bytes]":
    models = copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    ports = ("--grpc-port=0", "--http-port=0", f"--ready-file={tmp_path / 'ready'}", "--log-format=json")
    command = [sys.executable, "-c", SCRIPT, f"--model-base-path={models}", *ports, *flags]
    process = children.start(command, at=REPOSITORY_ROOT)
    assert process.stdout is not None
    while (line := process.stdout.readline()) != b"blocking\n":
        assert line, "the server ended before it was ready"
    return process


def test_first_sigterm_ends_a_server_with_a_blocked_loop(children: Children, tmp_path: Path) -> None:
    process = blocked(children, tmp_path, "--loop-block-secs=0.2")
    os.kill(process.pid, signal.SIGTERM)
    _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL
    assert b" in write_and_block" in log
    assert b"SIGTERM came, and the event loop has not taken it up within 5 s: ending the process by SIGKILL" in log


def test_flag_aborts_a_server_with_a_blocked_loop(children: Children, tmp_path: Path) -> None:
    process = blocked(children, tmp_path, "--loop-abort-secs=1")
    _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGABRT
    assert b": ending the process by SIGABRT" in log


def test_metrics_show_the_blocks_and_the_monitor_ends_with_the_server(tmp_path: Path) -> None:
    models = copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    with running_server(f"--model-base-path={models}", at=tmp_path) as server:
        assert b"\nstoker_event_loop_blocks_total " in server.get("/metrics")[1]
        [monitor] = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        assert b"loop_monitor.py" in Path(f"/proc/{monitor}/cmdline").read_bytes()
        assert server.stop() == 0
        assert not Path(f"/proc/{monitor}").exists()
