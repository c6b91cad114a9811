"""The access log of a running server: requests of every protocol over every transport, and those that are refused."""

import json
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.pb.adlik import predict_pb2 as adlik_pb
from stoker.server.pb.tensorflow.core.framework import types_pb2
from stoker.server.pb.tensorflow_serving.apis import predict_pb2 as tfs_pb
from tests.fakes.server_process import ServerProcess, running_server

CONFIG = """
backend: "identity"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
ROW = np.array([[1.0, 2.0]], np.float32)


def kserve(model: str, request_id: str) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[ROW.tobytes()])
    message.inputs.add(name="IN", datatype="FP32", shape=[1, 2])
    return message


def tfs(model: str) -> tfs_pb.PredictRequest:
    message = tfs_pb.PredictRequest()
    message.model_spec.name = model
    tensor = message.inputs["IN"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in ROW.shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = ROW.tobytes()
    return message


def adlik(model: str) -> adlik_pb.PredictRequest:
    message = adlik_pb.PredictRequest(batch_size=1)
    message.model_spec.name = model
    tensor = message.inputs["IN"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in ROW.shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = ROW.tobytes()
    return message


class Garbage:
    """A request body that is no message."""

    def SerializeToString(self) -> bytes:
        return b"\xff\xff\xff"


def call(server: ServerProcess, path: str, message: Message | Garbage) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        channel.unary_unary(path)(message.SerializeToString(), timeout=30)


def refused(server: ServerProcess, path: str, message: Message | Garbage) -> None:
    with pytest.raises(grpc.RpcError):
        call(server, path, message)


def post(server: ServerProcess, path: str, body: object) -> int:
    return server.get(path, json.dumps(body).encode())[0]


@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_access_log_has_a_line_for_requests_and_refusals_of_every_protocol(front: str, tmp_path: Path) -> None:
    (tmp_path / "models" / "echo" / "1").mkdir(parents=True)
    (tmp_path / "models" / "echo" / "1" / "model.identity").touch()
    (tmp_path / "models" / "echo" / "config.pbtxt").write_text(CONFIG)
    path = tmp_path / "access.log"
    flags = (f"--model_base_path={tmp_path / 'models'}", "--access-log=1", f"--access-log-file={path}", f"--grpc-front={front}")
    infer = {"id": "h1", "inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    services = (
        "/inference.GRPCInferenceService/ModelInfer",
        "/tensorflow.serving.PredictionService/Predict",
        "/adlik.serving.PredictService/predict",
    )
    with running_server(*flags, at=tmp_path / "server") as server:
        assert post(server, "/v2/models/echo/infer", infer) == 200
        assert post(server, "/v2/models/echo/generate", {"IN": [1, 2]}) == 200
        assert post(server, "/v1/models/echo:predict", {"instances": [[1, 2]]}) == 200
        for service, message in zip(services, (kserve("echo", "g1"), tfs("echo"), adlik("echo")), strict=True):
            call(server, service, message)
        assert post(server, "/v2/models/absent/infer", infer) == 400
        assert post(server, "/v2/models/echo/infer", {**infer, "inputs": []}) == 400
        assert post(server, "/v1/models/echo:predict", {"instances": [[1, 2, 3]]}) == 400
        for service, message in zip(services, (kserve("absent\n", "g2"), tfs("absent"), adlik("absent")), strict=True):
            refused(server, service, message)
        for service in services:
            refused(server, service, Garbage())
        assert server.get("/v2/models/echo/infer", b"{")[0] == 400
        assert server.get("/v1/models/echo:predict", b"{")[0] == 400
        assert server.get("/v2/models/echo/infer", b"x" * 20, {"content-encoding": "br"})[0] == 501
        assert post(server, "/v2/models/absent/generate", {"IN": [1, 2]}) == 400
        with grpc.insecure_channel(server.grpc) as channel:
            stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            assert len(list(stream(iter([Garbage().SerializeToString()]), timeout=30))) == 1
        assert b"stoker_log_lines_dropped_total 0" in server.get("/metrics")[1]
        assert server.stop() == 0
        assert "stoker.access" not in server.log()
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["protocol"], line["status"]) for line in lines] == [
        ("kserve-http", "OK"),
        ("generate-http", "OK"),
        ("tfs-http", "OK"),
        ("kserve-grpc", "OK"),
        ("tfs-grpc", "OK"),
        ("adlik-grpc", "OK"),
        ("kserve-http", "NOT_FOUND"),
        ("kserve-http", "INVALID_REQUEST"),
        ("tfs-http", "INVALID_REQUEST"),
        ("kserve-grpc", "NOT_FOUND"),
        ("tfs-grpc", "NOT_FOUND"),
        ("adlik-grpc", "NOT_FOUND"),
        ("kserve-grpc", "INVALID_REQUEST"),
        ("tfs-grpc", "INVALID_REQUEST"),
        ("adlik-grpc", "INVALID_REQUEST"),
        ("kserve-http", "INVALID_REQUEST"),
        ("tfs-http", "INVALID_REQUEST"),
        ("kserve-http", "UNSUPPORTED"),
        ("generate-http", "NOT_FOUND"),
        ("kserve-grpc", "INVALID_REQUEST"),
    ]
    assert ["model" in line for line in lines[12:]] == [False, False, False, True, True, True, True, False]
    for line in lines[:6]:
        assert (line["model"], line["version"], line["rows"], line["out_bytes"]) == ("echo", 1, 1, 8)
        assert 0 <= line["queue_us"] <= line["total_us"]
        assert 0 <= line["compute_us"] <= line["total_us"]
        assert line["in_bytes"] > 8 or line["protocol"] == "generate-http"
    assert [line["request_id"] for line in (lines[0], lines[3])] == ["h1", "g1"]
    assert lines[9]["model"] == "absent\\n"
    assert "unknown model" in lines[6]["error"]
