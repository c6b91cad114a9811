"""Requests of a known structure are decoded and encoded exactly as without the memo."""

import asyncio
import contextlib
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
from stoker.server.codecs.memo import CACHE_ENTRIES, KEY_BYTES, BoundedCache
from stoker.server.codecs.strict_json import memory_cost
from stoker.server.codecs.tensors import INLINE_STRINGS, array_to_bytes, strings_cost
from stoker.server.codecs.validation import SignatureChecks
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest, InferResponse
from stoker.server.protocols.kserve import http_codec
from stoker.server.protocols.kserve.decoded import DecodedRequest
from stoker.server.protocols.kserve.infer import HttpInfer, InferCall
from tests.fakes.fake_engine import FakeEngine, echo, simple
from tests.fakes.fields import facts, field_names
from tests.fakes.traced_memory import traced_memory

LIMITS = Limits()
NUMBERS = [kind for kind in DataType if kind not in (DataType.BYTES, DataType.FP16, DataType.BF16)]
PLAIN = InferCall("echo", None, None, None, None)


def replace(call: InferCall, **changed: Any) -> InferCall:
    given = facts(call)
    del given["header_bytes"]  # it follows from `header_length`
    return InferCall(**given | changed)


def arrays(datatype: DataType, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    finite: dict[str, Any] = {"allow_nan": False, "allow_infinity": False} if datatype in (DataType.FP32, DataType.FP64) else {}
    return hnp.arrays(datatype.numpy, shape, elements=hnp.from_dtype(datatype.numpy, **finite))


def fresh(engine: FakeEngine, body: bytes, header_length: int | None) -> DecodedRequest:
    _, check = SignatureChecks(engine, LIMITS).find("echo", None)
    head = http_codec.parse_head(body, header_length, LIMITS)
    return http_codec.decode(check, http_codec.Target("echo", None, 5), head, body, header_length, LIMITS)


def respond(engine: FakeEngine, decoded: DecodedRequest) -> InferResponse:
    return InferResponse(
        "echo", 1, decoded.request.request_id, {"OUTPUT": decoded.request.inputs["INPUT"]}, engine.resolve("echo", None).signature
    )


def same(one: DecodedRequest, other: DecodedRequest) -> bool:
    fields = [name for name in field_names(InferRequest) if name not in ("inputs", "signature", "servable")]
    assert one.request.signature == other.request.signature
    assert [getattr(one.request, name) for name in fields] == [getattr(other.request, name) for name in fields]
    assert facts(one.form) | {"plan": None} == facts(other.form) | {"plan": None}
    return all(
        np.array_equal(array, other.request.inputs[name]) and array.dtype == other.request.inputs[name].dtype
        for name, array in one.request.inputs.items()
    )


def json_body(datatype: DataType, data: object, **fields: object) -> bytes:
    shape = list(np.shape(np.asarray(data, dtype=object)))
    return orjson.dumps({"inputs": [{"name": "INPUT", "datatype": datatype.value, "shape": shape, "data": data}], **fields})


@settings(deadline=None)
@given(st.data(), st.sampled_from(NUMBERS), st.booleans(), st.booleans())
def test_request_of_a_known_structure_is_decoded_as_a_fresh_one(
    data: st.DataObject, datatype: DataType, is_binary: bool, wants_binary: bool
):
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
        call = replace(PLAIN, header_length=None if header_length is None else str(header_length))
        decoded = infer.decode_now(call, body, 5, Reservation(engine.budget))
        assert decoded is not None
        expected = fresh(engine, body, header_length)
        assert same(decoded, expected)
        response = respond(engine, decoded)
        encoded = infer.encode_now(call, decoded, response)
        assert encoded is not None
        wanted = http_codec.encode(response, expected, {})
        assert (encoded.body, encoded.header_length) == (wanted.body, wanted.header_length)
    assert decoded is not None
    assert decoded.form.plan is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_output_is_encoded_as_without_a_plan(value: float):
    engine = FakeEngine(echo(DataType.FP32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    decoded = infer.decode_now(PLAIN, json_body(DataType.FP32, [[1.5, 2.5]]), 0, Reservation(engine.budget))
    assert decoded is not None
    response = respond(engine, decoded)
    first = infer.encode_now(PLAIN, decoded, response)
    response.outputs = {"OUTPUT": np.array([[1.5, value]], np.float32)}
    odd = infer.encode_now(PLAIN, decoded, response)
    assert first is not None
    assert odd is not None
    assert odd.body == http_codec.encode(response, decoded, {}).body != first.body


@pytest.mark.parametrize("binary", [False, True])
def test_response_of_another_shape_is_encoded_in_full(binary: bool):
    """A model whose outputs depend on the given values."""
    engine = FakeEngine(echo(DataType.FP32, (-1,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    body = json_body(DataType.FP32, [[1.5, 2.5]], parameters={"binary_data_output": binary})
    decoded = infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))
    assert decoded is not None
    response = respond(engine, decoded)
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
def test_invalid_elements_of_a_known_structure_get_the_same_error_text(odd: object):
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


def test_reload_with_another_signature_invalidates_the_plan():
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    body = json_body(DataType.INT32, [[1, 2]])
    assert infer.decode_now(PLAIN, body, 0, Reservation(engine.budget)) is not None
    engine.models["echo"] = echo(DataType.INT32, (3,), name="echo")
    with pytest.raises(InvalidRequest, match="unexpected shape"):
        infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))


def test_binary_body_of_another_length_is_validated_in_full():
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    text = orjson.dumps({"inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}]})
    call = replace(PLAIN, header_length=str(len(text)))
    for _ in range(2):
        assert infer.decode_now(call, text + bytes(8), 0, Reservation(engine.budget)) is not None
        with pytest.raises(InvalidRequest, match="1 bytes are left"):
            infer.decode_now(call, text + bytes(9), 0, Reservation(engine.budget))
        with pytest.raises(InvalidRequest, match="only 7 bytes are left"):
            infer.decode_now(call, text + bytes(7), 0, Reservation(engine.budget))


@pytest.mark.parametrize("key", [b'"data"', b'"d\\u0061ta"'])
def test_request_with_repeated_data_is_rejected(key: bytes):
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    body = b'{"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,2],"data":[1,2],%b:[3,4]}]}' % key
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="the same key more than once"):
            infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))


def test_request_for_classification_has_no_plan():
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    body = json_body(DataType.INT32, [[3, 4]], outputs=[{"name": "OUTPUT", "parameters": {"classification": 1}}])
    for _ in range(2):
        decoded = infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))
        assert decoded is not None
        assert decoded.form.plan is None


def test_data_outside_the_inputs_is_not_read_as_an_input():
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    body = b'{"other":{"data":[9]},"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,2],"data":[3,4]}]}'
    for _ in range(2):
        decoded = infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))
        assert decoded is not None
        assert decoded.request.inputs["INPUT"].tolist() == [[3, 4]]


def test_strings_are_not_mistaken_for_numbers_beside_them():
    engine = FakeEngine(echo(DataType.BYTES, (1,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    body = b'{"inputs":[{"name":"INPUT","datatype":"BYTES","shape":[1,1],"data":["a"]}],"data":[7]}'
    for _ in range(2):
        decoded = infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))
        assert decoded is not None
        assert decoded.request.inputs["INPUT"].tolist() == [[b"a"]]


def test_nul_byte_instead_of_numbers_is_rejected():
    engine = FakeEngine(simple())
    infer = HttpInfer(engine, LIMITS)
    call = replace(PLAIN, model="simple")
    tensors = [{"name": f"INPUT{i}", "data": [0] * 16, "datatype": "INT32", "shape": [1, 16]} for i in (0, 1)]
    body = orjson.dumps({"inputs": tensors})
    numbers = b"[" + b",".join([b"0"] * 16) + b"]"
    assert infer.decode_now(call, body, 0, Reservation(engine.budget)) is not None
    for gaps in (1, 2):
        meddled = body.replace(numbers, b"\0", gaps)
        for header_length in (None, str(len(meddled))):
            with pytest.raises(InvalidRequest, match="failed to parse the request JSON buffer"):
                infer.decode_now(replace(call, header_length=header_length), meddled, 0, Reservation(engine.budget))


def test_two_inputs_of_a_known_structure_keep_their_own_data():
    engine = FakeEngine(simple())
    infer = HttpInfer(engine, LIMITS)
    call = replace(PLAIN, model="simple")
    for at in range(3):
        rows = [[list(range(at, at + 16))], [list(range(50 + at, 66 + at))]]
        tensors = [{"name": f"INPUT{i}", "data": rows[i], "datatype": "INT32", "shape": [1, 16]} for i in (0, 1)]
        decoded = infer.decode_now(call, orjson.dumps({"inputs": tensors}), 0, Reservation(engine.budget))
        assert decoded is not None
        assert [decoded.request.inputs[f"INPUT{i}"].tolist() for i in (0, 1)] == rows


VARIATIONS = [
    (b"[1,2]", b"[1,2]", True),
    (b'{"inputs"', b' { "inputs" ', True),
    (b'"id":"a"', b'"id":"b:c"', True),
    (b'"id":"a",', b"", True),
    (b'"shape":[1,2]', b'"shape":[1,true]', False),
    (b'"shape":[1,2]', b'"shape":[1.0,2]', False),
    (b'"shape":[1,2]', b'"shape":[true,2]', False),
    (b'"datatype":"INT32"', b'"datatype":"INT64"', False),
    (b'"id":"a"', b'"id":5', False),
    (b'"id":"a"', b'"id":"a","id":"a"', False),
    (b'"id":"a"', b'"id":"\\u003a","x":1,"x":1', False),
]


@pytest.mark.parametrize(("old", "new", "is_valid"), VARIATIONS)
def test_variation_of_a_known_request_is_decoded_as_a_fresh_one(old: bytes, new: bytes, is_valid: bool):
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    body = b'{"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,2],"data":[1,2]}],"id":"a","parameters":{"mine":"x:y"}}'
    for _ in range(2):
        assert infer.decode_now(PLAIN, body, 5, Reservation(engine.budget)) is not None
    varied = body.replace(old, new)
    for _ in range(2):
        if is_valid:
            decoded = infer.decode_now(PLAIN, varied, 5, Reservation(engine.budget))
            assert decoded is not None
            assert same(decoded, fresh(engine, varied, None))
        else:
            with pytest.raises(InvalidRequest) as known:
                infer.decode_now(PLAIN, varied, 5, Reservation(engine.budget))
            with pytest.raises(InvalidRequest) as unknown:
                fresh(engine, varied, None)
            assert known.value.message == unknown.value.message


def test_requests_with_different_ids_share_one_plan_and_get_their_own_id_back():
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    for at in range(5):
        body = json_body(DataType.INT32, [[1, at]], id=f'"{at}"' if at % 2 else f"id-{at}")
        decoded = infer.decode_now(PLAIN, body, 0, Reservation(engine.budget))
        assert decoded is not None
        encoded = infer.encode_now(PLAIN, decoded, respond(engine, decoded))
        assert encoded is not None
        assert orjson.loads(encoded.body)["id"] == decoded.request.request_id == orjson.loads(body)["id"]


def test_number_of_plans_is_bounded():
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    for at in range(2 * CACHE_ENTRIES):
        body = json_body(DataType.INT32, [[1, 2]], parameters={"mine": str(at)})
        assert infer.decode_now(PLAIN, body, 0, Reservation(engine.budget)) is not None
    assert len(infer.request_memo) == CACHE_ENTRIES


def test_structure_longer_than_the_bound_is_not_kept():
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    decoded = infer.decode_now(
        PLAIN, json_body(DataType.INT32, [[1, 2]], parameters={"mine": "x" * KEY_BYTES}), 0, Reservation(engine.budget)
    )
    assert decoded is not None
    assert decoded.form.plan is None
    assert len(infer.request_memo) == 0


def test_cache_drops_its_oldest_entry():
    cache: BoundedCache[int, int] = BoundedCache(most=2)
    for at in (1, 2, 2, 3):
        cache.put(at, at)
    assert [cache.entries.get(at) for at in (1, 2, 3)] == [None, 2, 3]
    assert len(cache) == 2


@pytest.mark.parametrize("names", [("echo", "other"), ("echo", "echo")], ids=["another model", "the model after a reload"])
def test_cached_json_part_keeps_its_parameters_without_a_matching_plan(names: tuple[str, str]):
    engine = FakeEngine(echo(DataType.BF16, (2,), name="echo"), echo(DataType.BF16, (2,), name="other"))
    infer = HttpInfer(engine, LIMITS)
    tensor = {"name": "INPUT", "datatype": "BF16", "shape": [1, 2], "parameters": {"binary_data_size": 4}}
    text = orjson.dumps({"id": "a", "inputs": [tensor], "parameters": {"binary_data_output": True, "mine": "x"}})
    found = []
    for name in names:
        infer.request_memo._plans = BoundedCache()
        call = replace(PLAIN, model=name, header_length=str(len(text)))
        found.append(infer.decode_now(call, text + bytes(4), 5, Reservation(engine.budget)))
    assert [each and (each.form.binary_outputs, each.request.request_id, each.request.parameters) for each in found] == [
        (frozenset({"OUTPUT"}), "a", {"mine": "x"})
    ] * 2


def test_known_structure_does_not_hide_the_position_of_elements():
    """The structure excludes `data`: a request with other elements than the plan's, in text or binary, is decoded as a fresh one."""
    engine = FakeEngine(echo(DataType.INT32, (-1,), name="echo"))
    infer = HttpInfer(engine, LIMITS)

    def error_of(body: bytes, header_length: int | None) -> str:
        call = replace(PLAIN, header_length=None if header_length is None else str(header_length))
        with pytest.raises(InvalidRequest) as found:
            infer.decode_now(call, body, 5, Reservation(engine.budget))
        with pytest.raises(InvalidRequest) as wanted:
            fresh(engine, body, header_length)
        assert found.value.message == wanted.value.message
        return found.value.message

    tensor: dict[str, Any] = {"name": "INPUT", "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    text = orjson.dumps({"inputs": [tensor]})
    call = replace(PLAIN, header_length=str(len(text)))
    assert infer.decode_now(call, text + bytes(8), 5, Reservation(engine.budget)) is not None
    both = orjson.dumps({"inputs": [{**tensor, "data": [1, 2]}]})
    assert "has both" in error_of(both + bytes(8), len(both))
    del tensor["parameters"]
    for count in (2, 0):
        tensor["shape"] = [1, count]
        assert (
            infer.decode_now(PLAIN, orjson.dumps({"inputs": [{**tensor, "data": [0] * count}]}), 5, Reservation(engine.budget)) is not None
        )
        assert "has neither" in error_of(orjson.dumps({"inputs": [tensor]}), None)


def test_empty_id_beside_elements_with_colons_is_no_repeated_key():
    engine = FakeEngine(echo(DataType.BYTES, (2,), name="echo"))
    decoded = HttpInfer(engine, LIMITS).decode_now(PLAIN, json_body(DataType.BYTES, [["a:", "b"]], id=""), 5, Reservation(engine.budget))
    assert decoded is not None
    assert decoded.request.inputs["INPUT"].tolist() == [[b"a:", b"b"]]


def test_many_strings_in_json_hold_the_cost_of_one_parse():
    """The event loop parses the text and finds more strings than it decodes: a thread parses the text again."""
    count = INLINE_STRINGS + 1
    engine = FakeEngine(echo(DataType.BYTES, (-1,), name="echo"))
    body = json_body(DataType.BYTES, [["a"] * count])
    with Reservation(engine.budget) as reservation:
        asyncio.run(HttpInfer(engine, LIMITS).reply(PLAIN, body, 5, reservation))
        assert reservation.held_bytes == engine.peak_bytes == memory_cost(body, LIMITS) + strings_cost(count, LIMITS)


def test_elements_of_a_known_structure_are_not_nested_more_deeply_than_allowed():
    engine = FakeEngine(echo(DataType.INT32, (1,), name="echo"))
    infer = HttpInfer(engine, Limits(json_depth=6))
    body = json_body(DataType.INT32, [[7]])
    for nested, is_valid in ((b"[7]", True), (b"[[[7]]]", True), (b"[[[[7]]]]", False), (b"[[7]]", True)):
        varied = body.replace(b"[[7]]", nested)
        if is_valid:
            decoded = infer.decode_now(PLAIN, varied, 5, Reservation(engine.budget))
            assert decoded is not None
            assert decoded.request.inputs["INPUT"].tolist() == [[7]]
        else:
            with pytest.raises(InvalidRequest, match="nested more than 6 levels"):
                infer.decode_now(PLAIN, varied, 5, Reservation(engine.budget))


@pytest.mark.parametrize("levels", [101, 120, 252, 253, 300, 1020, 1100])
@pytest.mark.parametrize("is_binary", [False, True])
def test_structure_nested_too_deeply_is_rejected_at_any_depth(levels: int, is_binary: bool) -> None:
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    text = b'{"inputs":[],"x":' + b"[" * levels + b"]" * levels + b"}"
    call = replace(PLAIN, header_length=str(len(text)) if is_binary else None)
    with pytest.raises(InvalidRequest, match="nested more than 100 levels deep"):
        HttpInfer(engine, LIMITS).decode_now(call, text, 5, Reservation(engine.budget))


@pytest.mark.parametrize("is_valid", [False, True])
def test_objects_of_parsed_texts_are_not_kept(is_valid: bool) -> None:
    engine = FakeEngine(echo(DataType.INT32, (2,), name="echo"))
    infer = HttpInfer(engine, LIMITS)
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    with traced_memory() as memory:
        for at in range(200):
            text = orjson.dumps({"inputs": [tensor] if is_valid else [], "k": at, "x": [{"": 0}] * 250})
            assert len(text) <= KEY_BYTES
            call = replace(PLAIN, header_length=str(len(text)))
            with contextlib.nullcontext() if is_valid else pytest.raises(InvalidRequest):
                infer.decode_now(call, text + bytes(8 if is_valid else 0), 5, Reservation(engine.budget))
        assert memory.held_bytes() < 200 * 3 * KEY_BYTES + 100_000, "the objects alone take 10 MB"
