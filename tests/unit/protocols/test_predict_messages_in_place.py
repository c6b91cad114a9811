"""PredictRequests of TensorFlow Serving and of Adlik, and streamed requests, in the memory that the transport has received them into."""

import asyncio
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.net.receive_buffers import message_block
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.pb.adlik import predict_pb2 as adlik_pb2
from stoker.server.pb.tensorflow_serving.apis import predict_pb2 as tfs_pb2
from stoker.server.protocols.adlik.predict import Predict as AdlikPredict
from stoker.server.protocols.infer_completion import MessageInference
from stoker.server.protocols.kserve.inference import Inference
from stoker.server.protocols.kserve.stream import StreamInference
from stoker.server.protocols.tfs.predict import Predict as TfsPredict
from stoker.server.protocols.tfs.predict import Targets
from tests.fakes.fake_engine import FakeEngine, model, signature
from tests.fakes.message_calls import respond

SIZE = 50_000


def served() -> FakeEngine:
    tensors = [TensorSpec("x", DataType.FP32, (SIZE,))], [TensorSpec("y", DataType.FP32, (1,))]
    return FakeEngine(model("m", signature(*tensors), lambda inputs: {"y": inputs["x"][:, -1:]}))


def asked(request: Any) -> bytes:
    request.model_spec.name = "m"
    if isinstance(request, adlik_pb2.PredictRequest):
        request.batch_size = 1
    tensor = request.inputs["x"]
    tensor.dtype = 1
    for size in (1, SIZE):
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = np.arange(SIZE, dtype=np.float32).tobytes()
    data: bytes = request.SerializeToString()
    return data


def check_in_place(engine: FakeEngine, views: list[memoryview], sizes: list[int]) -> None:
    """The input of each request is aligned from the second on, lies in its view, and has all elements."""
    for number, (request, view) in enumerate(zip(engine.requests, views, strict=True)):
        array = request.inputs["x"]
        assert np.shares_memory(array, np.frombuffer(view, np.uint8))
        assert np.array_equal(array, np.arange(SIZE, dtype=np.float32)[None])
        assert number == 0 or array.ctypes.data % 64 == 0
    assert all(size > SIZE * 4 for size in sizes)


@pytest.mark.parametrize("kind", ["tfs", "adlik"])
def test_tensor_of_a_predict_request_is_used_from_its_receive_buffer(kind: str):
    engine, views = served(), []
    predict: MessageInference
    if kind == "tfs":
        data, predict = asked(tfs_pb2.PredictRequest()), TfsPredict(engine, Limits(), Targets(engine, Limits()))
    else:
        data, predict = asked(adlik_pb2.PredictRequest()), AdlikPredict(engine, Limits())

    async def scenario() -> None:
        for _ in range(3):
            view = message_block(len(data), predict.lead_bytes(len(data)))
            view[:] = data
            views.append(view)
            assert await respond(predict, view.toreadonly())

    asyncio.run(scenario())
    check_in_place(engine, views, [len(data)] * 3)
    assert engine.reserved_bytes == 0


class Call:
    """A stream of requests."""

    deadline_ns = None

    def __init__(self, inference: Inference, data: bytes) -> None:
        self.metadata: dict[str, str] = {}
        self._inference = inference
        self._data = data
        self.views: list[memoryview] = []
        self.sent: list[bytes] = []
        self._responded = asyncio.Event()

    async def receive(self) -> memoryview | None:
        if self.views:
            await self._responded.wait()
            self._responded.clear()
        if len(self.views) == 3:
            return None
        view = message_block(len(self._data), self._inference.lead_bytes(len(self._data)))
        view[:] = self._data
        self.views.append(view)
        return view.toreadonly()

    async def send(self, message: bytes) -> None:
        self.sent.append(message)
        self._responded.set()


def test_tensor_of_a_streamed_request_is_used_from_its_receive_buffer():
    engine = served()
    inference = Inference(engine, Limits())
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[np.arange(SIZE, dtype=np.float32).tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1, SIZE])
    call: Any = Call(inference, request.SerializeToString())
    asyncio.run(StreamInference(engine, inference, Limits()).model_stream_infer(call))
    check_in_place(engine, call.views, [len(each) for each in call.views])
    for each in call.sent:
        response = pb.ModelStreamInferResponse.FromString(each)
        assert np.frombuffer(response.infer_response.raw_output_contents[0], np.float32).tolist() == [SIZE - 1]
