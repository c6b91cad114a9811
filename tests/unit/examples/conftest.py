"""Models of the examples behind a fake server of Adlik's protocol."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from stoker.server.pb.adlik import model_pb2, predict_pb2
from stoker.server.pb.tensorflow.core.framework import types_pb2
from tests.fakes.fake_adlik import FakeAdlik

_TYPES = {"tensor(float)": (types_pb2.DT_FLOAT, np.float32), "tensor(int64)": (types_pb2.DT_INT64, np.int64)}

Served = Callable[..., FakeAdlik]


@pytest.fixture
def served() -> Iterator[Served]:
    """Serves an ONNX model under a name, over both protocols; each input's `format` may be stated."""
    servers = []

    def serve(model: bytes, name: str, *, layout: int = model_pb2.ModelInput.FORMAT_NCHW, max_batch_size: int = 4) -> FakeAdlik:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        config = model_pb2.ModelConfigProto(name=name, platform="topsinference", max_batch_size=max_batch_size)
        for tensor in session.get_inputs():
            config.input.add(name=tensor.name, data_type=_TYPES[tensor.type][0], dims=tensor.shape[1:], format=layout)
        for tensor in session.get_outputs():
            config.output.add(name=tensor.name, data_type=_TYPES[tensor.type][0], dims=tensor.shape[1:])
        servers.append(FakeAdlik(config))
        servers[-1].response = lambda request: _answer(session, request)
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


def _answer(session: onnxruntime.InferenceSession, request: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
    inputs = {}
    for tensor in session.get_inputs():
        shape = (request.batch_size, *tensor.shape[1:])
        inputs[tensor.name] = np.frombuffer(request.inputs[tensor.name].tensor_content, _TYPES[tensor.type][1]).reshape(shape)
    response = predict_pb2.PredictResponse(model_spec=request.model_spec)
    for name in request.output_filter:
        (array,) = session.run([name], inputs)
        output = response.outputs[name]
        output.tensor.dtype = types_pb2.DT_FLOAT
        output.tensor.tensor_content = array.tobytes()
        for size in array.shape:
            output.tensor.tensor_shape.dim.add(size=size)
        for row in array.reshape(request.batch_size, -1) if request.output_filter[name].cls.count else ():
            best = np.argsort(-row)[: request.output_filter[name].cls.count]
            classes = [predict_pb2.PredictResponse.Class(idx=int(at), score=float(row[at]), label=f"label {at}") for at in best]
            output.batch_classes.add(cls=classes)
    return response


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of three pictures of one colour each, and a file that is none."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name, colour in (("a_red.png", "red"), ("b_lime.png", "lime"), ("c_blue.png", "blue")):
        Image.new("RGB", (60, 40), colour).save(folder / name)
    (folder / "README.txt").write_text("no picture")
    return folder
