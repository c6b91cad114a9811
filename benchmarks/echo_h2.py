"""A bare echo on the server's own HTTP/2 front: what a gRPC call costs there before anything is served. A process of its own.

    python -m benchmarks.echo_h2

Parses the ModelInferRequest and builds a ModelInferResponse around its first tensor. Prints its port as one JSON line, and ends when
standard input closes.
"""

import asyncio
import json
import sys
import time
from typing import cast

import uvloop

from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.rpc.call import Call
from stoker.server.rpc.http2.server import H2Server
from stoker.server.rpc.method import Kind, Method, in_task, method_table
from stoker.server.rpc.status import kserve_status
from stoker.server.tuning.read_batching import Reads

_PATH = "/inference.GRPCInferenceService/ModelInfer"


class NoEngine:
    """The engine of a front that serves no model."""

    def __init__(self) -> None:
        self.reads = Reads()

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def reserve(self, _size_bytes: int) -> bool:
        return True

    def release(self, _size_bytes: int) -> None:
        """Nothing is counted."""


async def echo(data: bytes, _call: Call) -> bytes:
    """The first input tensor, as the output `y`."""
    request = pb.ModelInferRequest.FromString(data)
    tensor = request.inputs[0]
    response = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    response.outputs.add(name="y", datatype=tensor.datatype, shape=tensor.shape)
    response.raw_output_contents.append(request.raw_input_contents[0])
    return response.SerializeToString()


async def serve() -> None:
    limits = Limits()
    method = Method(
        path=_PATH, kind=Kind.UNARY, start=in_task(echo, is_inline=True), status=kserve_status, most_bytes=limits.grpc_message_bytes
    )
    server = H2Server(method_table([method]), cast("Engine", NoEngine()), limits, "127.0.0.1", 0)
    print(json.dumps({"port": await server.start()}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0.0)


if __name__ == "__main__":
    uvloop.run(serve())
