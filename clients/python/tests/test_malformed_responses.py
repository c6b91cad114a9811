"""A response that violates the protocol is an `InvalidResponse`, whatever its fault."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker_client import InvalidResponse
from stoker_client._pb import messages as pb
from stoker_client.dialect import config_text
from stoker_client.errors import InvalidRequest
from stoker_client.grpc_dialect import GrpcDialect, infer_result, read_message
from stoker_client.http_dialect import HttpDialect, HttpReply
from stoker_client.inference import InferOptions, build_request

REQUEST = build_request("m", {"x": [1.0]}, InferOptions())
PARSE_HTTP = HttpDialect(1 << 20).infer(REQUEST).parse


def http_response(outputs: object, blob: bytes = b"", **headers: str) -> HttpReply:
    head = json.dumps({"model_name": "m", "outputs": outputs}).encode()
    return HttpReply(200, {"inference-header-content-length": str(len(head)), **headers}, head + blob)


def tensor(size: object, datatype: str = "FP32", shape: object = (2,)) -> dict[str, object]:
    return {"name": "y", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (http_response([tensor(8)], b"1234567"), "says 8 bytes of binary data, 7 are left"),
        (http_response([tensor(4)], b"1234"), "needs 8 bytes, got 4"),
        (http_response([tensor(8)], b"123456789"), "1 bytes behind its last output"),
        (http_response([tensor(-1)]), "says -1 bytes"),
        (http_response([tensor(8, "FLOAT")], b"12345678"), "unknown datatype 'FLOAT'"),
        (http_response([tensor(8, shape=[-2])], b"12345678"), "impossible shape"),
        (http_response([tensor(8, shape=3)], b"12345678"), "no usable name, datatype, shape"),
        (http_response([{"name": "y"}]), "no usable name, datatype, shape"),
        (http_response({"y": 1}), "not a list of objects"),
        (http_response([tensor(5, "BYTES", [1])], b"\x02\0\0\0a"), "says 2 bytes, 1 are left"),
        (http_response([tensor(2, "BYTES", [1])], b"\x02\0"), "ends after 0 of 1 BYTES elements"),
        (http_response([tensor(5, "BYTES", [1])], b"\0\0\0\0a"), "1 bytes behind its 1 BYTES elements"),
        (http_response([{"name": "y", "datatype": "FP32", "shape": [2], "data": [1]}]), "needs 2 elements, got 1"),
        (http_response([{"name": "y", "datatype": "FP32", "shape": [1], "data": ["a"]}]), "does not hold FP32 values"),
        (HttpReply(200, {}, b"[1]"), "is a JSON list; expected a dict"),
        (HttpReply(200, {}, b"<html>"), "not JSON"),
        (HttpReply(200, {"inference-header-content-length": "9"}, b"{}"), "says '9', the body has 2 bytes"),
        (HttpReply(200, {"inference-header-content-length": "-1"}, b"{}"), "says '-1'"),
    ],
)
def test_malformed_http_response_is_named(reply, text):
    with pytest.raises(InvalidResponse, match=text.replace("[", r"\[")):
        PARSE_HTTP(reply)


def test_http_response_in_json_numbers_is_read_too():
    outputs = [
        {"name": "y", "datatype": "FP32", "shape": [2, 1], "data": [[1.5], [2]]},
        {"name": "s", "datatype": "BYTES", "shape": [2], "data": ["a", "ç"]},
    ]
    result = PARSE_HTTP(HttpReply(200, {}, json.dumps({"outputs": outputs}).encode()))
    assert result["y"].tolist() == [[1.5], [2.0]]
    assert result["s"].tolist() == [b"a", "ç".encode()]


@pytest.mark.parametrize("padding", range(8))
def test_tensors_at_any_offset_in_a_body_are_aligned(padding):
    head = json.dumps({"outputs": [tensor(16, "FP64")]}).encode() + b" " * padding
    blob = np.array([1.5, -2.5]).tobytes()
    array = PARSE_HTTP(HttpReply(200, {"inference-header-content-length": str(len(head))}, head + blob))["y"]
    assert array.flags.aligned
    assert array.tolist() == [1.5, -2.5]


def test_grpc_response_in_typed_contents_is_read_too():
    reply = pb.ModelInferResponse(model_name="m")
    reply.outputs.add(name="y", datatype="INT16", shape=[2]).contents.int_contents.extend([1, -2])
    reply.outputs.add(name="s", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"\0")
    result = infer_result(reply)
    assert result["y"].tolist() == [1, -2]
    assert result["s"].tolist() == [b"\0"]


def test_malformed_grpc_response_is_named():
    reply = pb.ModelInferResponse(outputs=[{"name": "y", "datatype": "FP32", "shape": [1]}], raw_output_contents=[b"1234", b""])
    with pytest.raises(InvalidResponse, match="1 outputs but 2 raw contents"):
        infer_result(reply)
    with pytest.raises(InvalidResponse, match="'FP16' came without raw contents"):
        infer_result(pb.ModelInferResponse(outputs=[{"name": "y", "datatype": "FP16", "shape": [1]}]))
    with pytest.raises(InvalidResponse, match="not a ModelInferResponse"):
        read_message(pb.ModelInferResponse, b"\xff\xff\xff")


@given(st.binary(max_size=200), st.none() | st.text(max_size=6))
def test_any_body_is_read_or_raises_invalid_response(body, head_length):
    headers = {} if head_length is None else {"inference-header-content-length": head_length}
    with pytest.raises(InvalidResponse):
        PARSE_HTTP(HttpReply(200, headers, body))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from(["name", "datatype", "shape", "parameters", "data"]), JSON | st.sampled_from(["FP32", "BYTES", [1]]))
)
def test_any_output_entry_is_read_or_raises_invalid_response(entry):
    try:
        PARSE_HTTP(http_response([entry]))
    except InvalidResponse:
        return
    assert {"name", "datatype", "shape"} <= entry.keys()


def test_requests_name_their_method_and_message():
    call = GrpcDialect(1 << 20).infer(REQUEST)
    assert call.request.path == "/inference.GRPCInferenceService/ModelInfer"
    assert not call.is_read


def test_config_override_must_be_an_object():
    assert config_text({"a": 1}, {}) == '{"a": 1}'
    assert config_text('{"a": 1}', {}) == '{"a": 1}'
    with pytest.raises(InvalidRequest, match="not JSON"):
        config_text("{", {})
    with pytest.raises(InvalidRequest, match="cannot be written as JSON"):
        config_text({"a": object()}, {})
