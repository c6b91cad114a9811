"""Calls the models of several frameworks by tritonclient, over HTTP and gRPC, and by TensorFlow Serving's client.

    python frameworks.py HTTP_ADDRESS GRPC_ADDRESS MODELS

MODELS is a JSON object: the names of the inputs (pixels, scale) and of the outputs (scores, logits), by model. Prints `model client` as
each passes.
"""

import json
import sys

import grpc
import numpy as np
import tritonclient.grpc
import tritonclient.http
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

WEIGHTS = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
BIAS = np.array([0.5, -0.5], np.float32)
PIXELS = np.array([[0.25, 0.5, 0.75, 1], [4, 3, 2, 1], [0, 0, 0, -1]], np.float32)
SCALE = np.array([[1], [0.5], [-2]], np.float32)
LOGITS = (PIXELS @ WEIGHTS) * SCALE + BIAS
SCORES = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)


def check(found):
    for array, expected in zip(found, (SCORES, LOGITS), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-5)


def by_triton(module, address, model, inputs, outputs):
    given = []
    for name, array in zip(inputs, (PIXELS, SCALE), strict=True):
        given.append(module.InferInput(name, list(array.shape), "FP32"))
        given[-1].set_data_from_numpy(array)
    with module.InferenceServerClient(address) as client:
        found = client.infer(model, given, outputs=[module.InferRequestedOutput(name) for name in outputs])
        return [found.as_numpy(name) for name in outputs]


def by_tensorflow_serving(address, model, inputs, outputs):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "serving_default"
    for name, array in zip(inputs, (PIXELS, SCALE), strict=True):
        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, tensor_content=array.tobytes())
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        request.inputs[name].CopyFrom(tensor)
    with grpc.insecure_channel(address) as channel:
        found = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=30).outputs
    return [np.frombuffer(found[name].tensor_content, np.float32).reshape(3, 2) if found[name].tensor_content else
            np.array(found[name].float_val, np.float32).reshape(3, 2) for name in outputs]  # fmt: skip


if __name__ == "__main__":
    http, rpc, models = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    for model, names in models.items():
        check(by_triton(tritonclient.http, http, model, *names))
        print(model, "http")
        check(by_triton(tritonclient.grpc, rpc, model, *names))
        print(model, "grpc")
        check(by_tensorflow_serving(rpc, model, *names))
        print(model, "tfs")
