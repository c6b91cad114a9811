"""The table that the gRPC port serves."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from stoker.server.core.limits import Limits
from stoker.server.grpc_server import grpc_methods
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.services import Services
from stoker.server.rpc.method import Kind
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.fake_rpc import FakeCall


def test_every_method_of_the_services_exists_with_its_kind():
    engine = FakeEngine(simple())
    table = grpc_methods(Services(engine, Limits()))
    for descriptor in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
        method = table[f"/inference.GRPCInferenceService/{descriptor.name}"]
        assert method.kind.is_client_streaming == descriptor.client_streaming
    assert table["/grpc.health.v1.Health/Watch"].kind is Kind.SERVER_STREAM
    assert not any("reflection" in path for path in table)


def test_method_needs_no_transport():
    engine = FakeEngine(simple())
    table = grpc_methods(Services(engine, Limits()), reflection=True)
    live = table["/inference.GRPCInferenceService/ServerLive"]
    start: Any = live.start

    async def respond() -> object:
        return await start(b"", FakeCall()).outcome()

    assert asyncio.run(respond()) == pb.ServerLiveResponse(live=True)


@pytest.mark.slow
def test_native_transport_imports_no_grpc_library():
    modules = "stoker.server.rpc.http2.server, stoker.server.grpc_server, stoker.server.rpc.reflection"
    script = f"import sys, {modules}; print('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
