"""ModelInfer without a transport: serialised request in, message out.

It takes bytes, not a message, because room for them is reserved before they are parsed.
"""

from google.protobuf.message import DecodeError

from backends.api.errors import InvalidRequest, Overloaded, QueueTimeout, ServingError
from server.engine.interface import Engine
from server.frontends.kserve.decoded import DecodedRequest
from server.frontends.kserve.grpc_codec import GrpcCodec
from server.frontends.kserve.validation import with_request_id
from server.frontends.limits import Limits
from server.pb import grpc_service_pb2 as pb


class Inference:
    """Answers infer requests. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        codec = GrpcCodec(engine, limits)
        # Looked up once: these run for every request.
        self._infer = engine.infer
        self._parse = pb.ModelInferRequest.FromString
        self._decode = codec.decode
        self.encode = codec.encode

    async def model_infer(self, data: bytes, deadline_ns: int | None) -> pb.ModelInferResponse:
        """Answers the serialised ModelInferRequest `data`.

        Raises:
            ServingError: see `GrpcCodec.decode` and `Engine.infer`; Overloaded where its bytes do not fit beside those in flight.
        """
        size_bytes = len(data)
        if not self._engine.reserve(size_bytes):
            raise no_room(size_bytes)
        try:
            decoded = self.decode(data, deadline_ns)
            try:
                response = await self._infer(decoded.request)
            except (Overloaded, QueueTimeout) as error:
                raise in_core_words(error, decoded.request.request_id) from None
            return self.encode(response, decoded.classifications)
        finally:
            self._engine.release(size_bytes)

    def decode(self, data: bytes, deadline_ns: int | None) -> DecodedRequest:
        """The request that `data` makes.

        Raises:
            ServingError: as `GrpcCodec.decode`.
        """
        try:
            message = self._parse(data)
        except DecodeError:
            raise InvalidRequest("the request is not a valid ModelInferRequest message") from None
        try:
            return self._decode(message, len(data), deadline_ns)
        except ServingError:
            self._engine.count_refused(message.model_name, None)
            raise


def no_room(size_bytes: int) -> Overloaded:
    """The error for a request whose bytes do not fit beside those in flight."""
    return Overloaded(f"the server holds as many request bytes as it may, no room for {size_bytes} more: try again", retry_after_s=1.0)


def in_core_words(error: ServingError, request_id: str) -> ServingError:
    """`error` from the engine's queue with the request id in front, as Triton's core prints it."""
    return type(error)(with_request_id(error.message, request_id), retry_after_s=error.retry_after_s)
