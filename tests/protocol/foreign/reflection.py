"""A client that knows only reflection, like grpcurl: it learns the services and builds its requests from JSON; prints the passed checks.

Run with grpcio and grpcio-reflection, isolated from this project's modules: `python -I reflection.py v1|v1alpha HOST:PORT`.
"""

import sys
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICES = {
    "inference.GRPCInferenceService",
    "tensorflow.serving.PredictionService",
    "tensorflow.serving.ModelService",
    "adlik.serving.PredictService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}
PATIENCE_S = 30


class Details(grpc.ClientCallDetails):
    """The details of a call, under another method's name."""

    def __init__(self, known: grpc.ClientCallDetails, method: str) -> None:
        self.method = method
        self.timeout, self.metadata, self.credentials = known.timeout, known.metadata, known.credentials
        self.wait_for_ready, self.compression = known.wait_for_ready, known.compression


class AsVersion(grpc.StreamStreamClientInterceptor):
    """Uses one version of the reflection service where the library uses v1alpha."""

    def __init__(self, version: str) -> None:
        self._version = version
        self.calls = 0

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        self.calls += 1
        method = client_call_details.method.replace("grpc.reflection.v1alpha", f"grpc.reflection.{self._version}")
        return continuation(Details(client_call_details, method), request_iterator)


class Curl:
    """Calls by name, with JSON in and JSON out."""

    def __init__(self, address: str, version: str) -> None:
        self.asked = AsVersion(version)
        self.channel = grpc.intercept_channel(grpc.insecure_channel(address), self.asked)
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = DescriptorPool(self.database)

    def call(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """One unary call of `package.Service/Method`."""
        service, _, method_name = name.rpartition("/")
        method = self.pool.FindServiceByName(service).FindMethodByName(method_name)
        message = json_format.ParseDict(request, GetMessageClass(method.input_type)())
        answer = GetMessageClass(method.output_type)
        made = self.channel.unary_unary(f"/{name}", type(message).SerializeToString, answer.FromString)
        return json_format.MessageToDict(made(message, timeout=PATIENCE_S), preserving_proto_field_name=True)


version, address = sys.argv[1:3]
curl = Curl(address, version)
found = set(curl.database.get_services())
assert found >= SERVICES, SERVICES - found
print("list")

for each in sorted(found):
    service = curl.pool.FindServiceByName(each)
    assert service.full_name == each
    for method in service.methods:
        GetMessageClass(method.input_type)()
        GetMessageClass(method.output_type)()
methods = {method.name for method in curl.pool.FindServiceByName("inference.GRPCInferenceService").methods}
assert len(methods) == 20, methods
print("describe")

tensors = [
    {"name": name, "datatype": "INT32", "shape": [1, 16], "contents": {"int_contents": [value] * 16}}
    for name, value in (("INPUT0", 5), ("INPUT1", 2))
]
answer = curl.call("inference.GRPCInferenceService/ModelInfer", {"model_name": "simple", "id": "by hand", "inputs": tensors})
assert (answer["model_name"], answer["id"]) == ("simple", "by hand"), answer
assert [output["name"] for output in answer["outputs"]] == ["OUTPUT0", "OUTPUT1"], answer
metadata = curl.call("inference.GRPCInferenceService/ModelMetadata", {"name": "digits_ipu"})
assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": ["-1", "8", "8"]}], metadata
assert curl.call("grpc.health.v1.Health/Check", {}) == {"status": "SERVING"}
print("infer")

image = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": 1}, {"size": 8}, {"size": 8}]}, "float_val": [0.5]}
answer = curl.call("tensorflow.serving.PredictionService/Predict", {"model_spec": {"name": "digits"}, "inputs": {"image": image}})
assert len(answer["outputs"]["scores"]["float_val"]) == 10, answer
print("tensorflow-serving")

inputs = {"image": {"tensor_shape": image["tensor_shape"], "dtype": "DT_FLOAT", "float_val": [0.5] * 64}}
answer = curl.call("adlik.serving.PredictService/predict", {"model_spec": {"name": "digits_gcu"}, "batch_size": 1, "inputs": inputs})
assert answer["model_spec"]["name"] == "digits_gcu", answer
print("adlik")

refused = None
try:
    curl.call("inference.GRPCInferenceService/ModelInfer", {"model_name": "ghost"})
except grpc.RpcError as error:
    refused = error.code()
assert refused is grpc.StatusCode.NOT_FOUND, refused
assert curl.asked.calls > 0
print("error")
