"""A bare ASGI application on uvicorn: what an HTTP request costs in Python before anything is served. A process of its own.

    python -m benchmarks.echo_asgi RESPONSE_FILE

Reads each request's body and answers the file's bytes. Prints its port as one JSON line, and ends when standard input closes.
"""

import asyncio
import json
import socket
import sys
from pathlib import Path

import uvicorn
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope


async def serve(response: bytes) -> None:
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(response)).encode())]

    async def application(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        has_more = True
        while has_more:
            message = await receive()
            has_more = message["type"] == "http.request" and message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": response, "more_body": False})

    config = uvicorn.Config(application, loop="uvloop", http="httptools", log_level="warning", access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await running


def main() -> None:
    import uvloop

    uvloop.run(serve(Path(sys.argv[1]).read_bytes()))


if __name__ == "__main__":
    main()
