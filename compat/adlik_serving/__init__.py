"""Adlik's names over Stoker: the server's command, and the client's module without TensorFlow.

`adlik_serving --model_base_path=... --grpc_port=8500 --http_port=8501` starts the server. Scripts written for Adlik's client run as they
are; what fails raises an error of `stoker_client.errors`:

    from adlik_serving import PredictContext
    context = PredictContext("resnet50", url="localhost:8500")
    result = context.run({"input": images}, {"output": 1}, batch_size=8)
"""

from stoker_compat import warn_beside_real

from adlik_serving.framework.domain import model_config_pb2
from stoker_client.adlik import PredictContext, tensor_dtype_to_np_dtype

warn_beside_real("adlik_serving")

__all__ = ["PredictContext", "model_config_pb2", "tensor_dtype_to_np_dtype"]
