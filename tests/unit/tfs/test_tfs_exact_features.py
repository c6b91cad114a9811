"""Features of Examples reach the model as the values that they are, or are refused."""

import asyncio

import numpy as np
import pytest

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.validation import SignatureCheck
from stoker.server.core.limits import Limits
from stoker.server.pb.tensorflow_serving.apis import classification_pb2, inference_pb2, regression_pb2
from stoker.server.protocols.tfs.examples import Examples, arrays, read_body
from stoker.server.protocols.tfs.service import TfsService
from tests.fakes.fake_engine import FakeEngine, FakeModel, model, signature

FP16, FP32, FP64 = DataType.FP16, DataType.FP32, DataType.FP64


def scores(datatype: DataType = FP32) -> FakeModel:
    of = signature([TensorSpec("x", datatype, (-1,))], [TensorSpec("scores", FP32, (1,))])
    return model("m", of, lambda inputs: {"scores": np.zeros((len(inputs["x"]), 1), np.float32)})


def classify(*values: int, datatype: DataType = FP32) -> np.ndarray:
    """The array that reaches the model of an Example with the int64 feature `values`."""
    engine = FakeEngine(scores(datatype))
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "m"
    request.input.example_list.examples.add().features.feature["x"].int64_list.value.extend(values)
    asyncio.run(TfsService(engine, Limits()).examples.classify(request.SerializeToString(), None))
    return engine.requests[0].inputs["x"]


@pytest.mark.parametrize(("datatype", "bits"), [(FP16, 11), (FP32, 24), (FP64, 53)])
def test_whole_number_is_exact_or_refused(datatype: DataType, bits: int) -> None:
    largest = (1 << bits) - 1
    assert classify(largest, -largest, datatype=datatype).tolist() == [[largest, -largest]]
    for value in (1 << bits | 1, -(1 << bits | 1), (1 << 62) + 1):
        with pytest.raises(InvalidRequest, match=f"Feature: x has the value {value}, which .* cannot hold"):
            classify(1, value, datatype=datatype)


def test_regress_and_multi_inference_refuse_inexact_numbers_too() -> None:
    service = TfsService(FakeEngine(scores()), Limits())
    regress = regression_pb2.RegressionRequest()
    regress.model_spec.name = "m"
    regress.input.example_list.examples.add().features.feature["x"].int64_list.value.append(16777217)
    with pytest.raises(InvalidRequest, match="16777217"):
        asyncio.run(service.examples.regress(regress.SerializeToString(), None))
    several = inference_pb2.MultiInferenceRequest(input=regress.input)
    task = several.tasks.add(method_name="tensorflow/serving/regress")
    task.model_spec.name = "m"
    with pytest.raises(InvalidRequest, match="16777217"):
        asyncio.run(service.examples.multi_inference(several.SerializeToString(), None))


def rest(values: list[object], datatype: DataType = FP32) -> np.ndarray:
    check = SignatureCheck("m", scores(datatype).config.signature, Limits())
    return arrays(read_body({"examples": [{"x": values}]}, "classify"), check)["x"]


def test_rest_refuses_inexact_whole_numbers_among_fractions_too() -> None:
    assert rest([1, 0.5]).tolist() == [[1.0, 0.5]]
    with pytest.raises(InvalidRequest, match="16777217"):
        rest([16777217, 0.5])


def test_number_beyond_the_range_of_a_float_does_not_become_infinite() -> None:
    assert np.isposinf(rest([float("inf")], FP16)).all()
    with pytest.raises(InvalidRequest, match=r"1e\+30"):
        rest([1e30], FP16)


def test_fractions_are_rounded() -> None:
    assert isinstance(read_body({"examples": [{"x": [0.1]}]}, "classify"), Examples)
    assert rest([0.1]).tolist() == [[float(np.float32(0.1))]]
