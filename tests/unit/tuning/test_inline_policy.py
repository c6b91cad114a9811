"""When a model's batches may run on the event loop."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.server.tuning.constants import (
    INLINE_BAN_CPU_NS,
    INLINE_BAN_WALL_NS,
    INLINE_EVICT_NS,
    INLINE_FIRST_RUNS,
    INLINE_LONG_DWELL_RUNS,
    INLINE_MORE_RUNS,
    INLINE_QUICK_NS,
    INLINE_SLOW_COST_RUNS,
    INLINE_SLOW_NS,
    INLINE_WINDOW_RUNS,
    INLINE_WINDOW_SLOW,
)
from stoker.server.tuning.inline_policy import InlinePolicy

QUICK, SLOW = 10_000, INLINE_SLOW_NS + 1


def ran(policy: InlinePolicy, cpu_ns: int, times: int = 1, size: int = 1, wall_ns: int = 0) -> None:
    for _ in range(times):
        policy.ran(size, cpu_ns=cpu_ns, wall_ns=wall_ns)


def on_loop() -> InlinePolicy:
    policy = InlinePolicy()
    ran(policy, QUICK, 1 + INLINE_FIRST_RUNS)
    assert policy.may_run_on_loop(1)
    return policy


def test_an_unknown_model_runs_in_its_thread_until_enough_runs_were_quick():
    policy = InlinePolicy()
    assert not policy.may_run_on_loop(1)
    ran(policy, QUICK, 1 + INLINE_FIRST_RUNS - 1)
    assert not policy.may_run_on_loop(1)
    ran(policy, QUICK)
    assert policy.may_run_on_loop(1)


def test_the_first_run_is_not_judged_because_it_finds_everything_cold():
    policy = InlinePolicy()
    ran(policy, INLINE_BAN_CPU_NS)
    ran(policy, QUICK, INLINE_FIRST_RUNS)
    assert policy.may_run_on_loop(1)


def test_one_run_that_is_not_quick_begins_the_count_anew():
    policy = InlinePolicy()
    ran(policy, QUICK, INLINE_FIRST_RUNS)
    ran(policy, INLINE_QUICK_NS + 1)
    ran(policy, QUICK, INLINE_FIRST_RUNS - 1)
    assert not policy.may_run_on_loop(1)
    ran(policy, QUICK)
    assert policy.may_run_on_loop(1)


def test_what_is_on_the_loop_may_take_longer_than_what_comes_there():
    policy = on_loop()
    ran(policy, INLINE_SLOW_NS, 10 * INLINE_WINDOW_RUNS)
    assert policy.may_run_on_loop(1)


def test_more_than_one_slow_run_in_a_hundred_ends_the_stay():
    policy = on_loop()
    for _ in range(20):
        ran(policy, SLOW, INLINE_WINDOW_SLOW)
        ran(policy, QUICK, INLINE_WINDOW_RUNS - INLINE_WINDOW_SLOW)
        assert policy.may_run_on_loop(1)
    ran(policy, SLOW, INLINE_WINDOW_SLOW + 1)
    assert not policy.may_run_on_loop(1)


def test_one_run_that_takes_much_longer_ends_the_stay_at_once():
    policy = on_loop()
    ran(policy, INLINE_EVICT_NS)
    assert not policy.may_run_on_loop(1)


def test_each_return_takes_more_quick_runs():
    policy = on_loop()
    needed = INLINE_FIRST_RUNS
    for _ in range(3):
        ran(policy, INLINE_EVICT_NS)
        needed = min(needed * INLINE_MORE_RUNS, 16_384)
        ran(policy, QUICK, needed - 1)
        assert not policy.may_run_on_loop(1)
        ran(policy, QUICK)
        assert policy.may_run_on_loop(1)


def test_after_a_long_stay_the_return_is_as_easy_as_the_first():
    policy = on_loop()
    for _ in range(3):
        ran(policy, QUICK, INLINE_LONG_DWELL_RUNS)
        ran(policy, INLINE_EVICT_NS)
        assert not policy.may_run_on_loop(1)
        ran(policy, QUICK, INLINE_FIRST_RUNS - 1)
        assert not policy.may_run_on_loop(1)
        ran(policy, QUICK)
        assert policy.may_run_on_loop(1)


def test_after_a_stay_just_short_of_long_the_return_is_harder():
    policy = on_loop()
    ran(policy, QUICK, INLINE_LONG_DWELL_RUNS - 1)
    ran(policy, INLINE_EVICT_NS)
    ran(policy, QUICK, INLINE_FIRST_RUNS * INLINE_MORE_RUNS - 1)
    assert not policy.may_run_on_loop(1)
    ran(policy, QUICK)
    assert policy.may_run_on_loop(1)


def test_a_slow_run_now_and_then_delays_a_return_and_does_not_prevent_it():
    policy = on_loop()
    needed = INLINE_FIRST_RUNS
    for _ in range(3):  # the next return takes 16,384
        ran(policy, INLINE_EVICT_NS)
        needed = min(needed * INLINE_MORE_RUNS, 16_384)
        ran(policy, QUICK, needed)
    ran(policy, INLINE_EVICT_NS)
    for _ in range(16):
        ran(policy, QUICK, 1_000)
        ran(policy, INLINE_QUICK_NS + 1)
    left = 16_384 - 16 * (1_000 - INLINE_SLOW_COST_RUNS)
    ran(policy, QUICK, left - 1)
    assert not policy.may_run_on_loop(1)
    ran(policy, QUICK)
    assert policy.may_run_on_loop(1)


def test_where_one_run_in_fifty_is_slow_no_count_is_ever_reached():
    policy = on_loop()
    ran(policy, INLINE_EVICT_NS)
    for _ in range(1_000):
        ran(policy, QUICK, 49)
        ran(policy, SLOW)
        assert not policy.may_run_on_loop(1)


def test_a_model_that_was_once_slow_by_far_never_comes_again():
    for cpu_ns, wall_ns in ((INLINE_BAN_CPU_NS, 0), (QUICK, INLINE_BAN_WALL_NS)):
        policy = on_loop()
        ran(policy, cpu_ns, wall_ns=wall_ns)
        ran(policy, QUICK, 100_000)
        assert not policy.may_run_on_loop(1)


def test_batches_of_another_size_class_are_measured_for_themselves():
    policy = on_loop()
    assert not policy.may_run_on_loop(2)
    ran(policy, SLOW, 100, size=32)
    ran(policy, QUICK, INLINE_FIRST_RUNS, size=3)
    assert [policy.may_run_on_loop(size) for size in (1, 2, 3, 4, 32)] == [True, True, True, False, False]


@given(st.lists(st.integers(0, 2 * INLINE_EVICT_NS), max_size=300))
def test_never_do_more_than_one_in_a_hundred_of_the_runs_of_a_stay_come_slow_before_it_ends(durations):
    policy = on_loop()
    slow = 0
    for runs, cpu_ns in enumerate(durations, 1):
        if not policy.may_run_on_loop(1):
            break
        slow += cpu_ns > INLINE_SLOW_NS
        assert slow <= (INLINE_WINDOW_SLOW + 1) * (1 + runs // INLINE_WINDOW_RUNS)
        ran(policy, cpu_ns)
