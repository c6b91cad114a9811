"""Content encodings: request bodies are unpacked under a cap, responses packed as the client prefers."""

import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from stoker.backends.api.errors import InvalidRequest, TooLarge, Unsupported
from stoker.server.core.limits import Limits
from stoker.server.core.tasks import run_off_loop
from stoker.server.net.inflation import Fault, InflationError, deflate, inflate

ENCODINGS = ("gzip", "deflate")
_WINDOW = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}

B = TypeVar("B", bound=bytes | memoryview)


class UnsupportedEncoding(Unsupported):
    """A request body in an encoding that is not read here; the response names those that are."""


async def decompress(body: B, encoding: str, take: Callable[[int], None], limits: Limits, most: int) -> B | bytes:
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


async def compress(body: Sequence[bytes | memoryview], encoding: str, limits: Limits) -> bytes:
    """A body, in pieces, packed; a large one in a thread."""
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
