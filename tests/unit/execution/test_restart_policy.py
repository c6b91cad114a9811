"""When a worker process that has died is started again."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.server.execution.restart_policy import (
    FIRST_EJECTION_NS,
    FIRST_PAUSE_NS,
    MAX_EJECTION_NS,
    MAX_PAUSE_NS,
    MOST_DEATHS,
    STABLE_NS,
    WINDOW_NS,
    RestartPolicy,
)

S = 1_000_000_000


def test_first_pauses_double_and_stay_far_below_two_seconds():
    policy = RestartPolicy()
    pauses = [policy.died(now * S) for now in range(MOST_DEATHS - 1)]
    assert pauses == [FIRST_PAUSE_NS << step for step in range(MOST_DEATHS - 1)]
    assert max(pauses) < 2 * S
    assert not policy.is_ejected


def test_fifth_death_within_a_minute_ejects():
    policy = RestartPolicy()
    for death in range(MOST_DEATHS):
        assert not policy.is_ejected
        pause_ns = policy.died(death * 10 * S)
        if not policy.is_ejected:
            policy.started(death * 10 * S + pause_ns)
    assert policy.is_ejected
    assert pause_ns == FIRST_EJECTION_NS
    assert policy.deaths == MOST_DEATHS


def test_deaths_that_are_further_apart_do_not_eject():
    policy = RestartPolicy()
    for death in range(50):
        policy.died(death * (WINDOW_NS // (MOST_DEATHS - 1) + 1))
        assert not policy.is_ejected


def test_start_ends_the_ejection_and_the_next_death_ejects_for_twice_as_long():
    policy = RestartPolicy()
    for _ in range(MOST_DEATHS):
        now = policy.died(0)
    pauses = [now]
    for _ in range(6):
        now += 1
        policy.started(now)
        assert not policy.is_ejected
        pauses.append(policy.died(now + 1))
        assert policy.is_ejected
        now += pauses[-1]
    assert pauses == [min(FIRST_EJECTION_NS << step, MAX_EJECTION_NS) for step in range(7)]


def test_failed_start_after_an_ejection_ejects_for_longer():
    policy = RestartPolicy()
    for _ in range(MOST_DEATHS):
        pause_ns = policy.died(0)
    assert policy.died(pause_ns) == 2 * pause_ns
    assert policy.is_ejected


def test_process_that_has_lived_long_begins_anew():
    policy = RestartPolicy()
    for _ in range(MOST_DEATHS + 2):
        policy.died(0)
    policy.started(0)
    assert policy.died(STABLE_NS) == FIRST_PAUSE_NS
    assert not policy.is_ejected


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * STABLE_NS)), max_size=60))
def test_pauses_are_bounded_and_an_ejection_needs_a_burst(events):
    policy = RestartPolicy()
    now = 0
    deaths: list[int] = []
    was_ejected = False
    started: int | None = None
    for is_start, elapsed in events:
        now += elapsed
        if is_start:
            policy.started(now)
            started = now
            assert not policy.is_ejected
            continue
        if started is not None and now - started >= STABLE_NS:
            deaths.clear()
            was_ejected = False
        started = None
        deaths.append(now)
        pause_ns = policy.died(now)
        assert FIRST_PAUSE_NS <= pause_ns <= MAX_EJECTION_NS
        is_burst = len(deaths) >= MOST_DEATHS and deaths[-1] - deaths[-MOST_DEATHS] <= WINDOW_NS
        assert policy.is_ejected == (is_burst or was_ejected)
        assert (pause_ns >= FIRST_EJECTION_NS) == policy.is_ejected
        assert policy.is_ejected or pause_ns <= MAX_PAUSE_NS
        was_ejected = policy.is_ejected
    assert policy.deaths == sum(not is_start for is_start, _ in events)
