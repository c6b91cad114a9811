"""`CachedScheduler`: responds to equal requests from the response cache, and runs equal requests in flight once (single flight).

It wraps any scheduler. The first of several equal requests, the leader, runs; the others wait for its result. A cancelled leader keeps
running for them. An error of the model is the result of all of them and is not stored. A leader that expires in the queue fails alone: the
next request becomes the leader, because its own deadline and queue timeout may be later.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import DeadlineExceeded, Overloaded, QueueTimeout, ServingError, Unavailable
from stoker.server.caching.response_key import DIGEST_BYTES, input_bytes, response_key
from stoker.server.caching.response_store import Outputs, ResponseStore, StoredResponse, copied
from stoker.server.caching.settings import INLINE_HASH_BYTES
from stoker.server.core.completion import Completion
from stoker.server.core.request import Done, EngineResult, InferRequest, InferResponse, InFlight, ParameterValue
from stoker.server.core.timers import Timer, Timers
from stoker.server.observability.recorder import FailureReason, VersionRecorder
from stoker.server.scheduling.outcomes import failure_reason
from stoker.server.scheduling.wrapped import ModelScheduler

log = logging.getLogger("stoker.scheduling")


class OffLoop(Protocol):
    """Computes keys of large requests in a thread."""

    def __call__(self, function: Callable[[], bytes], then: Callable[[bytes | None], None]) -> None:
        """Runs `function` in a thread, then `then` with its result on the event loop; with None if it raised."""


def in_executor(function: Callable[[], bytes], then: Callable[[bytes | None], None]) -> None:
    """The `OffLoop` of the running loop's executor."""

    def ended(work: "asyncio.Future[bytes]") -> None:
        then(None if work.cancelled() or work.exception() is not None else work.result())

    asyncio.get_running_loop().run_in_executor(None, function).add_done_callback(ended)


class _Member(Completion[InferResponse]):
    """One accepted request. Confined to: the event loop.

    Attributes:
        request: The request.
        ended: Called once, when the request is over.
        flight: The flight that it belongs to; None: its key is being computed.
        expiry: The timer of its deadline, while it waits for another request.
    """

    __slots__ = ("_owner", "ended", "expiry", "flight", "request")

    def __init__(self, owner: "CachedScheduler", request: InferRequest, done: Done, ended: Callable[[], None]) -> None:
        super().__init__(done)
        self._owner = owner
        self.request = request
        self.ended = ended
        self.flight: _Flight | None = None
        self.expiry: Timer | None = None

    def _withdraw(self) -> None:
        self._owner._withdraw(self)


class _Flight:
    """Equal requests that get one result. Confined to: the event loop.

    Attributes:
        key: Their key.
        members: Those that wait for the result, the oldest first.
        leader: The request that runs; it may be cancelled. None: the flight looks for a stored response.
        inner: The handle of the leader in the wrapped scheduler.
        begun_ns: When the lookup began, nanoseconds.
        lookup_ns: Time of the lookup, nanoseconds.
    """

    __slots__ = ("begun_ns", "inner", "key", "leader", "lookup_ns", "members")

    def __init__(self, key: bytes, member: _Member, begun_ns: int) -> None:
        self.key = key
        self.members = [member]
        self.leader: _Member | None = None
        self.inner: InFlight | None = None
        self.begun_ns = begun_ns
        self.lookup_ns = 0


class CachedScheduler:
    """The response cache in front of the scheduler of one loaded version. Confined to: the event loop.

    Attributes:
        on_idle: Called whenever the last request in flight has completed.
    """

    def __init__(
        self,
        inner: ModelScheduler,
        store: ResponseStore,
        identity: bytes | Callable[[], bytes],
        *,
        model: str,
        version: int,
        clock: Clock,
        timers: Timers,
        recorder: VersionRecorder,
        max_queue_size: int,
        off_loop: OffLoop = in_executor,
    ) -> None:
        """Makes a cache in front of `inner`.

        Args:
            inner: The scheduler.
            store: Holds the responses.
            identity: `IDENTITY_BYTES` bytes that only this loaded version has; or a function that returns them for each request, for a
                model whose responses depend on other models.
            model: The name of the model.
            version: Its version.
            clock: The time.
            timers: Timers on the scale of `clock`.
            recorder: Counts hits and misses.
            max_queue_size: Bound on the requests that wait for an equal one.
            off_loop: Computes keys of large requests.
        """
        self.on_idle: Callable[[], None] | None = None
        self._inner = inner
        self._store = store
        self._identity = identity
        self._model = model
        self._version = version
        self._now_ns = clock.now_ns
        self._timers = timers
        self._recorder = recorder
        self._off_loop = off_loop
        self._most_following = max_queue_size
        self._following = 0
        self._members: set[_Member] = set()
        self._flights: dict[bytes, _Flight] = {}
        self._is_closed = False
        inner.on_idle = self._notice_idle

    @property
    def inner(self) -> ModelScheduler:
        """The wrapped scheduler."""
        return self._inner

    @property
    def in_flight(self) -> int:
        """Accepted requests that are not complete; more, while some run in the wrapped scheduler."""
        return len(self._members) + self._inner.in_flight

    @property
    def outage(self) -> str:
        """See `Scheduler.outage`."""
        return self._inner.outage

    @property
    def is_lost(self) -> bool:
        """See `Scheduler.is_lost`."""
        return self._inner.is_lost

    def submit(self, request: InferRequest, done: Done, ended: Callable[[], None] | None = None) -> InFlight:
        """Submits a request as `Scheduler.submit` does.

        Raises:
            ServingError: as `Scheduler.submit`; a request that waits for its key, or for an equal one, gets the error as its result.
        """
        if request.sequence is not None or request.responses is not None:
            # The response may depend on more than the inputs.
            return self._inner.submit(request, done, ended)
        now_ns = self._now_ns()
        request.received_ns = request.received_ns or now_ns
        if self._is_closed:
            raise self._rejected(request, Unavailable(f"model '{self._model}' version {self._version} is being unloaded"))
        if request.deadline_ns is not None and request.deadline_ns <= now_ns:
            raise self._rejected(request, DeadlineExceeded("the request's deadline had passed when it arrived"))
        member = _Member(self, request, done, ended or _ignore)
        if input_bytes(request) > INLINE_HASH_BYTES:
            self._members.add(member)
            self._hash(member)
            return member
        error = self._look_up(member, response_key(self._identity_now(), request), now_ns)
        if error is not None:
            raise error
        self._members.add(member)
        return member

    def _identity_now(self) -> bytes:
        return self._identity if isinstance(self._identity, bytes) else self._identity()

    def _rejected(self, request: InferRequest, error: ServingError) -> ServingError:
        self._recorder.failed(FailureReason.REJECTED, request_ns=self._now_ns() - request.received_ns)
        return error

    def _hash(self, member: _Member) -> None:
        """Computes the key in a thread, and continues on the event loop."""
        begun_ns, identity, request = self._now_ns(), self._identity_now(), member.request
        self._off_loop(lambda: response_key(identity, request), lambda key: self._hashed(member, key, begun_ns))

    def _hashed(self, member: _Member, key: bytes | None, begun_ns: int) -> None:
        if member.is_over:
            return
        # Without memory for the key, the request runs under a key of its own.
        error = self._look_up(member, key or self._identity_now() + secrets.token_bytes(DIGEST_BYTES), begun_ns)
        if error is not None:
            self._deliver(member, error)

    def _look_up(self, member: _Member, key: bytes, begun_ns: int) -> ServingError | None:
        """Joins the flight of `key`, or begins it. Returns the error if the request is rejected, which is then counted."""
        flight = self._flights.get(key)
        if flight is None:
            flight = member.flight = self._flights[key] = _Flight(key, member, begun_ns)
            error: list[ServingError] = []
            is_inside = True

            def found(response: StoredResponse | None) -> None:
                if response is None and is_inside:
                    # The request that the wrapped scheduler rejects is rejected here.
                    flight.lookup_ns = self._now_ns() - begun_ns
                    try:
                        self._lead(flight)
                    except ServingError as raised:
                        error.append(raised)
                else:
                    self._found(flight, response)

            self._store.get(key, found)
            is_inside = False
            if error:
                member.flight = None
                del self._flights[key]
                return error[0]
            return None
        if flight.members and self._following >= self._most_following:
            text = f"Exceeds maximum queue size: {self._most_following} request(s) wait for an equal one already"
            return self._rejected(member.request, Overloaded(text, retry_after_s=1.0))
        member.flight = flight
        self._following += len(flight.members) > 0
        flight.members.append(member)
        deadline_ns = member.request.deadline_ns
        if deadline_ns is not None:
            member.expiry = self._timers.call_at(deadline_ns, lambda: self._expire(member))
        return None

    def _found(self, flight: _Flight, response: StoredResponse | None) -> None:
        """Ends the lookup of a flight."""
        if self._flights.get(flight.key) is not flight:
            return  # abandoned
        flight.lookup_ns = self._now_ns() - flight.begun_ns
        is_unfit = self._store.is_shared and response is not None and flight.members
        if response is None or (is_unfit and not _fits(response.outputs, flight.members[0].request)):
            self._lead_next(flight)
            return
        del self._flights[flight.key]
        # A result never arrives before `submit` returns.
        self._timers.call_soon(lambda: self._hit(flight, response))

    def _hit(self, flight: _Flight, response: StoredResponse) -> None:
        # Only requests for the same outputs have the same key.
        for member in self._take_members(flight):
            if member.is_over:
                continue  # cancelled by the callback of an earlier request
            now_ns = self._now_ns()
            self._recorder.cache_hit(request_ns=now_ns - member.request.received_ns, queue_ns=0, lookup_ns=flight.lookup_ns)
            self._deliver(member, self._response_to(member, response.outputs))

    def _lead(self, flight: _Flight) -> None:
        """Runs the oldest request of a flight.

        Raises:
            ServingError: the wrapped scheduler rejects it, and has counted it.
        """
        leader = flight.leader = flight.members[0]
        _silence(leader)
        flight.inner = self._inner.submit(leader.request, lambda result: self._finished(flight, result))

    def _lead_next(self, flight: _Flight) -> None:
        """Runs the oldest request of a flight that is accepted; ends the flight if there is none."""
        while flight.members:
            try:
                self._lead(flight)
                return
            except ServingError as error:
                self._deliver(self._take_member(flight, flight.members[0]), error)
        self._drop(flight)

    def _finished(self, flight: _Flight, result: EngineResult) -> None:
        """Receives the result of the leader."""
        leader, flight.inner, flight.leader = flight.leader, None, None
        if isinstance(result, (QueueTimeout, DeadlineExceeded)):
            # The limit of the leader alone, which the wrapped scheduler has counted.
            if leader is not None and leader in flight.members:
                self._take_member(flight, leader)
                self._deliver(leader, result)
            self._lead_next(flight)
            return
        self._drop(flight)
        outputs: Outputs = {}
        if isinstance(result, InferResponse):
            begun_ns = self._now_ns()
            stored = copied(result.outputs)
            if not result.parameters:
                # A store holds outputs only.
                self._store.put(flight.key, stored)
            outputs = stored.outputs
            self._recorder.cache_missed(lookup_ns=flight.lookup_ns + self._now_ns() - begun_ns)
        is_counted = False
        for member in self._take_members(flight):
            if member.is_over:
                continue  # cancelled by the callback of an earlier request
            now_ns = self._now_ns()
            wait_ns = now_ns - member.request.received_ns
            if not is_counted:
                # The wrapped scheduler has counted one request: the leader, or in place of a cancelled leader the next one.
                is_counted = True
            elif isinstance(result, InferResponse):
                self._recorder.cache_hit(request_ns=wait_ns, queue_ns=wait_ns, lookup_ns=0)
            else:
                self._recorder.failed(failure_reason(result), request_ns=wait_ns)
            if member is leader or isinstance(result, ServingError):
                self._deliver(member, result)
            else:
                parameters = result.parameters if isinstance(result, InferResponse) else None
                self._deliver(member, self._response_to(member, outputs, parameters))

    def _response_to(self, member: _Member, outputs: Outputs, parameters: Mapping[str, ParameterValue] | None = None) -> InferResponse:
        request = member.request
        wanted = {name: outputs[name] for name in request.output_names}
        return InferResponse(self._model, self._version, request.request_id, wanted, request.signature, parameters)

    def _take_members(self, flight: _Flight) -> list[_Member]:
        members, flight.members = flight.members, []
        for member in members:
            member.flight = None
        self._following -= max(0, len(members) - 1)
        return members

    def _take_member(self, flight: _Flight, member: _Member) -> _Member:
        flight.members.remove(member)
        member.flight = None
        if flight.members:
            self._following -= 1
        return member

    def _drop(self, flight: _Flight) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    def _deliver(self, member: _Member, result: EngineResult) -> None:
        if member.is_over:
            return
        try:
            member.complete(result)
        except Exception:  # a defect of one frontend; other requests must still get their responses
            log.exception("the result callback of a request raised")
        self._end(member)

    def _end(self, member: _Member) -> None:
        _silence(member)
        member.ended()
        member.ended = _ignore
        self._members.discard(member)
        self._notice_idle()

    def _withdraw(self, member: _Member) -> None:
        """Handles a cancelled request."""
        flight = member.flight
        is_counted = False
        if flight is not None:
            self._take_member(flight, member)
            if not flight.members and flight.inner is not None:
                # The wrapped scheduler counts one request; a leader that was cancelled earlier is counted already.
                is_counted = True
                self._drop(flight)
                flight.inner.cancel()
        if not is_counted:
            self._recorder.failed(FailureReason.CANCELED, request_ns=self._now_ns() - member.request.received_ns)
        self._end(member)

    def _expire(self, member: _Member) -> None:
        """Fails a request whose deadline has passed while it waited for an equal one."""
        flight = member.flight
        member.expiry = None
        if flight is None or flight.leader is member:
            return
        self._take_member(flight, member)
        error = DeadlineExceeded("the request's deadline passed while it waited for the result of an equal one")
        if not flight.members and flight.inner is not None:
            # As in `_withdraw`.
            self._drop(flight)
            flight.inner.cancel()
        else:
            self._rejected(member.request, error)
        self._deliver(member, error)

    def _notice_idle(self) -> None:
        if self.on_idle is not None and not self.in_flight:
            self.on_idle()

    def abandon(self, why: str) -> None:
        """Fails every request as `Scheduler.abandon` does."""
        self._inner.abandon(why)
        self._flights.clear()
        for member in list(self._members):
            if member.is_over:
                continue  # cancelled by the callback of an earlier request
            if member.flight is not None:
                self._take_member(member.flight, member)
            self._recorder.failed(FailureReason.OTHER, request_ns=self._now_ns() - member.request.received_ns)
            self._deliver(member, Unavailable(why))

    async def close(self) -> None:
        """Closes as `Scheduler.close` does, and releases the stored responses."""
        self._is_closed = True
        self.abandon("the model was unloaded")
        await self._inner.close()
        self._store.forget(self._identity_now())


def _fits(outputs: Outputs, request: InferRequest) -> bool:
    """Whether `outputs` have the names and datatypes that `request` asks for: a shared store may hold anything."""
    for name in request.output_names:
        spec = request.signature.output(name)
        if spec is None or name not in outputs or outputs[name].dtype != spec.datatype.numpy:
            return False
    return True


def _silence(member: _Member) -> None:
    """Cancels the timer of the deadline."""
    if member.expiry is not None:
        member.expiry.cancel()
        member.expiry = None


def _ignore() -> None:
    """The default callback."""
