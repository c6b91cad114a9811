"""`Channel`: messages between the server and a worker process, over a socket and shared memory.

A message has a kind, a number, a small JSON object, and tensors. A message of up to `INLINE_BYTES` travels in its datagram; the tensors of
a larger one stand in a segment of shared memory (`segments.py`), and the datagram names it. Nothing is pickled. Every field of a received
message is checked before it is used, so that a process with corrupted memory cannot damage the other one.
"""

import array
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.worker.segments import Inbox, Octets, Outbox, Segment, aligned

#: Messages of up to this size, JSON and tensors, travel in their datagram.
INLINE_BYTES: Final = 8 << 10
#: Largest datagram, below the default of Linux's `net.core.wmem_default`.
DATAGRAM_BYTES: Final = 64 << 10
#: Largest JSON object of a message.
META_BYTES: Final = 16 << 20

#: Kind, slot (`NO_SLOT`: inline), count of freed slots, whether the JSON stands in the segment too, number, index, bytes of JSON, bytes of
#: tensors, three times in nanoseconds, freed slots.
_HEADER: Final = struct.Struct("<BBBBIIIQQQQ8s")
_HEADER_BYTES: Final = _HEADER.size
NO_SLOT: Final = 255
NO_TIMES: Final = (0, 0, 0)
#: Freed slots that one message reports.
_MOST_FREED: Final = 8
#: A header that holds descriptors of segments: one each message.
_TRUNCATED: Final = socket.MSG_TRUNC | socket.MSG_CTRUNC
_NOTHING: Final[Octets] = np.zeros(0, np.uint8)
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(array.array("i").itemsize)


class ChannelError(Exception):
    """The other process sent bytes that are no message."""


class ChannelClosed(ChannelError):
    """The other process has closed the channel: it has ended."""


class SegmentsFull(BlockingIOError):
    """All segments are in use: the other process must free one first."""


class Message:
    """A received message.

    Attributes:
        kind: What it means; see `protocol.py`.
        number: The batch, stream or call that it belongs to.
        index: A second number, by kind.
        times_ns: Three times, by kind, nanoseconds.
        text: The JSON object, as sent; empty: none.
        payload: The tensors' bytes.
    """

    __slots__ = ("index", "kind", "number", "payload", "text", "times_ns")

    def __init__(self, kind: int, number: int, index: int, times_ns: tuple[int, int, int], text: bytes, payload: Octets) -> None:
        self.kind = kind
        self.number = number
        self.index = index
        self.times_ns = times_ns
        self.text = text
        self.payload = payload

    @property
    def meta(self) -> Any:
        """The JSON object; None: none.

        Raises:
            ValueError, RecursionError: it is none.
        """
        return json.loads(self.text) if self.text else None


class Channel:
    """One end of a channel. `send` may be called in any thread, `receive` in one."""

    def __init__(self, end: socket.socket) -> None:
        """Takes over `end`, a SOCK_SEQPACKET socket."""
        self._socket = end
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._buffer = bytearray(DATAGRAM_BYTES)
        self._buffers = [self._buffer]
        self._receive = end.recvmsg_into
        self._lock = threading.Lock()
        #: Notified when the other process has freed segments.
        self._freed = threading.Condition(self._lock)
        self._is_closed = False

    @staticmethod
    def pair() -> "tuple[Channel, socket.socket]":
        """A channel, and the other end's socket for the child process.

        Raises:
            ModelLoadError: the system has no such sockets, or no descriptor for one.
        """
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise ModelLoadError(f"this system gives no socket for a worker process: {error.strerror}") from error
        return Channel(ours), theirs

    @property
    def descriptor(self) -> int:
        """The socket's file descriptor, for an event loop."""
        return self._socket.fileno()

    @property
    def allocated_bytes(self) -> int:
        """Shared memory that this end has allocated."""
        return self._outbox.allocated_bytes

    def set_timeout(self, timeout_s: "float | None") -> None:
        """How long `receive` and `send` wait, seconds; None: without bound; 0: not at all."""
        self._socket.settimeout(timeout_s)

    def send(
        self,
        kind: int,
        number: int = 0,
        index: int = 0,
        meta: bytes = b"",
        size_bytes: int = 0,
        write: Callable[[memoryview], None] | None = None,
        segment_timeout_s: float | None = None,
        *,
        reserved: Segment | None = None,
        payload: bytes | bytearray = b"",
        times_ns: tuple[int, int, int] = NO_TIMES,
    ) -> None:
        """Sends a message. Waits for a free segment if all are in use.

        Args:
            kind: See `protocol.py`.
            number: The batch, stream or call.
            index: A second number.
            meta: A JSON object; empty: none.
            size_bytes: Bytes of the tensors.
            write: Writes the tensors into the memory that it is given, which has `size_bytes` bytes.
            segment_timeout_s: How long to wait for a free segment, seconds; None: as `set_timeout` says.
            reserved: The segment that `reserve` gave: used if the message needs one and fits it, or else freed.
            payload: The tensors, `size_bytes` bytes, in stead of `write`, for messages of up to `INLINE_BYTES`.
            times_ns: Three times, nanoseconds.

        Raises:
            ChannelClosed: the other process has ended. SegmentsFull, TimeoutError: all segments are in use. BlockingIOError, TimeoutError:
                the socket is full.
            OSError: the host has no shared memory for the message. ValueError: `meta` is too large.
        """
        meta_bytes = len(meta)
        unsent = [] if reserved is None else [reserved]
        try:
            if meta_bytes > META_BYTES:
                raise ValueError(f"the description of a message takes {meta_bytes} bytes; at most {META_BYTES}")
            if meta_bytes + size_bytes <= INLINE_BYTES:
                if write is not None and size_bytes:
                    written = bytearray(size_bytes)
                    write(memoryview(written))
                    payload = written
                self._send_datagram((kind, NO_SLOT, 0, number, index, meta_bytes, size_bytes, *times_ns), (meta, payload), None)
                return
            if write is None and size_bytes:
                content = payload

                def write(memory: memoryview) -> None:
                    memory[:] = content

            is_meta_inside = meta_bytes > INLINE_BYTES
            at = aligned(size_bytes)
            needed_bytes = at + meta_bytes if is_meta_inside else size_bytes
            if reserved is not None and reserved.size_bytes >= needed_bytes:
                segment = reserved
            else:
                segment = self._segment(needed_bytes, segment_timeout_s)
                unsent.append(segment)
            memory = segment.memory
            try:
                if write is not None and size_bytes:
                    write(memory[:size_bytes])
                if is_meta_inside:
                    memory[at : at + meta_bytes] = meta
            finally:
                memory.release()
            parts = () if is_meta_inside else (meta,)
            numbers = (kind, segment.slot, int(is_meta_inside), number, index, meta_bytes, size_bytes, *times_ns)
            self._send_datagram(numbers, parts, segment)
            unsent.remove(segment)
        finally:
            if unsent:
                self._free(unsent)

    def reserve(self, size_bytes: int) -> Segment | None:
        """A free segment of at least `size_bytes` bytes, to be written before `send` gets it; None: all are in use.

        Raises:
            OSError: the host has no shared memory for it.
        """
        with self._lock:
            return None if self._is_closed else self._outbox.take(size_bytes)

    @property
    def unreported(self) -> int:
        """Segments that are free, which the other process will learn with the next message."""
        return len(self._inbox.freed)

    def receive(self) -> Message:
        """The next message. Its tensors' memory is kept as long as a view of it is left.

        Raises:
            ChannelClosed: the other process has ended. ChannelError: what it sent is no message.
            BlockingIOError, TimeoutError: there is none now.
        """
        try:
            try:
                count, ancillary, flags, _ = self._receive(self._buffers, _ANCILLARY_BYTES)
            except ConnectionResetError:
                # The other process has ended without reading everything. The kernel says so once, before the messages that it has sent.
                count, ancillary, flags, _ = self._receive(self._buffers, _ANCILLARY_BYTES)
        except (ConnectionError, ValueError) as error:
            raise ChannelClosed("the channel is closed") from error
        if ancillary or flags & _TRUNCATED or count < _HEADER_BYTES:
            self._take_descriptors(count, ancillary, flags)
        (
            kind, slot, freed_count, is_meta_inside, number, index, meta_bytes, size_bytes, first_ns, second_ns, third_ns, freed
        ) = _HEADER.unpack_from(self._buffer)  # fmt: skip
        if freed_count:
            self._take_freed(freed[:freed_count])
        at = _HEADER_BYTES
        if slot == NO_SLOT:
            end = at + meta_bytes
            if end + size_bytes != count:
                raise ChannelError("the size of a message is wrong")
            described = self._buffer[at:end]
            payload = np.frombuffer(self._buffer[end:count], np.uint8) if size_bytes else _NOTHING
            return Message(kind, number, index, (first_ns, second_ns, third_ns), bytes(described), payload)
        try:
            text, payload = self._contents(slot, count, bool(is_meta_inside), meta_bytes, size_bytes)
        except ValueError as error:
            raise ChannelError(f"a message is damaged: {error}") from error
        return Message(kind, number, index, (first_ns, second_ns, third_ns), text, payload)

    def _take_descriptors(self, count: int, ancillary: "Sequence[tuple[int, int, bytes]]", flags: int) -> None:
        """Maps the segment that a datagram of `count` bytes brings.

        Raises:
            ChannelClosed, ChannelError: as `receive`.
        """
        descriptors = array.array("i")
        for level, kind_of, data in ancillary:
            if level == socket.SOL_SOCKET and kind_of == socket.SCM_RIGHTS:
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        if not count:
            _close_all(descriptors)
            raise ChannelClosed("the channel is closed")
        if count < _HEADER_BYTES or flags & _TRUNCATED or len(descriptors) > 1:
            _close_all(descriptors)
            raise ChannelError(f"a datagram of {count} bytes is no message")
        if descriptors:
            slot = self._buffer[1]
            try:
                self._inbox.map(slot, descriptors[0])
            except (OSError, ValueError, IndexError) as error:
                raise ChannelError(f"segment {slot} cannot be mapped: {error}") from error

    def shrink(self) -> None:
        """Returns the memory of free, large segments to the system."""
        with self._lock:
            self._outbox.shrink()

    def close(self) -> None:
        """Closes the socket and unmaps the own segments; threads in `send` get ChannelClosed. Views that were received stay valid."""
        with self._lock:
            self._is_closed = True
            self._freed.notify_all()
            self._socket.close()
            self._outbox.close()
            self._inbox.close()

    def _contents(self, slot: int, count: int, is_meta_inside: bool, meta_bytes: int, size_bytes: int) -> tuple[bytes, Octets]:
        if is_meta_inside:
            start = aligned(size_bytes)
            if meta_bytes > META_BYTES:
                raise ValueError("its description is too large")
            whole = self._inbox.view(slot, start + meta_bytes)
            return whole[start:].tobytes(), whole[:size_bytes]
        if _HEADER_BYTES + meta_bytes != count:
            raise ValueError("its size is wrong")
        return bytes(self._buffer[_HEADER_BYTES:count]), self._inbox.view(slot, size_bytes)

    def _segment(self, size_bytes: int, timeout_s: float | None) -> Segment:
        with self._freed:
            while True:
                if self._is_closed:
                    raise ChannelClosed("the channel is closed")
                segment = self._outbox.take(size_bytes)
                if segment is not None:
                    return segment
                timeout_s = self._socket.gettimeout() if timeout_s is None else timeout_s
                if timeout_s == 0:
                    raise SegmentsFull("all segments are in use")
                if not self._freed.wait(timeout_s):
                    raise TimeoutError("all segments are in use")

    def _free(self, segments: Sequence[Segment]) -> None:
        """Frees segments that were not sent."""
        with self._freed:
            for segment in segments:
                segment.is_used = False
            self._freed.notify_all()

    def _take_freed(self, slots: bytes) -> None:
        with self._freed:
            for slot in slots:
                if not self._outbox.give_back(slot):
                    raise ChannelError(f"segment {slot} is freed, but not in use")
            self._freed.notify_all()

    def _send_datagram(self, numbers: tuple[int, ...], parts: Sequence[Any], segment: Segment | None) -> None:
        """Sends a header with the freed slots, and `parts`, and the descriptor of a new segment."""
        kind, slot, is_meta_inside, *others = numbers
        freed = b""
        with self._lock:
            if self._is_closed:
                raise ChannelClosed("the channel is closed")
            waiting = self._inbox.freed
            if waiting:
                freed = bytes([waiting.popleft() for _ in range(min(len(waiting), _MOST_FREED))])
            header = _HEADER.pack(kind, slot, len(freed), is_meta_inside, *others, freed)
            try:
                if segment is None or segment.descriptor is None:
                    self._socket.send(b"".join((header, *parts)))
                else:
                    rights = array.array("i", [segment.descriptor])
                    self._socket.sendmsg((header, *parts), [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                    segment.close_descriptor()
            except ConnectionError as error:
                raise ChannelClosed("the channel is closed") from error
            except BaseException:
                waiting.extendleft(reversed(freed))
                raise


def _close_all(descriptors: "array.array[int]") -> None:
    for descriptor in descriptors:
        os.close(descriptor)
