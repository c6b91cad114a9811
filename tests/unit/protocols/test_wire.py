"""Serialised requests looked through before they are parsed."""

import asyncio
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import InvalidRequest, Overloaded, ServingError, TooLarge
from stoker.backends.api.tensor import DataType
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import MIB, Limits
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.inference import Inference
from stoker.server.rpc.message_cost import check_control_request, split_infer_request
from tests.fakes.fake_engine import FakeEngine, echo
from tests.fakes.message_calls import respond

LIMITS = Limits()
COUNT = 1_000_000


def submessage(number: int, body: bytes) -> bytes:
    size, length = len(body), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + body


def test_only_the_raw_contents_are_extracted():
    message = pb.ModelInferRequest(model_name="m", model_version="1", id="7")
    message.parameters["p"].int64_param = 300
    for name, content in (("a", b"x" * 300), ("b", b""), ("c", b"yz")):
        tensor = message.inputs.add(name=name, datatype="FP32", shape=[1, 200, 1 << 40])
        tensor.contents.fp32_contents.extend([1.0, 2.0])
        message.raw_input_contents.append(content)
    message.outputs.add(name="o").parameters["classification"].int64_param = 3
    wire = split_infer_request(message.SerializeToString(), LIMITS)
    assert [bytes(raw) for raw in wire.raws] == list(message.raw_input_contents)
    del message.raw_input_contents[:]
    assert pb.ModelInferRequest.FromString(bytes(wire.rest)) == message
    assert len(wire.rest) < wire.cost_bytes < 10_000


@given(st.binary(max_size=60))
def test_any_bytes_are_split_like_the_parser_or_refused(data: bytes):
    try:
        wire = split_infer_request(data, LIMITS)
    except ServingError:
        return
    try:
        whole = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        return
    assert [bytes(raw) for raw in wire.raws] == list(whole.raw_input_contents)
    del whole.raw_input_contents[:]
    assert pb.ModelInferRequest.FromString(bytes(wire.rest)) == whole


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (submessage(5, b"") * COUNT, "more than the 1024 inputs"),
        (submessage(6, b"") * COUNT, "more than the 1024 outputs"),
        (submessage(7, b"") * COUNT, "more than the 1024 raw_input_contents"),
        (submessage(4, b"") * COUNT, "more than the 256 parameters"),
        (b"\x78\x01" * COUNT, "more than 65536 fields"),
        (submessage(5, submessage(4, b"") * 257), "more than the 256 parameters of one input"),
        (submessage(5, submessage(4, b"") * 250) * 300, "more than 65536 fields"),
        (submessage(5, submessage(3, b"\x01" * 1000)), "more than the 32 dimensions"),
        (submessage(5, b"\x18\x01" * 33), "more than the 32 dimensions"),
        (submessage(6, submessage(2, b"") * 257), "more than the 256 parameters of one output"),
        (submessage(5, b"\x0b\x0c"), "not a valid protobuf message"),
        (b"\x2a\x05", "not a valid protobuf message"),
        (b"\x2a" + b"\xff" * 12, "not a valid protobuf message"),
    ],
)
def test_memory_amplifying_message_is_refused_without_parsing(body: bytes, text: str):
    called: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            called[argument.__name__] += 1

    sys.setprofile(count)
    try:
        with pytest.raises((InvalidRequest, TooLarge), match=text):
            split_infer_request(b"\x0a\x01m" + body, LIMITS)
    finally:
        sys.setprofile(None)
    # The refusal comes from the first fields beyond a limit, not from a parsed message, nor after a walk over all of them.
    assert not called.keys() & {"FromString", "MergeFromString", "ParseFromString"}
    assert called.total() < COUNT


@pytest.mark.parametrize(
    ("contents", "least", "most"),
    [
        (submessage(6, bytes(4 * COUNT)), 4 * COUNT, 4 * COUNT + 2000),
        (submessage(2, b"\x01" * COUNT), 8 * COUNT, 10 * COUNT),
        (submessage(5, b"\x81\x01" * COUNT), 16 * COUNT, 19 * COUNT),
        (submessage(8, b"") * COUNT, 30 * COUNT, 40 * COUNT),
        (submessage(8, bytes(COUNT)), COUNT, COUNT + 2000),
        (b"\x18\x01" * COUNT, 16 * COUNT, 40 * COUNT),
    ],
)
def test_typed_contents_cost_their_decoded_size(contents: bytes, least: int, most: int):
    assert least <= split_infer_request(submessage(5, submessage(5, contents)), LIMITS).cost_bytes <= most


def test_contents_above_the_whole_budget_are_refused():
    data = submessage(5, submessage(5, submessage(8, b"") * COUNT))
    with pytest.raises(TooLarge, match="send large tensors as raw_input_contents"):
        split_infer_request(data, Limits(bytes_in_flight=16 * MIB))


def test_control_requests_of_many_fields_are_refused():
    message = pb.RepositoryModelLoadRequest(model_name="m")
    message.parameters["file:1/model.onnx"].bytes_param = bytes(1 << 20)
    check_control_request(message.SerializeToString(), LIMITS)
    with pytest.raises(InvalidRequest, match="more than the 256 allowed"):
        check_control_request(submessage(3, b"") * 5000, LIMITS)


def string_request(count: int) -> bytes:
    message = pb.ModelInferRequest(model_name="echo_bytes")
    message.inputs.add(name="INPUT", datatype="BYTES", shape=[1, count])
    message.raw_input_contents.append(b"\x01\x00\x00\x00a" * count)
    return message.SerializeToString()


def test_strings_are_counted_before_they_are_decoded():
    engine = FakeEngine(echo(DataType.BYTES))
    data = string_request(10_000)

    async def scenario() -> None:
        await respond(Inference(engine, LIMITS), data)
        assert engine.peak_bytes > len(data) + 60 * 10_000
        engine.limit_budget(len(data) + 30 * 10_000)
        with pytest.raises(Overloaded):
            await respond(Inference(engine, LIMITS), data)
        engine.limit_budget(1 << 40)
        with pytest.raises(TooLarge, match="10000 elements of data-type BYTES, more than the 9999 allowed"):
            await respond(Inference(engine, Limits(string_elements=9_999)), data)

    asyncio.run(scenario())
    assert engine.reserved_bytes == 0
    assert engine.rejected == ["echo_bytes", "echo_bytes"]


def test_loop_serves_others_while_many_strings_are_decoded():
    engine = FakeEngine(echo(DataType.BYTES))
    data = string_request(200_000)

    async def scenario() -> None:
        with Reservation(engine.budget) as reservation:
            decoding = asyncio.create_task(Inference(engine, LIMITS).decode(data, None, reservation))
            turns = 0
            while not decoding.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns > 3
            assert (await decoding).request.inputs["INPUT"].size == 200_000

    asyncio.run(scenario())
