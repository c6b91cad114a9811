"""Loads whose callers have left."""

import asyncio
import gc
import logging
from typing import Any

import pytest

from stoker.backends.api.errors import ModelLoadError
from stoker.server.core.limits import Limits
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.exchange import HttpCall
from stoker.server.protocols.kserve.service import KServeService
from tests.fakes.fake_engine import FakeEngine


@pytest.mark.parametrize(
    ("error", "logged"), [(ModelLoadError("no"), []), (RuntimeError("defect"), ["stoker.server.protocols.kserve.service"])]
)
def test_abandoned_load_that_fails_raises_no_unretrieved_error(error: Exception, logged: list[str], caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)

    async def main() -> None:
        begun, go, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def load(name: str, overrides: Any) -> None:
            begun.set()
            await go.wait()
            over.set()
            raise error

        engine = FakeEngine()
        engine.load = load  # type: ignore[method-assign]
        service = KServeService(engine, Limits())
        call = asyncio.create_task(service.repository_model_load(pb.RepositoryModelLoadRequest(model_name="m"), HttpCall(())))
        await begun.wait()
        call.cancel()
        await asyncio.wait([call])
        go.set()
        await over.wait()
        del call

    asyncio.run(main())
    # asyncio logs errors that were never retrieved when their tasks are freed.
    gc.collect()
    assert [record.name for record in caplog.records if record.name != "asyncio" or record.levelno >= logging.ERROR] == logged
