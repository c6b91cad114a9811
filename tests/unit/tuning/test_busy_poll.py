"""The loop polls for the next request of a single client while that pays."""

from collections import deque
from collections.abc import Callable

import pytest

from stoker.server.tuning.busy_poll import BusyPoll
from stoker.server.tuning.constants import BUSY_POLL_FIRST_RUN, BUSY_POLL_GOOD_RUN, BUSY_POLL_MOST_RUN, SINGLE_CONNECTION_READS
from stoker.server.tuning.read_batching import Reads

MOST_US = 100
TURN_NS = 4_000


class Loop:
    """A loop, its clock, and one client that sends a request when the test decides."""

    def __init__(self) -> None:
        self.now_ns = 1
        self.requests_in_flight = 0
        self.turns: deque[Callable[[], None]] = deque()
        self.poll = BusyPoll(self.turns.append, lambda: self.now_ns, self, MOST_US)

    @property
    def is_polling(self) -> bool:
        return bool(self.turns)

    def request(self) -> None:
        """A request with a response within its read."""
        self.poll.on_read()
        self.poll.completed()

    def wait(self, us: int) -> int:
        """Advances the time; returns for how much of it, in microseconds, the loop polled instead of sleeping."""
        end_ns = self.now_ns + us * 1_000
        looked_ns = 0
        while self.turns and self.now_ns < end_ns:
            self.turns.popleft()()
            looked_ns += TURN_NS
            self.now_ns += TURN_NS
        self.now_ns = max(self.now_ns, end_ns)
        return looked_ns // 1_000

    def requests(self, count: int, us: int) -> None:
        """A number of requests, each this long after the response to the previous one."""
        for _ in range(count):
            self.wait(us)
            self.request()


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_polling_starts_once_requests_follow_responses_quickly(loop: Loop) -> None:
    loop.request()
    loop.requests(BUSY_POLL_FIRST_RUN - 1, 50)
    assert not loop.is_polling
    loop.requests(1, 50)
    assert loop.is_polling
    # Until the next one is there, and again after its answer.
    assert loop.wait(40) == 40
    loop.request()
    assert loop.wait(40) == 40


def test_polling_never_starts_for_a_slow_client(loop: Loop) -> None:
    loop.request()
    for _ in range(500):
        assert loop.wait(MOST_US + 1) == 0
        loop.request()


def test_unsuccessful_poll_is_short_and_the_next_one_needs_twice_as_many_requests(loop: Loop) -> None:
    loop.request()
    run = BUSY_POLL_FIRST_RUN
    while run < 2 * BUSY_POLL_MOST_RUN:
        loop.requests(min(run, BUSY_POLL_MOST_RUN) - 1, 50)
        assert not loop.is_polling
        loop.requests(1, 50)
        assert MOST_US <= loop.wait(10_000) <= MOST_US + 3 * TURN_NS // 1_000
        assert not loop.is_polling
        loop.request()
        run *= 2
    # No more than so many, ever.
    loop.requests(BUSY_POLL_MOST_RUN, 50)
    assert loop.is_polling


def test_long_success_compensates_unsuccessful_polls(loop: Loop) -> None:
    loop.request()
    for _ in range(3):
        loop.requests(100, 50)
        loop.wait(10_000)
    loop.request()
    loop.requests(8 * BUSY_POLL_FIRST_RUN + BUSY_POLL_GOOD_RUN, 50)
    loop.wait(10_000)
    loop.request()
    # As if for the second time.
    loop.requests(2 * BUSY_POLL_FIRST_RUN, 50)
    assert loop.is_polling


def test_polling_stops_while_anything_is_in_flight(loop: Loop) -> None:
    loop.request()
    loop.requests(BUSY_POLL_FIRST_RUN, 50)
    loop.wait(10)
    loop.poll.on_read()
    loop.requests_in_flight = 1  # its batch runs in a thread
    loop.poll.completed()
    assert loop.wait(1_000) < MOST_US


def test_request_behind_an_unanswered_one_of_its_read_is_not_counted(loop: Loop) -> None:
    for _ in range(4 * BUSY_POLL_FIRST_RUN):
        loop.request()
        loop.poll.on_read()
        loop.requests_in_flight = 1
        loop.poll.completed()
        loop.requests_in_flight = 0
    assert not loop.is_polling


def test_poll_counts_once_however_many_requests_it_finds(loop: Loop) -> None:
    loop.request()
    loop.requests(BUSY_POLL_FIRST_RUN, 50)
    for _ in range(10):
        loop.request()
    assert len(loop.turns) == 1


def test_other_frames_of_clients_neither_end_a_poll_nor_count_as_requests(loop: Loop) -> None:
    loop.request()
    for _ in range(4 * BUSY_POLL_FIRST_RUN):
        # As a ping that follows each answer at once; the next request takes its time.
        loop.wait(10)
        loop.poll.on_read()
        assert loop.wait(2 * MOST_US) == 0
        loop.request()
    loop.requests(BUSY_POLL_FIRST_RUN, 50)
    loop.wait(10)
    loop.poll.on_read()
    assert loop.wait(40) == 40


def test_request_late_by_less_than_a_turn_counts_as_unsuccessful(loop: Loop) -> None:
    loop.request()
    loop.requests(BUSY_POLL_FIRST_RUN, 50)
    loop.now_ns += MOST_US * 1_000 + 1
    loop.request()
    assert loop.wait(MOST_US) <= TURN_NS // 1_000
    loop.request()
    loop.requests(2 * BUSY_POLL_FIRST_RUN - 2, 50)
    assert not loop.is_polling
    loop.requests(1, 50)
    assert loop.is_polling
    # What is read then need not be a request: it is one wait in vain all the same.
    loop.now_ns += MOST_US * 1_000 + 1
    loop.poll.on_read()
    assert loop.wait(MOST_US) <= TURN_NS // 1_000
    loop.request()
    loop.requests(4 * BUSY_POLL_FIRST_RUN - 1, 50)
    assert not loop.is_polling
    loop.requests(1, 50)
    assert loop.is_polling


def test_poll_ends_with_a_request_that_is_not_completed_within_its_read(loop: Loop) -> None:
    loop.request()
    loop.requests(BUSY_POLL_FIRST_RUN, 50)
    loop.poll.on_read()
    loop.requests_in_flight = 2  # two in flight: neither is single
    assert loop.wait(MOST_US) <= TURN_NS // 1_000
    loop.requests_in_flight = 0
    assert not loop.is_polling
    # Nor is that held against the client.
    loop.request()
    loop.requests(BUSY_POLL_FIRST_RUN, 50)
    assert loop.is_polling


def test_reads_of_a_single_client_start_polling() -> None:
    reads, loop, client = Reads(), Loop(), object()
    reads.busy_poll = loop.poll

    def response() -> None:
        loop.requests_in_flight -= 1

    def read(requests: int, reader: object = client) -> None:
        reads.begin(reader)
        loop.requests_in_flight += requests
        for _ in range(requests):
            if not reads.defer(response):
                response()
        reads.end()
        loop.now_ns += 1_000

    for _ in range(SINGLE_CONNECTION_READS + BUSY_POLL_FIRST_RUN + 1):
        read(1)
        assert not loop.is_polling
    read(1)
    assert loop.is_polling
    loop.wait(2 * MOST_US)
    # A read that is late ends the run, whatever it brings.
    for _ in range(BUSY_POLL_FIRST_RUN):
        read(1)
    loop.wait(2 * MOST_US)
    read(0)
    for _ in range(2 * BUSY_POLL_FIRST_RUN):
        read(1)
        assert not loop.is_polling
    loop.wait(2 * MOST_US)
    # Several at once are worth no wait: they are not answered sooner by it.
    for _ in range(4 * BUSY_POLL_FIRST_RUN):
        read(8)
        assert not loop.is_polling
    for _ in range(4 * BUSY_POLL_FIRST_RUN):
        read(1, object())
        assert not loop.is_polling
