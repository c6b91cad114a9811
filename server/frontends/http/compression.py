"""Content encodings: request bodies are unpacked under a cap, responses packed as the client prefers."""

import asyncio
import zlib
from collections.abc import Callable

from backends.api.errors import InvalidRequest, TooLarge, Unsupported
from server.frontends.limits import Limits

ENCODINGS = ("gzip", "deflate")
_WINDOW = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_STEP_BYTES = 4 << 20
#: Level 1: a served answer is worth little time.
_LEVEL = 1


class UnsupportedEncoding(Unsupported):
    """A request body in an encoding that is not read here; the answer names those that are."""


async def decompress(body: bytes, encoding: str, take: Callable[[int], None], limits: Limits, most: int) -> bytes:
    """`body` unpacked; it stops as soon as the output exceeds the cap, so that a bomb is never unfolded.

    Args:
        body: As it came.
        encoding: The header's value.
        take: Called with the size of each piece before the next is made; raises to stop.
        limits: What is larger than `decode_inline_bytes` is unpacked in a thread.
        most: Caps the output.

    Raises:
        UnsupportedEncoding: neither gzip, deflate nor identity, or several at once.
        TooLarge: the output exceeds the cap. InvalidRequest: corrupt, truncated, or followed by something else.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOW:
        raise UnsupportedEncoding(f"Content-Encoding '{encoding[:64]}' is not supported; send gzip, deflate or identity")
    unpacker = zlib.decompressobj(_WINDOW[encoding])
    pieces: list[bytes] = []
    size, rest = 0, body
    try:
        while not unpacker.eof:
            # The first piece tells whether there is more than the loop should do itself.
            if pieces or len(body) > limits.decode_inline_bytes:
                piece = await asyncio.to_thread(unpacker.decompress, rest, _STEP_BYTES)
            else:
                piece = unpacker.decompress(rest, limits.decode_inline_bytes)
            rest = unpacker.unconsumed_tail
            size += len(piece)
            if size > most:
                raise TooLarge(f"the body unpacks to more than the limit of {most} bytes")
            if not piece and not rest and not unpacker.eof:
                raise InvalidRequest(f"the {encoding} body ends too early")
            take(len(piece))
            pieces.append(piece)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not valid {encoding}: {error}") from None
    if unpacker.unused_data:
        raise InvalidRequest(f"the {encoding} body is followed by {len(unpacker.unused_data)} other bytes")
    return b"".join(pieces)


def choose_encoding(accepted: str) -> str | None:
    """The encoding an `Accept-Encoding` value prefers among ours; None: send it as it is."""
    weights: dict[str, float] = {}
    for part in accepted.lower().split(","):
        name, _, options = part.partition(";")
        weights[name.strip()] = _quality(options)
    best: str | None = None
    for encoding in ENCODINGS:
        quality = weights.get(encoding, weights.get("*", 0.0))
        if quality > 0 and (best is None or quality > weights.get(best, weights.get("*", 0.0))):
            best = encoding
    if best is not None and weights.get("identity", 0.0) > weights.get(best, weights.get("*", 0.0)):
        return None
    return best


async def compress(body: bytes, encoding: str, limits: Limits) -> bytes:
    """`body` packed; a large one in a thread."""
    if len(body) > limits.decode_inline_bytes:
        return await asyncio.to_thread(_pack, body, encoding)
    return _pack(body, encoding)


def _pack(body: bytes, encoding: str) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW[encoding])
    return packer.compress(body) + packer.flush()


def _quality(options: str) -> float:
    key, _, value = options.strip().partition("=")
    if key.strip() != "q":
        return 1.0
    try:
        return min(max(float(value), 0.0), 1.0)
    except ValueError:
        return 0.0
