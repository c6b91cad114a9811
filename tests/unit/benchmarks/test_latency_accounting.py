"""Percentiles, and what a closed and an open loop count: time is turned by hand, the server is a puppet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.latency import percentile, summarise
from benchmarks.loops import GIVE_UP_AFTER, ClosedLoop, Done, OpenLoop

MS = 1_000_000


class Hands:
    """A clock, and a sender whose requests are answered when the test says so."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * MS
        self.waiting: list[Done] = []
        self.edges_ns: list[int] = []
        self.ends = 0

    def clock(self) -> int:
        return self.now_ns

    def send(self, done: Done) -> None:
        self.waiting.append(done)

    def edge(self) -> None:
        self.edges_ns.append(self.now_ns)

    def end(self) -> None:
        self.ends += 1

    def pass_ms(self, milliseconds: float) -> None:
        self.now_ns += round(milliseconds * MS)

    def answer(self, is_good: bool = True) -> None:
        self.waiting.pop(0)(is_good)


def closed(hands: Hands, concurrency: int, *, warmup_s: float = 0.0, duration_s: float = 0.1, max_requests: int = 10_000) -> ClosedLoop:
    loop = ClosedLoop(
        hands,
        concurrency=concurrency,
        warmup_s=warmup_s,
        duration_s=duration_s,
        max_requests=max_requests,
        clock_ns=hands.clock,
        on_edge=hands.edge,
        on_end=hands.end,
    )
    loop.start()
    return loop


def opened(hands: Hands, rate_per_s: float, *, warmup_s: float = 0.0, duration_s: float = 0.1, max_in_flight: int = 1000) -> OpenLoop:
    loop = OpenLoop(
        hands,
        rate_per_s=rate_per_s,
        warmup_s=warmup_s,
        duration_s=duration_s,
        max_requests=10_000,
        max_in_flight=max_in_flight,
        clock_ns=hands.clock,
        on_edge=hands.edge,
        on_end=hands.end,
    )
    loop.start()
    return loop


def test_percentile_is_an_observed_value_by_nearest_rank() -> None:
    values = [10, 20, 30, 40]
    assert [percentile(values, each) for each in (25, 50, 51, 75, 99, 100)] == [10, 20, 30, 30, 40, 40]


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0.1, 100))
def test_percentile_covers_its_share_of_the_values(values: list[int], percent: float) -> None:
    found = percentile(sorted(values), percent)
    assert found in values
    assert sum(each <= found for each in values) >= len(values) * percent / 100 - 1e-9
    assert sum(each < found for each in values) < len(values) * percent / 100 + 1e-9


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1], 0), ([1], 101)])
def test_percentile_of_no_values_is_refused(values: list[int], percent: float) -> None:
    with pytest.raises(ValueError, match="percent"):
        percentile(values, percent)


def test_summary_is_in_milliseconds_and_zero_for_nothing() -> None:
    assert summarise([3 * MS, 1 * MS, 2 * MS]).p50_ms == 2.0
    assert summarise([3 * MS, 1 * MS, 2 * MS]).max_ms == 3.0
    assert summarise([]).p99_ms == 0.0


def test_closed_loop_holds_its_concurrency_and_measures_from_send_to_response() -> None:
    hands = Hands()
    loop = closed(hands, 2)
    for _ in range(4):
        assert len(hands.waiting) == 2
        hands.pass_ms(10)
        hands.answer()
    # The first answer opens the window; the third was sent by it.
    assert loop.counters.latencies_ns == [20 * MS, 20 * MS, 20 * MS]


def test_closed_loop_counts_no_warmup_request() -> None:
    hands = Hands()
    loop = closed(hands, 1, warmup_s=0.05)
    for _ in range(5):
        hands.pass_ms(10)
        hands.answer()
    assert (loop.counters.completed, hands.edges_ns) == (0, [1_050 * MS])
    hands.pass_ms(10)
    hands.answer()
    assert loop.counters.completed == 1


def test_closed_loop_ends_after_a_whole_round_so_that_a_batching_server_is_not_favoured() -> None:
    hands = Hands()
    loop = closed(hands, 4, duration_s=0.1)
    hands.pass_ms(60)
    hands.answer()  # opens the window in the middle of a batch of four
    for _ in range(3):
        hands.answer()
    while len(hands.edges_ns) == 1:
        hands.pass_ms(60)
        for _ in range(4):
            hands.answer()
    # Two periods of 60 ms, four answers each: exactly the server's rate.
    assert (loop.counters.completed, loop.counters.elapsed_s) == (8, 0.12)


def test_closed_loop_ends_with_the_last_response() -> None:
    hands = Hands()
    closed(hands, 2, duration_s=0.0)
    for _ in range(3):
        hands.answer()
    assert (len(hands.edges_ns), len(hands.waiting), hands.ends) == (2, 1, 0)
    hands.answer()
    assert (hands.waiting, hands.ends) == ([], 1)


def test_closed_loop_is_bounded_in_requests() -> None:
    hands = Hands()
    loop = closed(hands, 1, duration_s=1e6, max_requests=3)
    while hands.waiting:
        hands.answer()
    assert (loop.counters.completed, hands.ends) == (3, 1)


def test_closed_loop_stops_if_the_server_only_fails() -> None:
    hands = Hands()
    loop = closed(hands, 1, duration_s=1e6)
    for _ in range(GIVE_UP_AFTER):
        hands.answer(False)
    assert loop.counters.gave_up
    assert (hands.waiting, hands.ends) == ([], 1)


def test_stopped_closed_loop_counts_unfinished_requests() -> None:
    hands = Hands()
    loop = closed(hands, 3, duration_s=1e6)
    hands.answer()
    loop.stop()
    assert loop.counters.unfinished == 3
    while hands.waiting:
        hands.answer()
    assert hands.ends == 1


def test_open_loop_charges_a_stall_to_every_request_that_was_due_in_it() -> None:
    hands = Hands()
    loop = opened(hands, 1000.0, duration_s=0.005)  # due at 0, 1, 2, 3, 4 ms
    hands.pass_ms(10)  # the generator itself was held up: the four others leave late
    loop.tick()
    assert len(hands.waiting) == 5
    for _ in range(5):
        hands.answer()
    assert loop.counters.latencies_ns == [10 * MS, 9 * MS, 8 * MS, 7 * MS, 6 * MS]
    assert loop.counters.send_lags_ns == [0, 9 * MS, 8 * MS, 7 * MS, 6 * MS]
    assert hands.ends == 1


def test_open_loop_sends_while_responses_are_missing() -> None:
    hands = Hands()
    loop = opened(hands, 1000.0, duration_s=0.005)
    for _ in range(4):
        hands.pass_ms(1)
        loop.tick()
    assert len(hands.waiting) == 5


def test_open_loop_beyond_its_bound_in_flight_still_counts_from_when_a_request_was_due() -> None:
    hands = Hands()
    loop = opened(hands, 1000.0, duration_s=0.002, max_in_flight=1)  # due at 0 and 1 ms
    hands.pass_ms(4)
    loop.tick()
    assert len(hands.waiting) == 1
    hands.answer()
    hands.pass_ms(1)
    hands.answer()
    assert loop.counters.latencies_ns == [4 * MS, 4 * MS]


def test_open_loop_window_opens_when_its_first_request_is_due() -> None:
    hands = Hands()
    loop = opened(hands, 1000.0, warmup_s=0.002, duration_s=0.001)
    hands.pass_ms(5)
    loop.tick()
    while hands.waiting:
        hands.answer()
    assert (loop.counters.completed, loop.counters.opened_ns, loop.counters.closed_ns) == (1, 1_002 * MS, 1_005 * MS)
    assert len(hands.edges_ns) == 2


def test_stopped_open_loop_counts_unfinished_requests_with_their_wait_so_far() -> None:
    hands = Hands()
    loop = opened(hands, 1000.0, duration_s=0.002, max_in_flight=1)
    hands.pass_ms(8)
    loop.tick()
    loop.stop()
    # One was sent and never answered, one never left.
    assert (loop.counters.unfinished, loop.counters.completed, loop.counters.latencies_ns) == (2, 0, [8 * MS, 7 * MS])
    hands.answer()
    assert (loop.counters.completed, hands.ends) == (0, 1)
