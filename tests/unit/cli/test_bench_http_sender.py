"""The HTTP sender against a server of a few lines: connections that are kept, closed or broken; statuses that are errors."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from stoker.cli.bench.http_sender import HttpSender
from stoker.cli.bench.sender import RequestFailed
from stoker_client.http_json_dialect import JsonHttpDialect
from stoker_client.inference import InferOptions, build_request
from stoker_client.settings import make_connection

CALL = JsonHttpDialect(2**20).infer(build_request("m", {"x": [1.0]}, InferOptions()))
GOOD = b'{"model_name":"m","outputs":[]}'


def response(body: bytes, status: str = "200 OK", head: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{head}\r\n".encode() + body


@asynccontextmanager
async def peer(*responses: bytes | None) -> AsyncIterator[tuple[HttpSender, list[int]]]:
    """A sender, and how many requests each connection of the server has had; None closes the connection instead of answering."""
    left = list(responses)
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = len(connections)
        connections.append(0)
        try:
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                connections[at] += 1
                given = left.pop(0)
                if given is None:
                    break
                writer.write(given)
                await writer.drain()
                if b"connection: close" in given:
                    break
        except asyncio.IncompleteReadError:
            pass  # the sender is done
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = make_connection(f"http://127.0.0.1:{port}", "http", tls=None, api_key="k", headers=None, max_message_bytes=2**20)
    sender = HttpSender(connection, CALL, timeout_s=10)
    try:
        yield sender, connections
    finally:
        await sender.close()
        server.close()
        await server.wait_closed()
        # Their last turn: connections end when their tasks do.
        for _ in range(5):
            await asyncio.sleep(0)


def run(scenario: Callable[[HttpSender, list[int]], object], *responses: bytes | None) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), peer(*responses) as (sender, connections):
            await scenario(sender, connections)  # type: ignore[misc]

    asyncio.run(main())


def test_connection_is_reused_for_the_next_request():
    async def scenario(sender: HttpSender, connections: list[int]) -> None:
        for _ in range(3):
            trip = await sender.send()
            assert min(trip) >= 0
        assert connections == [3]

    run(scenario, *[response(GOOD)] * 3)


def test_connection_closed_by_the_server_is_not_reused():
    async def scenario(sender: HttpSender, connections: list[int]) -> None:
        for _ in range(2):
            await sender.send()
        assert connections == [1, 1]

    run(scenario, *[response(GOOD, head="connection: close\r\n")] * 2)


def test_concurrent_requests_use_separate_connections():
    async def scenario(sender: HttpSender, connections: list[int]) -> None:
        await asyncio.gather(*(sender.send() for _ in range(3)))
        assert sorted(connections) == [1, 1, 1]

    run(scenario, *[response(GOOD)] * 3)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (response(b'{"error":"queue full"}', "503 Service Unavailable"), "queue full"),
        (response(b"{"), "not JSON"),
        (b"HTTP/9 what\r\n\r\n", "."),
        (None, "closed the connection"),
    ],
)
def test_invalid_response_is_a_failed_request_and_the_next_one_is_sent(given: bytes | None, text: str):
    async def scenario(sender: HttpSender, connections: list[int]) -> None:
        with pytest.raises(RequestFailed, match=text):
            await sender.send()
        await sender.send()

    run(scenario, given, response(GOOD))


def test_response_without_a_request_closes_the_connection():
    """Servers send 408 before they close an idle connection; the next request must not take it for its own response."""

    async def scenario(sender: HttpSender, connections: list[int]) -> None:
        await sender.send()
        await asyncio.sleep(0)
        trip = await sender.send()
        assert trip.send_ns >= 0
        assert connections == [1, 1]

    run(scenario, response(GOOD) + response(b"", "408 Request Timeout"), response(GOOD))
