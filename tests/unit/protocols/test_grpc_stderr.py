"""gRPC's core must not write between the server's log lines. It reads its settings once in a process: hence a child."""

import os
import subprocess
import sys

import pytest

_SCRIPT = """
import asyncio
from stoker.server.grpc_server import grpc_server
import grpc
from stoker.server.core.limits import Limits
from stoker.server.protocols.services import Services
from stoker.server.rpc.settings import GrpcSettings, Transport
from tests.fakes.fake_engine import FakeEngine

async def main():
    front = grpc_server(Services(FakeEngine(), Limits()), "127.0.0.1", 0, settings=GrpcSettings(transport=Transport.GRPCIO))
    port = await front.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_metadata_size", 1 << 24)]) as channel:
        try:
            await channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", metadata=[(f"x{i}", "a") for i in range(10_000)])
        except grpc.aio.AioRpcError as error:
            print(error.code().name)
    await front.stop(1)

asyncio.run(main())
"""


@pytest.mark.slow
def test_oversized_metadata_is_refused_without_a_line_on_stderr():
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"}
    child = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=30, check=True, env=environment)
    assert (child.stdout, child.stderr) == ("RESOURCE_EXHAUSTED\n", "")
