"""The times of scans of the repository; time and events are those of the test."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.server.lifecycle.watch import RepositoryWatcher
from tests.fakes.fake_loader import turn
from tests.fakes.manager_bench import in_loop


class WatchBench:
    """A watcher with the test's events and timeouts."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []
        self.scans = 0
        self.is_settled = True
        self.error: Exception | None = None
        self.events: asyncio.Queue[object] = asyncio.Queue()
        self.event_error: Exception | None = None
        self._time_up = asyncio.Event()
        watcher = RepositoryWatcher([Path("x")], self._rescan, poll_interval_s=15, settle_s=1, events=self._events, wait=self._wait)
        self.task = asyncio.create_task(watcher.run())

    async def time_passes(self) -> None:
        self._time_up.set()
        await turn()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _rescan(self) -> bool:
        self.scans += 1
        if self.error is not None:
            raise self.error
        return self.is_settled

    async def _events(self) -> AsyncIterator[object]:
        if self.event_error is not None:
            raise self.event_error
        while True:
            yield await self.events.get()

    async def _wait(self, event: asyncio.Event, timeout_s: float) -> None:
        self.timeouts.append(timeout_s)
        self._time_up.clear()
        waits = [asyncio.create_task(event.wait()), asyncio.create_task(self._time_up.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


@in_loop
async def test_watcher_scans_every_poll_interval_without_events() -> None:
    bench = WatchBench()
    await turn()
    for expected in (1, 2, 3):
        await bench.time_passes()
        assert bench.scans == expected
    assert set(bench.timeouts) == {15}
    await bench.stop()


@in_loop
async def test_event_triggers_a_scan() -> None:
    bench = WatchBench()
    await turn()
    bench.events.put_nowait("changed")
    await turn()
    assert bench.scans == 1
    await bench.stop()


@in_loop
async def test_unstable_folder_is_scanned_again_after_the_settling_time() -> None:
    bench = WatchBench()
    await turn()
    bench.is_settled = False
    await bench.time_passes()
    bench.is_settled = True
    await bench.time_passes()
    assert bench.timeouts == [15, 1, 15]
    await bench.stop()


@in_loop
async def test_watcher_without_file_events_polls_and_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = WatchBench()
    bench.event_error = OSError("inotify watch limit reached")
    await turn()
    await bench.time_passes()
    await bench.time_passes()
    assert bench.scans == 2
    assert caplog.text.count("inotify watch limit reached") == 1
    await bench.stop()


@in_loop
async def test_scan_that_raises_does_not_stop_the_watcher(caplog: pytest.LogCaptureFixture) -> None:
    bench = WatchBench()
    await turn()
    bench.error = RuntimeError("disk on fire")
    await bench.time_passes()
    await bench.time_passes()
    assert bench.scans == 2
    assert "disk on fire" in caplog.text
    await bench.stop()


@pytest.mark.slow
@in_loop
async def test_real_file_events_arrive(tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def rescan() -> bool:
        seen.set()
        return True

    task = asyncio.create_task(RepositoryWatcher([tmp_path], rescan, poll_interval_s=600, settle_s=1).run())
    for number in range(100):
        # Watching begins in a thread, so the first changes may come before it.
        (tmp_path / f"{number}").mkdir()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(seen.wait(), 0.3)
            break
    assert seen.is_set()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


IMPORTS = """
import asyncio, sys, threading
from pathlib import Path
from stoker.server.lifecycle.watch import RepositoryWatcher

class Finder:
    threads = []

    def find_spec(self, name, path=None, target=None):
        if name == "anyio._backends._asyncio":
            self.threads.append(threading.current_thread() is threading.main_thread())
            loop.call_soon_threadsafe(imported.set)

async def main():
    global loop, imported
    loop, imported = asyncio.get_running_loop(), asyncio.Event()
    sys.meta_path.insert(0, Finder())
    watcher = RepositoryWatcher([Path(sys.argv[1])], lambda: None, poll_interval_s=60, settle_s=1)
    watching = asyncio.create_task(watcher.run())
    await imported.wait()
    watching.cancel()

asyncio.run(main())
print(Finder.threads)
"""


@pytest.mark.slow
def test_backend_of_anyio_is_imported_outside_of_the_event_loop(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", IMPORTS, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout == "[False]\n", run.stderr
