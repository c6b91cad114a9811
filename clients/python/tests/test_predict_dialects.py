"""TensorFlow Serving's and Adlik's dialects: requests as their servers read them, responses as they print them, and malformed ones."""

import json
from typing import Any

import numpy as np
import pytest

from stoker_client import InvalidRequest, InvalidResponse, NotFound, TypedArray, float32_to_bf16
from stoker_client._pb import adlik_messages, tfs_messages
from stoker_client.adlik.dialect import AdlikGrpcDialect, AdlikRestDialect
from stoker_client.datatypes import NUMPY_TYPES
from stoker_client.dialect import Call
from stoker_client.errors import StokerError
from stoker_client.http_dialect import HttpReply, HttpRequest
from stoker_client.http_json_dialect import JsonHttpDialect
from stoker_client.inference import InferOptions, InferRequest, build_request
from stoker_client.predict_client import PredictClient
from stoker_client.retry import RetryPolicy
from stoker_client.tfs import TfsClient, TfsGrpcDialect, TfsRestDialect

JSON = {"content-type": "application/json"}
DATATYPES = (*NUMPY_TYPES, "BYTES")


def value(datatype: str) -> Any:
    """A [2, 2] tensor of that type."""
    if datatype == "BYTES":
        return np.asarray([[b"a", b"\xff\x00"], [b"", "é".encode()]], dtype=np.object_)
    if datatype == "BF16":
        return TypedArray(float32_to_bf16(np.asarray([[0.5, 1], [2, -3]], np.float32)), "BF16")
    return np.asarray([[0, 1], [1, 0]], dtype=NUMPY_TYPES[datatype])


def plain(tensor: Any) -> Any:
    return getattr(tensor, "array", tensor)


def request(datatype: str = "FP32", **options: Any) -> InferRequest:
    return build_request("m", {"x": value(datatype)}, InferOptions(**options))


def facts(datatype: str, *outputs: str) -> dict[str, Any]:
    return {"outputs": [{"name": name, "datatype": datatype, "shape": [-1, 2]} for name in outputs or ("x",)]}


def reply(body: Any, status: int = 200) -> HttpReply:
    return HttpReply(status, JSON, body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize("datatype", DATATYPES)
def test_tensors_of_every_type_round_trip_over_tensorflow_serving_grpc(datatype: str):
    call = TfsGrpcDialect().infer(request(datatype, version=3), {})
    sent = call.request.message
    assert (call.request.path, sent.model_spec.name, sent.model_spec.version.value) == (
        "/tensorflow.serving.PredictionService/Predict",
        "m",
        3,
    )
    response = tfs_messages.PredictResponse(model_spec=sent.model_spec)
    response.outputs["x"].CopyFrom(sent.inputs["x"])
    result = call.parse(response)
    assert np.array_equal(result["x"], plain(value(datatype)))
    assert (result.info["x"].datatype, result.model_version) == (datatype, "3")


@pytest.mark.parametrize("datatype", DATATYPES)
def test_tensors_of_every_type_round_trip_over_tensorflow_serving_rest(datatype: str):
    call = TfsRestDialect().infer(request(datatype), facts(datatype))
    sent: HttpRequest = call.request
    assert (sent.method, sent.path) == ("POST", "/v1/models/m:predict")
    result = call.parse(reply({"outputs": json.loads(sent.body)["inputs"]["x"]}))
    assert np.array_equal(result["x"], plain(value(datatype)))
    assert result["x"].dtype == plain(value(datatype)).dtype


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("dialect", [AdlikGrpcDialect(), AdlikRestDialect()], ids=["grpc", "rest"])
def test_tensors_of_every_type_round_trip_over_adliks_protocol(datatype: str, dialect: Any):
    call = dialect.infer(request(datatype), {})
    if isinstance(dialect, AdlikGrpcDialect):
        sent = call.request.message
        assert sent.batch_size == 2
        response: Any = adlik_messages.PredictResponse(model_spec=sent.model_spec)
        response.outputs["x"].tensor.CopyFrom(sent.inputs["x"])
    else:
        body = json.loads(call.request.body)
        response = reply({"model_spec": body["model_spec"], "outputs": {"x": {"tensor": body["inputs"]["x"]}}})
    assert np.array_equal(call.parse(response)["x"], plain(value(datatype)))


@pytest.mark.parametrize("datatype", [each for each in DATATYPES if each not in ("FP16", "BF16", "BYTES")])
def test_tensors_round_trip_as_json_without_the_binary_extension(datatype: str):
    call = JsonHttpDialect(2**20).infer(request(datatype, outputs=("x",), request_id="7", parameters={"k": 1}))
    body = json.loads(call.request.body)
    assert (body["id"], body["parameters"], body["outputs"]) == ("7", {"k": 1}, [{"name": "x"}])
    result = call.parse(reply({"model_name": "m", "outputs": body["inputs"]}))
    assert np.array_equal(result["x"], plain(value(datatype)))


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "BYTES"])
def test_tensors_without_a_json_form_are_refused_before_they_are_sent(datatype: str):
    with pytest.raises(InvalidRequest, match="binary only"):
        JsonHttpDialect(2**20).infer(request(datatype))


def test_several_outputs_over_rest_are_named_and_unrequested_ones_dropped():
    call = TfsRestDialect().infer(request(outputs=("b",)), facts("FP32", "a", "b"))
    assert list(call.parse(reply({"outputs": {"a": [[1]], "b": [[2.5]]}}))) == ["b"]


def test_single_output_may_have_the_name_of_a_field():
    """One output that is an object under its own name, as some servers print it."""
    call = TfsRestDialect().infer(request(), facts("FP32"))
    assert call.parse(reply({"outputs": {"x": [[1.0]]}}))["x"].tolist() == [[1.0]]


@pytest.mark.parametrize(
    "body",
    [b"{", [1], {"predictions": [1]}, {"outputs": {"a": 1}}, {"outputs": [["word"]]}, {"outputs": [[1, 2], [3]]}],
)
def test_malformed_rest_responses_raise_a_clear_error(body: Any):
    call = TfsRestDialect().infer(request(), facts("FP32"))
    with pytest.raises(InvalidResponse):
        call.parse(reply(body))


@pytest.mark.parametrize("body", [b"{", {}, {"metadata": 3}, {"metadata": {"signature_def": {"signature_def": {}}}}, {"config": {}}])
def test_metadata_in_another_form_than_tensorflow_servings_raises_a_clear_error(body: Any):
    first, second = TfsRestDialect().metadata("m", "")
    assert (first.request.path, second.request.path) == ("/v1/models/m/metadata", "/v1/models/m/metadata?format=tfs")
    with pytest.raises(InvalidResponse):
        first.parse(reply(body))


def test_inputs_of_different_batch_sizes_are_refused_for_adlik():
    bad = build_request("m", {"x": np.zeros((2, 1)), "y": np.zeros((3, 1))}, InferOptions())
    with pytest.raises(InvalidRequest, match="'x' has 2, 'y' has 3"):
        AdlikGrpcDialect().infer(bad, {})
    with pytest.raises(InvalidRequest, match="'x' has 0"):
        AdlikGrpcDialect().infer(build_request("m", {"x": np.float32(1)}, InferOptions()), {})


class Canned:
    """A transport that returns the given responses in turn."""

    def __init__(self, *responses: Any) -> None:
        self.responses = list(responses)
        self.requested: list[str] = []
        self.is_closed = False

    def send(self, requested: HttpRequest, timeout_s: float | None) -> HttpReply:
        self.requested.append(requested.path)
        response = self.responses.pop(0)
        if isinstance(response, StokerError):
            raise response
        assert isinstance(response, HttpReply)
        return response

    def close(self) -> None:
        self.is_closed = True


SIGNATURE = {
    "serving_default": {
        "inputs": {"x": {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "2"}], "unknown_rank": False}}},
        "outputs": {"y": {"dtype": "DT_STRING", "tensor_shape": {"dim": []}}},
    }
}
METADATA = {"model_spec": {"name": "m", "version": "4"}, "metadata": {"signature_def": {"signature_def": SIGNATURE}}}


def test_metadata_of_another_protocol_are_requested_again_in_this_one():
    transport = Canned(reply({"config": {}}), reply(METADATA))
    with PredictClient(TfsRestDialect(), transport, retry=RetryPolicy(max_attempts=1)) as client:
        found = client.metadata("m")
    assert found["versions"] == ["4"]
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert found["outputs"] == [{"name": "y", "datatype": "BYTES", "shape": []}]
    assert transport.requested == ["/v1/models/m/metadata", "/v1/models/m/metadata?format=tfs"]
    assert transport.is_closed


def test_unknown_model_is_not_requested_twice():
    transport = Canned(reply({"error": "no such"}, 404))
    with PredictClient(TfsRestDialect(), transport) as client, pytest.raises(NotFound, match="no such"):
        client.metadata("m")
    assert len(transport.requested) == 1


def test_metadata_are_requested_once_for_many_predictions():
    transport = Canned(reply(METADATA), reply({"outputs": "text"}), reply({"outputs": "text"}))
    with PredictClient(TfsRestDialect(), transport) as client:
        for _ in range(2):
            assert client.predict("m", {"x": np.zeros((1, 2), np.float32)})["y"].item() == b"text"
    assert len(transport.requested) == 3


def test_unusable_address_is_refused():
    with pytest.raises(ValueError, match="does not say the protocol"):
        TfsClient("somewhere")


def test_calls_that_compute_are_not_reads():
    calls: list[Call[Any]] = [TfsGrpcDialect().infer(request(), {}), TfsRestDialect().infer(request(), facts("FP32"))]
    assert not any(call.is_read for call in calls)
    assert all(call.is_read for call in TfsRestDialect().metadata("m", "1"))
