"""The listener on other sockets than TCP's plain ones, on both event loops."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import uvloop

from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.net.http1.listener import HttpListener
from stoker.server.net.listeners import ListenOptions
from stoker.server.net.settings import PemFiles
from stoker.server.net.tls.key_ring import HTTP_1, KeyRing
from stoker.server.protocols.exchange import send_response
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.kserve.infer_exchange import InferRoutes
from tests.fakes.fake_engine import FakeEngine, echo

LARGE = np.arange(300_000, dtype=np.int32)
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


async def others(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send_response(send, 200, scope["scheme"].encode(), [])


def listener(**options: Any) -> HttpListener:
    infer = HttpInfer(FakeEngine(echo(DataType.INT32, (-1,), name="echo")), Limits())
    return HttpListener(others, Limits(), "127.0.0.1", 0, direct=InferRoutes(infer), **options)


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """One large tensor in both directions by the direct path, then a request by ASGI; returns the latter's response."""
    parameters = {"binary_data_size": LARGE.nbytes}
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, LARGE.size], "parameters": parameters}
    text = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    body = text + LARGE.tobytes()
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % (len(text), len(body)) + body + b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    response = await reader.readuntil(b"\r\n\r\n")
    length = int(response.split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])
    assert (await reader.readexactly(length)).endswith(LARGE.tobytes())
    rest = await reader.read()
    writer.close()
    return rest


@LOOPS
def test_unix_socket_is_served(run: Callable[[Any], Any], tmp_path: Path):
    async def main() -> None:
        served = listener(listeners=ListenOptions(socket_path=tmp_path / "http", has_port=False))
        assert await served.start() == 0
        async with asyncio.timeout(20):
            assert (await exchange(*await asyncio.open_unix_connection(tmp_path / "http"))).endswith(b"http")
        await served.stop(1)

    run(main())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a certificate for localhost."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, path = folder / "key.pem", folder / "certificate.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(path)]
    subprocess.run([*command, *names], check=True, capture_output=True, timeout=30)
    path.write_text(key.read_text() + path.read_text())
    return path


@LOOPS
def test_tls_is_served(run: Callable[[Any], Any], certificate: Path):
    async def main() -> None:
        ring = KeyRing("HTTP", PemFiles(cert=certificate, key=certificate), HTTP_1)
        client_side = ssl.create_default_context(cafile=certificate)
        served = listener(listeners=ListenOptions(ring=ring))
        port = await served.start()
        async with asyncio.timeout(20):
            streams = await asyncio.open_connection("127.0.0.1", port, ssl=client_side, server_hostname="localhost")
            assert (await exchange(*streams)).endswith(b"https")
            # A client without TLS is disconnected; an invalid request over TLS gets a refusal.
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"HTTP/1.1 2" not in await reader.read()
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_side, server_hostname="localhost")
            writer.write(b"nonsense\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            writer.close()
        await served.stop(1)

    run(main())
