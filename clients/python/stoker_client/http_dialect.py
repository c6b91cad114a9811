"""The requests in HTTP: KServe v2 routes with Triton's extensions; tensors use the binary extension, never JSON numbers."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from stoker_client.dialect import Call, Dialect, Facts
from stoker_client.errors import InvalidResponse, TooLarge
from stoker_client.http_errors import error_from_response
from stoker_client.inference import InferRequest, InferResult, TensorInfo
from stoker_client.tensors import decode_elements, decode_raw

JSON_LENGTH = "inference-header-content-length"

_NOT_READY = frozenset({400, 404, 503})


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request for an HTTP transport.

    Attributes:
        method: `GET` or `POST`.
        path: Route below the server's address, escaped.
        body: Empty for GET.
        headers: Headers in addition to those of every call.
    """

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A response.

    Attributes:
        status: HTTP status.
        headers: Names in lower case.
        body: Decompressed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpDialect(Dialect):
    """KServe v2 with Triton's extensions, over HTTP.

    Args:
        max_message_bytes: Requests with larger tensors are rejected before they are built.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes

    def infer(self, request: InferRequest) -> Call[InferResult]:
        if request.size_bytes > self._max_message_bytes:
            raise TooLarge(f"the request's tensors hold {request.size_bytes} bytes; this client sends at most {self._max_message_bytes}")
        head: Facts = {
            "inputs": [
                {"name": t.name, "datatype": t.datatype, "shape": list(t.shape), "parameters": {"binary_data_size": len(t.raw)}}
                for t in request.inputs
            ],
            "parameters": {**request.parameters, "binary_data_output": True},
        }
        if request.request_id:
            head["id"] = request.request_id
        if request.outputs:
            head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in request.outputs]
        encoded = json.dumps(head, allow_nan=False).encode("utf-8")
        body = b"".join([encoded, *(tensor.raw for tensor in request.inputs)])
        headers = {"content-type": "application/octet-stream", JSON_LENGTH: str(len(encoded))}
        return Call(HttpRequest("POST", infer_path(request.model, request.version), body, headers), read_infer_result, is_read=False)

    def is_live(self) -> Call[bool]:
        return Call(_get("/v2/health/live"), _is_ok, is_read=True)

    def is_ready(self) -> Call[bool]:
        return Call(_get("/v2/health/ready"), _is_ok, is_read=True)

    def is_model_ready(self, model: str, version: str) -> Call[bool]:
        return Call(_get(f"{_model(model, version)}/ready"), _is_ok, is_read=True)

    def server_metadata(self) -> Call[Facts]:
        return Call(_get("/v2"), object_of, is_read=True)

    def model_metadata(self, model: str, version: str) -> Call[Facts]:
        return Call(_get(_model(model, version)), object_of, is_read=True)

    def model_config(self, model: str, version: str) -> Call[Facts]:
        return Call(_get(f"{_model(model, version)}/config"), object_of, is_read=True)

    def index(self, *, ready_only: bool) -> Call[list[Facts]]:
        request = _post("/v2/repository/index", {"ready": True} if ready_only else {})
        return Call(request, _index, is_read=True)

    def statistics(self, model: str, version: str) -> Call[list[Facts]]:
        path = f"{_model(model, version)}/stats" if model else "/v2/models/stats"
        return Call(_get(path), lambda reply: _objects(object_of(reply).get("model_stats"), "model_stats"), is_read=True)

    def load(self, model: str, config_json: str | None, files: Mapping[str, bytes]) -> Call[None]:
        parameters: dict[str, str] = {} if config_json is None else {"config": config_json}
        parameters.update({f"file:{path}": base64.b64encode(content).decode("ascii") for path, content in files.items()})
        body = {"parameters": parameters} if parameters else {}
        return Call(_post(f"/v2/repository/models/{quote(model, safe='')}/load", body), _nothing, is_read=False)

    def unload(self, model: str, *, unload_dependents: bool) -> Call[None]:
        body = {"parameters": {"unload_dependents": unload_dependents}}
        return Call(_post(f"/v2/repository/models/{quote(model, safe='')}/unload", body), _nothing, is_read=False)


def infer_path(model: str, version: str) -> str:
    """The route of an inference."""
    return f"{_model(model, version)}/infer"


def generate_stream_request(model: str, version: str, body: Facts) -> HttpRequest:
    """A request of Triton's extension `generate`, which has a server-sent event for each response. `body`: values by input name."""
    return _post(f"{_model(model, version)}/generate_stream", body)


def _model(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{version}" if version else path


def _get(path: str) -> HttpRequest:
    return HttpRequest("GET", path, b"", {})


def _post(path: str, body: Facts) -> HttpRequest:
    return HttpRequest("POST", path, json.dumps(body).encode("utf-8"), {"content-type": "application/json"})


def _checked(reply: HttpReply) -> HttpReply:
    if reply.status != 200:
        raise error_from_response(reply.status, reply.headers, reply.body)
    return reply


def _nothing(reply: HttpReply) -> None:
    _checked(reply)


def _is_ok(reply: HttpReply) -> bool:
    return reply.status not in _NOT_READY and _checked(reply).status == 200


def object_of(reply: HttpReply) -> Facts:
    """The JSON object of a successful reply.

    Raises:
        StokerError: the reply is an error. InvalidResponse: it holds no such object.
    """
    facts: Facts = _parsed(_checked(reply).body, dict)
    return facts


def _index(reply: HttpReply) -> list[Facts]:
    entries = _objects(_parsed(_checked(reply).body, list), "the index")
    # Versions that were never loaded come without these fields; over gRPC the fields are empty.
    return [{"name": "", "version": "", "state": "", "reason": "", **entry} for entry in entries]


def _objects(value: Any, where: str) -> list[Facts]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidResponse(f"{where} of the server's response is not a list of objects")
    return value


def _parsed(body: bytes | memoryview, kind: type[Any]) -> Any:
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise InvalidResponse(f"the server's response is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise InvalidResponse(f"the server's response is a JSON {type(value).__name__}; expected a {kind.__name__}")
    return value


def read_infer_result(reply: HttpReply) -> InferResult:
    """The outputs of a response, received as binary data or as JSON.

    Raises:
        StokerError: the reply is an error. InvalidResponse: it contradicts itself.
    """
    body = memoryview(_checked(reply).body)
    head_bytes = _json_length(reply.headers, len(body))
    head = _parsed(body[:head_bytes], dict)
    at = head_bytes
    outputs = {}
    info = {}
    for tensor in _objects(head.get("outputs"), "outputs"):
        try:
            name, datatype, shape = str(tensor["name"]), str(tensor["datatype"]), tuple(tensor["shape"])
            size = dict(tensor.get("parameters") or {}).get("binary_data_size")
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidResponse(f"an output has no usable name, datatype, shape or parameters: {repr(tensor)[:200]}") from error
        if size is None:
            outputs[name] = decode_elements(name, datatype, shape, tensor.get("data", []))
        elif not isinstance(size, int) or size < 0 or at + size > len(body):
            raise InvalidResponse(f"output '{name}' says {size} bytes of binary data, {len(body) - at} are left")
        else:
            outputs[name] = decode_raw(name, datatype, shape, body[at : at + size])
            at += size
        info[name] = TensorInfo(datatype, shape)
    if at != len(body):
        raise InvalidResponse(f"the server's response has {len(body) - at} bytes behind its last output")
    result = InferResult(
        outputs,
        model_name=str(head.get("model_name", "")),
        model_version=str(head.get("model_version", "")),
        request_id=str(head.get("id", "")),
    )
    result.info = info
    parameters = head.get("parameters")
    result.parameters = parameters if isinstance(parameters, dict) else {}
    return result


def _json_length(headers: Mapping[str, str], body_bytes: int) -> int:
    text = headers.get(JSON_LENGTH)
    if text is None:
        return body_bytes
    if not (text.isascii() and text.isdigit()) or int(text) > body_bytes:
        raise InvalidResponse(f"the header {JSON_LENGTH} says '{text}', the body has {body_bytes} bytes")
    return int(text)
