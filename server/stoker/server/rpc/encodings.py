"""Message compression: gzip and deflate. What comes out is bounded while it comes out, a step at a time."""

import enum
from collections.abc import Callable

from stoker.server.net.inflation import Fault, InflationError, deflate, inflate
from stoker.server.rpc.rejection import CallFault, Rejection
from stoker.server.rpc.status import INTERNAL, RESOURCE_EXHAUSTED


class Encoding(enum.Enum):
    """How messages may be compressed; the value is zlib's `wbits` for the format (gRPC's "deflate" is the zlib format, RFC 1950)."""

    GZIP = 31
    DEFLATE = 15

    @property
    def wire_name(self) -> bytes:
        """As in `grpc-encoding`."""
        return self.name.lower().encode()

    def compress(self, data: bytes) -> bytes:
        """`data`, compressed for speed rather than size: it goes over a wire once."""
        return deflate([data], self.value)


async def decompressed(encoding: Encoding, data: bytes, most_bytes: int, take: Callable[[int], None], most_inline_bytes: int) -> bytes:
    """The message that `data` holds, `most_bytes` at most; `take` and `most_inline_bytes` as in `inflate`.

    Raises:
        CallFault: the data is not of its encoding, is cut short, is followed by something, or holds more than it may.
        What `take` raises.
    """
    name = encoding.name.lower()
    try:
        return await inflate(data, encoding.value, most_bytes, take, most_inline_bytes)
    except InflationError as error:
        if error.fault is Fault.TOO_LARGE:
            text = f"a message exceeds the limit of {most_bytes} bytes once decompressed"
            raise CallFault(Rejection(RESOURCE_EXHAUSTED, text)) from None
        texts = {
            Fault.INVALID: f"a message is not valid {name}, which is the call's grpc-encoding",
            Fault.CUT_SHORT: f"a {name} message is cut short",
            Fault.FOLLOWED: f"a {name} message is followed by other bytes",
        }
        raise CallFault(Rejection(INTERNAL, texts[error.fault])) from None


#: By name in `grpc-encoding`; None: messages come as they are.
ENCODINGS: dict[bytes, Encoding | None] = {b"identity": None, **{encoding.wire_name: encoding for encoding in Encoding}}
#: Value of `grpc-accept-encoding`.
ACCEPTED = b",".join(ENCODINGS)
