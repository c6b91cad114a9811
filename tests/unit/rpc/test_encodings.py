"""Compression of messages."""

import asyncio
import gzip
import zlib

import pytest

from stoker.server.rpc.framing import Encoding, decompressed
from stoker.server.rpc.rejection import CallFault


def decompress(encoding: Encoding, data: bytes, most_bytes: int = 1 << 24) -> bytes:
    taken: list[int] = []
    message = asyncio.run(decompressed(encoding, data, most_bytes, taken.append, 1024))
    assert sum(taken) == len(message)
    assert max(taken) <= 1 << 20
    return message


@pytest.mark.parametrize("size", [0, 1, 100, 70_000, 5_000_000])
@pytest.mark.parametrize("encoding", list(Encoding))
def test_compressed_messages_decompress_to_the_original(encoding: Encoding, size: int):
    data = bytes(index * 7 % 251 for index in range(min(size, 5000))) * max(1, size // 5000)
    assert decompress(encoding, encoding.compress(data)) == data


def test_formats_are_readable_by_other_programs():
    assert gzip.decompress(Encoding.GZIP.compress(b"abc")) == b"abc"
    assert zlib.decompress(Encoding.DEFLATE.compress(b"abc")) == b"abc"
    assert (Encoding.GZIP.wire_name, Encoding.DEFLATE.wire_name) == (b"gzip", b"deflate")


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda data: data[:-5], "cut short"),
        (lambda data: b"", "cut short"),
        (lambda data: data + b"more", "followed by other bytes"),
        (lambda data: data + bytes(200_000), "followed by other bytes"),
        (lambda data: b"never gzip", "not valid gzip"),
        (lambda data: data[:-8] + bytes(8), "not valid gzip"),
    ],
)
def test_damaged_data_is_named(damage, text):
    with pytest.raises(CallFault, match=text) as caught:
        decompress(Encoding.GZIP, damage(gzip.compress(bytes(1000))))
    assert caught.value.rejection.code == 13


def test_decompression_bomb_is_stopped_during_decompression():
    bomb = gzip.compress(bytes(32 << 20), 9)
    assert len(bomb) < 50_000
    taken: list[int] = []
    with pytest.raises(CallFault, match="exceeds the limit of 3145728 bytes once decompressed") as caught:
        asyncio.run(decompressed(Encoding.GZIP, bomb, 3 << 20, taken.append, 1024))
    assert caught.value.rejection.code == 8
    assert taken == [1 << 20] * 3


def test_message_of_exactly_the_limit_passes():
    assert len(decompress(Encoding.DEFLATE, zlib.compress(bytes(1000)), 1000)) == 1000
    with pytest.raises(CallFault):
        decompress(Encoding.DEFLATE, zlib.compress(bytes(1001)), 1000)
