"""An HTTP connection that is the only sender gets its response while its request is read; several share a batch in the loop's next turn."""

import asyncio
from typing import Any

import numpy as np
import orjson

from stoker.backends.api.clock import SystemClock
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.request import Done, InferRequest, InferResponse, InFlight
from stoker.server.core.timers import LoopTimers
from stoker.server.net.http1.connection import HttpConnection
from stoker.server.net.http1.port import HttpPort
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.kserve.infer_exchange import InferRoutes
from stoker.server.tuning.constants import SINGLE_CONNECTION_READS
from tests.fakes.fake_engine import FakeEngine, echo
from tests.fakes.no_app import no_app

ARRAY = np.arange(3, dtype=np.int32)
TENSOR = {"name": "INPUT", "datatype": "INT32", "shape": [1, 3], "data": ARRAY.tolist()}
BODY = orjson.dumps({"inputs": [TENSOR]})
REQUEST = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


class Flight:
    def cancel(self) -> None: ...


class PromptEngine(FakeEngine):
    """Completes when the server's timers run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(echo(DataType.INT32, (-1,), name="echo"))
        self._timers = LoopTimers(loop, SystemClock(), self.reads.defer)

    def submit(self, request: InferRequest, done: Done) -> InFlight:
        response = InferResponse(request.model_name, 1, request.request_id, {"OUTPUT": request.inputs["INPUT"]}, request.signature)
        self._timers.call_soon(lambda: done(response))
        return Flight()


class Transport(asyncio.Transport):
    """Keeps each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return False


def connection_of(port: HttpPort) -> tuple[HttpConnection, Transport]:
    connection, transport = HttpConnection(port), Transport()
    connection.connection_made(transport)
    return connection, transport


def ask(connection: HttpConnection, data: bytes = REQUEST) -> None:
    """One read."""
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def new_port() -> HttpPort:
    loop = asyncio.get_running_loop()
    return HttpPort(no_app, Limits(), InferRoutes(HttpInfer(PromptEngine(loop), Limits())), loop)


async def single_connection() -> tuple[HttpConnection, Transport]:
    """A connection that counts as the single sender; its responses until then are dropped."""
    connection, transport = connection_of(new_port())
    for _ in range(SINGLE_CONNECTION_READS + 1):
        ask(connection)
        await asyncio.sleep(0)
    transport.writes.clear()
    return connection, transport


def is_response(data: bytes) -> bool:
    head, _, body = data.partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 200 ") and orjson.loads(body)["outputs"][0]["data"] == ARRAY.tolist()


def test_single_connection_gets_its_response_within_the_read():
    async def scenario() -> None:
        connection, transport = await single_connection()
        for _ in range(3):
            ask(connection)
            assert [is_response(data) for data in transport.writes] == [True]
            transport.writes.clear()

    asyncio.run(scenario())


def test_pipelined_requests_of_a_single_connection_get_responses_in_order():
    async def scenario() -> None:
        connection, transport = await single_connection()
        ask(connection, 3 * REQUEST)
        for answered in (1, 2, 3):
            assert [is_response(data) for data in transport.writes] == [True] * answered
            await asyncio.sleep(0)

    asyncio.run(scenario())


def test_connections_that_send_in_turn_are_batched():
    async def scenario() -> None:
        port = new_port()
        clients = [connection_of(port) for _ in range(2)]
        for _ in range(2 * SINGLE_CONNECTION_READS):
            for connection, transport in clients:
                ask(connection)
                assert transport.writes == []
            await asyncio.sleep(0)
            for _, transport in clients:
                assert [is_response(data) for data in transport.writes] == [True]
                transport.writes.clear()

    asyncio.run(scenario())
