"""A client of any protocol waits for a control operation for a bounded time, and the operation continues."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stoker.backends.api.errors import DeadlineExceeded
from stoker.server.core.limits import Limits
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.pb.tensorflow_serving.apis import model_management_pb2
from stoker.server.protocols.exchange import HttpCall
from stoker.server.protocols.kserve.service import KServeService
from stoker.server.protocols.settings import TfsSettings
from stoker.server.protocols.tfs.service import TfsService
from tests.fakes.fake_engine import FakeEngine

LIMITS = Limits(control_timeout_s=1e-3)


def kserve_load(engine: FakeEngine) -> Awaitable[object]:
    return KServeService(engine, LIMITS).repository_model_load(pb.RepositoryModelLoadRequest(model_name="m"), HttpCall(()))


def kserve_unload(engine: FakeEngine) -> Awaitable[object]:
    return KServeService(engine, LIMITS).repository_model_unload(pb.RepositoryModelUnloadRequest(model_name="m"), HttpCall(()))


def tfs_reload(engine: FakeEngine) -> Awaitable[object]:
    request = model_management_pb2.ReloadConfigRequest()
    request.config.model_config_list.config.add(name="m", base_path="/m", model_platform="tensorflow")
    return TfsService(engine, LIMITS, TfsSettings(allow_reload=True)).reload_config(request)


@pytest.mark.parametrize("call", [kserve_load, kserve_unload, tfs_reload])
def test_client_gets_its_timeout_and_the_operation_continues(call: Callable[[FakeEngine], Awaitable[object]]) -> None:
    async def scenario() -> None:
        go, ended = asyncio.Event(), asyncio.Event()

        async def slow(*given: object, **options: object) -> None:
            await go.wait()
            ended.set()

        engine = FakeEngine()
        engine.load = engine.unload = engine.replace_models = slow  # type: ignore[method-assign]
        with pytest.raises(DeadlineExceeded, match=r"has not ended within 0\.001 s \(--limit control_timeout_s\); it goes on"):
            await call(engine)
        go.set()
        await ended.wait()

    asyncio.run(scenario())
