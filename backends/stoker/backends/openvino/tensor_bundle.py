"""Checks the index of a SavedModel's variables before OpenVINO reads it: its reader crashes the process on some damaged files (2026.4).

The index is a sorted table as LevelDB writes it, and as TensorFlow's `tensorflow/core/lib/io/table_builder.cc` and `format.cc` do:

blocks              each followed by 1 byte, the compression, and 4 bytes, the masked CRC-32C of the block and that byte
  entries           varints: shared bytes of the key, further bytes of the key, bytes of the value; then those bytes
  restarts          4 bytes each, and 4 bytes: how many there are
footer              48 bytes: varint offset and size of the block of metadata and of the index block, zeros, and 8 bytes, the magic number

The values of the index block are offsets and sizes of the other blocks.
"""

import struct
from collections.abc import Iterator

_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_MAGIC = 0xDB4775248B80FB57
#: Of CRC-32C (Castagnoli), bits reversed.
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_VARINT_BITS = 64
#: Bytes of an index that is checked: some 100 bytes are written for each variable, and models have some thousands.
MAX_INDEX_BYTES = 16 << 20


class DamagedIndex(Exception):
    """The index is damaged; the text says where."""


def check_index(content: bytes) -> None:
    """Checks the structure and every checksum of the index `content`, which has at most `MAX_INDEX_BYTES`.

    Raises:
        DamagedIndex: it is no index, cut off, or changed.
    """
    if len(content) < _FOOTER_BYTES or int.from_bytes(content[-8:], "little") != _MAGIC:
        raise DamagedIndex("its end is not that of an index of variables")
    footer = content[-_FOOTER_BYTES:]
    at = 0
    handles: list[tuple[int, int]] = []
    for _ in range(2):
        offset, at = _varint(footer, at)
        size, at = _varint(footer, at)
        handles.append((offset, size))
    _block(content, *handles[0])
    unread = 0
    for value in _values(_block(content, *handles[1])):
        offset, at = _varint(value, 0)
        size, at = _varint(value, at)
        # They are written in this order; so the checks read each byte once, however many blocks are named.
        if offset < unread:
            raise DamagedIndex(f"the block at byte {offset} begins before the end of the previous one, byte {unread}")
        unread = offset + size + _TRAILER_BYTES
        for _ in _values(_block(content, offset, size)):
            pass  # its entries are inside it


def _block(content: bytes, offset: int, size: int) -> bytes:
    """The block at `offset`, whose checksum is right."""
    end = offset + size
    if end + _TRAILER_BYTES > len(content) - _FOOTER_BYTES:
        raise DamagedIndex(f"a block of {size} bytes at byte {offset} is beyond its end")
    masked = (int.from_bytes(content[end + 1 : end + _TRAILER_BYTES], "little") - _MASK_DELTA) & 0xFFFFFFFF
    if _crc32c(content[offset : end + 1]) != (masked >> 17 | masked << 15) & 0xFFFFFFFF:
        raise DamagedIndex(f"the checksum of the block at byte {offset} is wrong")
    if content[end] != 0:
        raise DamagedIndex(f"the block at byte {offset} is compressed; TensorFlow compresses no variables")
    return content[offset:end]


def _values(block: bytes) -> Iterator[bytes]:
    if len(block) < 4:
        raise DamagedIndex("a block has no list of restarts")
    end = len(block) - 4 - 4 * struct.unpack("<I", block[-4:])[0]
    at = 0
    while at < end:
        _, at = _varint(block, at)
        key, at = _varint(block, at)
        size, at = _varint(block, at)
        at += key + size
        if at > end:
            break
        yield block[at - size : at]
    if at != end:
        raise DamagedIndex("an entry is beyond the end of its block")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, seven bits a byte, and where it ends."""
    value = 0
    for shift in range(0, _VARINT_BITS, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise DamagedIndex("a number has no end")


def _table() -> tuple[int, ...]:
    made = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        made.append(value)
    return tuple(made)


_CRC_TABLE = _table()


def _crc32c(data: bytes) -> int:
    table = _CRC_TABLE
    value = 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF
