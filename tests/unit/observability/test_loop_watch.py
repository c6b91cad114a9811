"""Really blocked event loops, in separate processes: their reports, their counters, and their end."""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.server.observability import loop_monitor
from stoker.server.observability.loop_monitor import Monitor
from stoker.server.observability.loop_watch import LoopWatch
from stoker.server.observability.settings import LoopWatchSettings
from tests.fakes.child_processes import Children

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "fakes" / "blocked_loop.py"
HOWS = pytest.mark.parametrize(
    ("how", "function"), [("python", "hold_in_python"), ("threads", "hold_beside_threads"), ("lock", "hold_the_lock")]
)
NEVER = "1000"


def start(children: Children, *arguments: str) -> "subprocess.Popen[bytes]":
    """Returns once the loop is about to be blocked, or is idle."""
    process = children.start([sys.executable, SCRIPT, *arguments])
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    return process


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, str, list[dict[str, Any]]]:
    """Exit code, standard output, and the records of the log."""
    out, log = process.communicate(timeout=100)
    return process.returncode, out.decode(), [json.loads(line) for line in log.decode().splitlines()]


@HOWS
def test_block_is_reported_with_the_stacks_of_all_threads_and_counted(children: Children, how: str, function: str) -> None:
    code, out, records = ended(start(children, how, "1.2", "0.4", "0", NEVER))
    assert code == 0
    # On a busy host, the loop may be late at other times too.
    dump = next(record for record in records if f" in {function}" in record.get("exception", ""))
    assert (dump["level"], dump["logger"]) == ("ERROR", "stoker.loop")
    assert dump["message"] == "the event loop is blocked; the stacks of all threads follow"
    assert "in _write_all" in dump["exception"], "the thread of the log"
    warnings = [record for record in records if record["level"] == "WARNING"]
    assert all(warning["message"].startswith("the event loop did not run for ") for warning in warnings)
    figures = dict(line.split() for line in out.splitlines() if line and not line.startswith("#"))
    assert int(figures["stoker_event_loop_blocks_total"]) == len(warnings) >= 1
    assert float(figures["stoker_event_loop_blocked_seconds_total"]) >= 1.2


@HOWS
def test_block_as_long_as_the_flag_ends_the_process(children: Children, how: str, function: str) -> None:
    code, _, records = ended(start(children, how, "0", "0.2", "0.8", NEVER))
    assert code == -signal.SIGABRT
    assert f" in {function}" in records[0]["exception"]
    assert records[-1]["level"] == "CRITICAL"
    assert records[-1]["message"].startswith("the event loop has not run for ")
    assert records[-1]["message"].endswith(": ending the process by SIGABRT")


@HOWS
def test_first_signal_ends_a_blocked_process(children: Children, how: str, function: str) -> None:
    process = start(children, how, "0", "0", "0", "0.5")
    process.send_signal(signal.SIGTERM)
    code, _, [record] = ended(process)
    assert code == -signal.SIGKILL
    assert record["message"] == ("SIGTERM came, and the event loop has not taken it up within 0.5 s: ending the process by SIGKILL")


def test_second_signal_ends_a_process_that_is_blocked_in_c_code_at_once(children: Children) -> None:
    process = start(children, "lock", "0", "0", "0", NEVER)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
    code, _, [record] = ended(process)
    assert code == -signal.SIGKILL
    assert record["message"].startswith("a second signal came while the event loop is blocked (SIG")


@pytest.mark.parametrize(("is_signalled", "abort_s", "take_up_s"), [(False, "0.8", NEVER), (True, "0", "0.5")], ids=["abort", "signal"])
def test_blocked_process_with_pid_1_is_ended_too(children: Children, is_signalled: bool, abort_s: str, take_up_s: str) -> None:
    # As in a container: the kernel drops signals to process 1 for which it has no handler.
    namespace = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this host allows no process namespaces")
    command = [*namespace, sys.executable, str(SCRIPT), "lock", "0", "0", abort_s, take_up_s]
    process = children.start(command)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    try:
        if is_signalled:
            os.kill(child, signal.SIGTERM)
        code, _, [record] = ended(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    assert code == signal.SIGABRT
    assert record["message"].endswith(": ending the process by SIGABRT")


def test_idle_loop_is_woken_by_a_signal_and_nothing_is_written(children: Children) -> None:
    process = start(children, "idle", "0", "0", "0", NEVER)
    process.send_signal(signal.SIGTERM)
    code, out, records = ended(process)
    assert (code, records) == (0, [])
    assert out.startswith("handled\n")
    assert "stoker_event_loop_blocks_total 0" in out


def test_server_continues_without_its_monitor(children: Children) -> None:
    process = children.start([sys.executable, SCRIPT, "idle", "0", "0", "0", NEVER])
    assert process.stdout is not None
    assert process.stderr is not None
    os.kill(int(process.stdout.readline()), signal.SIGKILL)
    assert b"the monitor of the event loop has ended" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


def test_monitor_that_cannot_start_is_reported_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async def watched() -> None:
        with LoopWatch(LoopWatchSettings(block_s=0), time.monotonic_ns).watching(None, is_json=False):
            pass

    monkeypatch.setattr(subprocess, "Popen", refuse)
    asyncio.run(watched())
    [record] = caplog.records
    assert "cannot be started (Resource temporarily unavailable): a blocked loop is still counted" in record.getMessage()


def test_monitor_ends_with_the_server(children: Children) -> None:
    process = children.start([sys.executable, SCRIPT, "idle", "0", "0", "0", NEVER])
    process.kill()
    # Standard error is the monitor's too: it ends here only once the monitor has ended.
    assert ended(process)[0] == -signal.SIGKILL


def test_stopped_server_is_distinguished_from_a_blocked_one(children: Children) -> None:
    process = children.start([sys.executable, "-c", "input()"], has_input=True)
    monitor = Monitor(process.pid, -1, -1, None, block_s=0, abort_s=1, take_up_s=1, is_json=False)  # type: ignore[arg-type]
    assert not monitor._is_server_stopped()
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    assert monitor._is_server_stopped()
    process.kill()
    process.communicate()


def test_beats_are_more_frequent_than_the_intervals_they_distinguish() -> None:
    assert LoopWatchSettings().beat_s == 0.25
    assert LoopWatchSettings(block_s=0.2).beat_s == 0.05
    assert LoopWatchSettings(block_s=0, abort_s=0.4).beat_s == 0.1
    assert LoopWatchSettings(block_s=0).beat_s == 0.25


def test_monitor_imports_no_server_module() -> None:
    assert "stoker" not in {
        line.split()[1].partition(".")[0]
        for line in Path(loop_monitor.__file__).read_text().splitlines()
        if line.startswith(("import ", "from "))
    }


def test_server_stopped_by_a_signal_is_not_ended_as_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    ended_by: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: ended_by.append(number))
    monitor = Monitor(os.getpid(), -1, -1, None, block_s=0, abort_s=1, take_up_s=1, is_json=False)  # type: ignore[arg-type]
    monkeypatch.setattr(monitor, "_is_server_stopped", lambda: True)
    monitor._silent_s = 5.0
    monitor._end("why", signal.SIGABRT)
    assert (monitor._silent_s, ended_by) == (0.0, [])


def test_both_writers_may_find_that_the_monitor_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(LoopWatchSettings(), lambda: 0)
    beats, watch._beats = os.pipe()
    os.close(beats)
    for _ in range(2):
        watch._is_monitor_gone = False  # as the other writer saw it before it failed, too
        watch._tell(loop_monitor.BEAT)
    assert os.fstat(watch._beats)  # closed at the end only: its number is not another file's meanwhile
    os.close(watch._beats)
    watch._beats = None
    assert "the monitor of the event loop has ended" in caplog.text
