"""The wire splitter cuts out of a serialised request exactly the contents that the parser would have read."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import InvalidRequest, ServingError, TooLarge
from stoker.server.codecs.tensor_proto import split_predict_request
from stoker.server.core.limits import Limits
from stoker.server.pb.adlik import predict_pb2
from stoker.server.pb.tensorflow.core.framework import tensor_pb2, types_pb2
from stoker.server.protocols.adlik.predict import read_request

names = st.text(max_size=5)
tensors: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    content=st.binary(max_size=300),
    shape=st.lists(st.integers(-1, 1 << 40), max_size=4),
    floats=st.lists(st.floats(width=32, allow_nan=False), max_size=3),
    integers=st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=3),
    strings=st.lists(st.binary(max_size=5), max_size=3),
    dtype=st.integers(0, 23),
)


def message(inputs, batch_size=2, outputs=()):
    made = predict_pb2.PredictRequest(batch_size=batch_size)
    made.model_spec.name = "m"
    for name, fields in inputs.items():
        tensor = made.inputs[name]
        tensor.tensor_content = fields["content"]
        tensor.dtype = fields["dtype"]
        for size in fields["shape"]:
            tensor.tensor_shape.dim.add(size=size)
        tensor.float_val.extend(fields["floats"])
        tensor.int_val.extend(fields["integers"])
        tensor.string_val.extend(fields["strings"])
    for name in outputs:
        made.output_filter[name].cls.count = 3
    return made


def plain(ask):
    inputs = {
        name: (fields.dtype, fields.shape, bytes(fields.content), {key: list(values) for key, values in fields.values.items()})
        for name, fields in ask.inputs.items()
    }
    return ask.model, ask.batch_size, inputs, dict(ask.output_filter)


@given(st.dictionaries(names, tensors, max_size=3), st.lists(names, unique=True, max_size=3))
def test_split_request_equals_the_request_parsed_whole(inputs, outputs):
    data = message(inputs, outputs=outputs).SerializeToString()
    wire = split_predict_request(data, Limits())
    rest = predict_pb2.PredictRequest.FromString(wire.rest)
    assert all(not tensor.tensor_content for tensor in rest.inputs.values())
    whole = read_request(predict_pb2.PredictRequest.FromString(data), {})
    assert plain(read_request(rest, wire.contents)) == plain(whole)
    assert wire.cost_bytes >= len(wire.rest)


@given(st.binary(max_size=200))
def test_any_bytes_are_split_or_refused(data):
    with contextlib.suppress(ServingError):
        split_predict_request(data, Limits())


@given(st.dictionaries(names, tensors, min_size=1, max_size=2), st.data())
def test_truncated_request_is_refused_or_equals_the_parsers_result(inputs, draw):
    data = message(inputs).SerializeToString()
    data = data[: draw.draw(st.integers(0, len(data)))]
    try:
        wire = split_predict_request(data, Limits())
    except InvalidRequest:
        return
    whole = read_request(predict_pb2.PredictRequest.FromString(data), {})
    assert plain(read_request(predict_pb2.PredictRequest.FromString(wire.rest), wire.contents)) == plain(whole)


def entry(name: bytes, *tensors: tensor_pb2.TensorProto) -> bytes:
    values = b"".join(b"\x12" + bytes([len(text)]) + text for text in (tensor.SerializeToString() for tensor in tensors))
    body = b"\x0a" + bytes([len(name)]) + name + values
    return b"\x12" + bytes([len(body)]) + body


def test_tensor_sent_in_two_parts_is_merged_as_by_the_parser():
    parts = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, tensor_content=b"old"), tensor_pb2.TensorProto(tensor_content=b"new")
    wire = split_predict_request(entry(b"x", *parts), Limits())
    assert bytes(wire.contents["x"]) == b"new"
    assert predict_pb2.PredictRequest.FromString(wire.rest).inputs["x"].dtype == 1


def test_repeated_input_is_refused():
    tensor = tensor_pb2.TensorProto(tensor_content=b"a")
    with pytest.raises(InvalidRequest, match="'x' is given twice"):
        split_predict_request(entry(b"x", tensor) * 2, Limits())


@pytest.mark.parametrize(
    ("made", "limits", "error"),
    [
        (message({str(at): {"content": b"", "shape": [], "floats": [], "integers": [], "strings": [], "dtype": 0} for at in range(9)}),
         Limits(tensor_count=8), "8 inputs"),
        (message({}, outputs=[str(at) for at in range(9)]), Limits(output_count=8), "8 outputs"),
        (message({"x": {"content": b"", "shape": [1] * 5, "floats": [], "integers": [], "strings": [], "dtype": 0}}),
         Limits(dims_count=4), "4 dimensions"),
    ],
)  # fmt: skip
def test_counts_above_the_limits_are_refused(made, limits, error):
    with pytest.raises(InvalidRequest, match=error):
        split_predict_request(made.SerializeToString(), limits)


def test_request_above_the_whole_budget_is_refused():
    made = predict_pb2.PredictRequest()
    made.inputs["x"].int64_val.extend([1] * 10_000)
    with pytest.raises(TooLarge, match="would take"):
        split_predict_request(made.SerializeToString(), Limits(bytes_in_flight=50_000))
    made = predict_pb2.PredictRequest()
    made.inputs["x"].string_val.extend([b""] * 10_000)
    assert split_predict_request(made.SerializeToString(), Limits()).cost_bytes > 300_000
