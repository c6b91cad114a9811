"""Segments of shared memory: slots, growth, seals, views that keep a slot in use, and descriptors."""

import fcntl
import mmap
import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.worker import segments
from stoker.backends.worker.segments import KEPT_BYTES, LEAST_BYTES, MOST_HELD, SLOTS, STEP_BYTES, Inbox, Outbox, Segment, rounded
from tests.fakes.process_facts import descriptors

needs_memfd = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no memfd")


def send(outbox: Outbox, inbox: Inbox, content: bytes) -> "segments.Octets":
    """Passes `content` through the next free segment, and returns the receiver's view of it."""
    segment = outbox.take(len(content))
    assert segment is not None
    if segment.descriptor is not None:
        inbox.map(segment.slot, os.dup(segment.descriptor))
        segment.close_descriptor()
    segment.memory[: len(content)] = content
    return inbox.view(segment.slot, len(content))


@given(st.integers(1, 1 << 40))
def test_rounded_size_holds_the_message_and_grows_in_bounded_steps(size_bytes):
    size = rounded(size_bytes)
    assert size >= max(size_bytes, LEAST_BYTES)
    assert size < 2 * size_bytes or size == LEAST_BYTES
    assert size - size_bytes < STEP_BYTES or size == LEAST_BYTES
    assert rounded(size) == size


@needs_memfd
def test_segment_cannot_be_shrunk_or_grown():
    segment = Segment(0, 1)
    try:
        assert segment.descriptor is not None
        for size_bytes in (0, LEAST_BYTES // 2, 2 * LEAST_BYTES):
            with pytest.raises(PermissionError):
                os.ftruncate(segment.descriptor, size_bytes)
        with pytest.raises(PermissionError):
            fcntl.fcntl(segment.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        segment.close()


def test_segment_is_a_file_without_a_name_where_the_system_has_no_memfd(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    outbox, inbox = Outbox(), Inbox()
    segment = outbox.take(1)
    assert segment is not None
    assert segment.descriptor is not None
    assert os.fstat(segment.descriptor).st_nlink == 0
    assert outbox.give_back(segment.slot)
    view = send(outbox, inbox, b"shared")
    assert bytes(view) == b"shared"
    outbox.close()


def test_first_message_gets_a_segment_and_a_freed_one_is_used_again():
    outbox, inbox = Outbox(), Inbox()
    view = send(outbox, inbox, b"a" * 1000)
    assert outbox.allocated_bytes == LEAST_BYTES
    del view
    assert list(inbox.freed) == [0]
    assert outbox.give_back(inbox.freed.popleft())
    view = send(outbox, inbox, b"b" * 1000)
    assert bytes(view) == b"b" * 1000
    assert outbox.allocated_bytes == LEAST_BYTES
    outbox.close()


def test_larger_message_replaces_the_smallest_free_segment():
    outbox, inbox = Outbox(), Inbox()
    small = send(outbox, inbox, b"a")
    del small
    assert outbox.give_back(inbox.freed.popleft())
    large = send(outbox, inbox, bytes(LEAST_BYTES + 1))
    assert large.size == LEAST_BYTES + 1
    assert outbox.allocated_bytes == 2 * LEAST_BYTES
    outbox.close()


def test_segment_in_use_is_never_replaced_or_written():
    outbox, inbox = Outbox(), Inbox()
    kept = [send(outbox, inbox, bytes([number]) * 100) for number in range(MOST_HELD)]
    taken = {segment.slot for segment in iter(lambda: outbox.take(LEAST_BYTES * 2), None)}
    assert taken == set(range(SLOTS)) - set(range(MOST_HELD))
    assert outbox.take(1) is None
    assert [bytes(view) for view in kept] == [bytes([number]) * 100 for number in range(MOST_HELD)]
    outbox.close()


def test_free_segment_that_fits_best_is_taken():
    outbox = Outbox()
    sizes = [LEAST_BYTES * 4, LEAST_BYTES, LEAST_BYTES * 2]
    for size_bytes in sizes:
        assert outbox.take(size_bytes) is not None
    for slot in range(3):
        outbox.give_back(slot)
    best = outbox.take(LEAST_BYTES + 1)
    assert best is not None
    assert best.size_bytes == LEAST_BYTES * 2
    outbox.close()


@pytest.mark.parametrize("slot", [-1, SLOTS, 255, 3])
def test_freed_slot_that_is_not_in_use_is_rejected(slot):
    outbox = Outbox()
    assert outbox.take(1) is not None
    assert not outbox.give_back(slot)
    assert outbox.give_back(0)
    assert not outbox.give_back(0)
    outbox.close()


def test_views_beyond_the_bound_are_copies_and_free_their_slot_at_once():
    outbox, inbox = Outbox(), Inbox()
    kept = [send(outbox, inbox, bytes([number]) * 100) for number in range(SLOTS)]
    assert inbox.held == MOST_HELD
    assert list(inbox.freed) == list(range(MOST_HELD, SLOTS))
    for slot in inbox.freed:
        assert outbox.give_back(slot)
    again = [outbox.take(100) for _ in range(SLOTS - MOST_HELD)]
    for segment in again:
        assert segment is not None
        segment.memory[:100] = b"\xff" * 100
    assert [bytes(view) for view in kept] == [bytes([number]) * 100 for number in range(SLOTS)]
    outbox.close()


def test_slot_stays_in_use_as_long_as_any_view_is_left():
    outbox, inbox = Outbox(), Inbox()
    whole = send(outbox, inbox, np.arange(64, dtype=np.float32).tobytes())
    row = whole.view(np.float32).reshape(8, 8)[3]
    memory = memoryview(row)
    del whole
    assert list(inbox.freed) == []
    del row
    assert list(inbox.freed) == []
    memory.release()
    del memory
    assert list(inbox.freed) == [0]
    outbox.close()


def test_view_dropped_in_another_thread_is_reported():
    outbox, inbox = Outbox(), Inbox()
    views = [send(outbox, inbox, b"x")]
    thread = threading.Thread(target=views.clear)
    thread.start()
    thread.join()
    assert list(inbox.freed) == [0]
    assert inbox.held == 0
    outbox.close()


@pytest.mark.parametrize(("slot", "size_bytes"), [(0, 0), (0, LEAST_BYTES + 1), (1, 1), (-1, 1), (SLOTS, 1), (254, 1)])
def test_view_beyond_a_segment_is_rejected(slot, size_bytes):
    outbox, inbox = Outbox(), Inbox()
    view = send(outbox, inbox, b"x")
    del view
    with pytest.raises(ValueError, match="is not in segment"):
        inbox.view(slot, size_bytes)
    outbox.close()


def test_second_message_in_a_slot_in_use_is_rejected():
    outbox, inbox = Outbox(), Inbox()
    view = send(outbox, inbox, b"x")
    with pytest.raises(ValueError, match="is not in segment 0"):
        inbox.view(0, 1)
    assert bytes(view) == b"x"
    outbox.close()


@pytest.mark.parametrize("kind", ["pipe", "empty file", "folder"])
def test_descriptor_that_is_no_memory_is_rejected_and_closed(kind, tmp_path):
    inbox = Inbox()
    before = descriptors()
    if kind == "pipe":
        descriptor, other = os.pipe()
        os.close(other)
    elif kind == "folder":
        descriptor = os.open(tmp_path, os.O_RDONLY)
    else:
        descriptor = os.open(tmp_path / "empty", os.O_RDWR | os.O_CREAT)
    with pytest.raises((OSError, ValueError)):
        inbox.map(0, descriptor)
    assert descriptors() == before


def test_closed_ends_leave_no_descriptor_and_views_stay_valid():
    before = descriptors()
    outbox, inbox = Outbox(), Inbox()
    views = [send(outbox, inbox, bytes([number]) * 100) for number in range(SLOTS)]
    outbox.close()
    inbox.close()
    assert [bytes(view) for view in views] == [bytes([number]) * 100 for number in range(SLOTS)]
    views.clear()
    assert descriptors() == before


def test_failed_map_of_a_new_segment_leaves_no_descriptor(monkeypatch):
    def no_memory(*arguments: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    before = descriptors()
    monkeypatch.setattr(mmap, "mmap", no_memory)
    outbox = Outbox()
    with pytest.raises(OSError, match="allocate"):
        outbox.take(1)
    assert descriptors() == before
    monkeypatch.undo()
    assert outbox.take(1) is not None
    outbox.close()


@needs_memfd
def test_shrink_returns_the_memory_of_free_segments_only():
    outbox, inbox = Outbox(), Inbox()
    size_bytes = 4 * KEPT_BYTES
    in_use = send(outbox, inbox, b"\x01" * size_bytes)
    free = send(outbox, inbox, b"\x02" * size_bytes)
    slot = 1
    assert bytes(free[-1:]) == b"\x02"
    del free
    assert outbox.give_back(slot)
    inbox.freed.clear()
    outbox.shrink()
    assert bytes(in_use[-1:]) == b"\x01"
    again = inbox.view(slot, size_bytes)
    assert bytes(again[-1:]) == b"\x00"
    assert bytes(again[:1]) == b"\x02"
    outbox.close()


@given(st.lists(st.tuples(st.sampled_from(["send", "drop", "report"]), st.integers(0, SLOTS), st.integers(1, 3 * LEAST_BYTES))))
def test_no_message_is_ever_overwritten_while_a_view_of_it_is_left(steps):
    outbox, inbox = Outbox(), Inbox()
    kept: list[tuple[bytes, segments.Octets]] = []
    for number, (step, which, size_bytes) in enumerate(steps):
        if step == "send":
            segment = outbox.take(size_bytes)
            if segment is None:
                # Only unreported slots and those that the receiver may keep are in use.
                assert inbox.held + len(inbox.freed) == SLOTS
                continue
            segment.is_used = False
            mark = number.to_bytes(4, "little")
            kept.append((mark, send(outbox, inbox, (mark * (size_bytes // 4 + 1))[:size_bytes])))
        elif step == "drop" and kept:
            kept.pop(which % len(kept))
        elif step == "report":
            while inbox.freed:
                assert outbox.give_back(inbox.freed.popleft())
        for mark, view in kept:
            assert bytes(view[:4]) == mark[: view.size]
            assert bytes(view[-1:]) == mark[(view.size - 1) % 4 :][:1]
    assert inbox.held <= MOST_HELD
    outbox.close()
