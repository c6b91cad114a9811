"""Finds the tensors of a request that are in shared memory, by their parameters `shared_memory_region`, `_offset` and `_byte_size`.

Spans are found on the event loop, where the table of regions is; the codecs then read and write them, in a thread where that takes long.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from stoker.backends.api.errors import InvalidRequest
from stoker.server.codecs.shared_memory import SharedMemory, Span
from stoker.server.core.limits import Limits
from stoker.server.pb import grpc_service_pb2 as pb

_KEYS: Final = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")


class Spans:
    """The shared-memory spans of one request's tensors.

    Attributes:
        inputs, outputs: By position in the request; other tensors are in the message.
        input_bytes: Bytes that reading the inputs copies.
    """

    __slots__ = ("input_bytes", "inputs", "outputs")

    def __init__(self, inputs: Mapping[int, Span], outputs: Mapping[int, Span]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.input_bytes = sum(span.byte_size for span in inputs.values())


NO_SPANS: Final = Spans({}, {})
NO_SHARED: Mapping[str, Span] = {}


def spans_of_message(message: pb.ModelInferRequest, memory: SharedMemory) -> Spans:
    """The spans in `memory` of the tensors of `message`.

    Raises:
        ServingError: as `find_span`.
    """
    return _spans(memory, _of_message(message.inputs), _of_message(message.outputs))


def spans_of_head(head: Mapping[str, Any], memory: SharedMemory, limits: Limits) -> Spans:
    """The spans in `memory` of the tensors of a body whose JSON part is `head`. The codec reports malformed fields.

    Raises:
        ServingError: as `find_span`.
    """
    return _spans(memory, _of_list(head.get("inputs"), limits.tensor_count), _of_list(head.get("outputs"), limits.output_count))


def find_span(memory: SharedMemory, parameters: Mapping[str, object], tensor: str) -> Span | None:
    """The span that a tensor's parameters name; None: it is not in shared memory.

    Raises:
        InvalidRequest: the parameters contradict each other. Also the exceptions of `SharedMemory.span`.
    """
    region = parameters.get("shared_memory_region")
    if region is None:
        for key in ("shared_memory_offset", "shared_memory_byte_size"):
            if key in parameters:
                raise InvalidRequest(f"'{key}' can not be specified without 'shared_memory_region' for '{tensor[:128]}'")
        return None
    if not isinstance(region, str) or not region:
        raise InvalidRequest(f"'shared_memory_region' of '{tensor[:128]}' must be the name of a region")
    if "shared_memory_byte_size" not in parameters:
        raise InvalidRequest(f"'shared_memory_byte_size' must be specified along with 'shared_memory_region' for '{tensor[:128]}'")
    offset = _unsigned("shared_memory_offset", parameters.get("shared_memory_offset", 0), tensor)
    return memory.span(region, offset, _unsigned("shared_memory_byte_size", parameters["shared_memory_byte_size"], tensor))


def span_parameters(span: Span, byte_size: int) -> dict[str, str | int]:
    """The response parameters of an output of `byte_size` bytes that was written to `span`."""
    parameters: dict[str, str | int] = {"shared_memory_region": span.region.name, "shared_memory_byte_size": byte_size}
    if span.offset:
        parameters["shared_memory_offset"] = span.offset
    return parameters


def classified_in_shared_memory(output: str) -> InvalidRequest:
    """The error for an output with both classification and shared memory."""
    return InvalidRequest(f"output '{output[:128]}' asks for 'classification', whose result cannot be placed in shared memory")


def _unsigned(key: str, value: object, tensor: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(f"'{key}' of '{tensor[:128]}' must be an unsigned integer")
    return value


_Tensors = Iterable[tuple[int, str, Mapping[str, object]]]


def _spans(memory: SharedMemory, inputs: _Tensors, outputs: _Tensors) -> Spans:
    found: list[dict[int, Span]] = []
    for tensors in (inputs, outputs):
        spans = ((at, find_span(memory, parameters, name)) for at, name, parameters in tensors)
        found.append({at: span for at, span in spans if span is not None})
    return Spans(*found) if any(found) else NO_SPANS


def _of_message(tensors: Any) -> _Tensors:
    for at, tensor in enumerate(tensors):
        if tensor.parameters:
            given = {key: tensor.parameters[key] for key in _KEYS if key in tensor.parameters}
            yield (
                at,
                tensor.name,
                {key: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for key, value in given.items()},
            )


def _of_list(tensors: object, most: int) -> _Tensors:
    for at, tensor in enumerate(tensors[:most] if isinstance(tensors, list) else ()):
        parameters = tensor.get("parameters") if isinstance(tensor, dict) else None
        if isinstance(parameters, dict):
            yield at, str(tensor.get("name")), parameters
