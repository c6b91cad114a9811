"""How often a large tensor is copied between the socket and the model: once in, by the read itself, and once out."""

import asyncio
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest

from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.net.http1.connection import HttpConnection
from stoker.server.net.http1.port import READ_BYTES, HttpPort
from stoker.server.net.receive_buffers import message_block
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.kserve.infer_exchange import InferRoutes
from tests.fakes.fake_engine import FakeEngine, model, signature
from tests.fakes.http_reads import arrive
from tests.fakes.no_app import no_app

ELEMENTS = 2_000_000
SLACK_BYTES = 4 * READ_BYTES + 200_000


class Sink(asyncio.Transport):
    """Receives responses and records their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()
        self.sizes: list[int] = []

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Sequence[Any]) -> None:  # type: ignore[override]
        self.sizes.append(sum(map(len, list_of_data)))
        self.written.set()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@pytest.mark.parametrize("outputs", [4, ELEMENTS])
def test_large_tensor_is_copied_neither_on_its_way_in_nor_out(outputs: int):
    for other_bytes in (100_000, 200_000, 300_000, 400_000):
        # The pool keeps blocks of four sizes: these displace the memory that another request has left.
        message_block(other_bytes, 0)
    tensors = [TensorSpec("INPUT", DataType.FP32, (ELEMENTS,))], [TensorSpec("OUTPUT", DataType.FP32, (outputs,))]
    response = np.ones((1, outputs), np.float32)
    engine = FakeEngine(model("m", signature(*tensors), lambda inputs: {"OUTPUT": response}))
    size = 4 * ELEMENTS
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [1, ELEMENTS], "parameters": {"binary_data_size": size}}
    text = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    wire = memoryview(head % (len(text), len(text) + size) + text + bytes(size))

    async def main() -> tuple[int, int]:
        port = HttpPort(no_app, Limits(), InferRoutes(HttpInfer(engine, Limits())), asyncio.get_running_loop())
        connection, sink = HttpConnection(port), Sink()
        connection.connection_made(sink)
        tracemalloc.start()
        try:
            arrive(connection, wire)
            received = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            async with asyncio.timeout(20):
                await sink.written.wait()
            answered = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert sink.sizes[0] > 4 * outputs
        return received, answered

    received, answered = asyncio.run(main())
    (request,) = engine.requests
    given = request.inputs["INPUT"]
    assert given.ctypes.data % 64 == 0
    assert given.flags.c_contiguous
    assert size <= received < size + SLACK_BYTES
    # The output itself was there before.
    assert answered < size + SLACK_BYTES


def test_body_after_a_large_one_is_read_into_its_own_memory():
    size = 4 * ELEMENTS
    tensors = [TensorSpec("INPUT", DataType.FP32, (ELEMENTS,))], [TensorSpec("OUTPUT", DataType.FP32, (4,))]
    engine = FakeEngine(model("m", signature(*tensors), lambda inputs: {"OUTPUT": np.ones((1, 4), np.float32)}))
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [1, ELEMENTS], "parameters": {"binary_data_size": size}}
    text = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    wire = memoryview(head % (len(text), len(text) + size) + text + bytes(size))
    small = b"GET /other HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"

    async def main() -> None:
        port = HttpPort(no_app, Limits(), InferRoutes(HttpInfer(engine, Limits())), asyncio.get_running_loop())
        connection, sink = HttpConnection(port), Sink()
        connection.connection_made(sink)
        shared = connection.get_buffer(-1)
        for is_first in (True, False):
            sink.written.clear()
            buffer = connection.get_buffer(-1)
            assert buffer.obj is shared.obj
            assert (len(buffer) == len(shared)) is is_first
            buffer[:] = wire[: len(buffer)]
            connection.buffer_updated(len(buffer))
            arrive(connection, wire[len(buffer) :])
            async with asyncio.timeout(20):
                await sink.written.wait()
        # A body without its own memory is read as others are, from then on.
        infer = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
        arrive(connection, infer + small)
        assert len(connection.get_buffer(-1)) == len(shared)

    asyncio.run(main())
