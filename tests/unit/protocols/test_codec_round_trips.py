"""An echo model returns a client's tensors bit for bit, on every codec and for every datatype."""

import asyncio
import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensors import array_to_bytes, object_array
from stoker.server.codecs.validation import SignatureChecks
from stoker.server.core.limits import Limits
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve import http_codec
from stoker.server.protocols.kserve.grpc_codec import GrpcCodec, encode_message
from tests.fakes.fake_engine import FakeEngine, echo

LIMITS = Limits()
TYPED = {
    DataType.BOOL: "bool_contents",
    DataType.INT8: "int_contents",
    DataType.INT16: "int_contents",
    DataType.INT32: "int_contents",
    DataType.INT64: "int64_contents",
    DataType.UINT8: "uint_contents",
    DataType.UINT16: "uint_contents",
    DataType.UINT32: "uint_contents",
    DataType.UINT64: "uint64_contents",
    DataType.FP32: "fp32_contents",
    DataType.FP64: "fp64_contents",
    DataType.BYTES: "bytes_contents",
}
IN_JSON = [t for t in DataType if t not in (DataType.FP16, DataType.BF16)]
SHAPES = arrays.array_shapes(min_dims=2, max_dims=3, max_side=4)


def tensors(datatype: DataType, *, text: bool = False) -> st.SearchStrategy[Any]:
    """Arrays of `[rows, *dims]`, NaN and infinities included; BYTES as text only where `text`."""
    if datatype is not DataType.BYTES:
        return arrays.arrays(datatype.numpy, SHAPES)
    element = st.text(max_size=5).map(str.encode) if text else st.binary(max_size=5)

    def fill(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
        count = int(np.prod(shape))
        return st.lists(element, min_size=count, max_size=count).map(lambda values: object_array(values, shape))

    return SHAPES.flatmap(fill)


def engine_for(datatype: DataType, array: Any) -> FakeEngine:
    return FakeEngine(echo(datatype, (-1,) * (array.ndim - 1), 8, "echo"))


def same(a: Any, b: Any) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def pairs(datatypes: Any, *, text: bool = False) -> st.SearchStrategy[tuple[DataType, Any]]:
    return st.sampled_from(list(datatypes)).flatmap(lambda t: tensors(t, text=text).map(lambda array: (t, array)))


@given(pairs(DataType))
def test_raw_grpc_contents_round_trip(pair: tuple[DataType, Any]):
    datatype, array = pair
    engine = engine_for(datatype, array)
    codec = GrpcCodec(engine, LIMITS)
    message = pb.ModelInferRequest(model_name="echo", id="7")
    message.inputs.add(name="INPUT", datatype=datatype.value, shape=array.shape)
    raw = array_to_bytes(array, datatype)
    message.raw_input_contents.append(raw)
    decoded = codec.decode(pb.ModelInferRequest.FromString(message.SerializeToString()), 0, None)
    assert same(decoded.request.inputs["INPUT"], array)
    assert decoded.request.rows == array.shape[0]
    response = encode_message(asyncio.run(engine.infer(decoded.request)), decoded.form.classifications, {})
    assert (response.id, response.model_name, response.model_version) == ("7", "echo", "1")
    assert list(response.outputs[0].shape) == list(array.shape)
    assert response.outputs[0].datatype == datatype.value
    assert response.raw_output_contents[0] == raw


@given(pairs(TYPED))
def test_typed_grpc_contents_are_read(pair: tuple[DataType, Any]):
    datatype, array = pair
    message = pb.ModelInferRequest(model_name="echo")
    tensor = message.inputs.add(name="INPUT", datatype=datatype.value, shape=array.shape)
    getattr(tensor.contents, TYPED[datatype]).extend(array.reshape(-1).tolist())
    decoded = GrpcCodec(engine_for(datatype, array), LIMITS).decode(message, 0, None)
    assert same(decoded.request.inputs["INPUT"], array)


def http_decode(engine: FakeEngine, body: bytes, header_length: int | None = None) -> Any:
    _, check = SignatureChecks(engine, LIMITS).find("echo", None)
    head = http_codec.parse_head(body, header_length, LIMITS)
    return http_codec.decode(check, http_codec.Target("echo", None, 0), head, body, header_length, LIMITS)


@given(pairs(DataType), st.booleans())
def test_binary_http_tensors_round_trip(pair: tuple[DataType, Any], by_default: bool):
    datatype, array = pair
    engine = engine_for(datatype, array)
    raw = array_to_bytes(array, datatype)
    tensor = {"name": "INPUT", "datatype": datatype.value, "shape": array.shape, "parameters": {"binary_data_size": len(raw)}}
    head: dict[str, Any] = {"id": "7", "inputs": [tensor]}
    if by_default:
        head["parameters"] = {"binary_data_output": True}
    else:
        head["outputs"] = [{"name": "OUTPUT", "parameters": {"binary_data": True}}]
    text = orjson.dumps(head)
    decoded = http_decode(engine, text + raw, len(text))
    assert same(decoded.request.inputs["INPUT"], array)
    response = http_codec.encode(asyncio.run(engine.infer(decoded.request)), decoded, {})
    assert response.header_length is not None
    head = orjson.loads(response.body[: response.header_length])
    assert list(head) == ["id", "model_name", "model_version", "outputs"]
    assert head["outputs"] == [
        {"name": "OUTPUT", "datatype": datatype.value, "shape": list(array.shape), "parameters": {"binary_data_size": len(raw)}}
    ]
    assert response.body[response.header_length :] == raw


@given(pairs(IN_JSON, text=True), st.booleans())
def test_json_tensors_round_trip_nested_or_flat(pair: tuple[DataType, Any], nested: bool):
    datatype, array = pair
    if array.dtype.kind == "f":
        array = np.nan_to_num(array, posinf=1.0, neginf=-1.0)
    engine = engine_for(datatype, array)
    values = (array if nested else array.reshape(-1)).tolist()
    if datatype is DataType.BYTES:
        values = json.loads(json.dumps(values, default=bytes.decode))
    body = orjson.dumps({"inputs": [{"name": "INPUT", "datatype": datatype.value, "shape": array.shape, "data": values}]})
    decoded = http_decode(engine, body)
    assert same(decoded.request.inputs["INPUT"], array)
    response = http_codec.encode(asyncio.run(engine.infer(decoded.request)), decoded, {})
    assert response.header_length is None
    printed = orjson.loads(response.body)["outputs"][0]["data"]
    if datatype is DataType.BYTES:
        assert printed == [value.decode() for value in array.reshape(-1)]
    else:
        assert same(np.array(printed, dtype=array.dtype).reshape(array.shape), array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_without_a_json_form_are_printed_like_triton(dtype: type):
    array: np.ndarray = np.array([[1.5, np.nan, np.inf, -np.inf, 0.1]], dtype)
    engine = engine_for(DataType.FP32 if dtype is np.float32 else DataType.FP64, array)
    name = "FP32" if dtype is np.float32 else "FP64"
    head = {"inputs": [{"name": "INPUT", "datatype": name, "shape": [1, 5], "parameters": {"binary_data_size": array.nbytes}}]}
    text = orjson.dumps(head)
    decoded = http_decode(engine, text + array.tobytes(), len(text))
    response = http_codec.encode(asyncio.run(engine.infer(decoded.request)), decoded, {})
    assert b'"data":[1.5,NaN,Infinity,-Infinity,0.1]' in response.body


def test_body_without_header_is_the_one_input():
    engine = FakeEngine(echo(DataType.FP32, (-1, 2), 8, "echo"))
    array = np.arange(6, dtype=np.float32)
    decoded = http_decode(engine, array.tobytes(), 0)
    assert same(decoded.request.inputs["INPUT"], array.reshape(1, 3, 2))
    assert decoded.form.binary_outputs == {"OUTPUT"}


def test_body_without_header_is_one_string():
    engine = FakeEngine(echo(DataType.BYTES, (1,), 8, "echo"))
    decoded = http_decode(engine, b"\x00whole body", 0)
    assert decoded.request.inputs["INPUT"].tolist() == [[b"\x00whole body"]]


def test_any_nonzero_byte_is_true():
    engine = FakeEngine(echo(DataType.BOOL, (3,), 8, "echo"))
    decoded = http_decode(engine, b"\x00\x01\x07", 0)
    assert decoded.request.inputs["INPUT"].tolist() == [[False, True, True]]
    assert array_to_bytes(decoded.request.inputs["INPUT"], DataType.BOOL) == b"\x00\x01\x01"
