"""TensorFlow Serving's protocol without TensorFlow: predictions and model metadata, over gRPC and REST.

    with TfsClient("grpc://127.0.0.1:8500") as client:
        print(client.metadata("digits")["inputs"])
        scores = client.predict("digits", {"image": images})["scores"]

It calls TensorFlow Serving and every server with its protocol. For Stoker's other calls, use `stoker_client.connect`.
"""

from stoker_client.tfs.client import TfsClient
from stoker_client.tfs.grpc_dialect import TfsGrpcDialect
from stoker_client.tfs.rest_dialect import TfsRestDialect

__all__ = ["TfsClient", "TfsGrpcDialect", "TfsRestDialect"]
