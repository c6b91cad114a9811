"""Any input in TensorFlow Serving's protocol gets a response or a named error; slow requests end in time."""

import asyncio
import json
from collections.abc import Coroutine
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.api.errors import ServingError
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest
from stoker.server.pb.tensorflow_serving.apis import classification_pb2, inference_pb2, predict_pb2
from stoker.server.protocols.adlik.service import AdlikService
from stoker.server.protocols.settings import AdlikSettings, TfsSettings
from stoker.server.protocols.tfs.model_spec import ModelQuery
from stoker.server.protocols.tfs.rest import TfsRest
from stoker.server.protocols.tfs.service import TfsService
from stoker.server.web.v1 import HttpV1
from tests.fakes.fake_engine import FakeEngine, FakeModel, model, signature, simple
from tests.fakes.message_calls import respond

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just({"b64": "AAA="}),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["x", "s", "b64", "y"]), inner, max_size=3),
    max_leaves=12,
)
BODIES = st.dictionaries(st.sampled_from(["instances", "inputs", "examples", "context", "signature_name"]), VALUES, max_size=3)


def mixed() -> FakeModel:
    of = signature(
        [TensorSpec("x", DataType.FP32, (-1,)), TensorSpec("s", DataType.BYTES, (-1,), optional=True)],
        [TensorSpec("y", DataType.FP32, (-1,))],
    )
    return model("m", of, lambda inputs: {"y": inputs["x"]})


def outcome(response: Coroutine[Any, Any, Any]) -> Any:
    """The result of `response`, or the text of its error; any other exception fails the test."""
    try:
        return asyncio.run(response)
    except ServingError as error:
        return error.message


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(body=BODIES | VALUES, verb=st.sampled_from(["predict", "classify", "regress"]))
def test_any_json_gets_a_response_or_a_named_refusal(body: Any, verb: str):
    engine = FakeEngine(mixed())
    rest = TfsRest(engine, Limits(), TfsService(engine, Limits()))

    async def ask() -> bytes:
        with Reservation(engine.budget) as reservation:
            return bytes(await getattr(rest, verb)(ModelQuery("m"), body, 10, reservation))

    found = outcome(ask())
    assert found
    assert isinstance(found, str) or json.loads(found)
    assert engine.reserved_bytes == 0


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60), kind=st.sampled_from(["predict", "classify", "regress", "multi_inference"]))
def test_any_bytes_get_a_response_or_a_named_refusal(data: bytes, kind: str):
    engine = FakeEngine(mixed())
    service = TfsService(engine, Limits())
    response = partial(respond, service.predicting) if kind == "predict" else getattr(service.examples, kind)
    for message in (data, b"\x0a\x03\x0a\x01m" + data):
        assert outcome(response(message, None))
    assert engine.reserved_bytes == 0


def test_dimensions_are_bounded_before_any_allocation():
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "simple"
    for name in ("INPUT0", "INPUT1"):
        request.inputs[name].dtype = 3  # type: ignore[assignment] # an enum's number
        for _ in range(5000):
            request.inputs[name].tensor_shape.dim.add(size=1 << 40)
    engine = FakeEngine(simple())
    with pytest.raises(ServingError, match="more than the 32 dimensions allowed"):
        asyncio.run(respond(TfsService(engine, Limits()).predicting, request.SerializeToString()))
    assert engine.peak_bytes < 4 << 20


def test_tasks_and_classes_of_one_response_are_bounded():
    wide = model(
        "m",
        signature([TensorSpec("x", DataType.FP32, (1,))], [TensorSpec("y", DataType.FP32, (1000,))]),
        lambda inputs: {"y": np.zeros((len(inputs["x"]), 1000), np.float32)},
    )
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "m"
    for _ in range(8):
        request.input.example_list.examples.add().features.feature["x"].float_list.value.append(1)
    service = TfsService(FakeEngine(wide), Limits(class_count=7999))
    with pytest.raises(ServingError, match="8 samples of 1000 classes are more than the 7999"):
        asyncio.run(service.examples.classify(request.SerializeToString(), None))
    many = inference_pb2.MultiInferenceRequest()
    for _ in range(65):
        many.tasks.add()
    with pytest.raises(ServingError, match="65 tasks, more than the 64 allowed"):
        asyncio.run(service.examples.multi_inference(many.SerializeToString(), None))


def test_rest_request_ends_at_its_deadline():
    async def forever(request: InferRequest) -> None:
        await asyncio.Event().wait()

    slow = simple()
    slow.before = forever
    engine = FakeEngine(slow)
    limits = Limits()
    adlik = AdlikService(engine, limits, AdlikSettings())
    v1 = HttpV1(engine, limits, adlik, TfsService(engine, limits, TfsSettings(rest_timeout_s=0.01)))
    body = json.dumps({"instances": [{"INPUT0": [1] * 16, "INPUT1": [1] * 16}]}).encode()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"method": "POST", "path": "/v1/models/simple:predict", "query_string": b"", "headers": []}
    asyncio.run(v1.respond(scope, receive, send))
    assert sent[0]["status"] == 504
    assert b"not completed within 0.01 s" in sent[1]["body"]
    assert engine.cancelled
    assert engine.reserved_bytes == 0
