"""Channels: messages inline and in segments, back-pressure, closing, and datagrams that are no messages."""

import array
import contextlib
import itertools
import json
import os
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.worker.channel import DATAGRAM_BYTES, INLINE_BYTES, META_BYTES, Channel, ChannelClosed, ChannelError, Message
from stoker.backends.worker.segments import LEAST_BYTES, MOST_HELD, SLOTS
from tests.fakes.process_facts import descriptors
from tests.unit.worker.damage import damaged


class Ends:
    """Both ends of a channel."""

    def __init__(self) -> None:
        self.server, end = Channel.pair()
        self.worker = Channel(end)
        self.server.set_timeout(0)
        self.worker.set_timeout(0)

    def pass_on(self, content: bytes, meta: object = None, kind: int = 4, number: int = 1, index: int = 2) -> Message:
        """Sends `content` from the server to the worker, and receives it there."""
        text = b"" if meta is None else json.dumps(meta).encode()
        self.server.send(kind, number, index, text, len(content), lambda memory: memory.__setitem__(slice(None), content))
        return self.worker.receive()

    def report(self) -> None:
        """Lets the worker report the free segments."""
        self.worker.send(14)
        self.server.receive()

    def close(self) -> None:
        self.server.close()
        self.worker.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.close()


@pytest.mark.parametrize("size_bytes", [0, 1, INLINE_BYTES - 200, INLINE_BYTES, INLINE_BYTES + 1, LEAST_BYTES, 3 * LEAST_BYTES + 5])
@pytest.mark.parametrize("meta", [None, {"n": ["a"]}, {"text": "x" * (INLINE_BYTES + 100)}, {"text": "x" * 200_000}])
def test_message_arrives_as_it_was_sent(ends, size_bytes, meta):
    content = os.urandom(size_bytes)
    message = ends.pass_on(content, meta, kind=7, number=0xFFFFFFFF, index=3)
    assert (message.kind, message.number, message.index) == (7, 0xFFFFFFFF, 3)
    assert message.meta == meta
    assert message.payload.tobytes() == content


def test_messages_arrive_in_the_order_in_which_they_were_sent(ends):
    for number in range(5):
        ends.server.send(4, number, meta=b"{}", size_bytes=20_000 * (number % 2), write=lambda memory: None)
    assert [ends.worker.receive().number for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(BlockingIOError):
        ends.worker.receive()


def test_description_that_is_too_large_is_rejected_before_a_segment_is_made(ends):
    with pytest.raises(ValueError, match="the description of a message takes"):
        ends.server.send(4, meta=b" " * (META_BYTES + 1))
    assert ends.server.allocated_bytes == 0


def test_writer_that_raises_leaves_its_segment_free(ends):
    def fail(memory: memoryview) -> None:
        raise MemoryError

    for _ in range(2 * SLOTS):
        with pytest.raises(MemoryError):
            ends.server.send(4, size_bytes=INLINE_BYTES + 1, write=fail)
    assert ends.pass_on(b"x" * 10_000).payload.tobytes() == b"x" * 10_000
    assert ends.server.allocated_bytes == LEAST_BYTES


def test_sender_reuses_a_segment_once_the_receiver_has_reported_it(ends):
    for _ in range(3 * SLOTS):
        message = ends.pass_on(b"x" * 10_000)
        del message
        ends.report()
    assert ends.server.allocated_bytes == LEAST_BYTES


def test_sender_without_a_free_segment_does_not_wait_on_an_event_loop(ends):
    for _ in range(SLOTS):
        ends.server.send(4, size_bytes=10_000, write=lambda memory: None)
    with pytest.raises(BlockingIOError):
        ends.server.send(4, size_bytes=10_000, write=lambda memory: None)
    ends.server.send(4, 77)  # small messages need none
    assert [ends.worker.receive().number for _ in range(SLOTS + 1)][-1] == 77


def test_receiver_that_keeps_every_message_never_starves_the_sender(ends):
    kept = []
    for number in range(5 * SLOTS):
        kept.append(ends.pass_on(bytes([number]) * 10_000))
        if ends.worker.unreported > 1:
            ends.report()
    assert [message.payload[0] for message in kept] == list(range(5 * SLOTS))
    assert [message.payload[-1] for message in kept] == list(range(5 * SLOTS))
    assert ends.server.allocated_bytes <= SLOTS * LEAST_BYTES


def test_sender_in_a_thread_waits_for_a_free_segment(ends):
    for _ in range(SLOTS):
        ends.server.send(4, size_bytes=10_000, write=lambda memory: None)
    sent = threading.Event()

    def send() -> None:
        ends.server.send(4, 9, size_bytes=10_000, write=lambda memory: None, segment_timeout_s=30.0)
        sent.set()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert not sent.is_set()
        messages = [ends.worker.receive() for _ in range(SLOTS)]
        assert sum(message.payload.size for message in messages) == SLOTS * 10_000
        messages.clear()
        ends.report()
    finally:
        thread.join(10)
    assert sent.is_set()
    assert ends.worker.receive().number == 9


def test_sender_that_waits_gets_closed_when_the_channel_closes(ends):
    for _ in range(SLOTS):
        ends.server.send(4, size_bytes=10_000, write=lambda memory: None)
    raised: list[BaseException] = []
    waits = threading.Event()

    def send() -> None:
        waits.set()
        try:
            ends.server.send(4, size_bytes=10_000, write=lambda memory: None, segment_timeout_s=30.0)
        except ChannelError as error:
            raised.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    waits.wait()
    ends.server.close()
    thread.join(10)
    assert [type(error) for error in raised] == [ChannelClosed]


def test_wait_for_a_segment_ends_after_its_timeout(ends):
    for _ in range(SLOTS):
        ends.server.send(4, size_bytes=10_000, write=lambda memory: None)
    with pytest.raises(TimeoutError):
        ends.server.send(4, size_bytes=10_000, write=lambda memory: None, segment_timeout_s=0.001)


def fill(channel: Channel) -> int:
    """Sends messages until the socket is full; returns their number."""
    for sent in itertools.count():
        try:
            channel.send(8)
        except BlockingIOError:
            return sent
    raise AssertionError


def test_full_socket_keeps_the_report_of_free_segments(ends):
    sent = fill(ends.worker)
    messages = [ends.pass_on(b"x" * 10_000) for _ in range(2)]
    messages.clear()
    with pytest.raises(BlockingIOError):
        ends.worker.send(8)
    assert ends.worker.unreported == 2
    for _ in range(sent):
        ends.server.receive()
    ends.report()
    assert ends.worker.unreported == 0
    for _ in range(3):
        ends.server.send(4, size_bytes=10_000, write=lambda memory: None)
    assert ends.server.allocated_bytes == 3 * LEAST_BYTES


def test_end_of_a_closed_channel_gets_closed(ends):
    ends.server.close()
    with pytest.raises(ChannelClosed):
        ends.worker.receive()
    with pytest.raises(ChannelClosed):
        ends.worker.send(4)


def test_message_that_was_sent_before_the_end_still_arrives(ends):
    ends.server.send(4, 5, size_bytes=10_000, write=lambda memory: memory.__setitem__(slice(None), b"y" * 10_000))
    ends.server.close()
    assert ends.worker.receive().payload.tobytes() == b"y" * 10_000
    with pytest.raises(ChannelClosed):
        ends.worker.receive()


def test_message_that_was_sent_before_the_end_arrives_although_the_sender_has_read_nothing(ends):
    ends.worker.send(4, 1)
    ends.server.send(4, 5)
    ends.server.send(4, 6)
    ends.server.close()
    assert [ends.worker.receive().number for _ in range(2)] == [5, 6]
    with pytest.raises(ChannelClosed):
        ends.worker.receive()


def test_closed_channels_leave_no_descriptor():
    before = descriptors()
    both = Ends()
    kept = []
    for size_bytes in (1, 10_000, LEAST_BYTES + 1, 5 * LEAST_BYTES):
        message = both.pass_on(b"z" * size_bytes)
        kept.append(message.payload[-1:])
        del message
        both.report()
    both.server.send(4, size_bytes=10_000, write=lambda memory: None)  # with the descriptor of a new segment, never received
    both.close()
    assert [bytes(view) for view in kept] == [b"z"] * 4
    kept.clear()
    assert descriptors() == before


# -- damaged datagrams


def raw(both: Ends, datagram: bytes, rights: "list[int] | None" = None) -> Message:
    """Sends `datagram` to the server's end as the worker's process would, and receives it."""
    ancillary = [] if rights is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", rights))]
    with socket.socket(fileno=os.dup(both.worker.descriptor)) as peer:
        peer.sendmsg([datagram], ancillary)
    return both.server.receive()


@pytest.mark.parametrize("length", [1, 8, 55])
def test_short_datagram_is_rejected(ends, length):
    with pytest.raises(ChannelError, match="no message"):
        raw(ends, b"\x00" * length)


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[" * 50_000, b"9" * 5_000])
def test_description_that_is_no_json_raises_when_it_is_read(ends, text):
    message = raw(ends, datagram(meta=text))
    with pytest.raises((ValueError, RecursionError)):
        assert message.meta


def test_datagram_that_is_too_long_is_rejected(ends):
    with pytest.raises(ChannelError, match="no message"):
        raw(ends, b"\x00" * (DATAGRAM_BYTES + 1))


def test_several_descriptors_are_rejected_and_closed(ends):
    before = descriptors()
    pipes = os.pipe()
    for count in (2, 8):
        with pytest.raises(ChannelError, match="no message"):
            raw(ends, datagram(), rights=[pipes[0]] * count)
    for end in pipes:
        os.close(end)
    assert descriptors() == before


@pytest.mark.parametrize("slot", [0, SLOTS, 254, 255])
def test_descriptor_of_no_memory_is_rejected_and_closed(ends, slot):
    before = descriptors()
    read, write = os.pipe()
    with pytest.raises(ChannelError, match="cannot be mapped"):
        raw(ends, datagram(slot=slot), rights=[read])
    os.close(read)
    os.close(write)
    assert descriptors() == before


def datagram(
    *, kind: int = 6, slot: int = 255, freed: "tuple[int, ...]" = (), inside: int = 0, meta: bytes = b"", tensors: bytes = b""
) -> bytes:
    """A datagram in the form of the channel, written by hand."""
    fields = [kind, slot, len(freed), inside]
    header = bytes(fields) + (1).to_bytes(4, "little") + (0).to_bytes(4, "little") + len(meta).to_bytes(4, "little")
    return header + len(tensors).to_bytes(8, "little") + bytes(24) + bytes(freed).ljust(8, b"\x00") + meta + tensors


def test_datagram_written_by_hand_is_a_message(ends):
    message = raw(ends, datagram(meta=b'{"a":1}', tensors=b"xyz"))
    assert (message.meta, message.payload.tobytes()) == ({"a": 1}, b"xyz")


@pytest.mark.parametrize(
    "wrong",
    [
        datagram(freed=(0,)),
        datagram(freed=(200,)),
        datagram(slot=0, tensors=b"x" * 10),
        datagram(slot=254),
        datagram()[:-1],
        datagram() + b"x",
        datagram(slot=3, inside=1),
        datagram()[:2] + b"\xff" + datagram()[3:],
    ],
    ids=lambda wrong: wrong[:8].hex(),
)
def test_damaged_datagram_is_rejected(ends, wrong):
    with pytest.raises(ChannelError):
        raw(ends, wrong)


@given(st.data())
def test_mutated_datagram_is_an_error_or_a_message_within_its_memory(data):
    both = Ends()
    try:
        seen = both.pass_on(b"t" * 10_000)  # a segment that is in use
        other = both.worker
        other.send(6, 1, 0, b'{"n":["a"]}', 10_000, lambda memory: None)
        both.server.receive()  # a segment that is free again
        original = data.draw(
            st.sampled_from(
                [
                    datagram(meta=b'{"b":[["<f4",[2],0,8]]}', tensors=b"12345678"),
                    datagram(slot=0, meta=b'{"n":["a"]}')[:16] + (10_000).to_bytes(8, "little") + bytes(32) + b'{"n":["a"]}',
                    datagram(slot=0, inside=1)[:12] + (11).to_bytes(4, "little") + (100).to_bytes(8, "little") + bytes(32),
                    datagram(freed=(0,)),
                ]
            )
        )
        changed = data.draw(damaged(original))
        if not changed:
            return
        try:
            message = raw(both, changed)
        except ChannelError:
            return
        # Reading every byte of a view out of bounds would end this process.
        assert int(message.payload.astype(np.int64).sum()) >= 0
        assert message.payload.size <= max(LEAST_BYTES, DATAGRAM_BYTES)
        assert seen.payload.tobytes() == b"t" * 10_000
    finally:
        both.close()


def test_views_that_a_receiver_keeps_are_bounded(ends):
    kept = [ends.pass_on(b"x" * 10_000) for _ in range(SLOTS)]
    assert len(kept) == SLOTS
    assert ends.worker.unreported == SLOTS - MOST_HELD


def test_reserved_segment_carries_the_message_that_fits_it(ends):
    segment = ends.worker.reserve(10_000)
    segment.memory[:10_000] = b"r" * 10_000
    ends.worker.send(6, size_bytes=10_000, write=lambda memory: None, reserved=segment)
    assert segment.is_used
    assert ends.server.receive().payload.tobytes() == b"r" * 10_000
    assert ends.worker.allocated_bytes == LEAST_BYTES


@pytest.mark.parametrize("size_bytes", [0, 100, LEAST_BYTES + 1])
@pytest.mark.parametrize("meta", [b"", b"{}" + b" " * INLINE_BYTES, b" " * (META_BYTES + 1)], ids=["none", "inside", "too large"])
def test_reserved_segment_is_free_after_any_other_message(ends, size_bytes, meta):
    if 0 < size_bytes < LEAST_BYTES and 0 < len(meta) <= META_BYTES:
        size_bytes = LEAST_BYTES - INLINE_BYTES  # of these, only both together are too large
    segment = ends.worker.reserve(10_000)
    fits = size_bytes == 0 and INLINE_BYTES < len(meta) <= META_BYTES
    with contextlib.suppress(ValueError):
        ends.worker.send(6, meta=meta, size_bytes=size_bytes, write=lambda memory: None, reserved=segment)
        assert ends.server.receive().payload.size == size_bytes
    assert segment.is_used == fits


def test_reserved_segment_of_a_writer_that_raises_is_free(ends):
    def fail(memory: memoryview) -> None:
        raise MemoryError

    segment = ends.worker.reserve(10_000)
    with pytest.raises(MemoryError):
        ends.worker.send(6, size_bytes=10_000, write=fail, reserved=segment)
    assert not segment.is_used


def test_no_segment_is_reserved_where_all_are_in_use(ends):
    reserved = [ends.worker.reserve(10_000) for _ in range(SLOTS)]
    assert ends.worker.reserve(10_000) is None
    ends.worker.send(6, reserved=reserved[3])
    assert ends.worker.reserve(10_000) is reserved[3]
