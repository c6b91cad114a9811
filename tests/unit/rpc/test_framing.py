"""Messages cut out of a stream of bytes."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.server.rpc.framing import PREFIX, MessageReader, WireMessage
from stoker.server.rpc.rejection import CallFault
from tests.fakes.traced_memory import traced_memory

MESSAGES = st.lists(st.tuples(st.binary(max_size=9000), st.booleans()), max_size=6)


def wire(*messages: tuple[bytes, bool]) -> bytes:
    return b"".join(PREFIX.pack(flag, len(data)) + data for data, flag in messages)


def contents(messages: list[WireMessage]) -> list[tuple[bytes | memoryview, bool]]:
    return [(message.data, message.is_compressed) for message in messages]


@given(messages=MESSAGES, cuts=st.lists(st.integers(0, 60_000), max_size=20), views=st.booleans())
def test_messages_are_equal_for_reads_of_any_size(messages: list[tuple[bytes, bool]], cuts: list[int], views: bool):
    reader = MessageReader("/a.B/C", 10_000)
    data = wire(*messages)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    found: list[WireMessage] = []
    for start, stop in itertools.pairwise(edges):
        piece = data[start:stop]
        found += reader.feed(memoryview(piece) if views else piece)
    assert contents(found) == [(body, flag) for body, flag in messages]
    assert reader.is_between_messages


def test_single_bytes_are_collected_in_one_buffer():
    reader = MessageReader("/a.B/C", 100_000)
    data = wire((bytes(50_000), False))
    with traced_memory() as memory:
        for at in range(len(data) - 1):
            assert reader.feed(data[at : at + 1]) == []
        assert memory.held_bytes() < 200_000
    assert reader.expected_bytes == 50_000
    assert not reader.is_between_messages
    assert contents(reader.feed(data[-1:])) == [(bytes(50_000), False)]


def test_oversized_message_is_refused_by_its_prefix_alone():
    reader = MessageReader("/a.B/C", 10)
    with pytest.raises(CallFault, match=r"a message of 11 bytes to /a\.B/C exceeds the limit of 10 bytes") as caught:
        reader.feed(PREFIX.pack(0, 11))
    assert caught.value.rejection.code == 8


def test_unknown_flag_is_refused():
    with pytest.raises(CallFault, match="compressed-flag 2"):
        MessageReader("/a.B/C", 10).feed(b"\2\0\0\0\0")


def test_message_of_the_maximum_length_is_not_allocated_in_advance():
    reader = MessageReader("/a.B/C", (1 << 32) - 1)
    with traced_memory() as memory:
        assert reader.feed(PREFIX.pack(0, (1 << 32) - 1) + b"abc") == []
        assert memory.peak_bytes() < 100_000


@pytest.mark.parametrize("views", [False, True])
def test_long_message_is_assembled_while_it_arrives(views: bool):
    data = bytes(range(256)) * (48 * 1024)
    stream = wire((data, True)) + PREFIX.pack(0, 3) + b"end"
    reader = MessageReader("/a.B/C", len(data))
    tracemalloc.start()
    try:
        found: list[WireMessage] = []
        for at in range(0, len(stream), 1 << 20):
            piece = stream[at : at + (1 << 20)]
            found += reader.feed(memoryview(piece) if views else piece)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert contents(found) == [(data, True), (b"end", False)]
    assert type(found[0].data) is bytes
    # The pieces of its beginning stand beside it for a moment, and it is never there twice.
    assert peak_bytes < len(data) + (10 << 20)


def test_message_without_memory_is_refused(monkeypatch: pytest.MonkeyPatch):
    def exhausted(initial: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr("stoker.server.rpc.framing.BytesIO", exhausted)
    reader = MessageReader("/a.B/C", 1 << 30)
    with pytest.raises(CallFault, match="no memory for a message of 33554432 bytes now: try again") as caught:
        reader.feed(PREFIX.pack(0, 32 << 20) + bytes(16 << 20))
    assert caught.value.rejection.code == 8


def test_large_message_is_an_aligned_view_if_possible():
    data = bytes(range(256)) * 400
    reader = MessageReader("/a.B/C", len(data), lambda size: size % 1000)
    stream = wire((data, False), (b"small", False), (data, True))
    found: list[WireMessage] = []
    for at in range(0, len(stream), 10_000):
        found += reader.feed(stream[at : at + 10_000])
    assert contents(found) == [(data, False), (b"small", False), (data, True)]
    assert [type(each.data) for each in found] == [memoryview, bytes, bytes]
    view = found[0].data
    assert isinstance(view, memoryview)
    assert view.readonly
    assert (np.frombuffer(view, np.uint8).ctypes.data + len(data) % 1000) % 64 == 0


def test_rest_of_a_large_message_may_be_read_into_its_buffer():
    data = bytes(range(256)) * 400
    reader = MessageReader("/a.B/C", len(data), lambda size: 0)
    stream = wire((data, False))
    # A promise alone takes no memory.
    assert reader.feed(stream[:105]) == []
    assert (reader.has_buffer, reader.receive_buffer) == (False, None)
    assert reader.feed(stream[105:10_005]) == []
    receive_buffer = reader.receive_buffer
    assert receive_buffer is not None
    assert reader.missing_bytes == len(data) - 10_000 < len(receive_buffer)
    receive_buffer[: reader.missing_bytes] = data[10_000:]
    assert reader.buffer_written(50_000) == []
    assert contents(reader.buffer_written(len(data) - 60_000)) == [(data, False)]
    assert not reader.has_buffer
    assert reader.is_between_messages


@pytest.mark.parametrize(("size", "beginning"), [(65_536, 4096), (1 << 20, 4096), (1 << 21, 1 << 17), (1 << 28, 1 << 23)])
def test_larger_message_gets_its_receive_buffer_after_more_bytes(size: int, beginning: int):
    reader = MessageReader("/a.B/C", size, lambda size: 0)
    reader.feed(PREFIX.pack(0, size) + bytes(beginning - 1))
    assert not reader.has_buffer
    reader.feed(b"x")
    assert reader.has_buffer


def test_message_without_memory_for_its_receive_buffer_is_refused(monkeypatch: pytest.MonkeyPatch):
    def exhausted(shape: int, dtype: type) -> None:
        raise MemoryError

    # Blocks of this size are not kept: each is allocated.
    monkeypatch.setattr(np, "empty", exhausted)
    with pytest.raises(CallFault, match="no memory for a message of 33554432 bytes now: try again"):
        MessageReader("/a.B/C", 1 << 30, lambda size: 0).feed(PREFIX.pack(0, 32 << 20) + bytes(4 << 20))
