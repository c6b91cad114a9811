"""Predictions and metadata in TensorFlow Serving's gRPC: service `tensorflow.serving.PredictionService`."""

from google.protobuf.message import DecodeError

from stoker_client._pb import tfs_messages as pb
from stoker_client.dialect import Call, Facts
from stoker_client.errors import InvalidResponse
from stoker_client.grpc_dialect import GrpcRequest
from stoker_client.inference import InferRequest, InferResult
from stoker_client.tensorflow_tensors import result_of, set_tensor
from stoker_client.tfs.signature import model_facts

SERVICE = "tensorflow.serving.PredictionService"
_SIGNATURES = "signature_def"


class TfsGrpcDialect:
    """TensorFlow Serving over gRPC; a `PredictDialect`."""

    def metadata(self, model: str, version: str) -> tuple[Call[Facts], ...]:
        """See `PredictDialect`."""
        request = pb.GetModelMetadataRequest(model_spec=_spec(model, version), metadata_field=[_SIGNATURES])

        def parse(reply: pb.GetModelMetadataResponse) -> Facts:
            try:
                signatures = pb.SignatureDefMap.FromString(reply.metadata[_SIGNATURES].value)
            except DecodeError as error:
                raise InvalidResponse(f"the signatures of model '{model}' cannot be read: {error}") from error
            return model_facts(reply.model_spec, signatures, model)

        return (Call(GrpcRequest(f"/{SERVICE}/GetModelMetadata", request, pb.GetModelMetadataResponse), parse, is_read=True),)

    def infer(self, request: InferRequest, facts: Facts) -> Call[InferResult]:
        """See `PredictDialect`."""
        message = pb.PredictRequest(model_spec=_spec(request.model, request.version), output_filter=request.outputs)
        for tensor in request.inputs:
            set_tensor(message.inputs[tensor.name], tensor)

        def parse(reply: pb.PredictResponse) -> InferResult:
            spec = reply.model_spec
            version = str(spec.version.value) if spec.HasField("version") else request.version
            return result_of(reply.outputs, spec.name or request.model, version)

        return Call(GrpcRequest(f"/{SERVICE}/Predict", message, pb.PredictResponse), parse, is_read=False)


def _spec(model: str, version: str) -> pb.ModelSpec:
    spec = pb.ModelSpec(name=model)
    if version:
        spec.version.value = int(version)
    return spec
