"""The responses of a decoupled model, as they come: over gRPC a stream, over HTTP the server-sent events of `generate_stream`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.cli.output import CommandFailed
from stoker_client import InferResult, ServerError
from stoker_client.errors import InvalidResponse
from stoker_client.http_client import HttpClient, HttpTransport
from stoker_client.http_dialect import generate_stream_request
from stoker_client.inference import ParameterValue, TensorInfo, version_text
from stoker_client.tensors import decode_elements

if TYPE_CHECKING:
    from stoker_client import Client
    from stoker_client.settings import Connection
    from stoker_client.tensors import TensorLike


@dataclass(frozen=True, slots=True)
class Request:
    """A request of KServe's protocol; the fields are the arguments of `Client.infer`."""

    model: str
    inputs: "Mapping[str, TensorLike]"
    version: int | None
    outputs: Sequence[str] | None
    parameters: Mapping[str, ParameterValue]


def stream_responses(
    client: "Client", request: Request, metadata: Mapping[str, Any], connection: "Connection", timeout_s: float
) -> Iterator[InferResult]:
    """Sends `request` and yields each response as it comes.

    Args:
        client: A client of the server; its kind chooses the transport.
        request: The request.
        metadata: The model's metadata.
        connection: The settings of the transport for HTTP.
        timeout_s: The limit of the whole stream, seconds.

    Raises:
        StokerError: the request failed. CommandFailed: an input has no form in JSON.
    """
    if isinstance(client, HttpClient):
        yield from _events(request, metadata, connection, timeout_s)
        return
    yield from client.stream(
        request.model,
        [request.inputs],
        version=request.version,
        outputs=request.outputs,
        parameters=request.parameters,
        timeout_s=timeout_s,
    )


def _events(request: Request, metadata: Mapping[str, Any], connection: "Connection", timeout_s: float) -> Iterator[InferResult]:
    body = {name: _values(name, tensor) for name, tensor in request.inputs.items()}
    if request.parameters:
        body["parameters"] = dict(request.parameters)
    transport = HttpTransport(connection)
    try:
        for data in transport.events(generate_stream_request(request.model, version_text(request.version), body), timeout_s):
            yield _result(data, request, metadata)
    finally:
        transport.close()


def _values(name: str, tensor: "TensorLike") -> Any:
    """The elements of an input as a flat list for JSON."""
    if not isinstance(tensor, np.ndarray):
        raise CommandFailed(f"--input {name}: BF16 has no form in JSON, which decoupled models take over HTTP; use a grpc:// address")
    return [element.decode("utf-8", "replace") if isinstance(element, bytes) else element for element in tensor.ravel().tolist()]


def _result(data: bytes, request: Request, metadata: Mapping[str, Any]) -> InferResult:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise InvalidResponse(f"an event of the server is not JSON: {error}") from error
    if not isinstance(event, dict):
        raise InvalidResponse(f"an event of the server is a JSON {type(event).__name__}; expected an object")
    outputs, info = {}, {}
    for spec in metadata.get("outputs", []):
        name, datatype = str(spec["name"]), str(spec["datatype"])
        if name in event and (not request.outputs or name in request.outputs):
            flat = event[name] if isinstance(event[name], list) else [event[name]]
            shape = _shape([int(size) for size in spec["shape"]], len(flat))
            outputs[name], info[name] = decode_elements(name, datatype, shape, flat), TensorInfo(datatype, shape)
    if not outputs and isinstance(event.get("error"), str):
        raise ServerError(event["error"])
    result = InferResult(
        outputs, model_name=str(event.get("model_name", "")), model_version=str(event.get("model_version", "")), request_id=""
    )
    result.info = info
    return result


def _shape(dims: Sequence[int], count: int) -> tuple[int, ...]:
    """The shape of a flat list of `count` elements: an open size takes the remaining elements, if only one is open."""
    fixed = int(np.prod([size for size in dims if size >= 0], dtype=np.int64))
    if sum(size < 0 for size in dims) <= 1 and fixed and count % fixed == 0:
        shape = tuple(count // fixed if size < 0 else size for size in dims)
        return shape if int(np.prod(shape, dtype=np.int64)) == count else (count,)
    return (count,)
