"""An ended stream is freed by reference counts: the garbage collector runs seldom."""

import asyncio
import gc
from collections import Counter

import pytest

from stoker.server.core.limits import Limits
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.inference import Inference
from stoker.server.protocols.kserve.stream import Stream, StreamInference
from stoker.server.rpc.http2.connection import GrpcProtocol
from stoker.server.rpc.http2.streamed_call import StreamedCall
from stoker.server.rpc.method import Kind, Method
from stoker.server.rpc.status import kserve_status
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.grpc_peer import connected, serving

TURNS = 500


def request(*, row_bytes: int = 64) -> bytes:
    message = pb.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        message.raw_input_contents.append(bytes(row_bytes))
    return message.SerializeToString()


def stream_objects() -> Counter[str]:
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in (GrpcProtocol, StreamedCall, Stream))


@pytest.mark.parametrize(
    "messages",
    [[], [request()], [request()] * 3, [request(row_bytes=60)], [b"\xff"]],
    ids=["no request", "one request", "three requests", "rejected request", "invalid message"],
)
@pytest.mark.parametrize("end", ["with the last request", "after a response", "reset", "closed"])
def test_ended_stream_leaves_no_reference_cycle(messages: list[bytes], end: str):
    async def scenario() -> None:
        engine, limits = FakeEngine(simple()), Limits()
        streams = StreamInference(engine, Inference(engine, limits), limits)
        method = Method(
            path="/a.B/Echo",
            kind=Kind.BIDI,
            handle=streams.model_stream_infer,
            begin=streams.begin,
            status=kserve_status,
            most_bytes=1 << 20,
        )
        async with asyncio.timeout(20), serving(method, engine=engine) as (_, port):
            async with connected(port) as peer:
                stream_id = peer.begin()
                if messages:
                    peer.send(stream_id, *messages, end=end == "with the last request")
                    peer.flush()
                    await peer.until(lambda: peer.responses[stream_id].body)
                if end == "reset":
                    peer.connection.reset_stream(stream_id)
                    peer.flush()
                elif end != "closed":
                    if not messages or end == "after a response":
                        peer.connection.end_stream(stream_id)
                        peer.flush()
                    await peer.ended(stream_id)
            for _ in range(TURNS):
                # The loop sees the close in a later turn.
                if not stream_objects():
                    break
                await asyncio.sleep(0.01)
            assert not stream_objects()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
