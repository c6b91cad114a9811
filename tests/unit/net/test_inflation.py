"""Unpacking of compressed requests: in bounded steps, beside the event loop, into one block."""

import asyncio
import gzip
import random
import threading
import tracemalloc
import zlib

import pytest

from stoker.server.net.inflation import STEP_OUT_BYTES, Fault, Inflation, InflationError, deflate, inflate, joined

GZIP, ZLIB = 31, 15
MIB = 1 << 20


def nothing(size: int) -> None:
    pass


def test_each_step_reads_and_writes_a_bounded_size():
    noise = random.Random(1).randbytes(3 * MIB)
    work = Inflation(zlib.compress(noise + bytes(20 * MIB)), ZLIB, 64 * MIB)
    sizes = []
    while not work.is_done:
        sizes.append(work.step())
    assert max(sizes) <= STEP_OUT_BYTES
    # Of what does not compress, a step makes no more than it reads.
    assert max(sizes[:20]) <= 70_000
    assert work.result() == noise + bytes(20 * MIB)


def test_decompressed_message_is_in_memory_once():
    """Parts that are joined at their end would be held twice, and be copied in one go."""
    packed = zlib.compress(bytes(64 * MIB))
    tracemalloc.start()
    try:
        work = Inflation(packed, ZLIB, 64 * MIB)
        while not work.is_done:
            work.step()
        assert len(work.result()) == 64 * MIB
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 80 * MIB


def test_large_messages_are_decompressed_in_threads():
    threads: set[str] = set()

    async def scenario() -> bytes:
        loop_thread = threading.get_ident()
        original = Inflation.step

        def step(self: Inflation, most_out_bytes: int = STEP_OUT_BYTES) -> int:
            threads.add("loop" if threading.get_ident() == loop_thread else "other")
            return original(self, most_out_bytes)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Inflation, "step", step)
            return await inflate(gzip.compress(bytes(8 * MIB)), GZIP, 16 * MIB, nothing, 1024)

    assert asyncio.run(scenario()) == bytes(8 * MIB)
    assert threads == {"other"}


def test_small_message_of_large_content_uses_a_thread_after_its_first_step():
    sizes: list[int] = []
    packed = gzip.compress(bytes(MIB), 9)
    assert len(packed) < 4096
    asyncio.run(inflate(packed, GZIP, 16 * MIB, sizes.append, 4096))
    assert sizes[0] == 4096
    assert sum(sizes) == MIB


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_memoryviews_are_decompressed_without_a_copy(kind: type):
    assert asyncio.run(inflate(kind(gzip.compress(b"x" * 100_000)), GZIP, MIB, nothing, 10)) == b"x" * 100_000


def test_bytes_behind_the_end_are_counted():
    with pytest.raises(InflationError) as caught:
        asyncio.run(inflate(gzip.compress(b"abc") + bytes(200_000), GZIP, MIB, nothing, 10))
    assert (caught.value.fault, caught.value.more_bytes) == (Fault.FOLLOWED, 200_000)


@pytest.mark.parametrize("size", [0, 1, STEP_OUT_BYTES, 3 * STEP_OUT_BYTES + 5])
def test_compressed_bytes_decompress_to_the_original(size: int):
    data = random.Random(size).randbytes(size)
    assert gzip.decompress(deflate([data[:7], memoryview(data)[7:]], GZIP)) == data


@pytest.mark.parametrize(("most_inline_bytes", "expected"), [(5, "other"), (6, "loop")])
def test_large_pieces_are_joined_in_a_thread(most_inline_bytes: int, expected: str):
    async def scenario() -> tuple[bytes, str]:
        used: list[str] = []
        loop = asyncio.get_running_loop()
        original = loop.run_in_executor

        def watched(*arguments: object) -> object:
            used.append("other")
            return original(*arguments)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "run_in_executor", watched)
            return await joined([b"abc", b"def"], most_inline_bytes), (used or ["loop"])[0]

    assert asyncio.run(scenario()) == (b"abcdef", expected)
