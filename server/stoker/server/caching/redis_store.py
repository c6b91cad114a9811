"""`RedisStore`: responses in a Redis server, which several servers may share and which outlives this process.

A lookup that fails, or that takes longer than its bound, is a miss: clients see no error of Redis. After a failure the store pauses, so
that a Redis server that does not respond delays few requests.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from stoker.backends.api.errors import InvalidRequest
from stoker.server.caching.response_store import StoredResponse
from stoker.server.caching.settings import MOST_REMOTE_BYTES, MOST_REMOTE_COMMANDS, REMOTE_LINES_PER_S, RedisSettings
from stoker.server.caching.stored_form import packed_response, unpacked_response
from stoker.server.observability.logs import LineBudget

log = logging.getLogger("stoker.cache")
T = TypeVar("T")

#: Time without lookups after a failure, nanoseconds.
PAUSE_NS: Final = 1_000_000_000
#: The beginning of each key in Redis; the version of the form of keys and values.
PREFIX: Final = b"stoker:1:"
#: Time to close the connections, seconds.
CLOSE_S: Final = 0.2


class Client(Protocol):
    """The used part of the interface of redis-py's asynchronous client."""

    def getrange(self, key: bytes, start: int, end: int) -> Any:
        """A coroutine: the bytes `start` to `end` of the value of `key`, none if there is no value."""

    def set(self, key: bytes, value: bytes, *, ex: int | None = None) -> Any:
        """A coroutine: sets the value of `key`, for `ex` seconds."""

    def aclose(self) -> Any:
        """A coroutine: closes the connections."""


def connected(settings: RedisSettings, now_ns: Callable[[], int]) -> "RedisStore":
    """A store in the Redis server of `settings`, which connects at the first lookup.

    Raises:
        InvalidRequest: the package redis, an extra, is not installed.
    """
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ModuleNotFoundError as error:
        raise InvalidRequest("--cache-config redis needs the package redis: pip install 'stoker[redis]'") from error
    client = Redis(
        host=settings.host,
        port=settings.port,
        username=settings.user,
        password=settings.password,
        db=settings.db,
        ssl=settings.tls,
        ssl_ca_certs=None if settings.tls_ca_file is None else str(settings.tls_ca_file),
        socket_timeout=settings.wait_timeout_s,
        socket_connect_timeout=settings.wait_timeout_s,
        retry=Retry(NoBackoff(), 0),
    )
    return RedisStore(client, now_ns, wait_timeout_s=settings.wait_timeout_s, ttl_s=settings.ttl_s)


class RedisStore:
    """Responses in a Redis server. Confined to: the event loop."""

    is_shared = True

    def __init__(self, client: Client, now_ns: Callable[[], int], *, wait_timeout_s: float, ttl_s: int) -> None:
        """Waits at most `wait_timeout_s` seconds for a command; entries live for `ttl_s` seconds (0: until Redis evicts them)."""
        self._client = client
        self._now_ns = now_ns
        self._wait_timeout_s = wait_timeout_s
        self._ttl_s = ttl_s
        self._tasks: set[asyncio.Task[Any]] = set()
        self._paused_until_ns = 0
        self._budget = LineBudget(REMOTE_LINES_PER_S)

    def get(self, key: bytes, found: Callable[[StoredResponse | None], None]) -> None:
        if not self._is_usable():
            found(None)
            return
        task = self._start(self._get(key))
        # Not in the coroutine, which never begins if it is cancelled first.
        task.add_done_callback(lambda ended: found(None if ended.cancelled() else ended.result()))

    def put(self, key: bytes, response: StoredResponse) -> None:
        if response.size_bytes > MOST_REMOTE_BYTES or not self._is_usable():
            return
        self._start(self._put(key, response))

    def forget(self, identity: bytes) -> None:
        """Has no effect: other servers may use the responses."""

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._client.aclose()
        except Exception as error:  # noqa: BLE001 - the process ends, whatever the library raises
            log.debug("closing the connections to Redis failed: %s", error)

    def _is_usable(self) -> bool:
        return len(self._tasks) < MOST_REMOTE_COMMANDS and self._now_ns() >= self._paused_until_ns

    def _start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _get(self, key: bytes) -> StoredResponse | None:
        response: StoredResponse | None = None
        try:
            async with asyncio.timeout(self._wait_timeout_s):
                # Bounded, whatever the value in Redis is.
                data = await self._client.getrange(PREFIX + key, 0, MOST_REMOTE_BYTES - 1)
            if data:
                response = unpacked_response(data)
                if response is None:
                    self._failed("a value is not in the form of a response")
        except Exception as error:  # noqa: BLE001 - whatever the library raises is a miss
            self._pause(error)
        return response

    async def _put(self, key: bytes, response: StoredResponse) -> None:
        try:
            data = packed_response(response.outputs)
            if len(data) <= MOST_REMOTE_BYTES:
                async with asyncio.timeout(self._wait_timeout_s):
                    await self._client.set(PREFIX + key, data, ex=self._ttl_s or None)
        except Exception as error:  # noqa: BLE001 - the response is not stored
            self._pause(error)

    def _pause(self, error: Exception) -> None:
        self._paused_until_ns = self._now_ns() + PAUSE_NS
        self._failed(f"no response within {self._wait_timeout_s:g} s" if isinstance(error, TimeoutError) else f"{error}")

    def _failed(self, why: str) -> None:
        suppressed = self._budget.take(self._now_ns())
        if suppressed is not None:
            log.warning("the response cache in Redis failed, requests run without it: %s", why, extra={"suppressed": suppressed})
