import asyncio
from typing import Any

import orjson
import pytest

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.validation import SignatureChecks
from stoker.server.core.limits import Limits
from stoker.server.protocols.kserve import http_codec
from stoker.server.protocols.kserve.decoded import DecodedRequest, ResponseForm
from tests.fakes.fake_engine import FakeEngine, FakeModel, echo, model, signature, simple

LIMITS = Limits()


def refusal(fake: FakeModel, body: Any, header_length: int | None = None, tail: bytes = b"") -> str:
    name = fake.config.name
    _, check = SignatureChecks(FakeEngine(fake), LIMITS).find(name, None)
    text = body if isinstance(body, bytes) else orjson.dumps(body)
    if tail and header_length is None:
        header_length = len(text)
    with pytest.raises(InvalidRequest) as caught:  # noqa: PT012 - either may refuse it
        head = http_codec.parse_head(text + tail, header_length, LIMITS)
        http_codec.decode(check, http_codec.Target(name, None, 0), head, text + tail, header_length, LIMITS)
    return caught.value.message


def one(datatype: str, data: Any = None, **fields: Any) -> dict[str, Any]:
    tensor = {"name": "INPUT", "datatype": datatype, "shape": [1, 2]} | ({} if data is None else {"data": data}) | fields
    return {"inputs": [tensor]}


DATA = [
    (DataType.INT32, [1, 2.0], "integers of 32 bits"),
    (DataType.INT32, [1, True], "integers of 32 bits"),
    (DataType.INT32, [1, "2"], "integers of 32 bits"),
    (DataType.INT32, [1, None], "integers of 32 bits"),
    (DataType.INT32, [[1], 2], "integers of 32 bits"),
    (DataType.INT32, {"0": 1}, "'data' of input 'INPUT' must be an array"),
    (DataType.INT32, [1, 2**31], "outside the range of INT32"),
    (DataType.UINT8, [1, -1], "outside the range of UINT8"),
    (DataType.UINT8, [1, 256], "outside the range of UINT8"),
    (DataType.FP32, [1, 1e39], "outside the range of FP32"),
    (DataType.FP32, [1, False], "must hold only numbers"),
    (DataType.BOOL, [True, 1], "true or false"),
    (DataType.BYTES, ["a", 1], "must hold only strings"),
    (DataType.FP16, [1, 2], "receiving FP16 data via JSON is not supported"),
    (DataType.BF16, [1, 2], "receiving BF16 data via JSON is not supported"),
    (DataType.INT32, [1], "expected 2 elements for inference input 'INPUT' for model 'echo_int32', got 1"),
    (DataType.BYTES, ["a", "b", "c"], "expected 2 string elements for inference input 'INPUT' for model 'echo_bytes', got 3"),
]


@pytest.mark.parametrize(("datatype", "data", "text"), DATA, ids=[f"{t.value}-{d}" for t, d, _ in DATA])
def test_json_data_of_another_kind_is_refused(datatype: DataType, data: Any, text: str):
    assert text in refusal(echo(datatype), one(datatype.value, data))


@pytest.mark.parametrize("digits", [b"18446744073709551616", b"-9223372036854775809", b"1e3"])
def test_numbers_that_the_parser_converts_to_floats_are_not_integers(digits: bytes):
    body = b'{"inputs":[{"name":"INPUT","datatype":"UINT64","shape":[1,2],"data":[1,%b]}]}' % digits
    assert "integers of 64 bits" in refusal(echo(DataType.UINT64), body)


SHAPES = [[1.0, 2], ["1", 2], "1,2", None, [True, 2], [[1], 2], {}]


@pytest.mark.parametrize("shape", SHAPES, ids=map(str, SHAPES))
def test_shape_must_be_an_array_of_integers(shape: Any):
    assert "'shape' of input 'INPUT' must be an array of integers" in refusal(echo(DataType.INT32), one("INT32", [1, 2], shape=shape))


@pytest.mark.parametrize("shape", [[2**63, 2], [-1, 2], [0, 2], [1] * 1000, [1, 2**63 - 1]])
def test_hostile_shapes_are_refused_before_any_allocation(shape: list[int]):
    text = refusal(echo(DataType.INT32), one("INT32", [1, 2], shape=shape))
    assert "INPUT" in text or "inference request batch-size must be <= 8" in text


FORMS = [
    (b"[]", "must be a JSON object"),
    (b"7", "must be a JSON object"),
    (b"{", "failed to parse the request JSON"),
    (b"", "failed to parse the request JSON"),
    ({}, "Unable to parse 'inputs'"),
    ({"inputs": {}}, "Unable to parse 'inputs'"),
    ({"inputs": [7]}, "must be an object"),
    ({"inputs": [{}]}, "the name of an input must be a string"),
    ({"inputs": [], "id": 7}, "'id' must be a string"),
    ({"inputs": [], "id": "i" * 1025}, "request id has 1025 characters"),
    ({"inputs": [], "parameters": []} | {"parameters": [1]}, "'parameters' of request must be an object"),
    ({"inputs": [], "parameters": {"a": None}}, "parameter 'a' has invalid type: of request, it must be a string, a number or a boolean"),
    ({"inputs": [], "parameters": {str(i): 1 for i in range(257)}}, "has 257 parameters, more than the 256"),
    ({"inputs": [], "parameters": {"binary_data_output": 1}}, "'binary_data_output' must be a boolean"),
    (one("INT32"), "neither 'data' nor parameter 'binary_data_size'"),
    (one("INT32", [1, 2]) | {"outputs": [{"name": "OUTPUT", "parameters": {"binary_data": "yes"}}]}, "'binary_data' of output 'OUTPUT'"),
    (one("INT32", [1, 2]) | {"outputs": [{"name": "OUTPUT"}, {"name": "OUTPUT"}]}, "output 'OUTPUT' already exists"),
    (one("INT32", [1, 2]) | {"outputs": {}}, "Unable to parse 'outputs'"),
    (one("INT32", [1, 2]) | {"outputs": [{}]}, "the name of an output must be a string"),
    (one("INT32", [1, 2]) | {"outputs": [7]}, "every element of 'outputs' must be an object"),
    (one("INT32", [1, 2], parameters={"binary_data_size": 8}), "has both 'data' and parameter 'binary_data_size'"),
    (one("INT32", parameters={"binary_data_size": -1}), "must be an unsigned integer"),
    (one("INT32", parameters={"binary_data_size": True}), "must be an unsigned integer"),
    (one("INT32", parameters={"binary_data_size": 8}), "'binary_data_size' is 8, but only 0 bytes are left"),
]


@pytest.mark.parametrize(("body", "text"), FORMS, ids=[text[:30] for _, text in FORMS])
def test_malformed_requests_are_refused(body: Any, text: str):
    assert text in refusal(echo(DataType.INT32), body)


def test_bytes_outside_every_input_are_refused():
    body = one("INT32", parameters={"binary_data_size": 8})
    assert "unexpected additional input data: 1 bytes" in refusal(echo(DataType.INT32), body, tail=bytes(9))


def test_binary_size_and_shape_must_agree():
    body = one("INT32", parameters={"binary_data_size": 4})
    assert "input byte size mismatch for input 'INPUT'" in refusal(echo(DataType.INT32), body, tail=bytes(4))


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16])
def test_half_floats_in_a_json_response_are_refused_before_compute(datatype: DataType):
    body = one(datatype.value, parameters={"binary_data_size": 4})
    assert f"sending {datatype.value} data via JSON is not supported" in refusal(echo(datatype), body, tail=bytes(4))


@pytest.mark.parametrize("text", ["99999999999", "-1", "+1", " 1", "1.0", "0x1", "", "1" * 40, "١"])
def test_invalid_header_length_is_refused(text: str):
    with pytest.raises(InvalidRequest, match="Inference-Header-Content-Length"):
        http_codec.parse_header_length(text, 100)


WHOLE = [
    (simple(), bytes(64), "needs a model with exactly one input; 'simple' has 2"),
    (echo(DataType.FP32, (-1, -1)), bytes(64), "allows one variable dimension at most"),
    (echo(DataType.BYTES, (2,)), bytes(64), "needs input dims [1]"),
    (echo(DataType.FP32, (-1, 2)), bytes(12), "must hold a multiple of 8 bytes, got 12"),
    (echo(DataType.FP32, (-1, 2)), b"", "must hold a multiple of 8 bytes, got 0"),
    (echo(DataType.FP32, (2,)), bytes(12), "input byte size mismatch"),
]


@pytest.mark.parametrize(("fake", "body", "text"), WHOLE, ids=[text[:30] for _, _, text in WHOLE])
def test_body_without_header_must_match_the_model(fake: FakeModel, body: bytes, text: str):
    assert text in refusal(fake, body, 0)


def test_bytes_that_are_not_text_cannot_be_json_output():
    spec = [TensorSpec("OUTPUT", DataType.BYTES, (1,))]
    fake = model("m", signature([TensorSpec("INPUT", DataType.BYTES, (1,))], spec), lambda i: {"OUTPUT": i["INPUT"]})
    engine = FakeEngine(fake)
    _, check = SignatureChecks(engine, LIMITS).find("m", None)
    decoded = http_codec.decode(check, http_codec.Target("m", None, 0), {}, b"\xff\xfe", 0, LIMITS)
    decoded = DecodedRequest(decoded.request, ResponseForm({}))
    response = asyncio.run(engine.infer(decoded.request))
    with pytest.raises(InvalidRequest, match="output 'OUTPUT' holds bytes that are not UTF-8"):
        http_codec.encode(response, decoded, {})
