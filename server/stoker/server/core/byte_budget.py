"""`ByteBudget`: the bytes that all requests hold together; `Reservation`: the part that one request holds; `WireWalk`: the memory that its
fields will take.

A protobuf message is an amplifier: two bytes are an empty message that takes sixty. The server computes from the wire what the fields of
a message will take in memory, before it parses any of it.
"""

import logging
import math
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Protocol

import numpy as np

from stoker.backends.api.errors import InvalidRequest, Overloaded, TooLarge
from stoker.backends.api.native import mypyc_attr
from stoker.backends.api.wire import WireReader
from stoker.server.core.admission import AdmissionQueue, Outcome

#: Of the budget, this part is kept for small requests.
SMALL_SLICE: Final = 1 / 16
#: A request is small up to this size, in bytes; in a small budget, up to a thousandth of the budget.
SMALL_BYTES: Final = 64 * 1024
_SMALL_PART: Final = 1024
#: After a check of the uploads has found none to end, requests are rejected without another check for this time, nanoseconds.
_LOOK_PERIOD_NS: Final = 50_000_000
_WARN_PERIOD_NS: Final = 10_000_000_000
#: Requests that wait for space at once; uploads slower than so many bytes per second have stalled. As in `Limits`.
_MOST_WAITING: Final = 32
_STALLED_BYTES_PER_S: Final = 1024
_log = logging.getLogger("stoker.engine")


class Upload(Protocol):
    """A request that is still being received, or a response that is still being read: its client decides how long its bytes are held."""

    def held_bytes(self) -> int:
        """The bytes that this upload holds of the budget."""

    def rate(self) -> float | None:
        """Bytes per second over the last seconds; None: the upload is too recent for a rate."""

    def evict(self) -> None:
        """Ends the upload with an error that the client may retry. The bytes that it holds are released before this method returns."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ByteBudget:
    """Confined to: the event loop.

    A small request may use the whole budget, a large one all but `SMALL_SLICE`. One large request passes alone whatever its size; else it
    could never be served. If a request does not fit, slower uploads are evicted, the slowest first, but only if that frees enough bytes.

    Responses may exceed the budget by as much again: their memory exists already, and new requests wait until it is free.

    Attributes:
        most_bytes: Size of the budget.
        most_request_bytes: Bound on the bytes of one request; a request above it can never be served.
        small_bytes: Bound on the bytes of a small request.
        evicted: Number of uploads that were evicted.
        queue: Large requests that wait for space.
    """

    def __init__(
        self,
        most_bytes: int,
        now_ns: Callable[[], int],
        *,
        most_request_bytes: int = 1 << 62,
        most_waiting: int = _MOST_WAITING,
        stalled_bytes_per_s: float = _STALLED_BYTES_PER_S,
    ) -> None:
        """`now_ns` returns monotonic time in nanoseconds. `most_waiting` and `stalled_bytes_per_s` are those of `AdmissionQueue`."""
        self.queue = AdmissionQueue(most_waiting, stalled_bytes_per_s)
        self.most_bytes = most_bytes
        self.most_request_bytes = most_request_bytes
        self.small_bytes = min(SMALL_BYTES, most_bytes // _SMALL_PART)
        self.evicted = 0
        self._slice_bytes = int(most_bytes * SMALL_SLICE) if self.small_bytes else 0
        self._now_ns = now_ns
        self._small_held = 0
        self._large_held = 0
        #: During `hand_over`: the bytes that were held before; else 0.
        self._handed_bytes = 0
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
        """Reserves `size_bytes` more for a request that already holds `held_bytes`; returns False, and reserves nothing, if they do not
        fit.

        `requester` is the request itself if it is an upload; faster uploads than the requester are not evicted.
        """
        if self._handed_bytes and self.held_bytes + size_bytes <= self._handed_bytes:
            self._move(held_bytes, held_bytes + size_bytes)
            return True
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

    def reserve_whole(self, size_bytes: int, requester: Upload | None, slower_than: float) -> bool:
        """Reserves all `size_bytes` of a large request, which holds none; returns False, and reserves nothing, if they do not fit.

        Uploads of fewer than `slower_than` bytes per second are evicted if that makes them fit.
        """
        if self._take_large(size_bytes, 0):
            return True
        return self._evict_slower(self._missing_bytes(size_bytes, 0), requester, slower_than) and self._take_large(size_bytes, 0)

    def has_response_space(self, size_bytes: int) -> bool:
        """Whether a response may reserve `size_bytes`; slower uploads and unread responses are evicted for it. A single one always may."""
        missing_bytes = self.held_bytes + size_bytes - 2 * self.most_bytes
        return missing_bytes <= 0 or not self._large_held or self._evict_for(missing_bytes, None)

    def reserve_response(self, size_bytes: int, held_bytes: int = 0) -> bool:
        """As `reserve`, for a response, which may exceed the budget by as much again."""
        if not self.has_response_space(size_bytes):
            return False
        self._move(held_bytes, held_bytes + size_bytes)
        return True

    def release(self, size_bytes: int, held_bytes: int | None = None) -> None:
        """Releases `size_bytes` of a request that holds `held_bytes` (None: `size_bytes`)."""
        held_bytes = size_bytes if held_bytes is None else held_bytes
        if held_bytes <= self.small_bytes:
            self._small_held -= size_bytes
        else:
            self._move(held_bytes, held_bytes - size_bytes)
            # Small requests do not matter to the large ones that wait.
            self.queue.released()

    def hand_over(self, reservation: "Reservation", receiver: Callable[[], None]) -> None:
        """Releases `reservation` and calls `receiver`, which may reserve the same bytes again without a check: responses may have exceeded
        the budget since they were reserved.
        """
        self._handed_bytes = self.held_bytes
        try:
            reservation.release()
            receiver()
        finally:
            self._handed_bytes = 0

    def watch(self, upload: Upload) -> None:
        """Allows the eviction of `upload`."""
        self._uploads.add(upload)

    def unwatch(self, upload: Upload) -> None:
        """Excludes `upload` from eviction."""
        self._uploads.discard(upload)

    def _take_large(self, size_bytes: int, held_bytes: int) -> bool:
        is_alone = self._large_held == (held_bytes if held_bytes > self.small_bytes else 0)
        if not is_alone and self._missing_bytes(size_bytes, held_bytes) > 0:
            return False
        self._move(held_bytes, held_bytes + size_bytes)
        return True

    def _missing_bytes(self, size_bytes: int, held_bytes: int) -> int:
        """The bytes by which the request would exceed its share of the budget."""
        whole_bytes = self.held_bytes + size_bytes
        if held_bytes + size_bytes > self.small_bytes:
            small = self._small_held - (held_bytes if held_bytes <= self.small_bytes else 0)
            whole_bytes += max(0, self._slice_bytes - small)
        return whole_bytes - self.most_bytes

    def _move(self, before_bytes: int, after_bytes: int) -> None:
        """Records that a request's bytes change from `before_bytes` to `after_bytes`."""
        if before_bytes <= self.small_bytes:
            self._small_held -= before_bytes
        else:
            self._large_held -= before_bytes
        if after_bytes <= self.small_bytes:
            self._small_held += after_bytes
        else:
            self._large_held += after_bytes

    def _evict_for(self, missing_bytes: int, requester: Upload | None) -> bool:
        """Evicts the slowest uploads that together hold `missing_bytes`; returns False, and evicts none, if they do not suffice."""
        now_ns = self._now_ns()
        if self._look_again_ns is not None and now_ns < self._look_again_ns:
            return False
        most = None if requester is None else requester.rate()
        if self._evict_slower(missing_bytes, requester, math.inf if most is None else most):
            return True
        self._look_again_ns = now_ns + _LOOK_PERIOD_NS
        return False

    def _evict_slower(self, missing_bytes: int, requester: Upload | None, slower_than: float) -> bool:
        """As `_evict_for`, among the uploads of fewer than `slower_than` bytes per second."""
        rates = ((upload.rate(), upload) for upload in self._uploads if upload is not requester and upload.held_bytes() > self.small_bytes)
        slower = [(rate, upload) for rate, upload in rates if rate is not None and rate < slower_than]
        slower.sort(key=lambda each: each[0])
        victims: list[Upload] = []
        for _, upload in slower:
            victims.append(upload)
            missing_bytes -= upload.held_bytes()
            if missing_bytes <= 0:
                break
        if missing_bytes > 0:
            return False
        for upload in victims:
            self._uploads.discard(upload)
            upload.evict()
        self.evicted += len(victims)
        now_ns = self._now_ns()
        if self._warned_ns is None or now_ns - self._warned_ns >= _WARN_PERIOD_NS:
            self._warned_ns = now_ns
            _log.warning("the budget of bytes in flight is full: the slowest uploads are ended", extra={"evicted": self.evicted})
        return True


#: The error of an upload that is evicted: the budget is full and the upload is the slowest.
EVICTED: Final = "the server holds as many request bytes as it may, and this request was the slowest to arrive: try again"


class ConnectionShare:
    """The bytes that the large requests of one connection hold together. Confined to: the event loop.

    Several large requests may together hold half of the budget. A single one may hold more while it is the connection's only large request.
    Small requests do not count: a proxy sends requests of several users over one connection, and the number of streams is bounded.

    Attributes:
        held_bytes: Bytes of the connection's large requests.
    """

    __slots__ = ("_most_bytes", "_small_bytes", "held_bytes")

    def __init__(self, budget: ByteBudget) -> None:
        self._most_bytes = budget.share_bytes
        self._small_bytes = budget.small_bytes
        self.held_bytes = 0

    def take(self, size_bytes: int, held_bytes: int) -> None:
        """Reserves `size_bytes` more for a request that already holds `held_bytes`.

        Raises:
            Overloaded: other requests of the connection hold too much.
        """
        if not self.reserve(size_bytes, held_bytes):
            raise Overloaded(
                f"the requests of this connection hold {self.held_bytes} bytes, no room for {size_bytes} more: one connection may hold "
                f"{self._most_bytes}; try again, or use more connections",
                retry_after_s=1.0,
            )

    def reserve(self, size_bytes: int, held_bytes: int) -> bool:
        """As `take`; returns False if other requests of the connection hold too much."""
        own_bytes = self.counted(held_bytes)
        whole_bytes = self.held_bytes - own_bytes + self.counted(held_bytes + size_bytes)
        if whole_bytes > self._most_bytes and whole_bytes > self.held_bytes > own_bytes:
            return False
        self.held_bytes = whole_bytes
        return True

    def give_back(self, size_bytes: int, held_bytes: int) -> None:
        """Releases `size_bytes` of a request that holds `held_bytes`."""
        self.held_bytes += self.counted(held_bytes - size_bytes) - self.counted(held_bytes)

    def counted(self, size_bytes: int) -> int:
        """The part of a request's `size_bytes` that counts towards the share."""
        return size_bytes if size_bytes > self._small_bytes else 0


class Reservation:
    """The bytes that one request holds; a context manager that releases all of them at its end. Confined to: the event loop.

    Attributes:
        budget: The budget to reserve from.
        held_bytes: Bytes reserved now.
        prepaid_bytes: Of these, bytes that the next calls of `take` get without reserving them again.
    """

    __slots__ = ("_requester", "_share", "budget", "held_bytes", "prepaid_bytes")

    def __init__(self, budget: ByteBudget, share: ConnectionShare | None = None, requester: Upload | None = None) -> None:
        """`share` is that of the request's connection (None: no share); `requester` is the request as an upload (None: it is none)."""
        self.budget = budget
        self._share = share
        self._requester = requester
        self.prepaid_bytes = 0
        self.held_bytes = 0

    def admit(self, size_bytes: int, slower_than: float) -> Outcome:
        """Reserves all `size_bytes` of a request that holds none, if they fit.

        Uploads of fewer than `slower_than` bytes per second are evicted if that makes them fit.
        """
        share = self._share
        if share is not None and not share.reserve(size_bytes, 0):
            return Outcome.SHARE_FULL
        if not self.budget.reserve_whole(size_bytes, self._requester, slower_than):
            if share is not None:
                share.give_back(size_bytes, size_bytes)
            return Outcome.BUDGET_FULL
        self.held_bytes = size_bytes
        return Outcome.RESERVED

    def take(self, size_bytes: int) -> None:
        """Reserves `size_bytes` more.

        Raises:
            TooLarge: the request would hold more than any request may. Overloaded: the bytes do not fit.
        """
        if self.prepaid_bytes:
            if self.prepaid_bytes >= size_bytes:
                self.prepaid_bytes -= size_bytes
                return
            size_bytes -= self.prepaid_bytes
            self.prepaid_bytes = 0
        held_bytes = self.held_bytes
        if held_bytes + size_bytes > self.budget.most_request_bytes:
            raise too_much(held_bytes + size_bytes, self.budget.most_request_bytes)
        # A share does not count small requests.
        share = self._share if held_bytes + size_bytes > self.budget.small_bytes else None
        if share is not None:
            share.take(size_bytes, held_bytes)
        if not self.budget.reserve(size_bytes, held_bytes, self._requester):
            if share is not None:
                share.give_back(size_bytes, held_bytes + size_bytes)
            raise budget_exhausted(size_bytes)
        self.held_bytes = held_bytes + size_bytes

    def take_response(self, size_bytes: int) -> None:
        """As `take`, for the bytes of a response, which exist already; see `ByteBudget.reserve_response`.

        Raises:
            TooLarge: the response is larger than any request may be. Overloaded: the bytes do not fit.
        """
        held_bytes = self.held_bytes
        if held_bytes + size_bytes > self.budget.most_request_bytes:
            raise too_much(held_bytes + size_bytes, self.budget.most_request_bytes)
        if self._share is not None:
            self._share.take(size_bytes, held_bytes)
        if not self.budget.reserve_response(size_bytes, held_bytes):
            if self._share is not None:
                self._share.give_back(size_bytes, held_bytes + size_bytes)
            raise response_exceeds(size_bytes)
        self.held_bytes = held_bytes + size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Releases a part of the reserved bytes."""
        self.budget.release(size_bytes, self.held_bytes)
        if self._share is not None and self.held_bytes > self.budget.small_bytes:
            self._share.give_back(size_bytes, self.held_bytes)
        self.held_bytes -= size_bytes

    def release(self) -> None:
        """Releases all reserved bytes."""
        self.prepaid_bytes = 0
        if self.held_bytes:
            self.give_back(self.held_bytes)

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def budget_exhausted(size_bytes: int) -> Overloaded:
    """The error for a request whose `size_bytes` do not fit beside the requests in flight."""
    return Overloaded(f"the server holds as many request bytes as it may, no room for {size_bytes} more: try again", retry_after_s=1.0)


def response_exceeds(size_bytes: int) -> Overloaded:
    """The error for a request whose response of `size_bytes` does not fit beside the requests and responses in flight."""
    text = f"the server holds as many response bytes as it may, no room for a response of {size_bytes} bytes: read the others, or try again"
    return Overloaded(text, retry_after_s=1.0)


def too_much(size_bytes: int, most_bytes: int) -> TooLarge:
    """The error for a request that can never be served."""
    return TooLarge(f"the request takes {size_bytes} bytes of memory, more than the {most_bytes} that one request may take")


def evicted() -> Overloaded:
    """The error of a request that was evicted to free bytes for other requests."""
    return Overloaded(EVICTED, retry_after_s=1.0)


#: What one message, map entry or string in a repeated field takes, roughly; arrays double as they grow, and leave the old one behind.
FIELD_BYTES: Final = 128
STRING_BYTES: Final = 16
GROWTH: Final = 2
#: Bound on the fields that are parsed in one message; the limits on tensors and parameters already keep an ordinary request below it.
_MAX_FIELDS: Final = 65_536
#: Above this number of fields with typed contents, further ones are priced by their length alone.
CONTENTS_FIELDS: Final = 4096


class WireWalk(WireReader):
    """One pass over the wire bytes of one request; every method raises InvalidRequest if the bytes are not a valid message."""

    def __init__(self, data: bytes | memoryview) -> None:
        super().__init__(data, max_fields=_MAX_FIELDS, failure=invalid_message, too_many=TooLarge)
        self._bytes = data

    def packed_cost(self, value: int, end: int, item_bytes: int) -> int:
        """The memory of a packed run of varints decoded to `item_bytes` each, without the wire bytes themselves."""
        last_bytes = np.frombuffer(self._bytes, np.uint8, end - value, value) < 0x80
        return int(np.count_nonzero(last_bytes)) * item_bytes * GROWTH

    def values_cost(self, tag: int, value: int, end: int, strings_tag: int, varint_item_bytes: Mapping[int, int]) -> int:
        """The memory of one field of typed tensor values, without its wire bytes; `varint_item_bytes` names the fields that hold
        varints.
        """
        if tag == strings_tag:
            return STRING_BYTES * GROWTH
        item_bytes = varint_item_bytes.get(tag >> 3)
        return 0 if item_bytes is None else self.packed_cost(value, end, item_bytes)

    def rest_cost(self, at: int, stop: int) -> int:
        """An upper bound on the memory of typed values in fields too many to parse: every field takes at least two wire bytes."""
        return (stop - at) // 2 * STRING_BYTES * GROWTH


def invalid_message(_reason: str = "") -> InvalidRequest:
    """The error for bytes that are not a valid message."""
    return InvalidRequest("the request is not a valid protobuf message")
