"""Requests that repeat another's text are decoded and answered as if nothing were known of it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensors import array_to_bytes
from stoker.server.codecs.validation import SignatureChecks
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferResponse
from stoker.server.protocols.kserve import http_codec
from stoker.server.protocols.kserve.decoded import DecodedRequest
from stoker.server.protocols.kserve.infer import HttpInfer, InferCall
from stoker.server.protocols.kserve.request_memo import split_numbers
from tests.fakes.fake_engine import FakeEngine, echo, simple

LIMITS = Limits()
NUMBERS = [kind for kind in DataType if kind not in (DataType.BYTES, DataType.FP16, DataType.BF16)]
PLAIN = InferCall("echo", None, None, None, None)


def arrays(datatype: DataType, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    finite: dict[str, Any] = {"allow_nan": False, "allow_infinity": False} if datatype in (DataType.FP32, DataType.FP64) else {}
    return hnp.arrays(datatype.numpy, shape, elements=hnp.from_dtype(datatype.numpy, **finite))


def fresh(engine: FakeEngine, body: bytes, header_length: int | None) -> DecodedRequest:
    _, check = SignatureChecks(engine, LIMITS).find("echo", None)
    head = http_codec.parse_head(body, header_length, LIMITS)
    return http_codec.decode(check, http_codec.Target("echo", None, 5), head, body, header_length, LIMITS)


def answer(engine: FakeEngine, decoded: DecodedRequest) -> InferResponse:
    return InferResponse(
        "echo", 1, decoded.request.request_id, {"OUTPUT": decoded.request.inputs["INPUT"]}, engine.resolve("echo", None).signature
    )


def same(one: DecodedRequest, other: DecodedRequest) -> bool:
    fields = [field.name for field in dataclasses.fields(one.request) if field.name not in ("inputs", "signature", "servable")]
    assert one.request.signature == other.request.signature
    assert [getattr(one.request, name) for name in fields] == [getattr(other.request, name) for name in fields]
    assert one._replace(request=other.request, repeats=None) == other._replace(repeats=None)
    return all(
        np.array_equal(array, other.request.inputs[name]) and array.dtype == other.request.inputs[name].dtype
        for name, array in one.request.inputs.items()
    )


def json_body(datatype: DataType, data: object, **fields: object) -> bytes:
    shape = list(np.shape(np.asarray(data, dtype=object)))
    return orjson.dumps({"inputs": [{"name": "INPUT", "datatype": datatype.value, "shape": shape, "data": data}], **fields})


@settings(deadline=None)
@given(st.data(), st.sampled_from(NUMBERS), st.booleans(), st.booleans())
def test_what_is_known_of_a_request_changes_nothing(data: st.DataObject, datatype: DataType, is_binary: bool, wants_binary: bool):
    shape = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4)))
    engine = FakeEngine(echo(datatype, (shape[1],), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    fields: Mapping[str, object] = {"id": "7", "parameters": {"binary_data_output": wants_binary, "priority": 2, "timeout": 9, "mine": "x"}}
    for _ in range(3):
        array = data.draw(arrays(datatype, shape))
        if is_binary:
            raw = array_to_bytes(array, datatype)
            tensor = {"name": "INPUT", "datatype": datatype.value, "shape": shape, "parameters": {"binary_data_size": len(raw)}}
            text = orjson.dumps({"inputs": [tensor], **fields})
            body, header_length = text + raw, len(text)
        else:
            body, header_length = json_body(datatype, array.tolist(), **fields), None
        call = PLAIN._replace(header_length=None if header_length is None else str(header_length))
        decoded = infer.decode_now(call, body, 5, Reservation(engine.budget))
        assert decoded is not None
        expected = fresh(engine, body, header_length)
        assert same(decoded, expected)
        response = answer(engine, decoded)
        encoded = infer.encode_now(call, decoded, response)
        assert encoded is not None
        wanted = http_codec.encode(response, expected, {})
        assert (encoded.body, encoded.header_length) == (wanted.body, wanted.header_length)
    assert decoded.repeats is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_answer_that_json_has_no_word_for_is_printed_as_before(value: float):
    engine = FakeEngine(echo(DataType.FP32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    decoded = infer.decode_now(PLAIN, json_body(DataType.FP32, [[1.5, 2.5]]), 0, Reservation(engine.budget))
    assert decoded is not None
    response = answer(engine, decoded)
    first = infer.encode_now(PLAIN, decoded, response)
    response.outputs = {"OUTPUT": np.array([[1.5, value]], np.float32)}
    odd = infer.encode_now(PLAIN, decoded, response)
    assert first is not None
    assert odd is not None
    assert odd.body == http_codec.encode(response, decoded, {}).body != first.body


@pytest.mark.parametrize("binary", [False, True])
def test_an_answer_of_another_shape_is_described_anew(binary: bool):
    """As models answer whose outputs follow from the values that they are given."""
    engine = FakeEngine(echo(DataType.FP32, (-1,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    body = json_body(DataType.FP32, [[1.5, 2.5]], parameters={"binary_data_output": binary})
    decoded = infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))
    assert decoded is not None
    response = answer(engine, decoded)
    for shape in ((1, 2), (1, 2), (1, 5), (1, 5), (2, 1), (1, 2)):
        response.outputs = {"OUTPUT": np.ones(shape, np.float32)}
        encoded = infer.encode_now(PLAIN, decoded, response)
        wanted = http_codec.encode(response, decoded, {})
        assert encoded is not None
        assert (encoded.body, encoded.header_length) == (wanted.body, wanted.header_length)


ODD_DATA = [
    [[1, True]],
    [[1, None]],
    [[1, "2"]],
    [[1, 2.5]],
    [[1]],
    [[1, 2, 3]],
    [[1, 1 << 31]],
    [[1, -(1 << 31) - 1]],
    [[1, [2]]],
    [],
    [[]],
    [[[1, 2]]],
    [[1, {}]],
]


@pytest.mark.parametrize("odd", ODD_DATA, ids=map(str, ODD_DATA))
def test_odd_numbers_are_told_of_in_the_same_words(odd: object):
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    good = json_body(DataType.INT32, [[1, 2]])
    assert infer.decode_now(PLAIN, good, 0, Reservation(engine.budget)) is not None
    body = good.replace(b"[[1,2]]", orjson.dumps(odd))

    def outcome(decode: Any) -> object:
        try:
            return decode().request.inputs["INPUT"].tolist()
        except InvalidRequest as error:
            return error.message

    assert outcome(lambda: infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))) == outcome(lambda: fresh(engine, body, None))


def test_a_reload_with_another_signature_makes_all_new():
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    body = json_body(DataType.INT32, [[1, 2]])
    assert infer.decode_now(PLAIN, body, 0, Reservation(engine.budget)) is not None
    engine.models["echo"] = echo(DataType.INT32, (3,), name="echo")
    with pytest.raises(InvalidRequest, match="unexpected shape"):
        infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))


def test_a_binary_body_of_another_length_is_checked_anew():
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    text = orjson.dumps({"inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}]})
    call = PLAIN._replace(header_length=str(len(text)))
    for _ in range(2):
        assert infer.decode_now(call, text + bytes(8), 0, Reservation(engine.budget)) is not None
        with pytest.raises(InvalidRequest, match="1 bytes are left"):
            infer.decode_now(call, text + bytes(9), 0, Reservation(engine.budget))
        with pytest.raises(InvalidRequest, match="only 7 bytes are left"):
            infer.decode_now(call, text + bytes(7), 0, Reservation(engine.budget))


@pytest.mark.parametrize("key", [b'"data"', b'"d\\u0061ta"'])
def test_a_request_that_gives_its_data_twice_is_refused(key: bytes):
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    body = b'{"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,2],"data":[1,2],%b:[3,4]}]}' % key
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="the same key more than once"):
            infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))


UNREMEMBERED = [
    b'{"other":{"data":[9]},"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,2],"data":[3,4]}]}',
    b'{"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,2],"data":[3,4]}],"outputs":[{"name":"OUTPUT","parameters":{"classification":1}}]}',
]


@pytest.mark.parametrize("body", UNREMEMBERED)
def test_what_could_be_read_in_two_ways_is_not_remembered(body: bytes):
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    for _ in range(2):
        decoded = infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))
        assert decoded is not None
        assert decoded.repeats is None
        assert decoded.request.inputs["INPUT"].tolist() == [[3, 4]]


def test_strings_are_not_mistaken_for_numbers_that_stand_beside_them():
    engine = FakeEngine(echo(DataType.BYTES, (1,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    body = b'{"inputs":[{"name":"INPUT","datatype":"BYTES","shape":[1,1],"data":["a"]}],"data":[7]}'
    for _ in range(2):
        decoded = infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))
        assert decoded is not None
        assert decoded.request.inputs["INPUT"].tolist() == [[b"a"]]


def test_the_byte_that_stands_for_a_gap_makes_no_request_like_the_one_before():
    engine = FakeEngine(simple())
    infer = HttpInfer(engine, LIMITS)
    call = PLAIN._replace(model="simple")
    tensors = [{"name": f"INPUT{i}", "data": [0] * 16, "datatype": "INT32", "shape": [1, 16]} for i in (0, 1)]
    body = orjson.dumps({"inputs": tensors})
    numbers = b"[" + b",".join([b"0"] * 16) + b"]"
    assert infer.decode_now(call, body, 0, Reservation(engine.budget)) is not None
    for gaps in (1, 2):
        meddled = body.replace(numbers, b"\0", gaps)
        for header_length in (None, str(len(meddled))):
            with pytest.raises(InvalidRequest, match="failed to parse the request JSON buffer"):
                infer.decode_now(call._replace(header_length=header_length), meddled, 0, Reservation(engine.budget))


def test_two_inputs_keep_their_lists():
    engine = FakeEngine(simple())
    infer = HttpInfer(engine, LIMITS)
    call = PLAIN._replace(model="simple")
    for at in range(3):
        rows = [[list(range(at, at + 16))], [list(range(50 + at, 66 + at))]]
        tensors = [{"name": f"INPUT{i}", "data": rows[i], "datatype": "INT32", "shape": [1, 16]} for i in (0, 1)]
        decoded = infer.decode_now(call, orjson.dumps({"inputs": tensors}), 0, Reservation(engine.budget))
        assert decoded is not None
        assert [decoded.request.inputs[f"INPUT{i}"].tolist() for i in (0, 1)] == rows


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        (b'{"a":{"data":[1,2]},"b":{"data" : [[3],[4]] }}', [b"[1,2]", b"[[3],[4]]"]),
        (b'{"data":["a","b"]}', []),
        (b'{"data":[1,2', []),
        (b'{"data":5}', []),
        (b'"data":[' * 3, []),
        (b"", []),
    ],
)
def test_lists_of_numbers_are_cut_out_of_the_text(text: bytes, lists: list[bytes]):
    skeleton, found = split_numbers(text)
    assert found == lists
    pieces = skeleton.split(b"\0")
    assert b"".join(part for pair in zip(pieces, [*found, b""], strict=True) for part in pair) == text


def test_many_texts_are_forgotten_again():
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    for at in range(1000):
        assert infer.decode_now(PLAIN, json_body(DataType.INT32, [[1, 2]], id=str(at)), 0, Reservation(engine.budget)) is not None
    assert len(infer._request_memo._kept) <= 256
