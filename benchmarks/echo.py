"""Bare echoes: the cost of a request in Python without a server's work. Runs as a separate process.

    python -m benchmarks.echo bytes RESPONSE_FILE      grpc.aio; parses nothing, responds with the file's bytes
    python -m benchmarks.echo protobuf RESPONSE_FILE   grpc.aio; parses the ModelInferRequest, builds a ModelInferResponse around the tensor
    python -m benchmarks.echo h2                       the same on the server's own HTTP/2 front
    python -m benchmarks.echo asgi RESPONSE_FILE       ASGI on uvicorn; reads each request's body, responds with the file's bytes

It prints its port as one JSON line, and ends when standard input closes.
"""

import asyncio
import json
import socket
import sys
import time
from pathlib import Path
from typing import cast

import grpc
import uvicorn
import uvloop
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

from stoker_client._pb import messages as pb

SERVICE = "inference.GRPCInferenceService"


def response_to(data: bytes) -> bytes:
    """A ModelInferResponse whose output `y` is the first input tensor."""
    request = pb.ModelInferRequest.FromString(data)
    tensor = request.inputs[0]
    response = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    response.outputs.add(name="y", datatype=tensor.datatype, shape=tensor.shape)
    response.raw_output_contents.append(request.raw_input_contents[0])
    return response.SerializeToString()


async def serve_grpc(canned: bytes | None) -> None:
    """A grpc.aio server that responds with `response`; None: it parses and builds messages."""

    async def infer(request: bytes, _context: object) -> bytes:
        return response_to(request) if canned is None else canned

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await _until_closed(port)
    await server.stop(None)


async def serve_h2() -> None:
    """The server's HTTP/2 frontend without an engine."""
    from stoker.server.core.byte_budget import ByteBudget
    from stoker.server.core.limits import Limits
    from stoker.server.engine.interface import Engine
    from stoker.server.rpc.http2.server import H2Server
    from stoker.server.rpc.method import Call, Kind, Method, in_task, method_table
    from stoker.server.rpc.status import kserve_status
    from stoker.server.tuning.read_batching import Reads

    class NoEngine:
        """The engine of a frontend that serves no model."""

        def __init__(self) -> None:
            self.reads = Reads()
            self.budget = ByteBudget(1 << 30, time.monotonic_ns)

        def now_ns(self) -> int:
            return time.monotonic_ns()

        def note_goaway(self, _reason: object) -> None:
            """Does nothing."""

    async def infer(data: bytes, _call: Call) -> bytes:
        return response_to(data)

    limits = Limits()
    method = Method(
        path=f"/{SERVICE}/ModelInfer",
        kind=Kind.UNARY,
        start=in_task(infer, is_inline=True),
        status=kserve_status,
        most_bytes=limits.grpc_message_bytes,
    )
    server = H2Server(method_table([method]), cast("Engine", NoEngine()), limits, "127.0.0.1", 0)
    await _until_closed(await server.start())
    await server.stop(0.0)


async def serve_asgi(canned: bytes) -> None:
    """A bare ASGI application on uvicorn."""
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(canned)).encode())]

    async def application(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        has_more = True
        while has_more:
            message = await receive()
            has_more = message["type"] == "http.request" and message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": canned, "more_body": False})

    config = uvicorn.Config(application, loop="uvloop", http="httptools", log_level="warning", access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    await _until_closed(listener.getsockname()[1])
    server.should_exit = True
    await running


async def _until_closed(port: int) -> None:
    """Prints the port; returns when standard input is closed."""
    print(json.dumps({"port": port}), flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    kind, *files = sys.argv[1:]
    if kind == "h2":
        uvloop.run(serve_h2())
    elif kind == "asgi":
        uvloop.run(serve_asgi(Path(files[0]).read_bytes()))
    else:
        asyncio.run(serve_grpc(Path(files[0]).read_bytes() if kind == "bytes" else None))


if __name__ == "__main__":
    main()
