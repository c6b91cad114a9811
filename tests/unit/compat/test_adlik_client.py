"""Adlik's client module under its own names, as its example scripts import and call it."""

import importlib
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from adlik_serving import PredictContext, model_config_pb2, tensor_dtype_to_np_dtype
from adlik_serving.apis import get_model_meta_pb2, predict_pb2, predict_service_pb2_grpc
from adlik_serving.framework.domain import model_spec_pb2

from tests.fakes.fake_adlik import FakeAdlik

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeAdlik]:
    fake = FakeAdlik()
    yield fake
    fake.close()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_image_client_of_adlik_runs(server: FakeAdlik, protocol: str) -> None:
    context = PredictContext("echo", model_version=None, signature="predict", url=server.url(protocol), protocol=protocol, verbose=False)
    config = context.model_config
    assert config.input[0].format != model_config_pb2.ModelInput.FORMAT_NCHW
    assert tensor_dtype_to_np_dtype(config.input[0].data_type) is np.float32
    name = config.output[0].name
    result = context.run(inputs={name: [X[0], X[1]]}, outputs={name: 1}, batch_size=2)
    assert [best[0]["idx"] for best in result[name].batch_classes] == [3, 3]
    assert len(result[name].tensor) == 2
    context.close()


def test_adlik_stub_calls_the_service(server: FakeAdlik) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = predict_service_pb2_grpc.PredictServiceStub(channel)
        meta = stub.getModelMeta(get_model_meta_pb2.GetModelMetaRequest(model_spec=model_spec_pb2.ModelSpec(name="echo")))
        assert meta.config.max_batch_size == 8
        request = predict_pb2.PredictRequest(batch_size=2)
        request.model_spec.name = "echo"
        request.inputs["x"].tensor_content = X.tobytes()
        assert stub.predict(request, timeout=20).outputs["x"].tensor.tensor_content == X.tobytes()


@pytest.mark.parametrize(
    ("module", "stub", "method"),
    [
        ("model_operate_service_pb2_grpc", "ModelOperateServiceStub", "queryModel"),
        ("task_service_pb2_grpc", "TaskServiceStub", "create"),
        ("server_status_service_pb2_grpc", "ServerStatusServiceStub", "serverStatus"),
    ],
)
def test_every_service_has_its_stub(server: FakeAdlik, module: str, stub: str, method: str) -> None:
    made = getattr(importlib.import_module(f"adlik_serving.apis.{module}"), stub)
    with grpc.insecure_channel(server.grpc_url) as channel:
        assert callable(getattr(made(channel), method))


@pytest.mark.parametrize(
    "name", ["apis.model_operate_pb2", "apis.task_pb2", "apis.server_status_pb2", "framework.domain.version_policy_pb2"]
)
def test_every_message_module_has_its_names(name: str) -> None:
    module = importlib.import_module(f"adlik_serving.{name}")
    assert all(hasattr(module, member) for member in module.__all__)
