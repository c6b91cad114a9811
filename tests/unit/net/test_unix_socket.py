"""Unix-domain sockets: replacement of files, permissions, and removal."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import grpc.aio
import httpx
import pytest

from stoker.server.core.limits import Limits
from stoker.server.grpc_server import grpc_server
from stoker.server.net.listeners import MAX_PATH_BYTES, ListenOptions, PortInUse, UnixSocket
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.services import Services
from stoker.server.web.http_server import http_server
from tests.fakes.both_transports import settings, transport  # noqa: F401 - a fixture
from tests.fakes.fake_engine import FakeEngine, simple


def leave_stale(path: Path) -> None:
    """As a killed server does."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_socket_has_its_mode_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        made = UnixSocket(tmp_path / "s", 0o660)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o660
    made.sock.close()
    made.remove()
    assert not (tmp_path / "s").exists()


def test_socket_has_its_mode_from_its_creation(tmp_path, monkeypatch: pytest.MonkeyPatch):
    born = []
    set_mode = Path.chmod

    def set_later(path: Path, mode: int) -> None:
        born.append(stat.S_IMODE(path.stat().st_mode))
        set_mode(path, mode)

    monkeypatch.setattr(Path, "chmod", set_later)
    before = os.umask(0)
    try:
        UnixSocket(tmp_path / "s", 0o600).sock.close()
    finally:
        os.umask(before)
    assert born == [0o600]


def test_socket_of_a_dead_server_is_replaced(tmp_path):
    leave_stale(tmp_path / "s")
    made = UnixSocket(tmp_path / "s", 0o600)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
    made.sock.close()


def test_file_that_is_not_a_socket_is_kept_and_named(tmp_path):
    living = UnixSocket(tmp_path / "s", 0o600)
    with living.sock:
        with pytest.raises(PortInUse, match=r"/s is in use by another process$") as caught:
            UnixSocket(tmp_path / "s", 0o600)
        assert caught.value.is_socket
        # It still is what it was.
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "s"))


def test_another_servers_socket_is_not_removed(tmp_path):
    first = UnixSocket(tmp_path / "s", 0o600)
    first.sock.close()
    second = UnixSocket(tmp_path / "s", 0o600)
    first.remove()
    assert (tmp_path / "s").exists()
    second.sock.close()
    second.remove()
    assert not (tmp_path / "s").exists()


def test_file_that_is_no_socket_is_kept_and_named(tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OSError, match=r"file that is no socket stands there"):
        UnixSocket(tmp_path / "file", 0o600)
    assert (tmp_path / "file").read_text() == "precious"
    with pytest.raises(OSError, match=f"cannot listen on {tmp_path}/no/s: No such file or directory"):
        UnixSocket(tmp_path / "no" / "s", 0o600)
    with pytest.raises(OSError, match=f"a socket's takes {MAX_PATH_BYTES} at most"):
        UnixSocket(tmp_path / ("x" * 200), 0o600)


def test_http_is_served_on_port_and_socket(tmp_path):
    path = tmp_path / "http.sock"

    async def main() -> None:
        served = http_server(Services(FakeEngine(simple()), Limits()), "127.0.0.1", 0, listeners=ListenOptions(socket_path=path))
        port = await served.start()
        for uds, address in ((None, f"http://127.0.0.1:{port}"), (str(path), "http://stoker")):
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=uds), base_url=address, timeout=60) as client:
                assert (await client.get("/v2/health/ready")).json() == {"ready": True}
                assert (await client.get("/v2/models/simple")).json()["name"] == "simple"
        await served.stop(1)
        assert not path.exists()

    asyncio.run(main())


def test_grpc_is_served_on_port_and_socket(tmp_path):
    path = tmp_path / "grpc.sock"

    async def main() -> None:
        options = ListenOptions(socket_path=path, socket_mode=0o620)
        served = grpc_server(Services(FakeEngine(simple()), Limits()), "127.0.0.1", 0, settings=settings(), listeners=options)
        port = await served.start()
        assert stat.S_IMODE(path.stat().st_mode) == 0o620
        for target in (f"127.0.0.1:{port}", f"unix:{path}"):
            async with grpc.aio.insecure_channel(target) as channel:
                call = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
                assert pb.ServerReadyResponse.FromString(await call(b"")).ready
        await served.stop(1)
        assert not path.exists()

    asyncio.run(main())


def test_socket_without_tcp_opens_no_port(tmp_path):
    path = tmp_path / "grpc.sock"

    async def main() -> None:
        options = ListenOptions(socket_path=path, has_port=False)
        served = grpc_server(Services(FakeEngine(simple()), Limits()), "127.0.0.1", 0, settings=settings(), listeners=options)
        assert await served.start() == 0
        with pytest.raises(PortInUse, match="in use"):
            await grpc_server(Services(FakeEngine(simple()), Limits()), "127.0.0.1", 0, settings=settings(), listeners=options).start()
        await served.stop(1)

    asyncio.run(main())
