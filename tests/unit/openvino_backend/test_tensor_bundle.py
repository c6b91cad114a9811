"""The check of a SavedModel's index of variables."""

import pytest

from stoker.backends.openvino import tensor_bundle
from stoker.backends.openvino.tensor_bundle import DamagedIndex, check_index

MAGIC = 0xDB4775248B80FB57
TRAILER_BYTES = 5


def varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def block_of(values: list[bytes]) -> bytes:
    """A block whose entries have the key `k`, with its trailer."""
    entries = b"".join(b"\x00\x01" + varint(len(value)) + b"k" + value for value in values)
    block = entries + bytes(4) + (1).to_bytes(4, "little")
    crc = tensor_bundle._crc32c(block + b"\x00")
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return block + b"\x00" + masked.to_bytes(4, "little")


def handle(offset: int, size: int) -> bytes:
    return varint(offset) + varint(size)


def index_of(handles: list[tuple[int, int]], blocks: bytes) -> bytes:
    """An index whose index block has the `handles` of `blocks`."""
    metadata = block_of([])
    named = block_of([handle(*each) for each in handles])
    places = handle(len(blocks), len(metadata) - TRAILER_BYTES) + handle(len(blocks) + len(metadata), len(named) - TRAILER_BYTES)
    return blocks + metadata + named + places.ljust(40, b"\x00") + MAGIC.to_bytes(8, "little")


BLOCK = block_of([b"value"])
SIZE_BYTES = len(BLOCK) - TRAILER_BYTES
NESTED = block_of([BLOCK])


def test_index_of_blocks_one_after_the_other_is_accepted() -> None:
    check_index(index_of([(0, SIZE_BYTES), (len(BLOCK), SIZE_BYTES)], BLOCK * 2))


@pytest.mark.parametrize(
    ("blocks", "handles"),
    [
        (BLOCK, [(0, SIZE_BYTES), (0, SIZE_BYTES)]),
        (BLOCK * 2, [(len(BLOCK), SIZE_BYTES), (0, SIZE_BYTES)]),
        (NESTED, [(0, len(NESTED) - TRAILER_BYTES), (NESTED.index(BLOCK), SIZE_BYTES)]),
    ],
    ids=["repeated", "not in order", "overlapping"],
)
def test_block_before_the_end_of_the_previous_one_is_rejected(blocks: bytes, handles: list[tuple[int, int]]) -> None:
    with pytest.raises(DamagedIndex, match=f"the block at byte {handles[1][0]} begins before the end of the previous one"):
        check_index(index_of(handles, blocks))
