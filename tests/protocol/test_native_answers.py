"""The native build responds as the pure one does, byte for byte: random requests, valid and invalid, in every protocol."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import numpy as np
import pytest

from stoker.server.core.build_kind import BUILD
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.pb.adlik import predict_pb2 as adlik_pb
from stoker.server.pb.tensorflow.core.framework import types_pb2
from stoker.server.pb.tensorflow_serving.apis import predict_pb2 as tfs_pb
from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, copy_models, running_server

NATIVE_PYTHON = REPOSITORY_ROOT / ".venv-native" / "bin" / "python"
REQUESTS_PER_PROTOCOL = 200
Response = tuple[object, ...]
#: Names, and what they are replaced by now and then.
MODELS = ("simple", "simple", "simple", "simple", "simple", "absent", "")
DATATYPES = ("INT32", "INT32", "INT32", "INT32", "FP32", "INT64", "BYTES", "NONE")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BUILD == "native", reason="the pure build is compared with the native one")]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """The pure server and the native one, with the same models."""
    if not NATIVE_PYTHON.exists():
        pytest.skip("there is no native build: run 'make native'")
    at = tmp_path_factory.mktemp("native")
    flags = (f"--model_base_path={copy_models(SAMPLE_MODELS, at / 'models', ['simple'])}",)
    # The pure build's source roots would hide the native wheel.
    environment = {"PYTHONPATH": ""}
    with (
        running_server(*flags, at=at / "pure") as pure,
        running_server(*flags, at=at / "native", env=environment, python=NATIVE_PYTHON) as native,
    ):
        assert json.loads(native.get("/v2")[1])["version"].endswith("+native"), "'.venv-native' holds a pure build: run 'make native'"
        yield pure, native


def arrays(chance: random.Random) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two inputs, mostly of equal and allowed rows."""
    rows = chance.choice((1, 1, 1, 2, 3, 8, 9, 0))
    size = chance.choice((16, 16, 16, 16, 16, 15))
    values = np.array([chance.randrange(-1000, 1000) for _ in range(2 * rows * size)], np.int32)
    return values[: rows * size].reshape(rows, size), values[rows * size :].reshape(rows, size)


def damaged(chance: random.Random, data: bytes) -> bytes:
    """`data`, now and then cut, or with another byte."""
    what = chance.randrange(8)
    if what == 0 and data:
        return data[: chance.randrange(len(data))]
    if what == 1 and data:
        at = chance.randrange(len(data))
        return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
    return data


def kserve_message(chance: random.Random) -> bytes:
    message = pb.ModelInferRequest(model_name=chance.choice(MODELS), id=chance.choice(("", "", "7", "an id")))
    for number, array in enumerate(arrays(chance)):
        tensor = message.inputs.add(name=f"INPUT{number}", datatype=chance.choice(DATATYPES), shape=array.shape)
        if chance.random() < 0.3:
            tensor.contents.int_contents.extend(array.ravel().tolist())
        else:
            message.raw_input_contents.append(array.tobytes())
    if chance.random() < 0.2:
        message.outputs.add(name=chance.choice(("OUTPUT0", "OUTPUT1", "OUTPUT2")))
    if chance.random() < 0.1:
        message.parameters["priority"].int64_param = chance.randrange(-1, 3)
    return damaged(chance, message.SerializeToString())


def tensorflow_message(chance: random.Random, message: Any) -> bytes:
    message.model_spec.name = chance.choice(MODELS)
    for number, array in enumerate(arrays(chance)):
        tensor = message.inputs[f"INPUT{number}"]
        tensor.dtype = chance.choice((types_pb2.DT_INT32, types_pb2.DT_INT32, types_pb2.DT_INT32, types_pb2.DT_FLOAT))
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        if chance.random() < 0.3:
            tensor.int_val.extend(array.ravel().tolist())
        else:
            tensor.tensor_content = array.tobytes()
    return damaged(chance, message.SerializeToString(deterministic=True))


def adlik_message(chance: random.Random) -> bytes:
    return tensorflow_message(chance, adlik_pb.PredictRequest(batch_size=chance.choice((1, 1, 2, 3))))


def json_inputs(chance: random.Random, *, binary: bool) -> tuple[dict[str, Any], bytes]:
    body: dict[str, Any] = {"inputs": []}
    blobs = b""
    for number, array in enumerate(arrays(chance)):
        tensor: dict[str, Any] = {"name": f"INPUT{number}", "datatype": chance.choice(DATATYPES), "shape": list(array.shape)}
        if binary:
            tensor["parameters"] = {"binary_data_size": array.nbytes}
            blobs += array.tobytes()
        else:
            tensor["data"] = array.ravel().tolist() if chance.random() < 0.5 else array.tolist()
        body["inputs"].append(tensor)
    if chance.random() < 0.3:
        body["id"] = chance.choice(("7", "an id", 7))
    if chance.random() < 0.3:
        body["outputs"] = [{"name": chance.choice(("OUTPUT0", "OUTPUT1", "OUTPUT2")), "parameters": {"binary_data": binary}}]
    return body, blobs


Http = tuple[str, bytes | None, Mapping[str, str]]


def kserve_json(chance: random.Random) -> Http:
    body, _ = json_inputs(chance, binary=False)
    return f"/v2/models/{chance.choice(MODELS)}/infer", damaged(chance, json.dumps(body).encode()), {}


def kserve_binary(chance: random.Random) -> Http:
    body, blobs = json_inputs(chance, binary=True)
    head = json.dumps(body).encode()
    length = len(head) + chance.choice((0, 0, 0, 0, 0, 1, -1))
    return f"/v2/models/{chance.choice(MODELS)}/infer", damaged(chance, head + blobs), {"Inference-Header-Content-Length": str(length)}


def tensorflow_json(chance: random.Random) -> Http:
    one, other = arrays(chance)
    if chance.random() < 0.5:
        body: dict[str, Any] = {"inputs": {"INPUT0": one.tolist(), "INPUT1": other.tolist()}}
    else:
        body = {"instances": [{"INPUT0": a.tolist(), "INPUT1": b.tolist()} for a, b in zip(one, other, strict=True)]}
    return f"/v1/models/{chance.choice(MODELS)}:predict", damaged(chance, json.dumps(body).encode()), {}


def reading_routes(chance: random.Random) -> Http:
    name = chance.choice(MODELS)
    routes = ("/v2", "/v2/health/live", "/v2/health/ready", f"/v2/models/{name}", f"/v2/models/{name}/ready", f"/v2/models/{name}/config")
    return chance.choice((*routes, f"/v1/models/{name}", f"/v1/models/{name}/metadata", "/v2/nothing")), None, {}


@pytest.mark.parametrize("make", [kserve_json, kserve_binary, tensorflow_json, reading_routes])
def test_native_server_gives_the_bytes_of_the_pure_server_over_http(
    servers: tuple[ServerProcess, ServerProcess], make: Callable[[random.Random], Http]
) -> None:
    chance = random.Random(make.__name__)
    for number in range(REQUESTS_PER_PROTOCOL):
        path, body, headers = make(chance)
        pure, native = (
            (status, text.replace(b'+native"', b'"')) for status, text in (server.get(path, body, headers) for server in servers)
        )
        # protobuf prints the entries of a map in an order that differs between processes.
        is_map = path.endswith("/metadata") and pure[0] == native[0] == 200
        assert native == pure or (is_map and json.loads(native[1]) == json.loads(pure[1])), f"request {number}: {path} {body!r}"


def called(channel: grpc.Channel, path: str, message: bytes) -> Response:
    try:
        return (channel.unary_unary(path)(message, timeout=30),)
    except grpc.RpcError as error:
        # protobuf iterates over a map in an order that differs between processes: of two faulty inputs, either is reported.
        return error.code(), error.details() if path.startswith("/inference.") else None


@pytest.mark.parametrize(
    ("path", "make"),
    [
        ("/inference.GRPCInferenceService/ModelInfer", kserve_message),
        ("/tensorflow.serving.PredictionService/Predict", lambda chance: tensorflow_message(chance, tfs_pb.PredictRequest())),
        ("/adlik.serving.PredictService/predict", adlik_message),
    ],
    ids=["kserve", "tensorflow", "adlik"],
)
def test_native_server_gives_the_bytes_of_the_pure_server_over_grpc(
    servers: tuple[ServerProcess, ServerProcess], path: str, make: Callable[[random.Random], bytes]
) -> None:
    chance = random.Random(path)
    with grpc.insecure_channel(servers[0].grpc) as pure, grpc.insecure_channel(servers[1].grpc) as native:
        for number in range(REQUESTS_PER_PROTOCOL):
            message = make(chance)
            assert called(native, path, message) == called(pure, path, message), f"request {number}: {message!r}"


def test_native_server_streams_the_responses_of_the_pure_server(servers: tuple[ServerProcess, ServerProcess]) -> None:
    chance = random.Random("stream")
    messages = [kserve_message(chance) for _ in range(REQUESTS_PER_PROTOCOL)]
    found = []
    for server in servers:
        with grpc.insecure_channel(server.grpc) as channel:
            stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            # One after another: responses of requests in flight may come in any order.
            found.append([streamed(stream, message) for message in messages])
    assert found[0] == found[1]


def streamed(stream: Any, message: bytes) -> Response:
    try:
        return tuple(stream(iter([message]), timeout=30))
    except grpc.RpcError as error:
        return error.code(), error.details()


def test_native_server_reports_its_build_at_start(servers: tuple[ServerProcess, ServerProcess]) -> None:
    assert [line for line in servers[1].out_path.read_text().splitlines() if line.startswith("build:")] == ["build: native"]
