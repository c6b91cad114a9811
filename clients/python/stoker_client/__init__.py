"""Client of Stoker, and of any KServe v2 / Triton server: synchronous and asyncio, gRPC and HTTP, with one interface for all four.

    with connect("grpc://127.0.0.1:8500") as client:
        outputs = client.infer("digits", {"image": image})
        print(outputs["scores"].argmax())

`connect` and `connect_async` choose the class by the address. All protocol logic (encoding, decoding, errors, retries) is free of I/O and
shared; the four clients differ only in their transport. Messages are in a private protobuf pool, so that other clients of the same protocol
can be used in the same process.
"""

from stoker_client.async_client import AsyncClient
from stoker_client.client import Client
from stoker_client.connecting import connect, connect_async
from stoker_client.datatypes import bf16_to_float32, float32_to_bf16
from stoker_client.errors import (
    Cancelled,
    ClientClosed,
    Conflict,
    ConnectionFailed,
    DeadlineExceeded,
    Forbidden,
    ForkedClient,
    InvalidRequest,
    InvalidResponse,
    InvalidSetting,
    NotFound,
    Overloaded,
    ServerError,
    StokerError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from stoker_client.grpc_client import AsyncGrpcClient, GrpcClient
from stoker_client.http_client import AsyncHttpClient, HttpClient
from stoker_client.inference import InferResult, TensorInfo
from stoker_client.retry import AsyncTiming, RetryPolicy, Timing
from stoker_client.settings import TlsConfig
from stoker_client.tensors import TypedArray

__all__ = [
    "AsyncClient",
    "AsyncGrpcClient",
    "AsyncHttpClient",
    "AsyncTiming",
    "Cancelled",
    "Client",
    "ClientClosed",
    "Conflict",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Forbidden",
    "ForkedClient",
    "GrpcClient",
    "HttpClient",
    "InferResult",
    "InvalidRequest",
    "InvalidResponse",
    "InvalidSetting",
    "NotFound",
    "Overloaded",
    "RetryPolicy",
    "ServerError",
    "StokerError",
    "TensorInfo",
    "Timing",
    "TlsConfig",
    "TooLarge",
    "TypedArray",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "bf16_to_float32",
    "connect",
    "connect_async",
    "float32_to_bf16",
]
