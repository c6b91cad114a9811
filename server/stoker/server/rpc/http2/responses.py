"""Header blocks of gRPC responses, encoded once where they are constant, and the rejections that the transport makes itself."""

from collections.abc import Iterable
from typing import Final

from stoker.server.net.connection_gate import RESERVED_TEXT
from stoker.server.net.http2.headers import encode_block
from stoker.server.net.http2.limits import H2Limits
from stoker.server.rpc.framing import ACCEPTED, Encoding
from stoker.server.rpc.rejection import Rejection
from stoker.server.rpc.status import DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE, UNIMPLEMENTED
from stoker.server.rpc.wire_metadata import metadata_fields, percent_encoded

_START: Final = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_OK: Final = (b"grpc-status", b"0")
#: Header blocks before the messages, by the encoding of the messages.
HEADERS: dict[Encoding | None, bytes] = {
    None: encode_block(_START),
    **{encoding: encode_block([*_START, (b"grpc-encoding", encoding.wire_name)]) for encoding in Encoding},
}
#: Trailers of a successful call.
TRAILERS_OK: Final = encode_block([_OK])

Metadata = Iterable[tuple[str, str | bytes]]


def ok_trailers(metadata: Metadata) -> bytes:
    """Trailers of a successful call, with metadata."""
    return encode_block([_OK, *metadata_fields(metadata)])


def ok_without_message(metadata: Metadata) -> bytes:
    """The only header block of a successful response without messages."""
    return encode_block([*_START, _OK, *metadata_fields(metadata)])


def rejection_block(rejection: Rejection, metadata: Metadata = (), *, is_first: bool) -> bytes:
    """The last header block of a failed call; `is_first`: no header block was sent before it."""
    fields = [*_START] if is_first else []
    fields += [(b"grpc-status", str(rejection.code).encode()), (b"grpc-message", percent_encoded(rejection.text))]
    if rejection.code == UNIMPLEMENTED:
        # The reason may be an unknown compression: this header names the known ones.
        fields.append((b"grpc-accept-encoding", ACCEPTED))
    return encode_block([*fields, *metadata_fields(metadata), *metadata_fields(rejection.trailers)])


def metadata_too_large(size_bytes: int, count: int, limits: H2Limits) -> bytes:
    """The response to a request whose metadata takes `size_bytes` in `count` fields."""
    text = f"the metadata takes {size_bytes} bytes in {count} fields; {limits.header_list_bytes} bytes in {limits.header_count} are allowed"
    return rejection_block(Rejection(RESOURCE_EXHAUSTED, text), is_first=True)


def plain_block(status: int) -> bytes:
    """The response to a request that is not gRPC's."""
    fields = [(b":status", str(status).encode())]
    if status == 405:  # RFC 9110, section 15.5.6
        fields.append((b"allow", b"POST"))
    return encode_block(fields)


RESERVED_SLOT: Final = Rejection(UNAVAILABLE, RESERVED_TEXT)
TOO_SLOW: Final = Rejection(DEADLINE_EXCEEDED, "the request came too slowly")
TOO_MANY_CALLS: Final = Rejection(RESOURCE_EXHAUSTED, "the server has as many calls in work as it may: try again later")
TOO_MUCH_UNFLUSHED: Final = Rejection(RESOURCE_EXHAUSTED, "too many bytes of responses to this connection are unread: read them first")
ENDING: Final = Rejection(UNAVAILABLE, "the server ends this connection: call again on another one")
SHUTTING_DOWN: Final = Rejection(UNAVAILABLE, "the server is shutting down")
