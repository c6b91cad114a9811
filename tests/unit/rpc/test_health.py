"""The health service, without a transport."""

import asyncio

import pytest
from grpc_health.v1 import health_pb2

from stoker.backends.api.errors import Unavailable
from stoker.server.core.limits import Limits
from stoker.server.rpc.health import Health
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_rpc import FakeStreamCall


def test_watcher_ends_when_the_server_stops():
    engine = FakeEngine()
    engine.live = engine.ready = False
    (_, watch) = Health(engine, Limits(), frozenset()).methods()
    call = FakeStreamCall(b"")
    assert watch.handle is not None
    with pytest.raises(Unavailable, match="shutting down"):
        asyncio.run(watch.handle(call))  # type: ignore[arg-type]
    (sent,) = call.sent
    assert health_pb2.HealthCheckResponse.FromString(sent).status == health_pb2.HealthCheckResponse.NOT_SERVING
