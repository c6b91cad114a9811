"""Stub classes equivalent to those that grpcio's generator makes for Adlik's services: an instance has one callable per method."""

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import Message


def stub_class(service: str, methods: Mapping[str, tuple[type[Message], type[Message]]]) -> type[Any]:
    """Returns the stub class of `adlik.serving.<service>`; `methods` are its unary methods with their request and response classes."""

    def __init__(self: Any, channel: grpc.Channel) -> None:  # noqa: N807 - it becomes the class's own
        for name, (request, reply) in methods.items():
            path = f"/adlik.serving.{service}/{name}"
            call = channel.unary_unary(path, request_serializer=request.SerializeToString, response_deserializer=reply.FromString)
            setattr(self, name, call)

    return type(f"{service}Stub", (), {"__init__": __init__, "__doc__": f"The methods of {service}: {', '.join(methods)}."})
