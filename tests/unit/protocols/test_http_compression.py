import asyncio
import gzip
import zlib

import pytest

from stoker.backends.api.errors import InvalidRequest, Overloaded, TooLarge
from stoker.server.core.limits import Limits
from stoker.server.protocols.compression import UnsupportedEncoding, choose_encoding, compress, decompress

SMALL = Limits(http_body_bytes=1 << 20, decode_inline_bytes=1024)


def unpack(body: bytes, encoding: str, limits: Limits = SMALL) -> tuple[bytes, list[int]]:
    taken: list[int] = []
    return asyncio.run(decompress(body, encoding, taken.append, limits, limits.http_body_bytes)), taken


@pytest.mark.parametrize("size", [0, 10, 1024, 1025, 300_000])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP ", "identity", ""])
def test_compressed_bodies_are_decompressed(encoding: str, size: int):
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    name = encoding.strip().lower()
    packed = gzip.compress(body) if name == "gzip" else zlib.compress(body) if name == "deflate" else body
    unpacked, taken = unpack(packed, encoding)
    assert unpacked == body
    assert sum(taken) == (0 if packed is body else size)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_decompression_bomb_is_stopped_at_the_limit(encoding: str):
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    packed = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(16)) + bomb.flush()
    assert len(packed) < 25_000
    with pytest.raises(TooLarge, match="unpacks to more than the limit of 1048576"):
        unpack(packed, encoding)


def test_full_budget_stops_the_decompression():
    def take(size: int) -> None:
        raise Overloaded("full")

    with pytest.raises(Overloaded):
        asyncio.run(decompress(gzip.compress(bytes(100)), "gzip", take, SMALL, SMALL.http_body_bytes))


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "gzip,deflate", "x" * 1000])
def test_other_and_stacked_encodings_are_unsupported(encoding: str):
    with pytest.raises(UnsupportedEncoding, match="send gzip, deflate or identity"):
        unpack(b"abc", encoding)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (gzip.compress(b"abc", mtime=0)[:-1], "ends too early"),
        (gzip.compress(b"abc", mtime=0) + b"tail", "followed by 4 other bytes"),
        (b"not packed", "not valid gzip"),
        (b"", "ends too early"),
    ],
)
def test_broken_bodies_are_refused(body: bytes, text: str):
    with pytest.raises(InvalidRequest, match=text):
        unpack(body, "gzip")


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("", None),
        ("gzip", "gzip"),
        ("deflate, gzip", "gzip"),
        ("deflate, gzip;q=0.5", "deflate"),
        ("gzip;q=0", None),
        ("*", "gzip"),
        ("*;q=0.5, gzip;q=0", "deflate"),
        ("identity, gzip;q=0.5", None),
        ("identity;q=0.5, gzip;q=0.8", "gzip"),
        ("br", None),
        ("gzip;q=high", None),
    ],
)
def test_clients_weights_choose_the_encoding(accepted: str, chosen: str | None):
    assert choose_encoding(accepted) == chosen


@pytest.mark.parametrize("size", [10, 5000])
def test_responses_are_compressed_as_named(size: int):
    assert gzip.decompress(asyncio.run(compress([bytes(size)], "gzip", SMALL))) == bytes(size)
    assert zlib.decompress(asyncio.run(compress([b"", memoryview(bytes(size))], "deflate", SMALL))) == bytes(size)
