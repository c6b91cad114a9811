"""Requests decoded by the template of an earlier one equal those decoded in full."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import ServingError
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.memo import CACHE_ENTRIES
from stoker.server.core.limits import Limits
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.decoded import DecodedRequest
from stoker.server.protocols.kserve.grpc_codec import GrpcCodec
from stoker.server.protocols.kserve.request_templates import RequestTemplates
from tests.fakes.fake_engine import FakeEngine, echo, simple
from tests.fakes.fields import facts, field_names

LIMITS = Limits()
Wire = bytes | memoryview


class Bench:
    """Templates beside the codec that decodes in full."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.codec = GrpcCodec(engine, LIMITS)
        self.templates = RequestTemplates(engine, LIMITS)

    def in_full(self, data: Wire) -> DecodedRequest:
        return self.codec.decode(pb.ModelInferRequest.FromString(bytes(data)), len(data), 77)

    def learn(self, data: Wire) -> None:
        self.templates.learn(data, self.in_full(data))

    def by_template(self, data: Wire) -> DecodedRequest | None:
        return self.templates.decode(data, 77)


def message(rows: int = 1, value: int = 0, request_id: str = "", version: str = "", **fields: Any) -> pb.ModelInferRequest:
    asked = pb.ModelInferRequest(model_name="simple", model_version=version, id=request_id, **fields)
    for place in (0, 1):
        asked.inputs.add(name=f"INPUT{place}", datatype="INT32", shape=[rows, 16])
        asked.raw_input_contents.append(np.full((rows, 16), value + place, np.int32).tobytes())
    return asked


def assert_same(found: DecodedRequest | None, expected: DecodedRequest) -> None:
    assert found is not None
    ours, theirs = found.request, expected.request
    assert facts(found.form) == facts(expected.form)
    assert list(ours.inputs) == list(theirs.inputs)
    for name, array in theirs.inputs.items():
        assert (ours.inputs[name].dtype, ours.inputs[name].shape) == (array.dtype, array.shape)
        assert ours.inputs[name].tobytes() == array.tobytes()
    for field in field_names(type(ours)):
        if field != "inputs":
            assert getattr(ours, field) == getattr(theirs, field), field


@given(
    rows=st.integers(1, 8),
    value=st.integers(-9, 9),
    first_id=st.text(max_size=40),
    second_id=st.text(max_size=40),
    version=st.sampled_from(["", "1"]),
    outputs=st.sampled_from([(), ("OUTPUT1",), ("OUTPUT1", "OUTPUT0")]),
)
def test_repeated_request_decodes_like_one_decoded_in_full(rows, value, first_id, second_id, version, outputs):
    bench = Bench(FakeEngine(simple()))
    wanted = [pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in outputs]
    data = message(rows, value, second_id, version, outputs=wanted).SerializeToString()
    assert bench.by_template(data) is None
    bench.learn(message(rows, 3, first_id, version, outputs=wanted).SerializeToString())
    if len(second_id.encode()) < 128:
        assert_same(bench.by_template(data), bench.in_full(data))


def test_tensors_of_a_repeated_request_are_views_of_the_message():
    bench = Bench(FakeEngine(simple()))
    data = message(8, 5).SerializeToString()
    bench.learn(data)
    found = bench.by_template(data)
    assert found is not None
    memory = np.frombuffer(data, np.uint8)
    assert all(np.shares_memory(array, memory) and not array.flags.writeable for array in found.request.inputs.values())


@given(data=st.data())
def test_mutated_message_matches_only_if_its_structure_is_equal(data):
    bench = Bench(FakeEngine(simple()))
    whole = bytearray(message(1, 1, "abc").SerializeToString())
    bench.learn(bytes(whole))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
    changed = bytes(whole[: data.draw(st.sampled_from([len(whole), len(whole) - 1]))])
    found = bench.by_template(changed)
    if found is not None:
        assert_same(found, bench.in_full(changed))


def test_message_with_other_tensor_sizes_is_another_structure():
    bench = Bench(FakeEngine(simple()))
    asked = message()
    bench.learn(asked.SerializeToString())
    first, second = asked.raw_input_contents
    del asked.raw_input_contents[:]
    asked.raw_input_contents.extend([first[:-4], second + first[-4:]])
    data = asked.SerializeToString()
    assert bench.by_template(data) is None
    with pytest.raises(ServingError, match="input byte size mismatch"):
        bench.in_full(data)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_do_not_match_and_raise_no_error(data):
    bench = Bench(FakeEngine(simple()))
    bench.learn(message().SerializeToString())
    assert bench.by_template(data) is None


def unusual() -> list[tuple[str, bytes]]:
    parameter = message()
    parameter.parameters["priority"].int64_param = 1
    typed = pb.ModelInferRequest(model_name="simple")
    for place in (0, 1):
        typed.inputs.add(name=f"INPUT{place}", datatype="INT32", shape=[1, 16]).contents.int_contents.extend(range(16))
    plain = message()
    contents = plain.SerializeToString()
    behind = pb.ModelInferRequest(id="late").SerializeToString()
    return [
        ("a parameter", parameter.SerializeToString()),
        ("typed contents", typed.SerializeToString()),
        ("an id behind the contents", contents + behind),
        ("an unknown field", contents + b"\xf8\x07\x01"),
        ("two names", b"\x0a\x06simple" + contents),
        ("a name behind a length of two bytes", contents.replace(b"\x0a\x06simple", b"\x0a\x86\x00simple", 1)),
    ]


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in unusual()])
def test_uncommon_forms_are_decoded_in_full_every_time(data):
    bench = Bench(FakeEngine(simple()))
    bench.learn(data)
    assert bench.by_template(data) is None


@pytest.mark.parametrize("datatype", [DataType.BOOL, DataType.BYTES])
def test_elements_that_need_validation_leave_no_template(datatype):
    bench = Bench(FakeEngine(echo(datatype, (1,), 8, "echo")))
    asked = pb.ModelInferRequest(model_name="echo")
    asked.inputs.add(name="INPUT", datatype=datatype.value, shape=[1, 1])
    asked.raw_input_contents.append(b"\1" if datatype is DataType.BOOL else b"\1\0\0\0x")
    bench.learn(asked.SerializeToString())
    assert bench.by_template(asked.SerializeToString()) is None


def test_replaced_or_unloaded_model_is_resolved_again():
    engine = FakeEngine(simple())
    bench = Bench(engine)
    data = message().SerializeToString()
    bench.learn(data)
    assert bench.by_template(data) is not None
    engine.models["simple"].is_ready = False
    assert bench.by_template(data) is None
    with pytest.raises(ServingError, match="not ready"):
        bench.in_full(data)
    engine.models["simple"] = simple()
    assert bench.by_template(data) is None
    bench.learn(data)
    assert_same(bench.by_template(data), bench.in_full(data))


def test_number_of_templates_is_bounded():
    bench = Bench(FakeEngine(*(echo(DataType.FP32, (1,), 8, f"m{n}") for n in range(CACHE_ENTRIES + 1))))
    for number in range(CACHE_ENTRIES + 1):
        asked = pb.ModelInferRequest(model_name=f"m{number}")
        asked.inputs.add(name="INPUT", datatype="FP32", shape=[1, 1])
        asked.raw_input_contents.append(bytes(4))
        bench.learn(asked.SerializeToString())
    assert len(bench.templates) == CACHE_ENTRIES


@pytest.mark.parametrize("version", ["", "1"])
@pytest.mark.parametrize("request_id", ["", "an id"])
def test_view_decodes_like_the_same_bytes(version: str, request_id: str):
    bench = Bench(FakeEngine(simple()))
    data = message(8, 3, request_id, version).SerializeToString()
    view = memoryview(bytearray(data)).toreadonly()
    assert bench.by_template(view) is None
    assert bench.templates.lead_bytes(len(data)) == 0
    bench.learn(view)
    found = bench.by_template(view)
    assert_same(found, bench.in_full(data))
    assert_same(bench.by_template(data), bench.in_full(data))
    # Known of the one, and true for the next one of its size.
    first = data.index(np.full((8, 16), 3, np.int32).tobytes())
    assert bench.templates.lead_bytes(len(data)) == first
    for at in range(first):
        other = bytearray(data)
        other[at] ^= 1
        found = bench.by_template(memoryview(other).toreadonly())
        assert found is None or found.request.request_id != request_id
