"""Each call returns the same result over gRPC and HTTP, synchronous and asyncio."""

import json

import ml_dtypes
import numpy as np
import pytest

from stoker_client import ConnectionFailed, InvalidRequest, TooLarge, TypedArray, bf16_to_float32
from stoker_client._pb import messages as pb
from stoker_client.datatypes import NUMPY_TYPES

ARRAYS = {name: np.arange(6).reshape(2, 3).astype(dtype) for name, dtype in NUMPY_TYPES.items() if name != "BF16"}


def test_every_datatype_round_trips(client):
    result = client.infer("echo", ARRAYS)
    assert list(result) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert result.info[name].datatype == name
        assert result[name].dtype == array.dtype
        np.testing.assert_array_equal(result[name], array)


def test_outputs_are_read_only_views_of_the_message(client, kind):
    array = client.infer("echo", {"x": np.ones((64, 64), np.float32)})["x"]
    assert array.flags.aligned
    if kind.startswith("grpc"):  # over HTTP it depends on the place of the tensor in the body
        assert not array.flags.writeable
        assert not array.flags.owndata


@pytest.mark.parametrize(
    "value", [[["ab", "ç"]], [[b"ab", "ç".encode()]], np.array([["ab", "ç"]]), np.array([[b"ab", "ç"]], dtype=object)], ids=str
)
def test_strings_are_sent_as_bytes(client, value):
    array = client.infer("echo", {"s": value})["s"]
    assert array.dtype == np.object_
    assert array.tolist() == [[b"ab", "ç".encode()]]


def test_bytes_keep_their_trailing_nuls(client):
    assert client.infer("echo", {"s": [b"a\0", b"", b"\0\0"]})["s"].tolist() == [b"a\0", b"", b"\0\0"]


def test_bfloat16_arrays_are_recognised_and_returned_as_bits(client):
    values = np.array([1.0, -2.5, 3.0e38], dtype=ml_dtypes.bfloat16)
    result = client.infer("echo", {"array": values, "bits": TypedArray(values.view(np.uint16), "BF16")})
    for name in ("array", "bits"):
        assert result.info[name].datatype == "BF16"
        assert result[name].dtype == np.uint16
        np.testing.assert_array_equal(bf16_to_float32(result[name]), values.astype(np.float32))


def test_layouts_and_byte_orders_are_converted_to_the_wires(client):
    big_endian = np.arange(6, dtype=">i4").reshape(2, 3)
    transposed = np.arange(6, dtype=np.float64).reshape(2, 3).T
    result = client.infer("echo", {"a": big_endian, "b": transposed, "scalar": np.float32(2.5), "empty": np.zeros((0, 4), np.int8)})
    np.testing.assert_array_equal(result["a"], big_endian)
    np.testing.assert_array_equal(result["b"], transposed)
    assert result["scalar"].shape == ()
    assert result["empty"].shape == (0, 4)


def test_outputs_version_id_and_parameters_reach_the_server(client):
    result = client.infer(
        "echo",
        {"a": np.ones(2), "b": np.zeros(2)},
        version=2,
        outputs=["b"],
        request_id="r-1",
        priority=3,
        queue_timeout_s=0.25,
        parameters={"flag": True, "count": -4, "large": 2**64 - 1, "ratio": 0.5, "text": "ä"},
    )
    assert list(result) == ["b"]
    assert (result.model_name, result.model_version, result.request_id) == ("echo", "2", "r-1")
    assert result.parameters == {
        "flag": True,
        "count": -4,
        "large": 2**64 - 1,
        "ratio": 0.5,
        "text": "ä",
        "priority": 3,
        "timeout": 250_000,
    }


def test_call_without_options_sends_no_parameters(client):
    assert client.infer("echo", {"a": np.ones(2)}).parameters == {}


def test_metadata_is_a_plain_dict(client):
    assert client.server_metadata() == {"name": "fake", "version": "1.2.3", "extensions": ["binary_tensor_data"]}
    metadata = client.model_metadata("echo")
    assert metadata["versions"] == ["1", "3"]
    assert metadata["inputs"][0]["shape"] == [-1, 4]


def test_config_is_a_plain_dict(client):
    config = client.model_config("echo")
    assert config["max_batch_size"] == 8
    assert config["parameters"] == {"k": {"string_value": "v"}}


def test_health_is_true_or_false(client, fake):
    assert client.is_live() is True
    assert client.is_ready() is True
    fake.is_ready = False
    assert client.is_ready() is False
    assert client.is_model_ready("echo") is True
    assert client.is_model_ready("other") is False


def test_index_has_every_field_of_every_entry(client):
    assert client.index() == [
        {"name": "echo", "version": "3", "state": "READY", "reason": ""},
        {"name": "broken", "version": "", "state": "", "reason": "no such file"},
    ]


def test_statistics_keep_large_counts_as_numbers(client):
    for rows in (client.statistics(), client.statistics("echo")):
        assert rows[0]["last_inference"] == 2**40
        assert rows[0]["inference_count"] == 7


def test_load_sends_config_and_files(client, fake, kind):
    client.load("echo", config={"max_batch_size": 4}, files={"1/model.onnx": b"\x00\xff"})
    if kind.startswith("grpc"):
        sent = pb.RepositoryModelLoadRequest.FromString(fake.bodies[0])
        assert json.loads(sent.parameters["config"].string_param) == {"max_batch_size": 4}
        assert sent.parameters["file:1/model.onnx"].bytes_param == b"\x00\xff"
    else:
        parameters = json.loads(fake.bodies[0])["parameters"]
        assert json.loads(parameters["config"]) == {"max_batch_size": 4}
        assert parameters["file:1/model.onnx"] == "AP8="


def test_unload_sends_whether_dependents_are_unloaded_too(client, fake, kind):
    client.unload("echo", unload_dependents=True)
    if kind.startswith("grpc"):
        assert pb.RepositoryModelUnloadRequest.FromString(fake.bodies[0]).parameters["unload_dependents"].bool_param is True
    else:
        assert json.loads(fake.bodies[0]) == {"parameters": {"unload_dependents": True}}


def test_stream_returns_each_response_in_order(client):
    inputs = ({"x": np.full(3, n, np.int32)} for n in range(5))
    results = list(client.stream("echo", inputs, request_id="s"))
    assert [result.request_id for result in results] == ["s0", "s1", "s2", "s3", "s4"]
    assert [int(result["x"][0]) for result in results] == [0, 1, 2, 3, 4]


def test_stream_may_be_left_early(client, fake):
    def endless():
        while True:
            yield {"x": np.zeros(1, np.int8)}

    results = client.stream("echo", endless())
    assert next(results)["x"].tolist() == [0]
    results.close()
    assert client.is_live()


def test_exception_of_the_callers_iterator_ends_a_stream(client):
    def faulty():
        yield {"x": np.zeros(1, np.int8)}
        raise LookupError("no more pictures")

    results = client.stream("echo", faulty())
    assert next(results)["x"].tolist() == [0]
    with pytest.raises(LookupError, match="no more pictures"):
        next(results)


def test_api_key_and_headers_are_sent_with_every_call(make_client, fake):
    client = make_client(api_key="s3cret", headers={"X-Tenant": "blue"})
    client.is_live()
    assert fake.headers["authorization"] == "Bearer s3cret"
    assert fake.headers["x-tenant"] == "blue"


@pytest.mark.parametrize(
    ("inputs", "options", "text"),
    [
        ({}, {}, "at least one input"),
        ({"x": np.zeros(1, np.complex64)}, {}, "complex64"),
        ({"x": TypedArray(np.zeros(1, np.float32), "FP16")}, {}, "stated as FP16 but holds float32"),
        ({"x": TypedArray(np.zeros(1), "FLOAT")}, {}, "unknown datatype 'FLOAT'"),
        ({"x": TypedArray(np.zeros(1), "BYTES")}, {}, "stated as BYTES but holds float64"),
        ({"x": np.array([1, "a"], dtype=object)}, {}, "str or bytes elements, got int"),
        ({"x": [[1], [1, 2]]}, {}, "input 'x' is not an array"),
        ({"x": [1]}, {"outputs": "scores"}, "the string 'scores'"),
        ({"x": [1]}, {"version": "one"}, "whole number, got 'one'"),
        ({"x": [1]}, {"priority": -1}, "priority is -1"),
        ({"x": [1]}, {"queue_timeout_s": 0}, "queue_timeout_s is 0"),
        ({"x": [1]}, {"timeout_s": 0}, "timeout_s is 0"),
        ({"x": [1]}, {"parameters": {"timeout": 1}}, "'timeout' has an argument of its own"),
        ({"x": [1]}, {"parameters": {"k": float("nan")}}, "JSON cannot say"),
        ({"x": [1]}, {"parameters": {"k": 2**64}}, "64-bit"),
        ({"x": [1]}, {"parameters": {"k": [1]}}, "is a list"),
    ],
)
def test_locally_detectable_errors_are_refused_before_sending(client, fake, inputs, options, text):
    with pytest.raises(InvalidRequest, match=text):
        client.infer("echo", inputs, **options)
    assert fake.calls == []


def test_files_without_a_config_are_refused_before_sending(client):
    with pytest.raises(InvalidRequest, match="must bring the model's config"):
        client.load("echo", files={"1/model.onnx": b""})
    with pytest.raises(InvalidRequest, match="JSON list"):
        client.load("echo", config="[]")


def test_messages_over_the_clients_limit_are_refused(make_client, fake):
    client = make_client(max_message_bytes=4000)
    assert client.infer("echo", {"x": np.zeros(100, np.float32)})["x"].size == 100
    with pytest.raises(TooLarge, match="at most 4000"):
        client.infer("echo", {"x": np.zeros(1001, np.float32)})
    with pytest.raises(TooLarge):
        client.infer("echo", {"x": np.zeros(999, np.float32)}, request_id="i" * 300)


def test_closed_client_raises(client):
    client.is_live()
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.is_live()


def test_missing_server_is_a_failed_connection(make_client, kind, unused_address):
    client = make_client(unused_address, timeout_s=None)
    with pytest.raises(ConnectionFailed) as caught:
        client.infer("echo", {"x": [1.0]})
    assert caught.value.request_may_have_run is False


@pytest.fixture
def unused_address(kind):
    import socket

    with socket.socket() as bound:  # bound but not listening: refuses connections, and no other process can take the port
        bound.bind(("127.0.0.1", 0))
        yield f"{kind.split('.')[0]}://127.0.0.1:{bound.getsockname()[1]}"
