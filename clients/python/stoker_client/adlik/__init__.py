"""Adlik's protocol: `PredictContext`, as Adlik's own Python client has it, without TensorFlow.

    with PredictContext("resnet50", url="127.0.0.1:8500") as context:
        result = context.run({"data": images}, {"scores": 5})["scores"]  # the five best of each image
        print(result.tensor.shape, result.batch_classes[0])

It speaks gRPC and HTTP, to Stoker and to Adlik's own server. Names, arguments and results are Adlik's, so that scripts written for it run
on; failures are those of `stoker_client.errors`. For everything else a server offers, and for asyncio, use `stoker_client.connect`.
"""

from stoker_client.adlik.context import PredictContext
from stoker_client.adlik.outputs import ClassScore, PredictOutput
from stoker_client.adlik.tensor_proto import array_from_proto, proto_from_array, tensor_dtype_to_np_dtype

__all__ = ["ClassScore", "PredictContext", "PredictOutput", "array_from_proto", "proto_from_array", "tensor_dtype_to_np_dtype"]
