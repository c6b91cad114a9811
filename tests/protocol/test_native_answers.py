"""The native build responds as the pure one does, byte for byte: random requests, valid and invalid, in every protocol."""

import gzip
import json
import random
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from stoker.server.core.build_kind import BUILD
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.pb.adlik import predict_pb2 as adlik_pb
from stoker.server.pb.tensorflow.core.framework import types_pb2
from stoker.server.pb.tensorflow_serving.apis import predict_pb2 as tfs_pb
from tests.fakes.certificates import OPENSSL, Authority
from tests.fakes.server_process import PATIENCE_S, REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, copy_models, running_server

NATIVE_PYTHON = REPOSITORY_ROOT / ".venv-native" / "bin" / "python"
REQUESTS_PER_PROTOCOL = 200
Response = tuple[object, ...]
#: What names are replaced by now and then.
WRONG_MODELS = ("absent", "")
WRONG_DATATYPES = ("FP32", "INT64", "BYTES", "NONE")
#: Elements of a large input: 602 KB.
LARGE = 224 * 224 * 3
CONFIGS = {
    "large": """
backend: "identity"
max_batch_size: 4
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }]
dynamic_batching { }
""",
    "repeat": """
backend: "repeat"
model_transaction_policy { decoupled: true }
input [{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] optional: true }]
output [{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] }]
""",
}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BUILD == "native", reason="the pure build is compared with the native one")]


def running_pair(at: Path, *flags: str) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """The pure server and the native one, with the same models."""
    if not NATIVE_PYTHON.exists():
        pytest.skip("there is no native build: run 'make native'")
    models = copy_models(SAMPLE_MODELS, at / "models", ["simple"])
    for name, config in CONFIGS.items():
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / f"model.{'identity' if name == 'large' else name}").touch()
        (models / name / "config.pbtxt").write_text(config)
    flags = (f"--model_base_path={models}", *flags)
    # The pure build's source roots would hide the native wheel.
    environment = {"PYTHONPATH": ""}
    with (
        running_server(*flags, at=at / "pure") as pure,
        running_server(*flags, at=at / "native", env=environment, python=NATIVE_PYTHON) as native,
    ):
        yield pure, native


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    for pure, native in running_pair(tmp_path_factory.mktemp("native")):
        assert json.loads(native.get("/v2")[1])["version"].endswith("+native"), "'.venv-native' holds a pure build: run 'make native'"
        yield pure, native


def pick(chance: random.Random, usual: Any, *others: Any) -> Any:
    """`usual`, or now and then one of the others: most requests are valid, and most others have one fault."""
    return usual if chance.random() < 0.95 else chance.choice(others)


def arrays(chance: random.Random) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two inputs, mostly of equal and allowed rows."""
    rows = pick(chance, chance.choice((1, 1, 1, 2, 3, 8)), 9, 0)
    size = pick(chance, 16, 15)
    values = np.array([chance.randrange(-1000, 1000) for _ in range(2 * rows * size)], np.int32)
    return values[: rows * size].reshape(rows, size), values[rows * size :].reshape(rows, size)


def damaged(chance: random.Random, data: bytes) -> bytes:
    """`data`, now and then cut, or with another byte."""
    what = chance.randrange(16)
    if what == 0 and data:
        return data[: chance.randrange(len(data))]
    if what == 1 and data:
        at = chance.randrange(len(data))
        return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
    return data


def kserve_message(chance: random.Random) -> bytes:
    message = pb.ModelInferRequest(model_name=pick(chance, "simple", *WRONG_MODELS), id=chance.choice(("", "", "7", "an id")))
    for number, array in enumerate(arrays(chance)):
        tensor = message.inputs.add(name=f"INPUT{number}", datatype=pick(chance, "INT32", *WRONG_DATATYPES), shape=array.shape)
        if chance.random() < 0.3:
            tensor.contents.int_contents.extend(array.ravel().tolist())
        else:
            message.raw_input_contents.append(array.tobytes())
    if chance.random() < 0.2:
        message.outputs.add(name=pick(chance, chance.choice(("OUTPUT0", "OUTPUT1")), "OUTPUT2"))
    if chance.random() < 0.1:
        message.parameters["priority"].int64_param = chance.randrange(-1, 3)
    return damaged(chance, message.SerializeToString())


def tensorflow_message(chance: random.Random, message: Any) -> bytes:
    message.model_spec.name = pick(chance, "simple", *WRONG_MODELS)
    for number, array in enumerate(arrays(chance)):
        tensor = message.inputs[f"INPUT{number}"]
        tensor.dtype = pick(chance, types_pb2.DT_INT32, types_pb2.DT_FLOAT)
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
        tensor: dict[str, Any] = {"name": f"INPUT{number}", "datatype": pick(chance, "INT32", *WRONG_DATATYPES), "shape": list(array.shape)}
        if binary:
            tensor["parameters"] = {"binary_data_size": array.nbytes}
            blobs += array.tobytes()
        else:
            tensor["data"] = array.ravel().tolist() if chance.random() < 0.5 else array.tolist()
        body["inputs"].append(tensor)
    if chance.random() < 0.3:
        body["id"] = pick(chance, chance.choice(("7", "an id")), 7)
    if chance.random() < 0.3:
        body["outputs"] = [{"name": pick(chance, chance.choice(("OUTPUT0", "OUTPUT1")), "OUTPUT2"), "parameters": {"binary_data": binary}}]
    return body, blobs


Http = tuple[str, bytes | None, Mapping[str, str]]


def kserve_json(chance: random.Random) -> Http:
    body, _ = json_inputs(chance, binary=False)
    return f"/v2/models/{pick(chance, 'simple', *WRONG_MODELS)}/infer", damaged(chance, json.dumps(body).encode()), {}


def kserve_binary(chance: random.Random) -> Http:
    body, blobs = json_inputs(chance, binary=True)
    head = json.dumps(body).encode()
    length = len(head) + pick(chance, 0, 1, -1)
    return (
        f"/v2/models/{pick(chance, 'simple', *WRONG_MODELS)}/infer",
        damaged(chance, head + blobs),
        {"Inference-Header-Content-Length": str(length)},
    )


def tensorflow_json(chance: random.Random) -> Http:
    one, other = arrays(chance)
    if chance.random() < 0.5:
        body: dict[str, Any] = {"inputs": {"INPUT0": one.tolist(), "INPUT1": other.tolist()}}
    else:
        body = {"instances": [{"INPUT0": a.tolist(), "INPUT1": b.tolist()} for a, b in zip(one, other, strict=True)]}
    return f"/v1/models/{pick(chance, 'simple', *WRONG_MODELS)}:predict", damaged(chance, json.dumps(body).encode()), {}


def adlik_json(chance: random.Random) -> Http:
    inputs = {}
    for number, array in enumerate(arrays(chance)):
        shape = {"dim": [{"size": str(size)} for size in array.shape]}
        inputs[f"INPUT{number}"] = {
            "dtype": pick(chance, "DT_INT32", "DT_FLOAT"),
            "tensor_shape": shape,
            "int_val": array.ravel().tolist(),
        }
    body = {"batch_size": chance.choice((1, 1, 2, 3)), "inputs": inputs}
    return f"/v1/models/{pick(chance, 'simple', *WRONG_MODELS)}:predict", damaged(chance, json.dumps(body).encode()), {}


def generate(chance: random.Random) -> Http:
    values = [chance.randrange(-1000, 1000) for _ in range(chance.choice((0, 1, 5)))]
    body = {"IN": values, **chance.choice(({}, {}, {"WAIT": [0]}, {"other": 1}))}
    path = f"/v2/models/{chance.choice(('repeat', 'repeat', 'repeat', 'simple'))}/{chance.choice(('generate', 'generate_stream'))}"
    return path, damaged(chance, json.dumps(body).encode()), {}


def large_values(chance: random.Random) -> "np.ndarray[Any, Any]":
    return np.frombuffer(chance.randbytes(4 * (LARGE + chance.choice((0, 0, 0, 1)))), np.float32)[None]


def large_binary(chance: random.Random) -> Http:
    array = large_values(chance)
    tensor = {"name": "IN", "datatype": "FP32", "shape": list(array.shape), "parameters": {"binary_data_size": array.nbytes}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}).encode()
    body = damaged(chance, head + array.tobytes())
    headers = {"Inference-Header-Content-Length": str(len(head))}
    if chance.random() < 0.2:
        return "/v2/models/large/infer", gzip.compress(body, 1), {**headers, "Content-Encoding": "gzip"}
    return "/v2/models/large/infer", body, headers


def large_message(chance: random.Random) -> bytes:
    message = pb.ModelInferRequest(model_name="large")
    array = large_values(chance)
    message.inputs.add(name="IN", datatype="FP32", shape=array.shape)
    message.raw_input_contents.append(array.tobytes())
    return damaged(chance, message.SerializeToString())


def large_tensorflow_message(chance: random.Random, message: Any) -> bytes:
    message.model_spec.name = "large"
    array = large_values(chance)
    tensor = message.inputs["IN"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = array.tobytes()
    return damaged(chance, message.SerializeToString())


def repeat_message(chance: random.Random) -> bytes:
    message = pb.ModelInferRequest(model_name="repeat", id=chance.choice(("", "7")))
    values = np.arange(chance.choice((0, 1, 5, 40)), dtype=np.int32)
    message.inputs.add(name="IN", datatype="INT32", shape=values.shape)
    message.raw_input_contents.append(values.tobytes())
    return damaged(chance, message.SerializeToString())


def reading_routes(chance: random.Random) -> Http:
    name = pick(chance, "simple", *WRONG_MODELS)
    routes = ("/v2", "/v2/health/live", "/v2/health/ready", f"/v2/models/{name}", f"/v2/models/{name}/ready", f"/v2/models/{name}/config")
    return chance.choice((*routes, f"/v1/models/{name}", f"/v1/models/{name}/metadata", "/v2/nothing")), None, {}


@pytest.mark.parametrize("make", [kserve_json, kserve_binary, tensorflow_json, adlik_json, generate, large_binary, reading_routes])
def test_native_server_gives_the_bytes_of_the_pure_server_over_http(
    servers: tuple[ServerProcess, ServerProcess], make: Callable[[random.Random], Http]
) -> None:
    chance = random.Random(make.__name__)
    successes = 0
    for number in range(REQUESTS_PER_PROTOCOL):
        path, body, headers = make(chance)
        pure, native = (
            (status, text.replace(b'+native"', b'"')) for status, text in (server.get(path, body, headers) for server in servers)
        )
        # protobuf prints the entries of a map in an order that differs between processes.
        is_map = path.endswith("/metadata") and pure[0] == native[0] == 200
        assert native == pure or (is_map and json.loads(native[1]) == json.loads(pure[1])), f"request {number}: {path} {body!r}"
        successes += native[0] == 200
    assert REQUESTS_PER_PROTOCOL // 10 < successes < REQUESTS_PER_PROTOCOL


@contextmanager
def channels(
    servers: tuple[ServerProcess, ServerProcess], credentials: grpc.ChannelCredentials | None = None
) -> Iterator[tuple[grpc.Channel, grpc.Channel]]:
    """A channel to the pure server and one to the native server."""
    pure, native = (
        grpc.insecure_channel(each.grpc) if credentials is None else grpc.secure_channel(each.grpc, credentials) for each in servers
    )
    with pure, native:
        yield pure, native


def called(channel: grpc.Channel, path: str, message: bytes, read: Callable[[bytes], object] = bytes) -> Response:
    """One response as `read` returns it, or a status and its text."""
    try:
        return (channel.unary_unary(path, response_deserializer=read)(message, timeout=30),)
    except grpc.RpcError as error:
        # protobuf iterates over a map in an order that differs between processes: of two faulty inputs, either is reported.
        return error.code(), error.details() if path.startswith("/inference.") else None


@pytest.mark.parametrize(
    ("path", "make", "read"),
    [
        ("/inference.GRPCInferenceService/ModelInfer", kserve_message, bytes),
        ("/inference.GRPCInferenceService/ModelInfer", large_message, bytes),
        # These have maps, which protobuf serializes in an order that differs between processes.
        (
            "/tensorflow.serving.PredictionService/Predict",
            lambda chance: tensorflow_message(chance, tfs_pb.PredictRequest()),
            tfs_pb.PredictResponse.FromString,
        ),
        (
            "/tensorflow.serving.PredictionService/Predict",
            lambda chance: large_tensorflow_message(chance, tfs_pb.PredictRequest()),
            tfs_pb.PredictResponse.FromString,
        ),
        ("/adlik.serving.PredictService/predict", adlik_message, adlik_pb.PredictResponse.FromString),
        (
            "/adlik.serving.PredictService/predict",
            lambda chance: large_tensorflow_message(chance, adlik_pb.PredictRequest(batch_size=1)),
            adlik_pb.PredictResponse.FromString,
        ),
    ],
    ids=["kserve", "large kserve", "tensorflow", "large tensorflow", "adlik", "large adlik"],
)
def test_native_server_gives_the_bytes_of_the_pure_server_over_grpc(
    servers: tuple[ServerProcess, ServerProcess], path: str, make: Callable[[random.Random], bytes], read: Callable[[bytes], object]
) -> None:
    chance = random.Random(path)
    with channels(servers) as (pure, native):
        successes = 0
        for number in range(REQUESTS_PER_PROTOCOL):
            message = make(chance)
            response = called(pure, path, message, read)
            assert called(native, path, message, read) == response, f"request {number}: {message!r}"
            successes += len(response) == 1
    assert REQUESTS_PER_PROTOCOL // 10 < successes < REQUESTS_PER_PROTOCOL


def test_native_server_gives_the_bytes_of_the_pure_server_to_requests_in_flight_together(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    chance = random.Random("together")
    path = "/inference.GRPCInferenceService/ModelInfer"
    messages = [kserve_message(chance) for _ in range(REQUESTS_PER_PROTOCOL)]
    found: list[list[Response]] = []
    with channels(servers) as both:
        for channel in both:
            calls = [channel.unary_unary(path).future(message, timeout=30) for message in messages]
            found.append(
                [(call.code(), call.details(), None if call.code() is not grpc.StatusCode.OK else call.result()) for call in calls]
            )
    assert found[0] == found[1]


@pytest.mark.parametrize("make", [kserve_message, repeat_message, large_message])
def test_native_server_streams_the_responses_of_the_pure_server(
    servers: tuple[ServerProcess, ServerProcess], make: Callable[[random.Random], bytes]
) -> None:
    chance = random.Random("stream")
    messages = [make(chance) for _ in range(REQUESTS_PER_PROTOCOL)]
    found = []
    with channels(servers) as both:
        for channel in both:
            stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            # One after another: responses of requests in flight may come in any order.
            found.append([streamed(stream, message) for message in messages])
    assert found[0] == found[1]


def streamed(stream: Any, message: bytes) -> Response:
    try:
        return tuple(stream(iter([message]), timeout=30))
    except grpc.RpcError as error:
        return error.code(), error.details()


@pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command to make certificates")
def test_native_server_gives_the_bytes_of_the_pure_server_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.sign("server")
    # Mutual, since only that flag names the authority.
    files = {"server-cert": pair.cert, "server-key": pair.key, "root-cert": authority.cert}
    flags = [
        f"--{port}-{flag}" for port in ("grpc", "http") for flag in ("use-ssl-mutual", *(f"{key}={path}" for key, path in files.items()))
    ]
    context = ssl.create_default_context(cafile=str(authority.cert))
    context.load_cert_chain(pair.cert, pair.key)
    credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes(), pair.key.read_bytes(), pair.cert.read_bytes())
    chance = random.Random("tls")
    for servers in running_pair(tmp_path / "run", *flags):
        with channels(servers, credentials) as (pure, native):
            for make in (kserve_message, large_message) * 30:
                message = make(chance)
                path = "/inference.GRPCInferenceService/ModelInfer"
                assert called(native, path, message) == called(pure, path, message)
        for make_http in (kserve_binary, kserve_json, large_binary) * 20:
            request = make_http(chance)
            assert requested(servers[0], context, *request) == requested(servers[1], context, *request), request


def requested(server: ServerProcess, context: ssl.SSLContext, path: str, body: bytes | None, headers: Mapping[str, str]) -> Response:
    """As `ServerProcess.get`, over TLS."""
    request = urllib.request.Request(f"https://{server.http}{path}", data=body, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_native_server_reports_its_build_at_start(servers: tuple[ServerProcess, ServerProcess]) -> None:
    assert [line for line in servers[1].out_path.read_text().splitlines() if line.startswith("build:")] == ["build: native"]
