"""Requests, encoded once before any clock runs, and responses, decoded once to see that it is the model's answer."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from benchmarks.models import Array, BenchModel
from stoker_client._pb import messages as pb

GRPC, HTTP_BINARY, HTTP_JSON = "grpc", "http-binary", "http-json"
PROTOCOLS = (GRPC, HTTP_BINARY, HTTP_JSON)
_JSON_LENGTH = "Inference-Header-Content-Length"


def encode_request(model: BenchModel, protocol: str) -> bytes:
    """One row for `model`: a ModelInferRequest message, or a whole HTTP request, head and body."""
    if protocol == GRPC:
        request = pb.ModelInferRequest(model_name=model.name)
        request.inputs.add(name=model.input_name, datatype="FP32", shape=model.row.shape)
        request.raw_input_contents.append(model.row.tobytes())
        return request.SerializeToString()
    tensor: dict[str, Any] = {"name": model.input_name, "shape": list(model.row.shape), "datatype": "FP32"}
    headers = {"Host": "127.0.0.1", "User-Agent": "stoker-benchmarks"}
    if protocol == HTTP_JSON:
        body = orjson.dumps({"inputs": [tensor | {"data": model.row.reshape(-1)}]}, option=orjson.OPT_SERIALIZE_NUMPY)
        headers["Content-Type"] = "application/json"
    else:
        raw = model.row.tobytes()
        head = orjson.dumps(
            {"inputs": [tensor | {"parameters": {"binary_data_size": len(raw)}}], "parameters": {"binary_data_output": True}}
        )
        body = head + raw
        headers |= {"Content-Type": "application/octet-stream", _JSON_LENGTH: str(len(head))}
    headers["Content-Length"] = str(len(body))
    lines = [f"POST /v2/models/{model.name}/infer HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def decode_response(reply: bytes, protocol: str) -> Array:
    """The first output of an answer as the load generator received it: a message, or a whole HTTP response.

    Raises:
        ValueError: it is not an answer of this protocol, or it carries no FP32 output.
    """
    if protocol == GRPC:
        message = pb.ModelInferResponse.FromString(reply)
        if not message.raw_output_contents:
            raise ValueError(f"an answer without raw output: {str(message)[:200]}")
        return np.frombuffer(message.raw_output_contents[0], np.float32).reshape(list(message.outputs[0].shape))
    head, _, body = reply.partition(b"\r\n\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.decode("latin-1").split("\r\n")[1:])}
    if protocol == HTTP_JSON:
        output = json.loads(body)["outputs"][0]
        values: npt.NDArray[np.float32] = np.array(output["data"], np.float32)
        return values.reshape(output["shape"])
    size = int(headers[_JSON_LENGTH.lower()])
    output = json.loads(body[:size])["outputs"][0]
    length = output["parameters"]["binary_data_size"]
    return np.frombuffer(body[size : size + length], np.float32).reshape(output["shape"])


def canned_response(model: BenchModel, output: Array) -> bytes:
    """The ModelInferResponse a server would give, for an echo that parses nothing."""
    response = pb.ModelInferResponse(model_name=model.name, model_version="1")
    response.outputs.add(name="y", datatype="FP32", shape=output.shape)
    response.raw_output_contents.append(output.tobytes())
    return response.SerializeToString()


def canned_body(output: Array) -> bytes:
    """The body of the HTTP answer a server would give, its header in JSON and its tensor in binary."""
    raw = output.tobytes()
    tensor = {"name": "y", "datatype": "FP32", "shape": list(output.shape), "parameters": {"binary_data_size": len(raw)}}
    return orjson.dumps({"model_name": "tiny", "model_version": "1", "outputs": [tensor]}) + raw
