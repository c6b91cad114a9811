"""The queue of large requests that wait for space in the byte budget."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import Overloaded
from stoker.server.core.admission import Outcome, Ticket
from stoker.server.core.byte_budget import ByteBudget, ConnectionShare, Reservation

MIB = 1 << 20
MOST = 64 * MIB
#: What large requests may hold together: a sixteenth is kept for small ones.
ROOM = MOST - MOST // 16


class Waiting:
    """A request of `size_bytes` on one connection."""

    def __init__(self, budget: ByteBudget, size_bytes: int, share: ConnectionShare | None = None) -> None:
        self.reservation = Reservation(budget, share)
        self.size_bytes = size_bytes
        self.is_admitted = False
        self.error: Overloaded | None = None
        self.ticket: Ticket | None = None

    def try_admit(self, size_bytes: int, slower_than: float) -> Outcome:
        return self.reservation.admit(size_bytes, slower_than)

    def admitted(self) -> None:
        if self.ticket is not None:
            self.is_admitted = True

    def not_admitted(self, error: Overloaded) -> None:
        self.error = error

    def end(self, budget: ByteBudget) -> None:
        if self.ticket is not None:
            budget.queue.leave(self.ticket)
            self.ticket = None
        self.reservation.release()


class Queue:
    """A budget whose queue is served by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.budget = ByteBudget(MOST, lambda: int(self.now_s * 1e9))
        self.due: list[Callable[[], None]] = []

    def enter(self, size_bytes: int, share: ConnectionShare | None = None, wait_s: float = 10.0) -> Waiting:
        request = Waiting(self.budget, size_bytes, share)
        request.ticket = Ticket(request, size_bytes, self.now_s, wait_s)
        request.is_admitted = self.budget.queue.enter(request.ticket, self.due.append)
        return request

    def turn(self) -> None:
        """The next iteration of the event loop."""
        due, self.due = self.due, []
        for call in due:
            call()


def test_requests_are_admitted_in_the_order_of_their_arrival():
    queue = Queue()
    first, large, small = queue.enter(40 * MIB), queue.enter(50 * MIB), queue.enter(MIB)
    assert (first.is_admitted, large.is_admitted, small.is_admitted) == (True, False, False)
    first.end(queue.budget)
    # Not inside the call that releases the bytes: its caller may reserve them again.
    assert not large.is_admitted
    queue.turn()
    assert (large.is_admitted, small.is_admitted) == (True, True)


def test_later_request_waits_for_an_earlier_one_that_leaves():
    queue = Queue()
    first, large, small = queue.enter(40 * MIB), queue.enter(50 * MIB), queue.enter(MIB)
    large.end(queue.budget)
    queue.turn()
    assert (first.is_admitted, small.is_admitted, len(queue.budget.queue)) == (True, True, 0)


def test_request_that_waits_for_its_connection_lets_others_pass():
    queue = Queue()
    share = ConnectionShare(queue.budget)
    held, waiting, other = queue.enter(20 * MIB, share), queue.enter(20 * MIB, share), queue.enter(20 * MIB)
    assert (held.is_admitted, waiting.is_admitted, other.is_admitted) == (True, False, True)
    held.end(queue.budget)
    queue.turn()
    assert waiting.is_admitted


def test_request_above_the_budget_is_admitted_alone():
    queue = Queue()
    first, whole, later = queue.enter(MIB), queue.enter(10 * MOST), queue.enter(MIB)
    assert not whole.is_admitted
    first.end(queue.budget)
    queue.turn()
    assert (whole.is_admitted, later.is_admitted) == (True, False)


def test_request_is_rejected_after_its_time():
    queue = Queue()
    queue.enter(40 * MIB)
    late = queue.enter(50 * MIB, wait_s=3.0)
    queue.now_s = 2.9
    queue.budget.queue.sweep(queue.now_s)
    assert late.error is None
    queue.now_s = 3.0
    queue.budget.queue.sweep(queue.now_s)
    assert late.error is not None
    assert late.error.message == "the server holds as many request bytes as it may, no room for 52428800 more within 3 s: try again"
    assert (late.error.retry_after_s, len(queue.budget.queue), late.reservation.held_bytes) == (1.0, 0, 0)


@pytest.mark.parametrize(("speed", "evicted_after_s"), [(0.0, 0.0), (1 << 20, 10.0), (100 * MIB, None)])
def test_slow_upload_is_evicted_for_a_request_that_waits(speed: float, evicted_after_s: float | None):
    """At once if it has stalled; after the wait if it was slower than needed for the waiting request; never if it was faster."""
    queue = Queue()

    class Upload(Waiting):
        def held_bytes(self) -> int:
            return self.reservation.held_bytes

        def rate(self) -> float | None:
            return speed

        def evict(self) -> None:
            self.end(queue.budget)

    upload = Upload(queue.budget, 40 * MIB)
    assert upload.reservation.admit(40 * MIB, 0.0) is Outcome.RESERVED
    queue.budget.watch(upload)
    waiting = queue.enter(50 * MIB)
    assert waiting.is_admitted == (evicted_after_s == 0.0)
    queue.now_s = 10.0
    queue.budget.queue.sweep(queue.now_s)
    assert waiting.is_admitted == (evicted_after_s is not None)
    assert (waiting.error is None) == (evicted_after_s is not None)


def test_number_of_waiting_requests_is_bounded():
    queue = Queue()
    queue.enter(ROOM)
    for _ in range(32):
        queue.enter(MIB)
    with pytest.raises(Overloaded, match="32 requests wait already"):
        queue.enter(MIB)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("enter"), st.integers(65, 100 * 1024), st.integers(0, 2)),
            st.tuples(st.just("end"), st.integers(0, 40), st.just(0)),
            st.tuples(st.just("turn"), st.just(0), st.just(0)),
            st.tuples(st.just("wait"), st.integers(1, 6), st.just(0)),
        ),
        max_size=60,
    )
)
def test_every_request_is_admitted_rejected_or_waits_and_the_budget_is_kept(steps: list[tuple[str, int, int]]):
    queue = Queue()
    shares = [ConnectionShare(queue.budget) for _ in range(3)]
    alive: list[Waiting] = []
    for step, number, connection in steps:
        if step == "enter":
            try:
                alive.append(queue.enter(number * 1024, shares[connection]))
            except Overloaded:
                assert len(queue.budget.queue) == 32
        elif step == "end" and alive:
            alive.pop(number % len(alive)).end(queue.budget)
        elif step == "turn":
            queue.turn()
        elif step == "wait":
            queue.now_s += number
            queue.budget.queue.sweep(queue.now_s)
        alive = [request for request in alive if request.error is None]
        admitted = [request for request in alive if request.is_admitted]
        waiting = [request for request in alive if not request.is_admitted]
        assert len(waiting) == len(queue.budget.queue)
        held_bytes = sum(request.size_bytes for request in admitted)
        assert queue.budget.held_bytes == held_bytes == sum(share.held_bytes for share in shares)
        assert held_bytes <= ROOM or len(admitted) == 1
        assert all(request.reservation.held_bytes == 0 for request in waiting)
    # Whatever has happened: as requests end, all others are admitted.
    while alive:
        queue.turn()
        queue.budget.queue.admit()
        first = next(request for request in alive if request.is_admitted)
        alive.remove(first)
        first.end(queue.budget)
    assert (queue.budget.held_bytes, len(queue.budget.queue)) == (0, 0)


def test_take_gets_prepaid_bytes_first():
    budget = ByteBudget(MOST, lambda: 0)
    reservation = Reservation(budget)
    assert reservation.admit(MIB, 0.0) is Outcome.RESERVED
    reservation.prepaid_bytes = MIB
    reservation.take(MIB - 10)
    assert budget.held_bytes == MIB
    reservation.take(30)
    assert (budget.held_bytes, reservation.held_bytes) == (MIB + 20, MIB + 20)
    reservation.release()
    assert budget.held_bytes == 0


def test_responses_may_exceed_the_budget_by_as_much_again():
    budget = ByteBudget(MOST, lambda: 0)
    assert budget.reserve(ROOM)
    reservation = Reservation(budget)
    reservation.take_response(MOST)
    with pytest.raises(Overloaded, match="no room for a response of 67108864 bytes"):
        Reservation(budget).take_response(MOST)
    assert not budget.reserve(MIB)
    reservation.release()
    assert budget.held_bytes == ROOM
