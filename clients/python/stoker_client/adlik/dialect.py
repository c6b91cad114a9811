"""Predictions and metadata in Adlik's protocol, over gRPC and REST, as `PredictDialect`s for callers of any protocol. (`PredictContext` is
for scripts written for Adlik.)
"""

from typing import Any

from stoker_client._pb import adlik_messages as pb
from stoker_client.adlik.wire import SERVICE, metadata_route, parsed, predict_request, read_meta
from stoker_client.dialect import Call, Facts
from stoker_client.errors import InvalidRequest
from stoker_client.grpc_dialect import GrpcRequest
from stoker_client.http_dialect import HttpReply, HttpRequest, object_of
from stoker_client.inference import InferRequest, InferResult
from stoker_client.tensorflow_tensors import result_of, set_tensor, wire_name

_BATCH = -1


class AdlikGrpcDialect:
    """Adlik over gRPC; a `PredictDialect`."""

    def metadata(self, model: str, version: str) -> tuple[Call[Facts], ...]:
        """See `PredictDialect`."""
        request = pb.GetModelMetaRequest(model_spec=_spec(model, version))
        return (Call(GrpcRequest(f"/{SERVICE}/getModelMeta", request, pb.GetModelMetaResponse), _facts, is_read=True),)

    def infer(self, request: InferRequest, facts: Facts) -> Call[InferResult]:
        """See `PredictDialect`."""
        grpc = GrpcRequest(f"/{SERVICE}/predict", _message(request), pb.PredictResponse)
        return Call(grpc, lambda reply: _result(reply, request), is_read=False)


class AdlikRestDialect:
    """Adlik over REST; a `PredictDialect`. Tensors are base64 text in JSON."""

    def metadata(self, model: str, version: str) -> tuple[Call[Facts], ...]:
        """See `PredictDialect`. TensorFlow Serving has the same route: the query selects Adlik's protocol."""
        route = metadata_route(_spec(model, version))
        return tuple(
            Call(HttpRequest("GET", route + query, b"", {}), lambda reply: _facts(read_meta(object_of(reply))), is_read=True)
            for query in ("", "?format=adlik")
        )

    def infer(self, request: InferRequest, facts: Facts) -> Call[InferResult]:
        """See `PredictDialect`."""

        def parse(reply: HttpReply) -> InferResult:
            return _result(parsed(object_of(reply), pb.PredictResponse), request)

        return Call(predict_request(_message(request)), parse, is_read=False)


def _spec(model: str, version: str) -> pb.ModelSpec:
    spec = pb.ModelSpec(name=model)
    if version:
        spec.version.value = int(version)
    return spec


def _message(request: InferRequest) -> pb.PredictRequest:
    """The request.

    Raises:
        InvalidRequest: an input has no batch dimension, or the inputs differ in it.
    """
    sizes = {tensor.name: tensor.shape[0] if tensor.shape else 0 for tensor in request.inputs}
    if len(set(sizes.values())) != 1 or not all(sizes.values()):
        stated = ", ".join(f"'{name}' has {size}" for name, size in sizes.items())
        raise InvalidRequest(f"Adlik's protocol takes inputs with the batch in front, equally many in each, at least 1: {stated}")
    message = pb.PredictRequest(model_spec=_spec(request.model, request.version), batch_size=next(iter(sizes.values())))
    for tensor in request.inputs:
        set_tensor(message.inputs[tensor.name], tensor)
    for name in request.outputs:
        message.output_filter[name].SetInParent()
    return message


def _facts(meta: pb.GetModelMetaResponse) -> Facts:
    def tensors(given: Any) -> list[Facts]:
        return [{"name": each.name, "datatype": wire_name(each.data_type), "shape": [_BATCH, *each.dims]} for each in given]

    config = meta.config
    spec = meta.model_spec
    return {
        "name": config.name or spec.name,
        "versions": [str(spec.version.value)] if spec.HasField("version") else [str(number) for number in sorted(meta.version_status)],
        "platform": config.platform,
        "inputs": tensors(config.input),
        "outputs": tensors(config.output),
    }


def _result(reply: pb.PredictResponse, request: InferRequest) -> InferResult:
    spec = reply.model_spec
    # Servers omit the version, or send 0, if the request names none.
    version = str(spec.version.value) if spec.version.value else request.version
    return result_of({name: output.tensor for name, output in reply.outputs.items()}, spec.name or request.model, version)
