"""The store in Redis: with a puppet client, and with a real redis-server where one is installed."""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.caching.redis_store import PAUSE_NS, PREFIX, RedisStore, connected
from stoker.server.caching.response_store import StoredResponse, copied
from stoker.server.caching.settings import MOST_REMOTE_COMMANDS, RedisSettings

RESPONSE = copied({"OUT": np.arange(6, dtype=np.float32).reshape(2, 3), "TEXT": np.array([b"a", b"\0b"], np.object_)})
KEY = b"k" * 48


class PuppetClient:
    """A Redis of one dictionary. `error` is raised by each command; with `hangs` no command ends."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.lifetimes: list[int | None] = []
        self.error: Exception | None = None
        self.hangs = False
        self.commands = 0
        self.is_closed = False

    async def _command(self) -> None:
        self.commands += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def getrange(self, key: bytes, start: int, end: int) -> bytes:
        await self._command()
        return self.values.get(key, b"")[start : end + 1]

    async def set(self, key: bytes, value: bytes, *, ex: int | None = None) -> None:
        await self._command()
        self.values[key] = value
        self.lifetimes.append(ex)

    async def aclose(self) -> None:
        self.is_closed = True


async def looked_up(store: RedisStore, key: bytes = KEY) -> StoredResponse | None:
    found: asyncio.Future[StoredResponse | None] = asyncio.get_running_loop().create_future()
    store.get(key, found.set_result)
    return await found


async def put(store: RedisStore, key: bytes = KEY) -> None:
    store.put(key, RESPONSE)
    await asyncio.gather(*store._tasks)


def same(response: StoredResponse | None) -> bool:
    return response is not None and all(response.outputs[name].tolist() == array.tolist() for name, array in RESPONSE.outputs.items())


def rig(wait_timeout_s: float = 10, ttl_s: int = 0) -> tuple[RedisStore, PuppetClient, FakeClock]:
    client, clock = PuppetClient(), FakeClock()
    return RedisStore(client, clock.now_ns, wait_timeout_s=wait_timeout_s, ttl_s=ttl_s), client, clock


def test_stored_response_is_found_again_by_its_key_only() -> None:
    async def run() -> None:
        store, client, _ = rig(ttl_s=60)
        assert await looked_up(store) is None
        await put(store)
        assert same(await looked_up(store))
        assert await looked_up(store, b"other") is None
        assert list(client.values) == [PREFIX + KEY]
        assert client.lifetimes == [60]

    asyncio.run(run())


def test_failing_redis_is_a_miss_one_log_line_and_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store, client, clock = rig()
        await put(store)
        client.error = ConnectionError("connection refused")
        assert await looked_up(store) is None
        commands = client.commands
        assert await looked_up(store) is None
        await put(store)
        assert client.commands == commands, "no command during the pause"
        client.error = None
        clock.advance(ns=PAUSE_NS)
        assert same(await looked_up(store))

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == [
        "the response cache in Redis failed, requests run without it: connection refused"
    ]


def test_lookup_without_a_response_of_redis_is_a_miss_after_its_bound() -> None:
    async def run() -> None:
        store, client, _ = rig(wait_timeout_s=0.001)
        client.hangs = True
        assert await looked_up(store) is None
        assert not store._tasks

    asyncio.run(run())


def test_commands_in_progress_are_bounded_and_further_lookups_are_misses_at_once() -> None:
    async def run() -> None:
        store, client, _ = rig()
        client.hangs = True
        found: list[Any] = []
        for number in range(MOST_REMOTE_COMMANDS + 3):
            store.get(b"%d" % number, found.append)
        assert found == [None] * 3
        await store.close()
        assert len(found) == MOST_REMOTE_COMMANDS + 3
        assert client.is_closed

    asyncio.run(run())


def test_value_in_another_form_is_a_miss(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store, client, _ = rig()
        client.values[PREFIX + KEY] = b"\x80\x04\x95 a pickle"
        assert await looked_up(store) is None

    asyncio.run(run())
    assert "not in the form of a response" in caplog.text


@pytest.fixture
def redis_port(tmp_path: Path) -> Iterator[int]:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    pytest.importorskip("redis", reason="the package redis is not installed (extra 'redis')")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_for(port)
            yield port
        finally:
            process.kill()


def _wait_for(port: int) -> None:
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("redis-server does not listen")


@pytest.mark.slow
def test_two_stores_share_the_responses_in_a_redis_server_and_survive_its_end(redis_port: int) -> None:
    async def run() -> None:
        clock = FakeClock()
        settings = RedisSettings(host="127.0.0.1", port=redis_port, wait_timeout_s=5)
        first, second = connected(settings, clock.now_ns), connected(settings, clock.now_ns)
        assert await looked_up(first) is None
        await put(first)
        assert same(await looked_up(second))
        await first._client.shutdown()  # type: ignore[attr-defined]
        assert await looked_up(second) is None
        await first.close()
        await second.close()

    asyncio.run(run())
