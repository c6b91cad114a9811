"""The server's JSON against protobuf's own reader and printer of proto3 JSON, which Adlik uses."""

import numpy as np
import orjson
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensors import whole
from stoker.server.core.limits import Limits
from stoker.server.pb.adlik import predict_pb2
from stoker.server.protocols.adlik import json_codec, predict
from stoker.server.protocols.adlik.request import BestClass, ModelQuery, PredictionResponse, ResponseOutput

VALUES = {
    "half_val": st.integers(0, 65535),
    "float_val": st.floats(width=32),
    "double_val": st.floats(),
    "int_val": st.integers(-(1 << 31), (1 << 31) - 1),
    "string_val": st.binary(max_size=6),
    "int64_val": st.integers(-(1 << 63), (1 << 63) - 1),
    "bool_val": st.booleans(),
    "uint32_val": st.integers(0, (1 << 32) - 1),
    "uint64_val": st.integers(0, (1 << 64) - 1),
}


@st.composite
def requests(draw):
    made = predict_pb2.PredictRequest(batch_size=draw(st.integers(0, (1 << 32) - 1)))
    made.model_spec.name = "m"
    if draw(st.booleans()):
        made.model_spec.version.value = draw(st.integers(-(1 << 63), (1 << 63) - 1))
    else:
        made.model_spec.version_label = draw(st.text(max_size=4))
    for name in draw(st.lists(st.text(max_size=4), max_size=3, unique=True)):
        tensor = made.inputs[name]
        tensor.dtype = draw(st.integers(0, 23))
        for size in draw(st.lists(st.integers(-1, 1 << 40), max_size=3)):
            tensor.tensor_shape.dim.add(size=size)
        if draw(st.booleans()):
            tensor.tensor_content = draw(st.binary(max_size=20))
        field = draw(st.sampled_from(sorted(VALUES)))
        getattr(tensor, field).extend(draw(st.lists(VALUES[field], max_size=4)))
    for name in draw(st.lists(st.text(max_size=4), max_size=2, unique=True)):
        made.output_filter[name].cls.count = draw(st.integers(0, (1 << 32) - 1))
    return made


def plain(ask):
    inputs = {}
    for name, fields in ask.inputs.items():
        # As text, in which what is not a number equals itself.
        values = {key: repr(np.array(given).tolist()) for key, given in fields.values.items()}
        inputs[name] = (fields.dtype, fields.shape, bytes(fields.content), values)
    return ask.model, ask.batch_size, inputs, dict(ask.output_filter)


@given(requests(), st.booleans())
def test_json_request_printed_by_protobuf_equals_the_message(request_, keeps_names):
    text = json_format.MessageToJson(request_, preserving_proto_field_name=keeps_names)
    read = json_codec.read_request(orjson.loads(text), ModelQuery("m"), Limits())
    assert plain(read) == plain(predict.read_request(request_, {}))


def response(datatype: DataType, values, classes=()) -> PredictionResponse:
    array = np.array(values, dtype=datatype.numpy)
    return PredictionResponse(
        ModelQuery("m", 3), [ResponseOutput("y", datatype, array, list(classes)), ResponseOutput("z", datatype, array[:0], [])]
    )


@pytest.mark.parametrize(
    "made",
    [
        response(DataType.FP32, [[1.5, np.nan]], [[BestClass(0, 0.0, ""), BestClass(7, float("-inf"), "seven")]]),
        response(DataType.INT64, [[1], [-1]], [[BestClass(1, float("nan"), "x")], []]),
        response(DataType.BYTES, [[b"a", b"\xff"]]),
        response(DataType.BOOL, [[True, False]]),
        response(DataType.BF16, [[1, 2]]),
        response(DataType.UINT8, np.zeros((1, 1 << 20)), [[BestClass(1, 2.0, "x")]]),
        PredictionResponse(ModelQuery("m"), []),
    ],
)
def test_protobuf_parses_the_same_response_from_both_forms(made):
    by_json = json_format.Parse(json_codec.print_response(made), predict_pb2.PredictResponse())
    by_message = predict_pb2.PredictResponse.FromString(whole(predict.print_response(made)))
    assert by_json.SerializeToString(deterministic=True) == by_message.SerializeToString(deterministic=True)
