"""Shared memory of a channel: `Outbox` hands out segments to write, `Inbox` maps those of the other process.

Each direction of a channel has `SLOTS` segments, which its sender writes in turn. A segment is a memfd (where the system has none, an
unlinked file in shared memory); its descriptor crosses the channel once, when the segment is new. A message that is larger than every free
segment replaces one by a larger segment. A segment is free again when the receiver has dropped the last view of it.
"""

import contextlib
import fcntl
import mmap
import os
import tempfile
import weakref
from collections import deque
from pathlib import Path
from typing import Final

import numpy as np

Octets = np.ndarray[tuple[int], np.dtype[np.uint8]]

#: Segments of each direction.
SLOTS: Final = 8
#: Segments that a receiver may keep by views; it copies what arrives beyond that, so that the sender never runs out of free segments.
MOST_HELD: Final = 4
#: Size of the smallest segment, bytes. Larger ones are powers of two up to `STEP_BYTES`, then multiples of it.
LEAST_BYTES: Final = 256 << 10
STEP_BYTES: Final = 16 << 20
#: Memory of a segment that stays allocated while the channel is idle, bytes.
KEPT_BYTES: Final = 1 << 20
#: Tensors begin at multiples of this.
ALIGNMENT: Final = 64


def aligned(size_bytes: int) -> int:
    """The first multiple of `ALIGNMENT` from `size_bytes` on."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def new_segment(size_bytes: int) -> int:
    """The descriptor of a new segment of `size_bytes` bytes, zeroed, which no process can shrink.

    Raises:
        OSError: the host has no memory or descriptor for it.
    """
    if not hasattr(os, "memfd_create"):
        return _unlinked_file(size_bytes)
    descriptor = os.memfd_create("stoker-segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size_bytes)
        # A receiver would get SIGBUS if the sender shrank the segment while the receiver reads it.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unlinked_file(size_bytes: int) -> int:
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - POSIX shared memory, not a temporary folder
    with tempfile.TemporaryFile(dir=folder) as file:
        os.ftruncate(file.fileno(), size_bytes)
        return os.dup(file.fileno())


def rounded(size_bytes: int) -> int:
    """The size of the segment that is made for a message of `size_bytes`."""
    if size_bytes <= LEAST_BYTES:
        return LEAST_BYTES
    if size_bytes <= STEP_BYTES:
        return 1 << (size_bytes - 1).bit_length()
    return -(-size_bytes // STEP_BYTES) * STEP_BYTES


class Segment:
    """A segment as its sender sees it."""

    __slots__ = ("_map", "descriptor", "is_used", "size_bytes", "slot")

    def __init__(self, slot: int, size_bytes: int) -> None:
        self.slot = slot
        self.size_bytes = rounded(size_bytes)
        #: Sent with the first message in it, then closed and None.
        self.descriptor: int | None = new_segment(self.size_bytes)
        try:
            self._map = mmap.mmap(self.descriptor, self.size_bytes)
        except BaseException:
            self.close_descriptor()
            raise
        self.is_used = False

    @property
    def memory(self) -> memoryview:
        """The whole segment, writable."""
        return memoryview(self._map)

    def close_descriptor(self) -> None:
        """Closes the descriptor; the memory stays."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def shrink(self) -> None:
        """Returns the memory beyond `KEPT_BYTES` to the system; the segment keeps its size. REQUIRES: it is free."""
        if self.size_bytes > KEPT_BYTES and hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE, KEPT_BYTES, self.size_bytes - KEPT_BYTES)

    def close(self) -> None:
        """Unmaps the segment, unless a view of it is left."""
        self.close_descriptor()
        with contextlib.suppress(BufferError):
            self._map.close()


class Outbox:
    """The segments of one direction, at their sender."""

    def __init__(self) -> None:
        self._segments: list[Segment | None] = [None] * SLOTS

    @property
    def allocated_bytes(self) -> int:
        """Size of all segments."""
        return sum(segment.size_bytes for segment in self._segments if segment is not None)

    def take(self, size_bytes: int) -> "Segment | None":
        """A free segment of at least `size_bytes`, marked as used; None: all are in use.

        Raises:
            OSError: the host has no memory or descriptor for a new one.
        """
        fitting = smallest = None
        unmade = -1
        for slot, segment in enumerate(self._segments):
            if segment is None:
                unmade = slot if unmade < 0 else unmade
            elif not segment.is_used:
                if segment.size_bytes >= size_bytes:
                    if fitting is None or segment.size_bytes < fitting.size_bytes:
                        fitting = segment
                elif smallest is None or segment.size_bytes < smallest.size_bytes:
                    smallest = segment
        if fitting is None:
            slot = smallest.slot if smallest is not None else unmade
            if slot < 0:
                return None
            fitting = Segment(slot, size_bytes)
            if smallest is not None:
                smallest.close()
            self._segments[slot] = fitting
        fitting.is_used = True
        return fitting

    def give_back(self, slot: int) -> bool:
        """Marks the segment of a slot as free, as its receiver says. False: the receiver has no such segment."""
        segment = self._segments[slot] if 0 <= slot < SLOTS else None
        if segment is None or not segment.is_used:
            return False
        segment.is_used = False
        return True

    def shrink(self) -> None:
        """Returns the memory of free, large segments to the system."""
        for segment in self._segments:
            if segment is not None and not segment.is_used:
                segment.shrink()

    def close(self) -> None:
        """Unmaps all segments."""
        for segment in self._segments:
            if segment is not None:
                segment.close()
        self._segments = [None] * SLOTS


class Inbox:
    """The segments of one direction, at their receiver.

    Attributes:
        freed: Slots whose last view was dropped, to be reported to the sender. Views may be dropped in any thread.
    """

    def __init__(self) -> None:
        self.freed: deque[int] = deque()
        self._maps: list[mmap.mmap | None] = [None] * SLOTS
        #: The callbacks of the views in use, by slot.
        self._watches: dict[int, weakref.ref[Octets]] = {}

    @property
    def held(self) -> int:
        """Segments of which views are left."""
        return len(self._watches)

    def map(self, slot: int, descriptor: int) -> None:
        """Maps the new segment of a slot, and closes its descriptor.

        Raises:
            OSError, ValueError: it cannot be mapped.
        """
        try:
            self._maps[slot] = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def view(self, slot: int, size_bytes: int) -> Octets:
        """The first `size_bytes` of a slot's segment: a view that keeps the slot in use, or a copy if too many are in use already.

        Numpy lets every view of the returned array refer to it, so the slot is free when the array and all its views are gone.

        Raises:
            ValueError: there is no such segment, or it is smaller.
        """
        mapped = self._maps[slot] if 0 <= slot < SLOTS else None
        if mapped is None or not 0 < size_bytes <= len(mapped) or slot in self._watches:
            raise ValueError(f"a message of {size_bytes} bytes is not in segment {slot}")
        view: Octets = np.frombuffer(mapped, np.uint8, size_bytes)
        if len(self._watches) >= MOST_HELD:
            copy = view.copy()
            self.freed.append(slot)
            return copy
        self._watches[slot] = weakref.ref(view, lambda _: self._drop(slot))
        return view

    def close(self) -> None:
        """Forgets all segments; views stay valid."""
        self._maps = [None] * SLOTS

    def _drop(self, slot: int) -> None:
        # In this order: the sender may use the slot again as soon as it is in `freed`.
        self._watches.pop(slot, None)
        self.freed.append(slot)
