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

from stoker.backends.worker.segments import Inbox, Octets, Outbox, Segment

#: Messages of up to this size, JSON and tensors, travel in their datagram.
INLINE_BYTES: Final = 8 << 10
#: Largest datagram, below the default of Linux's `net.core.wmem_default`.
DATAGRAM_BYTES: Final = 64 << 10
#: Largest JSON object of a message.
META_BYTES: Final = 16 << 20
#: Tensors begin at multiples of this.
ALIGNMENT: Final = 64

#: Kind, slot (`NO_SLOT`: inline), count of freed slots, whether the JSON stands in the segment too, number, index, bytes of JSON, bytes of
#: tensors, freed slots.
_HEADER: Final = struct.Struct("<BBBBIIIQ8B")
NO_SLOT: Final = 255
_NO_FREED: Final = bytes(8)
#: A header that holds descriptors of segments: one each message.
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(array.array("i").itemsize)


class ChannelError(Exception):
    """The other process sent bytes that are no message."""


class ChannelClosed(ChannelError):
    """The other process has closed the channel: it has ended."""


class Message:
    """A received message.

    Attributes:
        kind: What it means; see `protocol.py`.
        number: The batch, stream or call that it belongs to.
        index: A second number, by kind.
        meta: The JSON object.
        payload: The tensors' bytes.
    """

    __slots__ = ("index", "kind", "meta", "number", "payload")

    def __init__(self, kind: int, number: int, index: int, meta: Any, payload: Octets) -> None:
        self.kind = kind
        self.number = number
        self.index = index
        self.meta = meta
        self.payload = payload


class Channel:
    """One end of a channel. `send` may be called in any thread, `receive` in one."""

    def __init__(self, end: socket.socket) -> None:
        """Takes over `end`, a SOCK_SEQPACKET socket."""
        self._socket = end
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._buffer = bytearray(DATAGRAM_BYTES)
        self._view = memoryview(self._buffer)
        self._lock = threading.Lock()
        #: Notified when the other process has freed segments.
        self._freed = threading.Condition(self._lock)
        self._is_closed = False
        #: JSON objects by their text: those of batches repeat.
        self._parsed: dict[bytes, Any] = {}

    @staticmethod
    def pair() -> "tuple[Channel, socket.socket]":
        """A channel, and the other end's socket for the child process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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

        Raises:
            ChannelClosed: the other process has ended. BlockingIOError, TimeoutError: the socket or all segments are full.
            OSError: the host has no shared memory for the message. ValueError: `meta` is too large.
        """
        meta_bytes = len(meta)
        if meta_bytes > META_BYTES:
            raise ValueError(f"the description of a message takes {meta_bytes} bytes; at most {META_BYTES}")
        if meta_bytes + size_bytes <= INLINE_BYTES:
            payload = bytearray(size_bytes)
            if write is not None and size_bytes:
                write(memoryview(payload))
            self._send_datagram(kind, NO_SLOT, 0, number, index, meta_bytes, size_bytes, (meta, payload), None)
            return
        is_meta_inside = meta_bytes > INLINE_BYTES
        at = -(-size_bytes // ALIGNMENT) * ALIGNMENT
        segment = self._segment(at + meta_bytes if is_meta_inside else size_bytes, segment_timeout_s)
        try:
            memory = segment.memory
            try:
                if write is not None and size_bytes:
                    write(memory[:size_bytes])
                if is_meta_inside:
                    memory[at : at + meta_bytes] = meta
            finally:
                memory.release()
            parts = () if is_meta_inside else (meta,)
            self._send_datagram(kind, segment.slot, int(is_meta_inside), number, index, meta_bytes, size_bytes, parts, segment)
        except BaseException:
            segment.is_used = False
            raise

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
            count, ancillary, flags, _ = self._socket.recvmsg_into([self._buffer], _ANCILLARY_BYTES)
        except (ConnectionError, ValueError) as error:
            raise ChannelClosed("the channel is closed") from error
        descriptors = array.array("i")
        for level, kind_of, data in ancillary:
            if level == socket.SOL_SOCKET and kind_of == socket.SCM_RIGHTS:
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        if not count:
            raise ChannelClosed("the channel is closed")
        if count < _HEADER.size or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(descriptors) > 1:
            _close_all(descriptors)
            raise ChannelError(f"a datagram of {count} bytes is no message")
        kind, slot, freed_count, is_meta_inside, number, index, meta_bytes, size_bytes, *freed = _HEADER.unpack_from(self._buffer)
        try:
            if descriptors:
                self._inbox.map(slot, descriptors[0])
        except (OSError, ValueError, IndexError) as error:
            raise ChannelError(f"segment {slot} cannot be mapped: {error}") from error
        if freed_count:
            self._take_freed(freed[:freed_count])
        try:
            return Message(kind, number, index, *self._contents(slot, count, bool(is_meta_inside), meta_bytes, size_bytes))
        except (ValueError, RecursionError) as error:
            raise ChannelError(f"a message is damaged: {error}") from error

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

    def _contents(self, slot: int, count: int, is_meta_inside: bool, meta_bytes: int, size_bytes: int) -> "tuple[Any, Octets]":
        at = _HEADER.size
        if slot == NO_SLOT:
            if at + meta_bytes + size_bytes != count:
                raise ValueError("its size is wrong")
            text = bytes(self._view[at : at + meta_bytes])
            # A copy: the buffer takes the next message.
            return self._meta(text), np.frombuffer(bytearray(self._view[at + meta_bytes : count]), np.uint8)
        if is_meta_inside:
            start = -(-size_bytes // ALIGNMENT) * ALIGNMENT
            if meta_bytes > META_BYTES:
                raise ValueError("its description is too large")
            whole = self._inbox.view(slot, start + meta_bytes)
            return json.loads(whole[start:].tobytes()), whole[:size_bytes]
        if at + meta_bytes != count:
            raise ValueError("its size is wrong")
        return self._meta(bytes(self._view[at:count])), self._inbox.view(slot, size_bytes)

    def _meta(self, text: bytes) -> Any:
        if not text:
            return None
        known = self._parsed.get(text)
        if known is None:
            known = json.loads(text)
            if len(text) <= 1024:
                if len(self._parsed) >= 256:
                    self._parsed.clear()
                self._parsed[text] = known
        return known

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
                    raise BlockingIOError("all segments are in use")
                if not self._freed.wait(timeout_s):
                    raise TimeoutError("all segments are in use")

    def _take_freed(self, slots: Sequence[int]) -> None:
        with self._freed:
            for slot in slots:
                if not self._outbox.give_back(slot):
                    raise ChannelError(f"segment {slot} is freed, but not in use")
            self._freed.notify_all()

    def _send_datagram(
        self,
        kind: int,
        slot: int,
        is_meta_inside: int,
        number: int,
        index: int,
        meta_bytes: int,
        size_bytes: int,
        parts: Sequence[Any],
        segment: "Segment | None",
    ) -> None:
        freed: list[int] = []
        with self._lock:
            if self._is_closed:
                raise ChannelClosed("the channel is closed")
            waiting = self._inbox.freed
            while waiting and len(freed) < len(_NO_FREED):
                freed.append(waiting.popleft())
            header = _HEADER.pack(
                kind, slot, len(freed), is_meta_inside, number, index, meta_bytes, size_bytes, *freed, *_NO_FREED[len(freed) :]
            )
            try:
                if segment is None or segment.descriptor is None:
                    self._socket.sendmsg((header, *parts))
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
