"""The requests in gRPC: service `inference.GRPCInferenceService`, messages from a private descriptor pool, no generated stubs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from stoker_client._pb import messages as pb
from stoker_client.dialect import Call, Dialect, Facts, T
from stoker_client.errors import InvalidResponse, ServerError, TooLarge
from stoker_client.inference import InferRequest, InferResult, ParameterValue, TensorInfo
from stoker_client.message_facts import facts_of
from stoker_client.tensors import decode_elements, decode_raw

SERVICE = "inference.GRPCInferenceService"
STREAM_METHOD = f"/{SERVICE}/ModelStreamInfer"

_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class GrpcRequest:
    """A call of a gRPC transport.

    Attributes:
        path: `/service/method`.
        message: The request.
        reply: The class of the response.
    """

    path: str
    message: Message
    reply: type[Message]


M = TypeVar("M", bound=Message)


def read_message(kind: type[M], data: bytes) -> M:
    """Parses a received message.

    Raises:
        InvalidResponse: it is no message of `kind`.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidResponse(f"the server's response is not a {kind.DESCRIPTOR.name}: {error}") from error


class GrpcDialect(Dialect):
    """KServe v2 with Triton's extensions, over gRPC.

    Args:
        max_message_bytes: Requests with larger tensors are rejected before they are built.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes

    def infer(self, request: InferRequest) -> Call[InferResult]:
        return _call("ModelInfer", self.infer_message(request), pb.ModelInferResponse, infer_result, is_read=False)

    def infer_message(self, request: InferRequest) -> pb.ModelInferRequest:
        """The request as a message with raw tensor contents.

        Raises:
            TooLarge: the tensors exceed the client's limit.
        """
        if request.size_bytes > self._max_message_bytes:
            raise TooLarge(f"the request's tensors hold {request.size_bytes} bytes; this client sends at most {self._max_message_bytes}")
        message = pb.ModelInferRequest(model_name=request.model, model_version=request.version, id=request.request_id)
        for key, value in request.parameters.items():
            _set_parameter(message.parameters[key], value)
        for tensor in request.inputs:
            message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            message.raw_input_contents.append(tensor.raw)
        for name in request.outputs:
            message.outputs.add(name=name)
        return message

    def is_live(self) -> Call[bool]:
        return _call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse, lambda reply: bool(reply.live))

    def is_ready(self) -> Call[bool]:
        return _call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse, lambda reply: bool(reply.ready))

    def is_model_ready(self, model: str, version: str) -> Call[bool]:
        request = pb.ModelReadyRequest(name=model, version=version)
        return _call("ModelReady", request, pb.ModelReadyResponse, lambda reply: bool(reply.ready))

    def server_metadata(self) -> Call[Facts]:
        return _call("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse, facts_of)

    def model_metadata(self, model: str, version: str) -> Call[Facts]:
        return _call("ModelMetadata", pb.ModelMetadataRequest(name=model, version=version), pb.ModelMetadataResponse, facts_of)

    def model_config(self, model: str, version: str) -> Call[Facts]:
        request = pb.ModelConfigRequest(name=model, version=version)
        return _call("ModelConfig", request, pb.ModelConfigResponse, lambda reply: facts_of(reply.config))

    def index(self, *, ready_only: bool) -> Call[list[Facts]]:
        request = pb.RepositoryIndexRequest(ready=ready_only)
        return _call("RepositoryIndex", request, pb.RepositoryIndexResponse, lambda reply: [facts_of(entry) for entry in reply.models])

    def statistics(self, model: str, version: str) -> Call[list[Facts]]:
        request = pb.ModelStatisticsRequest(name=model, version=version)
        return _call("ModelStatistics", request, pb.ModelStatisticsResponse, lambda reply: [facts_of(entry) for entry in reply.model_stats])

    def load(self, model: str, config_json: str | None, files: Mapping[str, bytes]) -> Call[None]:
        request = pb.RepositoryModelLoadRequest(model_name=model)
        if config_json is not None:
            request.parameters["config"].string_param = config_json
        for path, content in files.items():
            request.parameters[f"file:{path}"].bytes_param = content
        return _call("RepositoryModelLoad", request, pb.RepositoryModelLoadResponse, lambda _: None, is_read=False)

    def unload(self, model: str, *, unload_dependents: bool) -> Call[None]:
        request = pb.RepositoryModelUnloadRequest(model_name=model)
        request.parameters["unload_dependents"].bool_param = unload_dependents
        return _call("RepositoryModelUnload", request, pb.RepositoryModelUnloadResponse, lambda _: None, is_read=False)


def _call(method: str, message: Message, reply: type[Message], parse: Callable[[Any], T], *, is_read: bool = True) -> Call[T]:
    return Call(GrpcRequest(f"/{SERVICE}/{method}", message, reply), parse, is_read)


def stream_result(reply: pb.ModelStreamInferResponse) -> InferResult:
    """One response of a stream.

    Raises:
        ServerError: the server reports a failed request in the message instead of a status.
    """
    if reply.error_message:
        raise ServerError(reply.error_message)
    return infer_result(reply.infer_response)


def infer_result(reply: pb.ModelInferResponse) -> InferResult:
    """The outputs of a response, as views of the message.

    Raises:
        InvalidResponse: the response contradicts itself.
    """
    raws = reply.raw_output_contents
    if raws and len(raws) != len(reply.outputs):
        raise InvalidResponse(f"the response holds {len(reply.outputs)} outputs but {len(raws)} raw contents")
    outputs = {}
    info = {}
    for at, tensor in enumerate(reply.outputs):
        shape = tuple(tensor.shape)
        if raws:
            array = decode_raw(tensor.name, tensor.datatype, shape, raws[at])
        else:
            array = decode_elements(tensor.name, tensor.datatype, shape, _contents(tensor))
        outputs[tensor.name] = array
        info[tensor.name] = TensorInfo(tensor.datatype, shape)
    result = InferResult(outputs, model_name=reply.model_name, model_version=reply.model_version, request_id=reply.id)
    result.info = info
    result.parameters = {key: _parameter_value(value) for key, value in reply.parameters.items()}
    return result


_CONTENT_FIELDS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def _contents(tensor: pb.ModelInferResponse.InferOutputTensor) -> list[Any]:
    field = _CONTENT_FIELDS.get(tensor.datatype)
    if field is None:
        raise InvalidResponse(f"output '{tensor.name}' of datatype '{tensor.datatype}' came without raw contents")
    return list(getattr(tensor.contents, field))


def _set_parameter(field: pb.InferParameter, value: ParameterValue) -> None:
    if isinstance(value, bool):
        field.bool_param = value
    elif isinstance(value, int) and value in _INT64:
        field.int64_param = value
    elif isinstance(value, int):
        field.uint64_param = value
    elif isinstance(value, float):
        field.double_param = value
    else:
        field.string_param = value


def _parameter_value(parameter: pb.InferParameter) -> ParameterValue:
    choice = parameter.WhichOneof("parameter_choice")
    value: ParameterValue = "" if choice is None else getattr(parameter, choice)
    return value
