"""What unary and streamed calls on an HTTP/2 connection have in common, and calls that are refused for their header fields alone."""

import asyncio
from collections.abc import Mapping
from typing import Final

from stoker.server.core.byte_budget import Reservation, evicted
from stoker.server.core.completion import Completion
from stoker.server.net.progress import Progress
from stoker.server.rpc.encodings import decompressed
from stoker.server.rpc.framing import MessageReader, WireMessage
from stoker.server.rpc.http2.connection_context import Connection
from stoker.server.rpc.http2.responses import refusal_block
from stoker.server.rpc.method import Result
from stoker.server.rpc.refusal import CallFault, Refusal, rejection_of
from stoker.server.rpc.request_head import RequestHead
from stoker.server.rpc.status import DEADLINE_EXCEEDED, INTERNAL, UNIMPLEMENTED

_NS_PER_S: Final = 1_000_000_000
_TOO_LATE: Final = Refusal(DEADLINE_EXCEEDED, "Deadline Exceeded")
CARDINALITY: Final = Refusal(UNIMPLEMENTED, "the method takes exactly one message")
CUT_SHORT: Final = Refusal(INTERNAL, "the request ends inside a message")


class H2Call:
    """One RPC. Confined to: the event loop.

    Attributes:
        stream_id: Its stream.
        head: What its header fields said.
        deadline_ns: See `Call`.
        is_over: Its response was sent, or the client needs none.
        has_ended: The client has sent all it will.
        progress: How fast a message arrives whose end is awaited; None: none is. Meanwhile the call is an `Upload`.
    """

    __slots__ = (
        "_completion",
        "_connection",
        "_has_responded",
        "_message",
        "_reader",
        "_reservation",
        "_share_bytes",
        "_task",
        "_timer",
        "_trailers",
        "deadline_ns",
        "has_ended",
        "head",
        "is_over",
        "progress",
        "stream_id",
    )

    def __init__(self, connection: Connection, stream_id: int, head: RequestHead, deadline_ns: int | None) -> None:
        self._connection = connection
        self.stream_id = stream_id
        self.head = head
        self.deadline_ns = deadline_ns
        self.is_over = False
        self.has_ended = False
        self._has_responded = False
        self.progress: Progress | None = None
        self._reservation: Reservation | None = None
        self._reader: MessageReader | None = None
        #: The message of a unary call, until its method begins; and what it holds of the connection's share from then on.
        self._message: WireMessage | None = None
        self._share_bytes = 0
        #: What the method of a unary call has begun.
        self._completion: Completion[Result] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._trailers: list[tuple[str, str | bytes]] | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.head.metadata

    @property
    def binary_metadata(self) -> Mapping[str, bytes]:
        return self.head.binary_metadata

    def cancelled(self) -> bool:
        return self.is_over

    def add_trailer(self, name: str, value: str | bytes) -> None:
        if self._trailers is None:
            self._trailers = []
        self._trailers.append((name, value))

    def feed(self, data: bytes | memoryview, has_ended: bool) -> None:
        """Takes the next bytes of the request."""
        raise NotImplementedError

    def settle(self) -> None:
        """Prepares for a longer wait; most calls are completed before they need it. The call ends at its deadline from now on."""
        context = self._connection.context
        if self.deadline_ns is not None:
            self._timer = context.loop.call_later(max(0, self.deadline_ns - context.engine.now_ns()) / _NS_PER_S, self._expire)

    def fail(self, error: Exception) -> None:
        """Ends the call with the status of `error`; its work is taken back."""
        self.refuse(rejection_of(error, self.head.method))

    def refuse(self, refusal: Refusal) -> None:
        """Ends the call with `refusal`; its work is taken back."""
        if self.is_over:
            return
        self._connection.send_end(self.stream_id, refusal_block(refusal, self._trailers or (), is_first=not self._has_responded))
        self._finish()
        self._cancel_work()

    def abandon(self) -> None:
        """The client has gone, or taken the call back: nothing is sent any more."""
        if not self.is_over:
            self.is_over = True
            self._release_message()
            self._cancel_work()

    def _finish(self) -> None:
        """Notes that the end of the response was sent."""
        self.is_over = True
        if self._timer is not None or self._reservation is not None or self._reader is not None:
            self._release_message()
        self._connection.responded(self)

    def _release_message(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_arrival()
        if self._reservation is not None:
            self._reservation.release()
        if self._reader is not None:
            self._connection.calls.receiving.pop(self.stream_id, None)
            self._reader = None

    def _cancel_work(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task(self._connection.context.loop):
            self._task.cancel()

    def _expire(self) -> None:
        self._timer = None
        self.refuse(_TOO_LATE)

    def _hold(self, size_bytes: int) -> None:
        """Takes room for bytes of a message that is not complete.

        Raises:
            Overloaded: there is none.
        """
        if self._reservation is None:
            self._reservation = Reservation(self._connection.context.engine.budget, self._connection.share, self)
        self._reservation.take(size_bytes)

    def _give_back(self, size_bytes: int) -> None:
        if self._reservation is not None:
            self._reservation.give_back(min(size_bytes, self._reservation.held_bytes))

    def _begin_arrival(self) -> None:
        """The end of a message is awaited from now on."""
        context = self._connection.context
        self.progress = Progress(context.limits, context.loop.time())
        context.engine.budget.watch(self)

    def _end_arrival(self) -> None:
        if self.progress is not None:
            self.progress = None
            self._connection.context.engine.budget.unwatch(self)

    def held_bytes(self) -> int:
        return 0 if self._reservation is None else self._reservation.held_bytes

    def rate(self) -> float | None:
        return None if self.progress is None else self.progress.rate(self._connection.context.loop.time())

    def evict(self) -> None:
        self.fail(evicted())

    async def _decompressed(self, data: bytes) -> bytes:
        """Decompresses the message `data`; its bytes are reserved as they come out, and large work is done in a thread.

        The caller holds the reservation for `data`. That of the result is released at the end: the method reserves its own.

        Raises:
            CallFault: see `decompressed`; or the call has named no compression. Overloaded: the budget is exhausted.
        """
        encoding = self.head.encoding
        if encoding is None:
            raise CallFault(Refusal(INTERNAL, "a message is flagged as compressed, but the call has no grpc-encoding"))
        limits = self._connection.context.limits
        most_bytes = min(self.head.method.most_bytes, limits.grpc_inflated_bytes)
        taken_bytes = 0

        def take(size_bytes: int) -> None:
            nonlocal taken_bytes
            self._hold(size_bytes)
            taken_bytes += size_bytes

        try:
            return await decompressed(encoding, data, most_bytes, take, limits.decode_inline_bytes)
        finally:
            self._give_back(taken_bytes)


#: grpcio's asyncio client turns a status that arrives before it has sent its first message into INTERNAL. curl reports a response that
#: arrives before it has sent its body as a broken stream. Both get their response when their first DATA arrives, or after this time.
_PATIENCE_S: Final = 0.05


class RefusedCall:
    """A rejected call: sends its response when the client has begun to send. Confined to: the event loop."""

    __slots__ = ("_block", "_connection", "_timer", "has_ended", "is_over", "stream_id")

    def __init__(self, connection: Connection, stream_id: int, block: bytes) -> None:
        """`block` is the whole response."""
        self._connection = connection
        self._block = block
        self._timer: asyncio.TimerHandle = connection.context.loop.call_later(_PATIENCE_S, self._respond)
        self.stream_id = stream_id
        self.has_ended = False
        self.is_over = False

    def feed(self, data: bytes | memoryview, has_ended: bool) -> None:
        """As `H2Call.feed`."""
        self.has_ended = has_ended
        self._respond()

    def refuse(self, refusal: Refusal) -> None:
        """As `H2Call.refuse`; what it was refused for stays."""
        self._respond()

    def abandon(self) -> None:
        """As `H2Call.abandon`."""
        self.is_over = True
        self._timer.cancel()

    def _respond(self) -> None:
        if not self.is_over:
            self.abandon()
            self._connection.send_end(self.stream_id, self._block)
            self._connection.responded(self)
