"""One request, expressed for HTTP and for gRPC, and its outcome: for tables of tests of both protocols."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from stoker.server.pb import grpc_service_pb2 as pb
from tests.fakes.server_process import ServerProcess

_SERVICE = "/inference.GRPCInferenceService/"


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An input: sent as binary where `raw` is given, else as JSON or typed contents."""

    name: str
    datatype: str = "INT32"
    shape: Sequence[int] = (1, 16)
    data: Sequence[Any] | None = None
    raw: bytes | None = None

    def values(self) -> list[Any]:
        return list(self.data) if self.data is not None else [0] * int(np.prod(self.shape))


@dataclass(frozen=True, kw_only=True)
class Ask:
    """An infer request. `outputs`: names, or names with their parameters."""

    model: str = "simple"
    version: str = ""
    id: str = ""
    inputs: Sequence[Tensor] = ()
    outputs: Sequence[str | tuple[str, Mapping[str, Any]]] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def _outputs(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [(output, {}) if isinstance(output, str) else output for output in self.outputs]

    def http(self) -> tuple[str, bytes, dict[str, str]]:
        """Path, body and headers."""
        head: dict[str, Any] = {"inputs": []}
        if self.id:
            head["id"] = self.id
        if self.parameters:
            head["parameters"] = dict(self.parameters)
        blobs = []
        for tensor in self.inputs:
            said: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
            if tensor.raw is None:
                said["data"] = tensor.values()
            else:
                said["parameters"] = {"binary_data_size": len(tensor.raw)}
                blobs.append(tensor.raw)
            head["inputs"].append(said)
        if self.outputs:
            head["outputs"] = [{"name": name, "parameters": dict(parameters)} for name, parameters in self._outputs()]
        text = json.dumps(head).encode()
        version = f"/versions/{self.version}" if self.version else ""
        return f"/v2/models/{self.model}{version}/infer", text + b"".join(blobs), {"Inference-Header-Content-Length": str(len(text))}

    def message(self) -> pb.ModelInferRequest:
        """The same as a message."""
        message = pb.ModelInferRequest(model_name=self.model, model_version=self.version, id=self.id)
        is_raw = any(tensor.raw is not None for tensor in self.inputs)
        for tensor in self.inputs:
            added = message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            if is_raw:
                message.raw_input_contents.append(tensor.raw if tensor.raw is not None else np.array(tensor.values(), np.int32).tobytes())
            elif tensor.datatype == "BYTES":
                added.contents.bytes_contents.extend(str(value).encode() for value in tensor.values())
            elif tensor.datatype == "FP32":
                added.contents.fp32_contents.extend(tensor.values())
            else:
                added.contents.int_contents.extend(tensor.values())
        for name, parameters in self._outputs():
            _set(message.outputs.add(name=name).parameters, parameters)
        _set(message.parameters, self.parameters)
        return message


@dataclass(frozen=True)
class Answer:
    """A status (HTTP number or gRPC code name) and the error's text, empty on success."""

    status: int | str
    text: str


def over_http(server: ServerProcess, ask: Ask) -> Answer:
    path, body, headers = ask.http()
    return http_answer(server, path, body, headers)


def http_answer(server: ServerProcess, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Answer:
    """The response to a request; an error's body must be a JSON object with nothing but its text."""
    status, response = server.get(path, body, headers)
    if status == 200:
        return Answer(200, "")
    said = json.loads(response)
    assert list(said) == ["error"], said
    return Answer(status, said["error"])


def over_grpc(channel: grpc.Channel, ask: Ask) -> Answer:
    return grpc_answer(channel, "ModelInfer", ask.message())


def grpc_answer(channel: grpc.Channel, method: str, message: Any) -> Answer:
    """The response to a call."""
    call = channel.unary_unary(_SERVICE + method, request_serializer=lambda sent: sent.SerializeToString())
    try:
        call(message, timeout=30)
    except grpc.RpcError as error:
        return Answer(error.code().name, error.details())
    return Answer("OK", "")


def _set(parameters: Any, given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        choice = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(parameters[key], choice, value)
