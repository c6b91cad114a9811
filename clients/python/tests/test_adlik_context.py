"""`PredictContext` over both protocols, against a fake server made on other message classes."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any, cast

import grpc
import numpy as np
import pytest

import stoker_client as sdk
from stoker.server.pb.adlik import predict_pb2
from stoker.server.pb.tensorflow.core.framework import tensor_pb2, types_pb2
from stoker_client.adlik import PredictContext
from stoker_client.retry import Timing
from tests.fakes.fake_adlik import FakeAdlik, echo

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def adlik_server() -> Iterator[FakeAdlik]:
    server = FakeAdlik()
    yield server
    server.close()


@pytest.fixture
def adlik(adlik_server: FakeAdlik) -> Iterator[FakeAdlik]:
    yield adlik_server
    adlik_server.reset()


@pytest.fixture(params=["grpc", "http"])
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


Make = Callable[..., PredictContext]


@pytest.fixture
def make(adlik: FakeAdlik, protocol: str) -> Iterator[Make]:
    made = []

    def make_one(name: str = "echo", **settings: Any) -> PredictContext:
        settings.setdefault("timing", Timing(sleep=lambda _: None))
        settings.setdefault("timeout_s", 20)
        made.append(PredictContext(name, url=adlik.url(protocol), protocol=protocol, **settings))
        return made[-1]

    yield make_one
    for context in made:
        context.close()


@pytest.fixture
def context(make: Make) -> PredictContext:
    return make()


def test_list_of_arrays_is_a_batch(context: PredictContext, adlik: FakeAdlik) -> None:
    result = context.run({"x": [X[0], X[1]]}, ["x"], batch_size=2)
    assert list(result) == ["x"]
    np.testing.assert_array_equal(result["x"].tensor, X)
    assert result["x"].batch_classes == []
    (request,) = adlik.requests
    assert (request.batch_size, request.model_spec.name, request.model_spec.signature_name) == (2, "echo", "predict")
    assert request.inputs["x"].dtype == types_pb2.DT_FLOAT
    assert request.inputs["x"].tensor_content == X.tobytes()


def test_best_classes_have_the_form_that_adliks_examples_print(context: PredictContext) -> None:
    output = context.run({"x": X}, {"x": 2}, batch_size=2)["x"]
    assert output.batch_classes[1] == [{"idx": 3, "score": 7.0, "label": "class 3"}, {"idx": 2, "score": 6.0, "label": "class 2"}]
    assert str(output.batch_classes[0][0]) == "{'idx': 3, 'score': 3.0, 'label': 'class 3'}"


@pytest.mark.parametrize("choice", [1, {"cls": 1}, predict_pb2.PredictRequest.Output(cls=predict_pb2.PredictRequest.Class(count=1))])
def test_classes_may_be_requested_in_each_of_adliks_forms(context: PredictContext, choice: Any) -> None:
    assert [len(best) for best in context.run({"x": X}, {"x": choice})["x"].batch_classes] == [1, 1]


@pytest.mark.parametrize(("outputs", "found"), [("x", ["x"]), (None, ["small", "x"]), ([], ["small", "x"]), ({"small": None}, ["small"])])
def test_outputs_are_selected_by_name_and_none_means_all(context: PredictContext, outputs: Any, found: list[str]) -> None:
    inputs: dict[str, np.ndarray] = {"x": X, "small": np.ones((2, 2), np.uint8)}
    assert list(context.run(inputs, outputs)) == found


def test_configuration_is_available_at_once(context: PredictContext) -> None:
    config = context.model_config
    assert (config.name, config.platform, config.max_batch_size) == ("echo", "topsinference", 8)
    assert next((tensor.name, tensor.data_type, list(tensor.dims)) for tensor in config.input) == ("x", types_pb2.DT_FLOAT, [4])


def test_python_numbers_get_the_configured_type_and_arrays_keep_theirs(context: PredictContext, adlik: FakeAdlik) -> None:
    context.run({"x": [[1, 2, 3, 4]], "small": [[7, 255]]})
    context.run({"x": np.ones((1, 4))})
    sent, kept = adlik.requests
    assert (sent.inputs["x"].dtype, sent.inputs["small"].dtype) == (types_pb2.DT_FLOAT, types_pb2.DT_UINT8)
    assert kept.inputs["x"].dtype == types_pb2.DT_DOUBLE


def test_number_out_of_the_configured_types_range_is_refused(context: PredictContext) -> None:
    with pytest.raises(sdk.InvalidRequest, match="input 'small' is not an array of DT_UINT8"):
        context.run({"small": [[256, 0]]})


def test_tensor_message_of_another_library_is_sent_unchanged(context: PredictContext, adlik: FakeAdlik) -> None:
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, tensor_content=X.tobytes())
    for size in X.shape:
        tensor.tensor_shape.dim.add(size=size)
    np.testing.assert_array_equal(context.run({"x": tensor})["x"].tensor, X)
    assert adlik.requests[0].inputs["x"] == tensor


def test_asynchronous_call_is_read_by_process_response(context: PredictContext) -> None:
    calls = [context.async_run({"x": X + n}, {"x": 1}, batch_size=2) for n in range(3)]
    results = [context.process_response({"x": 1}, call.result(20))["x"] for call in calls]
    for n, result in enumerate(results):
        np.testing.assert_array_equal(result.tensor, X + n)
        assert result.batch_classes[0][0]["idx"] == 3


def test_asynchronous_failure_is_raised_by_the_future(context: PredictContext, adlik: FakeAdlik) -> None:
    adlik.failures.append((grpc.StatusCode.INVALID_ARGUMENT, 400, "Output y does not exist"))
    with pytest.raises(sdk.InvalidRequest, match="Output y does not exist"):
        context.async_run({"x": X}).result(20)


def test_cancelled_call_ends_at_the_server(adlik: FakeAdlik) -> None:
    adlik.hold.clear()
    with PredictContext("echo", url=adlik.grpc_url) as context:
        call = context.async_run({"x": X})
        assert adlik.arrived.wait(20)
        assert not call.done()
        assert call.cancel()
        with pytest.raises(CancelledError):
            call.result(20)
        assert adlik.cancelled.wait(20)
        adlik.hold.set()


def test_verbose_prints_the_lines_that_adliks_tools_search_for(make: Make, adlik: FakeAdlik, capsys: pytest.CaptureFixture[str]) -> None:
    make(verbose=True).run({"x": X}, ["x"], batch_size=2, iteration=3)
    assert re.fullmatch(r"Run model echo predict \(batch size=2\) use [\d.e-]+ ms\n", capsys.readouterr().out)
    assert len(adlik.requests) == 3


def test_version_and_label_select_the_model(make: Make, adlik: FakeAdlik, protocol: str) -> None:
    make(model_version=3).run({"x": X})
    make(model_version="stable").run({"x": X})
    by_number, by_label = (request.model_spec for request in adlik.requests)
    assert (by_number.version.value, by_label.version_label) == (3, "stable")
    if protocol == "http":
        routes = [path for path in adlik.paths if path.endswith(":predict")]
        assert routes == ["/v1/models/echo/versions/3:predict", "/v1/models/echo:predict"]


def test_unknown_model_fails_when_the_context_is_created(make: Make) -> None:
    with pytest.raises(sdk.NotFound, match="Model not found: nobody"):
        make("nobody")


def test_missing_server_is_a_failed_connection(protocol: str) -> None:
    with pytest.raises(sdk.ConnectionFailed):
        PredictContext("echo", url="127.0.0.1:1", protocol=protocol, retry=sdk.RetryPolicy(max_attempts=1))


def test_refused_prediction_is_sent_again(context: PredictContext, adlik: FakeAdlik) -> None:
    adlik.failures.append((grpc.StatusCode.UNAVAILABLE, 429, "Exceeds maximum queue size"))
    np.testing.assert_array_equal(context.run({"x": X})["x"].tensor, X)
    assert len(adlik.requests) == 2


def test_invalid_prediction_is_not_sent_again(context: PredictContext, adlik: FakeAdlik) -> None:
    adlik.failures.append((grpc.StatusCode.INVALID_ARGUMENT, 400, "input 'x' is too short"))
    with pytest.raises(sdk.InvalidRequest, match="input 'x' is too short"):
        context.run({"x": X})
    assert len(adlik.requests) == 1


@pytest.mark.parametrize(
    "answer", [(200, {"model_spec": {"name": "echo"}, "metadata": {}}), (501, {"error": "TensorFlow's is not offered"})]
)
def test_metadata_in_tensorflow_servings_form_are_requested_again(adlik: FakeAdlik, answer: tuple[int, dict[str, object]]) -> None:
    adlik.tensorflows_metadata = answer
    with PredictContext("echo", url=adlik.http_url, protocol="http") as context:
        assert context.model_config.name == "echo"
    assert adlik.paths == ["/v1/models/echo/metadata", "/v1/models/echo/metadata?format=adlik"]


@pytest.mark.parametrize(
    ("inputs", "settings", "text"),
    [
        ({"x": X}, {"batch_size": 3}, "batch_size is 3, but input 'x' has 2"),
        ({"x": X, "small": np.ones((1, 2), np.uint8)}, {}, "batch_size is 2, but input 'small' has 1"),
        ({"x": np.zeros((), np.float32)}, {}, "input 'x' has no batch dimension"),
        ({"x": np.empty((0, 4), np.float32)}, {}, "batch_size is 0; expected at least 1"),
        ({"x": 5}, {}, "input 'x' is a int; expected an array"),
        ({"x": [[1.0], [1.0, 2.0]]}, {}, "input 'x' is not an array"),
        ({"x": np.zeros(2, "M8[s]")}, {}, "no counterpart on the wire"),
        ({"x": np.array([object()])}, {}, "takes str or bytes elements, got object"),
        ({}, {}, "no inputs are given"),
        ({"x": X}, {"outputs": {"x": -1}}, "output 'x' is asked for as -1; expected a number of classes"),
        ({"x": X}, {"outputs": {"x": True}}, "asked for as True"),
        ({"x": X}, {"iteration": 0}, "iteration is 0"),
        ({"x": predict_pb2.PredictRequest()}, {}, "input 'x' is a adlik.serving.PredictRequest"),
    ],
)
def test_invalid_request_is_refused_before_it_is_sent(context: PredictContext, adlik: FakeAdlik, inputs, settings, text) -> None:
    with pytest.raises(sdk.InvalidRequest, match=re.escape(text)):
        context.run(inputs, **{"outputs": None, **settings})
    assert not adlik.requests


def test_unknown_protocol_is_named() -> None:
    with pytest.raises(ValueError, match="protocol is 'ftp'; expected 'grpc' or 'http'"):
        PredictContext("echo", protocol="ftp")


def test_version_is_a_number_or_a_label() -> None:
    with pytest.raises(sdk.InvalidRequest, match=r"model_version is 1.5"):
        PredictContext("echo", model_version=cast("Any", 1.5))


def _other_model(request: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
    response = echo(request)
    response.model_spec.name = "other"
    return response


def _no_outputs(request: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
    return predict_pb2.PredictResponse(model_spec=request.model_spec)


def _short(request: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
    response = echo(request)
    response.outputs["x"].tensor.tensor_content = b"123"
    return response


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (_other_model, "the server responded for model 'other', asked was 'echo'"),
        (_no_outputs, "the response lacks output 'x'; it has none"),
        (_short, "output 'x' DT_FLOAT[2, 4] needs 32 bytes, got 3"),
    ],
)
def test_response_that_contradicts_the_request_is_an_error(context: PredictContext, adlik: FakeAdlik, answer, text) -> None:
    adlik.response = answer
    with pytest.raises(sdk.InvalidResponse, match=re.escape(text)):
        context.run({"x": X}, ["x"])
