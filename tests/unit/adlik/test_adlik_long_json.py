"""Long tensors in Adlik's JSON requests, which are decoded without a JSON parser."""

import base64
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings

from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.protocols.adlik import json_codec, long_elements
from stoker.server.protocols.adlik.long_elements import decode_long_elements, find_long_elements, put_back
from stoker.server.protocols.adlik.request import ModelQuery
from stoker.server.web import v1_posts
from tests.fakes.adlik_calls import Caller, run
from tests.fakes.fake_engine import FakeEngine, echo, model, signature
from tests.unit.adlik.test_adlik_json_agrees import plain, requests

URL = "/v1/models/image:predict"
MIB = 1 << 20
#: Elements in a request with long tensors: as base64 text, and in the shortest form of a list.
COUNT = 600_000


def sums() -> FakeEngine:
    """An engine whose model adds up each sample of [COUNT] numbers."""
    of = signature([TensorSpec("IN", DataType.FP32, (-1,))], [TensorSpec("OUT", DataType.FP32, (1,))], max_batch_size=128)
    return FakeEngine(model("image", of, lambda inputs: {"OUT": inputs["IN"].sum(axis=1, keepdims=True)}))


def with_content(array: Any, **fields: Any) -> dict[str, Any]:
    dims = [{"size": str(size)} for size in array.shape]
    return {"dtype": "DT_FLOAT", "tensor_shape": {"dim": dims}, "tensor_content": base64.b64encode(array.tobytes()).decode(), **fields}


def with_values(array: Any, field: str) -> dict[str, Any]:
    dims = [{"size": str(size)} for size in array.shape]
    return {"dtype": "DT_FLOAT", "tensor_shape": {"dim": dims}, field: array.ravel().tolist()}


def body_of(tensor: dict[str, Any], batch_size: int = 1) -> bytes:
    return orjson.dumps({"batch_size": batch_size, "inputs": {"IN": tensor}})


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All elements count as long, and are decoded in many steps."""
    for name, size in (("LONG_BYTES", 0), ("_SCAN_BYTES", 300), ("_BASE64_BYTES", 8), ("_NUMBERS_BYTES", 64)):
        monkeypatch.setattr(long_elements, name, size)


@given(message=requests())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_long_elements_are_decoded_as_the_parser_does(short_steps: None, message):
    text = json_format.MessageToJson(message, preserving_proto_field_name=bool(message.batch_size % 2)).encode()
    expected = json_codec.read_request(orjson.loads(text), ModelQuery("m"), Limits())
    elements = find_long_elements(memoryview(text))
    rest, decoded = decode_long_elements(memoryview(text), elements)
    parsed = orjson.loads(rest)
    put_back(parsed, decoded)
    assert len(rest) <= len(text) + 34 * len(elements)
    assert plain(json_codec.read_request(parsed, ModelQuery("m"), Limits())) == plain(expected)


@pytest.mark.parametrize("field", ["float_val", "floatVal"])
@pytest.mark.parametrize("is_content", [True, False])
def test_long_tensor_gets_its_response(field: str, is_content: bool):
    array = (np.arange(COUNT) % 7).astype(np.float32).reshape(2, -1)
    engine = sums()

    async def scenario(caller: Caller) -> None:
        text = body_of(with_content(array) if is_content else with_values(array, field), 2)
        response = await caller.http.post(URL, content=text)
        assert response.status_code == 200, response.text
        output = base64.b64decode(response.json()["outputs"]["OUT"]["tensor"]["tensor_content"])
        np.testing.assert_array_equal(np.frombuffer(output, np.float32), array.sum(axis=1))
        # The text and the decoded array, and no object for each number. `httpx` has its own copy.
        assert len(text) + array.nbytes <= engine.peak_bytes <= 1.02 * (len(text) + array.nbytes)

    run(scenario, engine)


def test_long_tensor_is_decoded_in_a_thread_in_short_steps(monkeypatch: pytest.MonkeyPatch):
    array = np.ones((1, COUNT), np.float32)
    threads: list[int] = []
    steps: list[int] = []

    def in_thread(name: str) -> None:
        real = getattr(v1_posts, name)

        def noted(*given: Any) -> Any:
            threads.append(threading.get_ident())
            return real(*given)

        monkeypatch.setattr(v1_posts, name, noted)

    class Recording:
        """`orjson`, noting the size of what it parses."""

        JSONDecodeError = orjson.JSONDecodeError

        @staticmethod
        def loads(text: bytes) -> Any:
            steps.append(len(text))
            return orjson.loads(text)

    in_thread("find_long_elements")
    in_thread("decode_long_elements")
    monkeypatch.setattr(long_elements, "orjson", Recording)

    async def scenario(caller: Caller) -> None:
        text = body_of(with_values(array, "float_val"))
        assert (await caller.http.post(URL, content=text)).status_code == 200
        assert (len(threads), threading.get_ident() in threads) == (2, False)
        assert (max(steps) <= 128 * 1024 + 2, len(steps)) == (True, -(-len(text) // (128 * 1024)))

    run(scenario, sums())


@pytest.mark.parametrize(
    "elements",
    [
        b'"float_val":[1],' * 20_000,
        b'"tensor_content":"AAAA",' * 15_000,
        b'"float_val":"1",' * 20_000,
        b'"float_val":[%b],' % (b"1," * 5000) * 40,
    ],
    ids=["lists", "base64", "wrong type", "lists longer than a window"],
)
def test_text_of_many_short_elements_is_copied_at_most_three_times(elements: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(long_elements, "_SCAN_BYTES", 4096)
    copied_bytes = 0

    class Counted(bytes):
        def __new__(cls, given: Any) -> "Counted":
            nonlocal copied_bytes
            copied_bytes += len(given)
            return super().__new__(cls, given)

    monkeypatch.setattr(long_elements, "bytes", Counted, raising=False)
    assert find_long_elements(memoryview(elements)) == []
    assert len(elements) <= copied_bytes <= 3 * len(elements)


LONG = b"1.5," * 30_000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b'[%b"NaN", 2]' % LONG, None),
        (b"[%b]" % LONG, "float_val is no array of float32 numbers"),
        (b"[%b, 2]" % LONG, "float_val is no array of float32 numbers"),
        (b"[%b2" % LONG, "float_val is no array of float32 numbers"),
        (b"[%btrue]" % LONG, "float_val must hold numbers"),
        (b"[%b[2]]" % LONG, "failed to parse the request JSON buffer"),
        (b'[%b"1]"]' % LONG, "float_val is no array of float32 numbers"),
        (b"[%s]" % (b"1" * 400_000), "float_val is no array of float32 numbers"),
        (b'"%s"' % (b"A" * 400_000), "inputs.IN.float_val must be an array"),
    ],
    ids=lambda value: str(value)[-20:],
)
def test_invalid_long_list_is_rejected(value: bytes, text: str | None):
    async def scenario(caller: Caller) -> None:
        given = b'{"batch_size": 1, "inputs": {"IN": {"float_val": %b, "x": "%b"}}}' % (value, b"y" * 300_000)
        response = await caller.http.post(URL + "?format=adlik", content=given)
        assert (response.status_code, text or "" in response.text) == (200 if text is None else 400, text or True), response.text[:300]
        if text is not None:
            assert text in response.text

    run(scenario, sums())


@pytest.mark.parametrize("content", [b"A" * 300_001, b"A" * 300_000 + b"*", b"A" * 300_000 + b"\\u002AAAA"])
def test_invalid_long_base64_is_rejected(content: bytes):
    async def scenario(caller: Caller) -> None:
        given = b'{"batch_size": 1, "inputs": {"IN": {"tensor_content": "%b"}}}' % content
        response = await caller.http.post(URL, content=given)
        assert response.status_code == 400
        assert "tensor_content" in response.text

    run(scenario, sums())


def escaped_digits(text: str) -> str:
    return text.replace("+", "\\u002B").replace("=", "\\u003d")


@pytest.mark.parametrize("escaped", [lambda text: text.replace("/", "\\/"), escaped_digits], ids=["slash", "code points"])
def test_long_base64_with_escapes_is_decoded(escaped: Callable[[str], str]):
    # 0xFBFF makes '+' and '/' in base64; the size leaves padding.
    array = np.frombuffer(b"\xff\xfb\xfb\x3f" * 200_000, np.float32).reshape(1, -1)
    engine = sums()

    async def scenario(caller: Caller) -> None:
        tensor = with_content(array)
        content = escaped(tensor["tensor_content"])
        assert "\\" in content
        text = body_of({**tensor, "tensor_content": "?"}).replace(b"?", content.encode())
        response = await caller.http.post(URL, content=text)
        assert response.status_code == 200, response.text[:300]
        output = base64.b64decode(response.json()["outputs"]["OUT"]["tensor"]["tensor_content"])
        np.testing.assert_array_equal(np.frombuffer(output, np.float32), array.sum(axis=1))

    run(scenario, engine)


def test_body_above_the_limit_of_adliks_json_is_rejected():
    async def scenario(caller: Caller) -> None:
        text = body_of(with_content(np.ones((1, COUNT), np.float32)))
        response = await caller.http.post(URL, content=text)
        assert response.status_code == 413
        assert f"JSON of {len(text)} bytes exceeds the limit of 1048576 bytes; send large requests over gRPC" in response.text

    run(scenario, sums(), limits=Limits(adlik_json_bytes=MIB))


def test_long_list_of_another_protocol_under_the_same_name_is_left_to_it():
    engine = FakeEngine(echo(DataType.FP32, (-1,), name="image"))
    values = [0.5] * 200_000

    async def scenario(caller: Caller) -> None:
        response = await caller.http.post(URL, content=orjson.dumps({"inputs": [values], "float_val": values}))
        assert response.json()["outputs"] == [values]

    run(scenario, engine)


def test_nested_list_of_an_input_with_the_name_of_a_field_is_left_to_its_protocol():
    of = signature([TensorSpec("float_val", DataType.FP32, (-1,))], [TensorSpec("OUT", DataType.FP32, (-1,))], max_batch_size=8)
    engine = FakeEngine(model("image", of, lambda inputs: {"OUT": inputs["float_val"]}))
    values = [[0.5] * 60_000, [1.5] * 60_000]

    async def scenario(caller: Caller) -> None:
        response = await caller.http.post(URL, content=orjson.dumps({"inputs": {"float_val": values}}))
        assert response.status_code == 200, response.text[:300]
        assert response.json()["outputs"] == values

    run(scenario, engine)


@pytest.mark.parametrize("content", [b"[%b]", b'["a", %b2]'])
def test_invalid_list_whose_protocol_the_body_decides_is_rejected(content: bytes):
    async def scenario(caller: Caller) -> None:
        given = b'{"batch_size": 1, "inputs": {"IN": {"float_val": %b, "x": "%b"}}}' % (content % LONG, b"y" * 300_000)
        assert (await caller.http.post(URL, content=given)).status_code == 400

    run(scenario, sums())


def test_decoded_size_counts_against_the_budget_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch):
    text = body_of(with_content(np.ones((1, COUNT), np.float32)))
    engine = sums()
    engine.limit_budget(len(text) + COUNT)
    monkeypatch.setattr(v1_posts, "decode_long_elements", None)

    async def scenario(caller: Caller) -> None:
        response = await caller.http.post(URL, content=text)
        assert (response.status_code, "no room for" in response.text) == (503, True), response.text

    run(scenario, engine)


def test_repeated_key_beside_long_elements_is_rejected():
    content = b'"tensor_content": "%b"' % (b"A" * 400_000)

    async def scenario(caller: Caller) -> None:
        response = await caller.http.post(URL, content=b'{"batch_size": 1, "inputs": {"IN": {%b, %b}}}' % (content, content))
        assert (response.status_code, "the same key more than once" in response.text) == (400, True)

    run(scenario, sums())


@pytest.mark.slow
def test_published_batch_of_120_images_is_accepted_by_default():
    of = signature([TensorSpec("IN", DataType.FP32, (3, 224, 224))], [TensorSpec("OUT", DataType.FP32, (1,))], max_batch_size=128)
    engine = FakeEngine(model("image", of, lambda inputs: {"OUT": inputs["IN"][:, 0, 0, :1]}))
    images = np.zeros((120, 3, 224, 224), np.float32)
    images[:, 0, 0, 0] = np.arange(120)

    async def scenario(caller: Caller) -> None:
        text = body_of(with_content(images), 120)
        assert len(text) > 96_000_000
        response = await caller.http.post(URL, content=text)
        output = base64.b64decode(response.json()["outputs"]["OUT"]["tensor"]["tensor_content"])
        assert np.frombuffer(output, np.float32).tolist() == list(range(120))
        assert engine.peak_bytes < 1.02 * (len(text) + images.nbytes)

    run(scenario, engine)
