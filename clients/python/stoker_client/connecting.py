"""`connect` and `connect_async`: choose the client by the address."""

from typing import Any

from stoker_client.async_client import AsyncClient
from stoker_client.client import Client
from stoker_client.grpc_client import AsyncGrpcClient, GrpcClient
from stoker_client.http_client import AsyncHttpClient, HttpClient
from stoker_client.settings import parse_url


def connect(url: str, **settings: Any) -> Client:
    """A synchronous client for a `grpc://`, `grpcs://`, `http://`, `https://`, `grpc+unix:///path` or `http+unix:///path` address.

    Args:
        url: The server's address.
        settings: The arguments of `GrpcClient` and `HttpClient`, such as `timeout_s`, `retry`, `tls`, `api_key`.

    Raises:
        InvalidSetting: the address or a setting is unusable.
    """
    if parse_url(url).protocol == "grpc":
        return GrpcClient(url, **settings)
    return HttpClient(url, **settings)


def connect_async(url: str, **settings: Any) -> AsyncClient:
    """An asyncio client; arguments as for `connect`. Needs no await: the client connects at the first call."""
    if parse_url(url).protocol == "grpc":
        return AsyncGrpcClient(url, **settings)
    return AsyncHttpClient(url, **settings)
