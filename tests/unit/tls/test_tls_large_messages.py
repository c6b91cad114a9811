"""Large messages among small ones over real sockets of each kind, on the loop that serves: bytes in any pieces, and any end."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from stoker.server.core.limits import Limits
from stoker.server.net.listeners import ListenOptions
from stoker.server.net.settings import PemFiles
from stoker.server.net.tls.key_ring import H2, KeyRing
from stoker.server.rpc.http2.connection import GrpcProtocol
from stoker.server.rpc.http2.server import H2Server
from stoker.server.rpc.http2.zero_copy_reader import ZeroCopyReader
from tests.fakes.certificates import Authority, Pair
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.grpc_peer import GrpcPeer
from tests.unit.rpc.test_grpc_large_messages import Taker, check_windows

#: Large ones, then more small ones than it takes to be read as before.
SIZES = (10, 600_000, 70_000, 0, 1_500_000, *(9,) * 70, 300_000, 3)
Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, numbers: random.Random | None) -> None:
    """Passes bytes on; with `numbers`, in pieces that end anywhere, as in the midst of a TLS record."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            at = 0
            while at < len(data):
                size = len(data) if numbers is None else numbers.choice((7, 3_000, 17_000, 65_536))
                writer.write(data[at : at + size])
                at += size
                await asyncio.sleep(0)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def cutting(target: Open, numbers: random.Random) -> AsyncIterator[int]:
    """The port of a proxy that cuts the client's bytes into pieces."""

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await target()
        await asyncio.gather(forward(reader, server_writer, numbers), forward(server_reader, writer, None))

    between = await asyncio.start_server(on_client, "127.0.0.1", 0)
    try:
        yield between.sockets[0].getsockname()[1]
    finally:
        between.close()


@asynccontextmanager
async def peer_at(port: int, ca: Path | None) -> AsyncIterator[GrpcPeer]:
    """A client of the port: over TLS, if the authority is given."""
    context = None
    if ca is not None:
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2"])
    # Answers soon wait for its windows, and the server's transport for the socket.
    peer = GrpcPeer(window_bytes=1 << 20)
    await peer.open(port, context)
    try:
        yield peer
    finally:
        await peer.close()


async def ask(peer: GrpcPeer, size: int, numbers: random.Random) -> None:
    body = b"\0" + size.to_bytes(4, "big") + numbers.randbytes(size)
    stream_id = peer.begin("/a.B/Large")
    await peer.send_all(stream_id, body)
    response = await peer.ended(stream_id)
    assert (response.status, response.body == body) == (("0", ""), True)


@pytest.mark.parametrize("end", ["drained", "lost"])
@pytest.mark.parametrize("listener", ["tcp", "unix", "tls"])
def test_large_and_small_messages_arrive_over_a_socket(listener: str, end: str, server_pair: Pair, authority: Authority, tmp_path: Path):
    async def main() -> None:
        numbers = random.Random(1)
        engine = FakeEngine(simple())
        ring = KeyRing("grpc", PemFiles(cert=server_pair.cert, key=server_pair.key), H2) if listener == "tls" else None
        path = tmp_path / "socket" if listener == "unix" else None
        server = H2Server(Taker().methods(), engine, Limits(), "127.0.0.1", 0, listeners=ListenOptions(ring=ring, socket_path=path))
        port = await server.start()

        async def target() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await (asyncio.open_connection("127.0.0.1", port) if path is None else asyncio.open_unix_connection(path))

        async with cutting(target, numbers) as between, peer_at(between, authority.cert if listener == "tls" else None) as peer:
            for size in SIZES:
                await ask(peer, size, numbers)
            await asyncio.gather(*(ask(peer, size, numbers) for size in SIZES[:8]))
            (connection,) = server.connections
            assert isinstance(connection, GrpcProtocol)
            check_windows(connection)
            # It ends within a message that is read into its receive buffer.
            stream_id = peer.begin("/a.B/Large")
            body = b"\0" + (500_000).to_bytes(4, "big") + bytes(500_000)
            peer.connection.send_data(stream_id, body[:16_384])
            peer.flush()
            while not (connection.calls.receiving and isinstance(connection.transport.get_protocol(), ZeroCopyReader)):  # noqa: ASYNC110
                await asyncio.sleep(0)
            if end == "drained":
                stopping = asyncio.create_task(server.stop(20))
                await peer.until(lambda: peer.goaway is not None)
                await peer.send_all(stream_id, body[16_384:])
                assert (await peer.ended(stream_id)).status == ("0", "")
                await stopping
            else:
                await peer.close()
                while server.open_connections:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                await server.stop(0)
        assert engine.reserved_bytes == 0

    async def in_time() -> None:
        async with asyncio.timeout(20):
            await main()

    uvloop.run(in_time())
