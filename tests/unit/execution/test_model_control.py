"""Loads, unloads and questions of models in worker processes: over a channel, on an engine that records them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stoker.backends.api.calls import ModelControl
from stoker.backends.api.errors import InvalidRequest, ModelLoadError, TooLarge, Unavailable
from stoker.backends.worker.channel import Channel
from stoker.backends.worker.model_calls import RemoteCalls
from stoker.backends.worker.protocol import CONTROL
from stoker.server.core.limits import Limits
from stoker.server.core.model_config import LoadOverrides
from stoker.server.model_calls import LoopCalls, ModelRequests, ThreadCalls
from tests.fakes.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


class Process:
    """Stands for a worker process: the server's end of its channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel


class Rig:
    """A model's calls on a channel, whose other end the server's handler serves."""

    def __init__(self, limits: Limits) -> None:
        self.engine = FakeEngine()
        self.requests = ModelRequests(self.engine, limits)
        self.handler = LoopCalls(self.requests)
        self.server, end = Channel.pair()
        self.worker = Channel(end)
        self.process: Any = Process(self.server)
        self.calls = RemoteCalls(self.worker)
        self.calls.is_serving = True

    async def control(self, **fields: Any) -> bool:
        """What `control` in a thread of the model returns."""
        asked = asyncio.create_task(asyncio.to_thread(self.calls.control, ModelControl(**fields)))
        message = await asyncio.to_thread(self.server.receive)
        assert message.kind == CONTROL
        self.handler.begin(self.process, message)
        assert self.handler.is_controlling(self.process)
        await asyncio.to_thread(lambda: self.calls.arrived(self.worker.receive()))
        return await asked


@pytest.fixture
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    made = Rig(getattr(request, "param", Limits()))
    yield made
    made.server.close()
    made.worker.close()


async def test_load_reaches_the_engine_with_config_and_files(rig: Rig):
    files = {"file:1/a": b"x" * 100_000, "file:1/empty": b""}
    assert await rig.control(action="load", model_name="m", config_json="{}", files=files)
    assert rig.engine.loads == [("m", LoadOverrides("{}", {"1/a": b"x" * 100_000, "1/empty": b""}))]
    assert not rig.handler.is_controlling(rig.process)


async def test_unload_reaches_the_engine(rig: Rig):
    assert await rig.control(action="unload", model_name="m", unload_dependents=True)
    assert rig.engine.unloads == [("m", True)]


async def test_unknown_model_is_not_ready(rig: Rig):
    assert not await rig.control(action="ready", model_name="m", model_version=1)


async def test_error_of_a_load_is_raised_in_the_model(rig: Rig):
    rig.engine.load_error = ModelLoadError("failed to load 'm', no such file")
    with pytest.raises(ModelLoadError, match=r"^failed to load 'm', no such file$"):
        await rig.control(action="load", model_name="m")


async def test_files_without_a_configuration_are_rejected(rig: Rig):
    with pytest.raises(InvalidRequest, match="'config' must be given along"):
        await rig.control(action="load", model_name="m", files={"file:1/a": b"x"})
    assert rig.engine.loads == []


@pytest.mark.parametrize("rig", [Limits(request_bytes=1000)], indirect=True)
async def test_load_of_more_bytes_than_a_request_is_rejected(rig: Rig):
    with pytest.raises(TooLarge, match="a load has 1001 bytes of files, more than the 1000 of a request"):
        await rig.control(action="load", model_name="m", config_json="{", files={"file:1/a": b"x" * 1000})


async def test_model_that_is_being_loaded_cannot_control_others(rig: Rig):
    rig.calls.is_serving = False
    with pytest.raises(Unavailable, match="once it is loaded itself"):
        rig.calls.control(ModelControl(action="ready", model_name="m"))


async def test_control_ends_when_the_server_is_gone(rig: Rig):
    asked = asyncio.create_task(asyncio.to_thread(rig.calls.control, ModelControl(action="ready", model_name="m")))
    await asyncio.to_thread(rig.server.receive)
    rig.calls.close()
    with pytest.raises(Unavailable, match="has closed the channel"):
        await asked


async def test_model_in_a_thread_of_the_server_controls_others():
    engine = FakeEngine()
    calls = ThreadCalls(ModelRequests(engine, Limits()), asyncio.get_running_loop())
    assert await asyncio.to_thread(calls.control, ModelControl(action="load", model_name="m"))
    assert not await asyncio.to_thread(calls.control, ModelControl(action="ready", model_name="m"))
    assert engine.loads == [("m", LoadOverrides())]
