"""The HTTP port on uvicorn: listeners, signals, the end of requests, and the refusals of its flag."""

import asyncio
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from stoker.server.core.flag import FlagError
from stoker.server.core.limits import Limits
from stoker.server.flags.command import read_command
from stoker.server.net.listeners import Frontend, ListenOptions, PortInUse
from stoker.server.protocols.services import Services
from stoker.server.server_config import ServerConfig
from stoker.server.web.http_server import http_server, metrics_server
from stoker.server.web.settings import HttpFront
from stoker.server.web.uvicorn_front import UvicornServer
from tests.fakes.fake_engine import FakeEngine, simple

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
ROW = list(range(16))
INFER = {"inputs": [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": ROW} for name in ("INPUT0", "INPUT1")]}


def front(port: int = 0, **options: Any) -> Frontend:
    return http_server(Services(FakeEngine(simple()), Limits()), "127.0.0.1", port, front=HttpFront.UVICORN, **options)


@LOOPS
def test_http_is_served_on_port_and_socket(run: Callable[[Any], Any], tmp_path: Path):
    path = tmp_path / "http.sock"

    async def main() -> None:
        served = front(listeners=ListenOptions(socket_path=path, socket_mode=0o620))
        port = await served.start()
        assert stat.S_IMODE(path.stat().st_mode) == 0o620
        for uds, address in ((None, f"http://127.0.0.1:{port}"), (str(path), "http://stoker")):
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=uds), base_url=address, timeout=60) as client:
                assert (await client.get("/v2/health/ready")).json() == {"ready": True}
                response = await client.post("/v2/models/simple/infer", json=INFER)
                assert [output["name"] for output in response.json()["outputs"]] == ["OUTPUT0", "OUTPUT1"]
                assert "server" not in response.headers
        await served.stop(1)
        assert not path.exists()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    run(main())


def test_metrics_port_is_served():
    async def main() -> None:
        served = metrics_server(FakeEngine(), Limits(), "127.0.0.1", 0, front=HttpFront.UVICORN)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{await served.start()}", timeout=60) as client:
            assert (await client.get("/metrics")).status_code == 200
            assert (await client.get("/v2")).status_code == 404
        await served.stop(1)

    asyncio.run(main())


def test_occupied_port_is_named_and_the_signal_handlers_are_kept():
    async def main() -> None:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        served = front()
        port = await served.start()
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
        with pytest.raises(PortInUse, match=f"port {port} on 127.0.0.1 is in use"):
            await front(port).start()
        await served.stop(0)

    asyncio.run(main())


@pytest.mark.parametrize("grace_s", [0, 20])
def test_requests_end_within_the_grace_time_or_are_cancelled(grace_s: float):
    async def main() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()
        ended: list[str] = []

        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            begun.set()
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        served = UvicornServer(app, Limits(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", await served.start())
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await begun.wait()
        stopping = asyncio.create_task(served.stop(grace_s))
        if grace_s:
            may_end.set()
        status_line = await reader.readline()
        await stopping
        writer.close()
        assert (status_line[9:12], ended) == ((b"204", []) if grace_s else (b"500", ["cancelled"]))

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()

    asyncio.run(bounded())


def test_head_above_the_limits_is_refused():
    async def main() -> None:
        served = http_server(Services(FakeEngine(), Limits(header_bytes=1000, url_bytes=1000)), "127.0.0.1", 0, front=HttpFront.UVICORN)
        reader, writer = await asyncio.open_connection("127.0.0.1", await served.start())
        writer.write(b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 3000)
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        await served.stop(1)

    asyncio.run(main())


def parsed(*words: str) -> ServerConfig:
    config = read_command([*words, f"--model_base_path={Path.cwd()}"], {})
    assert isinstance(config, ServerConfig)
    return config


def test_flag_chooses_the_server():
    assert parsed().http_front is HttpFront.STOKER
    assert parsed("--http_front=uvicorn").http_front is HttpFront.UVICORN
    with pytest.raises(FlagError, match="stoker or uvicorn"):
        parsed("--http-front=hypercorn")


@pytest.mark.parametrize("limit", ["header_count=50", "header_timeout_s=1", "chunk_count=9"])
def test_limits_that_uvicorn_does_not_hold_are_refused(limit: str):
    assert parsed(f"--limit={limit}").http_front is HttpFront.STOKER
    with pytest.raises(FlagError, match=f"--limit={limit.partition('=')[0]} has no effect with --http-front=uvicorn"):
        parsed(f"--limit={limit}", "--http-front=uvicorn")
