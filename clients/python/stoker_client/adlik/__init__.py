"""Adlik's protocol: `PredictContext`, as Adlik's own Python client has it, without TensorFlow.

    with PredictContext("resnet50", url="127.0.0.1:8500") as context:
        result = context.run({"data": images}, {"scores": 5})["scores"]  # the five best of each image
        print(result.tensor.shape, result.batch_classes[0])

It calls Stoker and Adlik's own server over gRPC and HTTP. Names, arguments and results are Adlik's, so that scripts written for Adlik work
unchanged; errors are those of `stoker_client.errors`. For all other calls, and for asyncio, use `stoker_client.connect`.
"""

from stoker_client.adlik.context import PredictContext
from stoker_client.adlik.outputs import ClassScore, PredictOutput
from stoker_client.adlik.tensor_proto import array_from_proto, proto_from_array, tensor_dtype_to_np_dtype

__all__ = ["ClassScore", "PredictContext", "PredictOutput", "array_from_proto", "proto_from_array", "tensor_dtype_to_np_dtype"]
