"""A retired version is closed only after the last request that borrowed it."""

import asyncio
from collections.abc import Callable

import pytest

from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature
from stoker.server.core.model_config import InstanceGroup, ModelConfig
from stoker.server.lifecycle.servable import Servable


class FakeScheduler:
    """`in_flight` is set by the test; `is_closed` is true once the servable has closed it."""

    def __init__(self) -> None:
        self.on_idle: Callable[[], None] = lambda: None
        self.in_flight = 0
        self.is_closed = False

    def submit(self) -> None:
        self.in_flight += 1

    async def close(self) -> None:
        self.is_closed = True


def servable_over(scheduler: FakeScheduler) -> Servable:
    config = ModelConfig(
        name="m",
        backend="f",
        platform="f",
        signature=ModelSignature((), (), 0),
        model_filename="x",
        instance_groups=(InstanceGroup(name="m", count=1),),
    )
    files: ModelFiles = object()  # type: ignore[assignment]
    return Servable(config, 1, scheduler, files, {}, lambda _: None)  # type: ignore[arg-type]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_retired_version_waits_for_a_request_that_is_decoded_in_a_thread():
    async def scenario() -> None:
        scheduler = FakeScheduler()
        servable = servable_over(scheduler)
        with servable.borrowed():
            servable.retire()
            closing = asyncio.create_task(servable.drained())
            await turns()
            assert (scheduler.is_closed, servable.borrowers) == (False, 1)
        await closing
        assert scheduler.is_closed

    asyncio.run(scenario())


def test_request_submitted_in_the_turn_that_ends_its_loan_keeps_the_version_loaded():
    async def scenario() -> None:
        scheduler = FakeScheduler()
        servable = servable_over(scheduler)
        with servable.borrowed():
            servable.retire()
            closing = asyncio.create_task(servable.drained())
            await turns()
        scheduler.submit()
        await turns()
        assert not scheduler.is_closed
        scheduler.in_flight = 0
        scheduler.on_idle()
        await closing
        assert scheduler.is_closed

    asyncio.run(scenario())


def test_loan_ends_when_decoding_raises():
    async def scenario() -> None:
        servable = servable_over(FakeScheduler())
        with pytest.raises(ValueError, match="malformed"), servable.borrowed():
            raise ValueError("malformed")
        assert servable.borrowers == 0

    asyncio.run(scenario())
