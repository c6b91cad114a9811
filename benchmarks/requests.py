"""The requests of a load, encoded once before any clock runs, and the canned responses of the echoes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import orjson

from benchmarks.models import Array, BenchModel
from stoker_client._pb import messages as pb
from stoker_client.adlik.dialect import AdlikGrpcDialect, AdlikRestDialect
from stoker_client.dialect import Call, Dialect
from stoker_client.grpc_dialect import GrpcDialect, GrpcRequest
from stoker_client.http_dialect import HttpDialect
from stoker_client.http_json_dialect import JsonHttpDialect
from stoker_client.inference import InferOptions, InferRequest, InferResult, build_request
from stoker_client.predict_dialect import PredictDialect
from stoker_client.settings import MAX_MESSAGE_BYTES
from stoker_client.tensors import TensorLike
from stoker_client.tfs.grpc_dialect import TfsGrpcDialect
from stoker_client.tfs.rest_dialect import TfsRestDialect

GRPC, HTTP_BINARY, HTTP_JSON = "grpc", "http-binary", "http-json"
#: KServe's protocols.
PROTOCOLS = (GRPC, HTTP_BINARY, HTTP_JSON)
#: ModelStreamInfer, one request on each stream; and the other protocols of one server.
GRPC_STREAM, TFS_GRPC, TFS_JSON, ADLIK_GRPC, ADLIK_JSON = "grpc-stream", "tfs-grpc", "tfs-json", "adlik-grpc", "adlik-json"
#: The protocols with one request and one response.
UNARY_PROTOCOLS = (*PROTOCOLS, TFS_GRPC, TFS_JSON, ADLIK_GRPC, ADLIK_JSON)
_OVER_GRPC = frozenset({GRPC, GRPC_STREAM, TFS_GRPC, ADLIK_GRPC})
_DIALECTS: dict[str, Callable[[int], Dialect]] = {GRPC: GrpcDialect, HTTP_BINARY: HttpDialect, HTTP_JSON: JsonHttpDialect}
_PREDICT_DIALECTS: dict[str, Callable[[], PredictDialect]] = {
    TFS_GRPC: TfsGrpcDialect,
    TFS_JSON: TfsRestDialect,
    ADLIK_GRPC: AdlikGrpcDialect,
    ADLIK_JSON: AdlikRestDialect,
}
#: The only output of the models, which TensorFlow Serving's JSON does not describe.
_FACTS = {"outputs": [{"name": "y", "datatype": "FP32"}]}


@dataclass(frozen=True, slots=True)
class Request:
    """One request, sent again and again.

    Attributes:
        model: The name of the model.
        rows: Rows of the request.
        protocol: One of `PROTOCOLS`, or of the others.
        call: The request as its protocol encodes it.
        is_heavy: The model's own work dwarfs the server's: a window has few requests.
    """

    model: str
    rows: int
    protocol: str
    call: Call[InferResult]
    is_heavy: bool = False

    @property
    def is_grpc(self) -> bool:
        return self.protocol in _OVER_GRPC


def request_of(model: BenchModel, protocol: str) -> Request:
    """The request that sends `model.row`."""
    return encoded(model.name, {model.input_name: model.row}, protocol, is_heavy=model.is_heavy)


def encoded(model: str, inputs: Mapping[str, TensorLike], protocol: str, *, is_heavy: bool = False) -> Request:
    """The request that sends `inputs`, whose first dimension is the batch."""
    call = _call(build_request(model, inputs, InferOptions()), protocol)
    return Request(model, len(np.asarray(next(iter(inputs.values())))), protocol, call, is_heavy)


def _call(request: InferRequest, protocol: str) -> Call[InferResult]:
    if protocol in _PREDICT_DIALECTS:
        return _PREDICT_DIALECTS[protocol]().infer(request, _FACTS)
    if protocol != GRPC_STREAM:
        return _DIALECTS[protocol](MAX_MESSAGE_BYTES).infer(request)
    unary = GrpcDialect(MAX_MESSAGE_BYTES).infer(request)
    stream = GrpcRequest("/inference.GRPCInferenceService/ModelStreamInfer", unary.request.message, pb.ModelStreamInferResponse)
    return Call(stream, lambda reply: unary.parse(reply.infer_response), is_read=False)


def canned_response(model: BenchModel, output: Array) -> bytes:
    """The ModelInferResponse that a server would send, for an echo that parses nothing."""
    response = pb.ModelInferResponse(model_name=model.name, model_version="1")
    response.outputs.add(name="y", datatype="FP32", shape=output.shape)
    response.raw_output_contents.append(output.tobytes())
    return response.SerializeToString()


def canned_body(output: Array) -> bytes:
    """The body of the HTTP response that a server would send, in JSON: an echo sends no header that a binary tensor needs."""
    tensor = {"name": "y", "datatype": "FP32", "shape": list(output.shape), "data": output.reshape(-1)}
    return orjson.dumps({"model_name": "tiny", "model_version": "1", "outputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY)
