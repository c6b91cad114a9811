"""The four clients behind one synchronous face, so that each behaviour is tested once for all, against a fake server in this process."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import stoker_client
from stoker_client import AsyncTiming, Timing
from tests.fakes.certificate_bundle import empty_bundle
from tests.fakes.fake_kserve import FakeKserve

KINDS = {
    "grpc": stoker_client.GrpcClient,
    "http": stoker_client.HttpClient,
    "grpc.aio": stoker_client.AsyncGrpcClient,
    "http.aio": stoker_client.AsyncHttpClient,
}


@dataclass
class FakeTime:
    """Time that passes only in sleeps, which are kept in `slept`. `on_sleep` runs in each."""

    now_s: float = 100.0
    slept: list[float] = field(default_factory=list)
    on_sleep: Callable[[], None] = lambda: None

    def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        self.now_s += delay_s
        self.on_sleep()

    async def sleep_async(self, delay_s: float) -> None:
        self.sleep(delay_s)

    def for_client(self, *, is_async: bool) -> Timing | AsyncTiming:
        if is_async:
            return AsyncTiming(now_s=lambda: self.now_s, sleep=self.sleep_async, chance=lambda: 1.0)
        return Timing(now_s=lambda: self.now_s, sleep=self.sleep, chance=lambda: 1.0)


class Driven:
    """A client, or an asyncio client driven by a loop of its own."""

    def __init__(self, client: Any, runner: asyncio.Runner | None) -> None:
        self._client = client
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return method if self._runner is None else functools.partial(self._drive, self._runner, method)

    def _drive(self, runner: asyncio.Runner, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        result = method(*arguments, **keywords)
        if inspect.isasyncgen(result):
            return self._iterate(runner, result)
        return runner.run(_awaited(result))

    def _iterate(self, runner: asyncio.Runner, generator: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield runner.run(_awaited(anext(generator)))
                except StopAsyncIteration:
                    return
        finally:
            runner.run(generator.aclose())


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


@pytest.fixture(scope="module", autouse=True)
def no_authority_of_the_web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield from empty_bundle(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def fake_server() -> Iterator[FakeKserve]:
    server = FakeKserve()
    yield server
    server.close()


@pytest.fixture
def fake(fake_server: FakeKserve) -> Iterator[FakeKserve]:
    yield fake_server
    fake_server.reset()


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_client(kind: str, fake: FakeKserve, fake_time: FakeTime) -> Iterator[Callable[..., Driven]]:
    """Makes clients of the kind under test, for the fake server by default; closes them."""
    made: list[Driven] = []
    is_async = kind.endswith("aio")

    with asyncio.Runner() as runner:

        def make(url: str | None = None, **settings: Any) -> Driven:
            settings.setdefault("timing", fake_time.for_client(is_async=is_async))
            client = KINDS[kind](url or (fake.grpc_url if kind.startswith("grpc") else fake.http_url), **settings)
            made.append(Driven(client, runner if is_async else None))
            return made[-1]

        yield make
        for client in made:
            client.close()


@pytest.fixture
def client(make_client: Callable[..., Driven]) -> Driven:
    return make_client()
