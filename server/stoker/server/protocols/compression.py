"""Content encodings: request bodies are decompressed under a size limit, responses compressed as the client prefers."""

import zlib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from stoker.backends.api.errors import InvalidRequest, TooLarge, Unsupported
from stoker.server.core.limits import Limits
from stoker.server.core.tasks import run_off_loop
from stoker.server.net.inflation import Fault, InflationError, deflate, inflate

ENCODINGS: Final = ("gzip", "deflate")
_WINDOW: Final = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}

B = TypeVar("B", bound=bytes | memoryview)


class UnsupportedEncoding(Unsupported):
    """The request body has an unsupported encoding; the response names the supported ones."""


async def decompress(body: B, encoding: str, take: Callable[[int], None], limits: Limits, most: int) -> B | bytes:
    """Decompresses `body`. It stops as soon as the output exceeds the limit, which protects from decompression bombs.

    Args:
        body: The body as sent.
        encoding: The value of the Content-Encoding header.
        take: Called with the size of each piece before the next is made; raises to stop.
        limits: A body larger than `decode_inline_bytes` is decompressed in a thread.
        most: Limit of the decompressed size, in bytes.

    Raises:
        UnsupportedEncoding: the encoding is not gzip, deflate or identity, or there are several.
        TooLarge: the output exceeds the limit. InvalidRequest: the body is corrupt, truncated, or followed by other bytes.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOW:
        raise UnsupportedEncoding(f"Content-Encoding '{encoding[:64]}' is not supported; send gzip, deflate or identity")
    try:
        return await inflate(body, _WINDOW[encoding], most, take, limits.decode_inline_bytes)
    except InflationError as error:
        if error.fault is Fault.TOO_LARGE:
            raise TooLarge(f"the body unpacks to more than the limit of {most} bytes") from None
        texts = {
            Fault.INVALID: f"the body is not valid {encoding}: {error}",
            Fault.CUT_SHORT: f"the {encoding} body ends too early",
            Fault.FOLLOWED: f"the {encoding} body is followed by {error.more_bytes} other bytes",
        }
        raise InvalidRequest(texts[error.fault]) from None


def choose_encoding(accepted: str) -> str | None:
    """The supported encoding that an `Accept-Encoding` value prefers; None: no compression."""
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


async def compress(body: Sequence[bytes | memoryview], encoding: str, limits: Limits) -> bytes:
    """Compresses a body given in pieces; a large one in a thread."""
    if sum(map(len, body)) > limits.decode_inline_bytes:
        return await run_off_loop(deflate, body, _WINDOW[encoding])
    return deflate(body, _WINDOW[encoding])


def _quality(options: str) -> float:
    key, _, value = options.strip().partition("=")
    if key.strip() != "q":
        return 1.0
    try:
        return min(max(float(value), 0.0), 1.0)
    except ValueError:
        return 0.0
