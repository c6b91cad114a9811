"""The calls of the transport and of the event loop that a small request costs: each write and each read is a system call."""

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import numpy as np
import orjson

from stoker.backends.api.tensor import DataType
from stoker.server.core.completion import Completion
from stoker.server.core.limits import Limits
from stoker.server.net.http1.connection import HttpConnection
from stoker.server.net.http1.port import HttpPort, no_path
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.kserve.infer_exchange import InferRoutes
from stoker.server.protocols.services import Services
from stoker.server.rpc.http2.connection import GrpcProtocol
from stoker.server.rpc.http2.connection_context import ConnectionContext
from stoker.server.rpc.method import Kind, Method, Result, method_table
from stoker.server.rpc.settings import GrpcSettings
from stoker.server.rpc.status import kserve_status
from tests.fakes.fake_engine import FakeEngine, echo, simple
from tests.fakes.h2_raw import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, block, frame
from tests.fakes.http_reads import arrive
from tests.fakes.no_app import no_app

_PATH = "/a.B/Soon"
_FIELDS = (
    *((b":method", b"POST"), (b":scheme", b"http"), (b":path", _PATH.encode()), (b":authority", b"x")),
    *((b"te", b"trailers"), (b"content-type", b"application/grpc")),
)
#: Calls that cost neither a system call nor a timer.
_FREE = frozenset(("is_closing", "time"))


class Counted:
    """Passes all calls on to `inner` (None: to nothing, as an open transport), and counts them by name."""

    def __init__(self, inner: Any, calls: Counter[str]) -> None:
        self._inner = inner
        self._calls = calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if name not in _FREE:
                self._calls[name] += 1
            if self._inner is None:
                return False if name == "is_closing" else None
            return getattr(self._inner, name)(*arguments, **named)

        return call


def binary_request() -> bytes:
    array = np.arange(3, dtype=np.int32)
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 3], "parameters": {"binary_data_size": array.nbytes}}
    text = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    return head % (len(text), len(text) + array.nbytes) + text + array.tobytes()


def test_http_request_costs_one_write_and_no_timer():
    async def scenario() -> None:
        calls: Counter[str] = Counter()
        loop = cast("asyncio.AbstractEventLoop", Counted(asyncio.get_running_loop(), calls))
        engine, limits = FakeEngine(echo(DataType.INT32, (-1,), name="echo")), Limits()
        infer = HttpInfer(engine, limits, Services(engine, limits).extensions)
        connection = HttpConnection(HttpPort(no_app, limits, InferRoutes(infer), loop, no_path))
        connection.connection_made(Counted(None, calls))  # type: ignore[arg-type]
        for _ in range(3):
            calls.clear()
            arrive(connection, binary_request())
            for _ in range(3):
                await asyncio.sleep(0)
            assert calls == {"write": 1}

    asyncio.run(scenario())


def test_grpc_calls_of_one_read_cost_one_write_and_no_timer():
    async def scenario() -> None:
        calls: Counter[str] = Counter()
        inner = asyncio.get_running_loop()
        loop = cast("asyncio.AbstractEventLoop", Counted(inner, calls))

        def start(data: bytes, call: Any) -> Completion[Result]:
            completion = Completion[Result]()
            inner.call_soon(lambda: completion.complete(data))
            return completion

        method = Method(path=_PATH, kind=Kind.UNARY, start=start, status=kserve_status, most_bytes=100)
        connection = GrpcProtocol(ConnectionContext(method_table([method]), FakeEngine(simple()), Limits(), GrpcSettings(), loop))
        connection.connection_made(Counted(None, calls))  # type: ignore[arg-type]
        connection.data_received(PREFACE + frame(SETTINGS))
        ids = count(1, 2)
        message = b"\0" + (3).to_bytes(4, "big") + b"abc"
        for in_flight in (1, 8, 1, 8):
            calls.clear()
            connection.data_received(
                b"".join(
                    frame(HEADERS, END_HEADERS, stream_id, block(_FIELDS)) + frame(DATA, END_STREAM, stream_id, message)
                    for stream_id, _ in zip(ids, range(in_flight), strict=False)
                )
            )
            for _ in range(3):
                await asyncio.sleep(0)
            # Several calls share one write, which one callback of the loop makes.
            assert calls == ({"write": 1} if in_flight == 1 else {"write": 1, "call_soon": 1})

    asyncio.run(scenario())
