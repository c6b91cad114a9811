"""`ByteBudget`: the bytes that all requests hold together; `Reservation`: the part that one request holds; `WireWalk`: its price.

A protobuf message is an amplifier: two bytes are an empty message that takes sixty. The server computes from the wire what the fields of
a message will take in memory, before it parses any of it.
"""

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Protocol

import numpy as np

from stoker.backends.api.errors import InvalidRequest, Overloaded, TooLarge
from stoker.backends.api.wire import WireReader

#: Of the budget, this part is kept for small requests.
SMALL_SLICE: Final = 1 / 16
#: A request is small as long as it holds no more; in a small budget a thousandth of that.
SMALL_BYTES: Final = 64 * 1024
_SMALL_PART: Final = 1024
#: After a look at the uploads has found nothing to end, rejections are given without another one for so long.
_LOOK_PERIOD_NS: Final = 50_000_000
_WARN_PERIOD_NS: Final = 10_000_000_000
_log = logging.getLogger("stoker.engine")


class Upload(Protocol):
    """A request that is still being received, or a response that is still being read: its client decides how long its bytes are held."""

    def held_bytes(self) -> int:
        """The bytes that it holds of the budget."""

    def rate(self) -> float | None:
        """Bytes per second in the last seconds; None: it is too young to tell."""

    def evict(self) -> None:
        """Ends it with an error that the client may retry. What it holds is released before this returns."""


class ByteBudget:
    """Confined to: the event loop.

    A small request may use the whole budget, a large one all but `SMALL_SLICE`. One large request passes alone whatever its size; else it
    could never be served. Where a request does not fit, uploads that are slower than it are ended, the slowest first, if that suffices.

    Attributes:
        most_bytes: The budget.
        most_request_bytes: What one request may hold; one that wants more can never be served.
        small_bytes: What a small request may hold.
        evicted: Uploads that were ended.
    """

    def __init__(self, most_bytes: int, now_ns: Callable[[], int], *, most_request_bytes: int = 1 << 62) -> None:
        """`now_ns` is a monotonic clock."""
        self.most_bytes = most_bytes
        self.most_request_bytes = most_request_bytes
        self.small_bytes = min(SMALL_BYTES, most_bytes // _SMALL_PART)
        self.evicted = 0
        self._slice_bytes = int(most_bytes * SMALL_SLICE) if self.small_bytes else 0
        self._now_ns = now_ns
        self._small_held = 0
        self._large_held = 0
        self._uploads: set[Upload] = set()
        self._look_again_ns: int | None = None
        self._warned_ns: int | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes that all requests hold together."""
        return self._small_held + self._large_held

    @property
    def share_bytes(self) -> int:
        """The bytes that the large requests of one connection may hold together."""
        return self.most_bytes // 2

    def reserve(self, size_bytes: int, held_bytes: int = 0, requester: Upload | None = None) -> bool:
        """Takes `size_bytes` for a request that holds `held_bytes` already; False: they do not fit, and nothing is taken.

        `requester` is that request if it is an upload; uploads faster than it are left alone.
        """
        if held_bytes + size_bytes <= self.small_bytes:
            small = self._small_held + size_bytes
            if small <= self._slice_bytes or small + self._large_held <= self.most_bytes:
                self._small_held = small
                return True
        elif self._take_large(size_bytes, held_bytes):
            return True
        if not self._evict_for(self._missing_bytes(size_bytes, held_bytes), requester):
            return False
        if held_bytes + size_bytes <= self.small_bytes:
            self._small_held += size_bytes
            return True
        return self._take_large(size_bytes, held_bytes)

    def release(self, size_bytes: int, held_bytes: int | None = None) -> None:
        """Gives back `size_bytes` of a request that holds `held_bytes` (None: no more than these)."""
        held_bytes = size_bytes if held_bytes is None else held_bytes
        if held_bytes <= self.small_bytes:
            self._small_held -= size_bytes
        else:
            self._move(held_bytes, held_bytes - size_bytes)

    def watch(self, upload: Upload) -> None:
        """`upload` may be evicted from now on."""
        self._uploads.add(upload)

    def unwatch(self, upload: Upload) -> None:
        """No longer."""
        self._uploads.discard(upload)

    def _take_large(self, size_bytes: int, held_bytes: int) -> bool:
        is_alone = self._large_held == (held_bytes if held_bytes > self.small_bytes else 0)
        if not is_alone and self._missing_bytes(size_bytes, held_bytes) > 0:
            return False
        self._move(held_bytes, held_bytes + size_bytes)
        return True

    def _missing_bytes(self, size_bytes: int, held_bytes: int) -> int:
        """By how much the request would exceed what it may use."""
        whole_bytes = self.held_bytes + size_bytes
        if held_bytes + size_bytes > self.small_bytes:
            small = self._small_held - (held_bytes if held_bytes <= self.small_bytes else 0)
            whole_bytes += max(0, self._slice_bytes - small)
        return whole_bytes - self.most_bytes

    def _move(self, before_bytes: int, after_bytes: int) -> None:
        """A request that held `before_bytes` holds `after_bytes`."""
        if before_bytes <= self.small_bytes:
            self._small_held -= before_bytes
        else:
            self._large_held -= before_bytes
        if after_bytes <= self.small_bytes:
            self._small_held += after_bytes
        else:
            self._large_held += after_bytes

    def _evict_for(self, missing_bytes: int, requester: Upload | None) -> bool:
        """Ends the slowest uploads that together hold `missing_bytes`; False, and none is ended, where there are none."""
        now_ns = self._now_ns()
        if self._look_again_ns is not None and now_ns < self._look_again_ns:
            return False
        most = None if requester is None else requester.rate()
        rates = ((upload.rate(), upload) for upload in self._uploads if upload is not requester and upload.held_bytes() > self.small_bytes)
        slower = [(rate, upload) for rate, upload in rates if rate is not None and (most is None or rate < most)]
        slower.sort(key=lambda each: each[0])
        victims: list[Upload] = []
        for _, upload in slower:
            victims.append(upload)
            missing_bytes -= upload.held_bytes()
            if missing_bytes <= 0:
                break
        if missing_bytes > 0:
            self._look_again_ns = now_ns + _LOOK_PERIOD_NS
            return False
        for upload in victims:
            self._uploads.discard(upload)
            upload.evict()
        self.evicted += len(victims)
        if self._warned_ns is None or now_ns - self._warned_ns >= _WARN_PERIOD_NS:
            self._warned_ns = now_ns
            _log.warning("the budget of bytes in flight is full: the slowest uploads are ended", extra={"evicted": self.evicted})
        return True


#: The error for an upload that was ended because the budget is full and it is the slowest.
EVICTED = "the server holds as many request bytes as it may, and this request was the slowest to arrive: try again"


class ConnectionShare:
    """The bytes that the large requests of one connection hold together. Confined to: the event loop.

    Several may hold half of the budget; a single one may hold more, while it is the only large one of its connection. Small requests do not
    count: those of other users of a proxy share the connection, and their number is bounded.

    Attributes:
        held_bytes: What the large requests hold.
    """

    __slots__ = ("_most_bytes", "_small_bytes", "held_bytes")

    def __init__(self, budget: ByteBudget) -> None:
        self._most_bytes = budget.share_bytes
        self._small_bytes = budget.small_bytes
        self.held_bytes = 0

    def take(self, size_bytes: int, held_bytes: int) -> None:
        """Takes `size_bytes` for a request that holds `held_bytes` already.

        Raises:
            Overloaded: other requests of the connection hold too much.
        """
        own_bytes = self.counted(held_bytes)
        whole_bytes = self.held_bytes - own_bytes + self.counted(held_bytes + size_bytes)
        if whole_bytes > self._most_bytes and whole_bytes > self.held_bytes > own_bytes:
            raise Overloaded(
                f"the requests of this connection hold {self.held_bytes} bytes, no room for {size_bytes} more: one connection may hold "
                f"{self._most_bytes}; try again, or use more connections",
                retry_after_s=1.0,
            )
        self.held_bytes = whole_bytes

    def give_back(self, size_bytes: int, held_bytes: int) -> None:
        """Gives back `size_bytes` of a request that holds `held_bytes`."""
        self.held_bytes += self.counted(held_bytes - size_bytes) - self.counted(held_bytes)

    def counted(self, size_bytes: int) -> int:
        """How much of a request that holds `size_bytes` counts."""
        return size_bytes if size_bytes > self._small_bytes else 0


class Reservation:
    """A context manager that gives back at its end all that was taken. Confined to: the event loop.

    Attributes:
        budget: What it takes from.
        held_bytes: What it holds.
    """

    __slots__ = ("_requester", "_share", "budget", "held_bytes")

    def __init__(self, budget: ByteBudget, share: ConnectionShare | None = None, requester: Upload | None = None) -> None:
        """`share` is the share of the request's connection (None: none), `requester` the upload it is (None: no upload)."""
        self.budget = budget
        self._share = share
        self._requester = requester
        self.held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Takes `size_bytes` more.

        Raises:
            TooLarge: the request would hold more than any may. Overloaded: they do not fit.
        """
        held_bytes = self.held_bytes
        if held_bytes + size_bytes > self.budget.most_request_bytes:
            raise too_much(held_bytes + size_bytes, self.budget.most_request_bytes)
        # A share does not count what is small.
        share = self._share if held_bytes + size_bytes > self.budget.small_bytes else None
        if share is not None:
            share.take(size_bytes, held_bytes)
        if not self.budget.reserve(size_bytes, held_bytes, self._requester):
            if share is not None:
                share.give_back(size_bytes, held_bytes + size_bytes)
            raise budget_exhausted(size_bytes)
        self.held_bytes = held_bytes + size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Gives back a part of what was taken."""
        self.budget.release(size_bytes, self.held_bytes)
        if self._share is not None and self.held_bytes > self.budget.small_bytes:
            self._share.give_back(size_bytes, self.held_bytes)
        self.held_bytes -= size_bytes

    def release(self) -> None:
        """Gives all of it back."""
        if self.held_bytes:
            self.give_back(self.held_bytes)

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def budget_exhausted(size_bytes: int) -> Overloaded:
    """The error for a request whose `size_bytes` do not fit beside those in flight."""
    return Overloaded(f"the server holds as many request bytes as it may, no room for {size_bytes} more: try again", retry_after_s=1.0)


def too_much(size_bytes: int, most_bytes: int) -> TooLarge:
    """The error for a request that can never be served."""
    return TooLarge(f"the request takes {size_bytes} bytes of memory, more than the {most_bytes} that one request may take")


def evicted() -> Overloaded:
    """The error of a request that was evicted to free bytes for others."""
    return Overloaded(EVICTED, retry_after_s=1.0)


#: What one message, map entry or string in a repeated field takes, roughly; arrays double as they grow, and leave the old one behind.
FIELD_BYTES, STRING_BYTES, GROWTH = 128, 16, 2
#: All fields that are read in one message; the limits on tensors and parameters allow less than that in any sane mix.
_MAX_FIELDS = 65_536
#: Typed contents of more fields than that are priced by their length alone.
CONTENTS_FIELDS = 4096


class WireWalk(WireReader):
    """One pass over one request; every method raises InvalidRequest where the bytes are not a message."""

    def __init__(self, data: bytes | memoryview) -> None:
        super().__init__(data, max_fields=_MAX_FIELDS, failure=invalid_message, too_many=TooLarge)
        self._bytes = data

    def packed_cost(self, value: int, end: int, item_bytes: int) -> int:
        """The bytes that a run of varints takes as numbers of `item_bytes` each, beside its own bytes."""
        last_bytes = np.frombuffer(self._bytes, np.uint8, end - value, value) < 0x80
        return int(np.count_nonzero(last_bytes)) * item_bytes * GROWTH

    def values_cost(self, tag: int, value: int, end: int, strings_tag: int, varint_item_bytes: Mapping[int, int]) -> int:
        """The memory of one field of typed tensor values beside its bytes; `varint_item_bytes` says which fields hold varints."""
        if tag == strings_tag:
            return STRING_BYTES * GROWTH
        item_bytes = varint_item_bytes.get(tag >> 3)
        return 0 if item_bytes is None else self.packed_cost(value, end, item_bytes)

    def rest_cost(self, at: int, stop: int) -> int:
        """What typed values in fields too many to look at take at most: no field takes less than two bytes."""
        return (stop - at) // 2 * STRING_BYTES * GROWTH


def invalid_message(_reason: str = "") -> InvalidRequest:
    """The error for bytes that are not a message."""
    return InvalidRequest("the request is not a valid protobuf message")
