"""Short requests that expand to large tensors: the expansion is bounded, and reserved before it is allocated."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.errors import InvalidRequest, Overloaded, TooLarge
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import MIB, Limits
from stoker.server.pb.tensorflow.core.framework import types_pb2
from stoker.server.pb.tensorflow_serving.apis import classification_pb2, predict_pb2
from stoker.server.protocols.tfs.model_spec import ModelQuery
from stoker.server.protocols.tfs.rest import TfsRest
from stoker.server.protocols.tfs.service import TfsService
from tests.fakes.fake_engine import FakeEngine, FakeModel, model, signature
from tests.fakes.message_calls import respond

LIMITS = Limits(expansion_bytes=MIB)


def small(datatype: DataType = DataType.FP32) -> FakeModel:
    """A model with a small output for every input."""
    of = signature([TensorSpec("x", datatype, (-1,))], [TensorSpec("y", DataType.FP32, (1,))], max_batch_size=64)
    return model("m", of, lambda inputs: {"y": np.zeros((len(inputs["x"]), 1), np.float32)})


def filled(shape: tuple[int, ...], value: float | bytes = 1.0) -> bytes:
    """A PredictRequest with one value for a tensor of `shape`."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    tensor = request.inputs["x"]
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    if isinstance(value, bytes):
        tensor.dtype = types_pb2.DT_STRING
        tensor.string_val.append(value)
    else:
        tensor.dtype = types_pb2.DT_FLOAT
        tensor.float_val.append(value)
    return request.SerializeToString()


def run(response: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(response)


def predict(engine: FakeEngine, data: bytes, limits: Limits = LIMITS) -> Any:
    return run(respond(TfsService(engine, limits).predicting, data))


@pytest.mark.parametrize(
    ("shape", "error", "text"),
    [
        ((1, MIB), TooLarge, "input 'x': .* take 4194300 bytes, more than the 1048576 that one request may take"),
        ((64, MIB // 64), TooLarge, "take 4194300 bytes"),
        ((1, 1 << 62), TooLarge, "--limit expansion_bytes"),
        ((1 << 40, 1 << 40), InvalidRequest, "batch-size must be <= 64"),
        ((1, 1 << 40, 2), InvalidRequest, "unexpected shape"),
    ],
)
def test_expansion_of_a_value_is_bounded_and_not_retryable(shape: tuple[int, ...], error: type[Exception], text: str) -> None:
    engine = FakeEngine(small())
    with pytest.raises(error, match=text):
        predict(engine, filled(shape))
    assert engine.peak_bytes < 1000, "nothing was taken for it"
    assert engine.requests == []


def test_expanded_values_are_reserved_before_they_are_allocated() -> None:
    engine = FakeEngine(small())
    predict(engine, filled((1, 1000)))
    assert 4000 <= engine.peak_bytes < 5000
    with pytest.raises(Overloaded):
        predict(FakeEngine(small(), budget_bytes=4000), filled((1, 1000)))


def test_string_repeated_for_many_elements_counts_once_for_each() -> None:
    text = b"x" * 1000
    engine = FakeEngine(small(DataType.BYTES))
    predict(engine, filled((1, 500), text))
    assert engine.peak_bytes > 500 * 1000
    with pytest.raises(TooLarge, match="expansion_bytes"):
        predict(engine, filled((1, 2000), text))
    with pytest.raises(TooLarge, match="more than the 100 allowed"):
        predict(FakeEngine(small(DataType.BYTES)), filled((1, 200), b""), Limits(string_elements=100))


def classify_request(examples: int, values: int) -> bytes:
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "m"
    listed = request.input.example_list_with_context
    listed.context.features.feature["x"].float_list.value.extend([1.0] * values)
    for _ in range(examples):
        listed.examples.add()
    return request.SerializeToString()


def test_context_counts_once_for_each_example() -> None:
    engine = FakeEngine(scores())
    service = TfsService(engine, LIMITS)
    run(service.examples.classify(classify_request(32, 1000), None))
    [request] = engine.requests
    assert request.inputs["x"].shape == (32, 1000)
    with pytest.raises(TooLarge, match=r"input 'x'.*expansion_bytes"):
        run(service.examples.classify(classify_request(64, 10_000), None))
    assert len(engine.requests) == 1


def test_context_is_not_copied_for_more_examples_than_the_maximum() -> None:
    request = classification_pb2.ClassificationRequest.FromString(classify_request(100_000, 1))
    for index in range(1000):
        request.input.example_list_with_context.context.features.feature[f"f{index}"].float_list.value.append(1)
    with pytest.raises(InvalidRequest, match="batch-size must be <= 64"):
        run(TfsService(FakeEngine(scores()), Limits()).examples.classify(request.SerializeToString(), None))


def test_rest_examples_with_a_context_have_the_same_bound() -> None:
    engine = FakeEngine(scores())
    rest = TfsRest(engine, LIMITS, TfsService(engine, LIMITS))
    body = {"context": {"x": [1.5] * 10_000}, "examples": [{}] * 64}

    async def ask() -> bytes:
        with Reservation(engine.budget) as reservation:
            return await rest.classify(ModelQuery("m"), body, len(json.dumps(body)), reservation)

    with pytest.raises(TooLarge, match="expansion_bytes"):
        run(ask())


def scores() -> FakeModel:
    """A model that classifies: four scores for each example."""
    of = signature([TensorSpec("x", DataType.FP32, (-1,))], [TensorSpec("scores", DataType.FP32, (4,))], max_batch_size=64)
    return model("m", of, lambda inputs: {"scores": np.zeros((len(inputs["x"]), 4), np.float32)})


def test_context_arrays_have_its_values_in_every_row() -> None:
    engine = FakeEngine(scores())
    request = classification_pb2.ClassificationRequest.FromString(classify_request(2, 3))
    own = request.input.example_list_with_context.examples[1].features.feature["x"].float_list.value
    own.extend([7, 8, 9])
    run(TfsService(engine, LIMITS).examples.classify(request.SerializeToString(), None))
    np.testing.assert_array_equal(engine.requests[0].inputs["x"], [[1, 1, 1], [7, 8, 9]])
