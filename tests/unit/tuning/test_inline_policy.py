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


def test_unknown_model_runs_in_its_thread_until_enough_runs_were_quick():
    policy = InlinePolicy()
    assert not policy.may_run_on_loop(1)
    ran(policy, QUICK, 1 + INLINE_FIRST_RUNS - 1)
    assert not policy.may_run_on_loop(1)
    ran(policy, QUICK)
    assert policy.may_run_on_loop(1)


def test_runs_that_are_reported_together_count_with_their_mean_time():
    policy = on_loop()
    policy.ran(1, cpu_ns=5 * SLOW // 2, wall_ns=0, runs=5)
    assert policy.may_run_on_loop(1)
    policy.ran(1, cpu_ns=(INLINE_WINDOW_SLOW + 1) * SLOW, wall_ns=0, runs=INLINE_WINDOW_SLOW + 1)
    assert not policy.may_run_on_loop(1)


def test_extremely_slow_run_among_quick_ones_evicts():
    policy = on_loop()
    policy.ran(1, cpu_ns=INLINE_EVICT_NS + 9 * QUICK, wall_ns=0, runs=10)
    assert not policy.may_run_on_loop(1)


def test_first_run_is_not_counted_because_caches_are_cold():
    policy = InlinePolicy()
    ran(policy, INLINE_BAN_CPU_NS)
    ran(policy, QUICK, INLINE_FIRST_RUNS)
    assert policy.may_run_on_loop(1)


def test_one_slow_run_restarts_the_count():
    policy = InlinePolicy()
    ran(policy, QUICK, INLINE_FIRST_RUNS)
    ran(policy, INLINE_QUICK_NS + 1)
    ran(policy, QUICK, INLINE_FIRST_RUNS - 1)
    assert not policy.may_run_on_loop(1)
    ran(policy, QUICK)
    assert policy.may_run_on_loop(1)


def test_inline_model_may_take_longer_than_the_limit_for_promotion():
    policy = on_loop()
    ran(policy, INLINE_SLOW_NS, 10 * INLINE_WINDOW_RUNS)
    assert policy.may_run_on_loop(1)


def test_more_than_one_slow_run_in_a_hundred_ends_the_dwell():
    policy = on_loop()
    for _ in range(20):
        ran(policy, SLOW, INLINE_WINDOW_SLOW)
        ran(policy, QUICK, INLINE_WINDOW_RUNS - INLINE_WINDOW_SLOW)
        assert policy.may_run_on_loop(1)
    ran(policy, SLOW, INLINE_WINDOW_SLOW + 1)
    assert not policy.may_run_on_loop(1)


def test_one_very_slow_run_ends_the_dwell_at_once():
    policy = on_loop()
    ran(policy, INLINE_EVICT_NS)
    assert not policy.may_run_on_loop(1)


def test_each_return_needs_more_quick_runs():
    policy = on_loop()
    needed = INLINE_FIRST_RUNS
    for _ in range(3):
        ran(policy, INLINE_EVICT_NS)
        needed = min(needed * INLINE_MORE_RUNS, 16_384)
        ran(policy, QUICK, needed - 1)
        assert not policy.may_run_on_loop(1)
        ran(policy, QUICK)
        assert policy.may_run_on_loop(1)


def test_return_after_a_long_dwell_needs_as_few_runs_as_the_first():
    policy = on_loop()
    for _ in range(3):
        ran(policy, QUICK, INLINE_LONG_DWELL_RUNS)
        ran(policy, INLINE_EVICT_NS)
        assert not policy.may_run_on_loop(1)
        ran(policy, QUICK, INLINE_FIRST_RUNS - 1)
        assert not policy.may_run_on_loop(1)
        ran(policy, QUICK)
        assert policy.may_run_on_loop(1)


def test_return_after_a_dwell_just_short_of_long_needs_more_runs():
    policy = on_loop()
    ran(policy, QUICK, INLINE_LONG_DWELL_RUNS - 1)
    ran(policy, INLINE_EVICT_NS)
    ran(policy, QUICK, INLINE_FIRST_RUNS * INLINE_MORE_RUNS - 1)
    assert not policy.may_run_on_loop(1)
    ran(policy, QUICK)
    assert policy.may_run_on_loop(1)


def test_occasional_slow_run_delays_a_return_and_does_not_prevent_it():
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


def test_model_with_one_slow_run_in_fifty_never_returns():
    policy = on_loop()
    ran(policy, INLINE_EVICT_NS)
    for _ in range(1_000):
        ran(policy, QUICK, 49)
        ran(policy, SLOW)
        assert not policy.may_run_on_loop(1)


def test_model_that_was_once_very_slow_never_returns():
    for cpu_ns, wall_ns in ((INLINE_BAN_CPU_NS, 0), (QUICK, INLINE_BAN_WALL_NS)):
        policy = on_loop()
        ran(policy, cpu_ns, wall_ns=wall_ns)
        ran(policy, QUICK, 100_000)
        assert not policy.may_run_on_loop(1)


def test_batches_of_another_size_class_are_measured_separately():
    policy = on_loop()
    assert not policy.may_run_on_loop(2)
    ran(policy, SLOW, 100, size=32)
    ran(policy, QUICK, INLINE_FIRST_RUNS, size=3)
    assert [policy.may_run_on_loop(size) for size in (1, 2, 3, 4, 32)] == [True, True, True, False, False]


@given(st.lists(st.integers(0, 2 * INLINE_EVICT_NS), max_size=300))
def test_slow_runs_of_a_dwell_never_exceed_one_in_a_hundred(durations):
    policy = on_loop()
    slow = 0
    for runs, cpu_ns in enumerate(durations, 1):
        if not policy.may_run_on_loop(1):
            break
        slow += cpu_ns > INLINE_SLOW_NS
        assert slow <= (INLINE_WINDOW_SLOW + 1) * (1 + runs // INLINE_WINDOW_RUNS)
        ran(policy, cpu_ns)
