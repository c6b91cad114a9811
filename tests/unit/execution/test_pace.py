"""When a model's batches may run on the event loop."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.server.execution.pace import (
    FAR_CPU_NS,
    FAR_WALL_NS,
    FIRST_RUNS,
    LONG_RUNS,
    MORE_RUNS,
    MUCH_NS,
    QUICK_NS,
    SLOW_COST_RUNS,
    SLOW_NS,
    WINDOW_RUNS,
    WINDOW_SLOW,
    Paces,
)

QUICK, SLOW = 10_000, SLOW_NS + 1


def ran(paces: Paces, cpu_ns: int, times: int = 1, size: int = 1, wall_ns: int = 0) -> None:
    for _ in range(times):
        paces.ran(size, cpu_ns=cpu_ns, wall_ns=wall_ns)


def on_loop() -> Paces:
    paces = Paces()
    ran(paces, QUICK, 1 + FIRST_RUNS)
    assert paces.may_run_on_loop(1)
    return paces


def test_an_unknown_model_runs_in_its_thread_until_enough_runs_were_quick():
    paces = Paces()
    assert not paces.may_run_on_loop(1)
    ran(paces, QUICK, 1 + FIRST_RUNS - 1)
    assert not paces.may_run_on_loop(1)
    ran(paces, QUICK)
    assert paces.may_run_on_loop(1)


def test_the_first_run_is_not_judged_because_it_finds_everything_cold():
    paces = Paces()
    ran(paces, FAR_CPU_NS)
    ran(paces, QUICK, FIRST_RUNS)
    assert paces.may_run_on_loop(1)


def test_one_run_that_is_not_quick_begins_the_count_anew():
    paces = Paces()
    ran(paces, QUICK, FIRST_RUNS)
    ran(paces, QUICK_NS + 1)
    ran(paces, QUICK, FIRST_RUNS - 1)
    assert not paces.may_run_on_loop(1)
    ran(paces, QUICK)
    assert paces.may_run_on_loop(1)


def test_what_is_on_the_loop_may_take_longer_than_what_comes_there():
    paces = on_loop()
    ran(paces, SLOW_NS, 10 * WINDOW_RUNS)
    assert paces.may_run_on_loop(1)


def test_more_than_one_slow_run_in_a_hundred_ends_the_stay():
    paces = on_loop()
    for _ in range(20):
        ran(paces, SLOW, WINDOW_SLOW)
        ran(paces, QUICK, WINDOW_RUNS - WINDOW_SLOW)
        assert paces.may_run_on_loop(1)
    ran(paces, SLOW, WINDOW_SLOW + 1)
    assert not paces.may_run_on_loop(1)


def test_one_run_that_takes_much_longer_ends_the_stay_at_once():
    paces = on_loop()
    ran(paces, MUCH_NS)
    assert not paces.may_run_on_loop(1)


def test_each_return_takes_more_quick_runs():
    paces = on_loop()
    needed = FIRST_RUNS
    for _ in range(3):
        ran(paces, MUCH_NS)
        needed = min(needed * MORE_RUNS, 16_384)
        ran(paces, QUICK, needed - 1)
        assert not paces.may_run_on_loop(1)
        ran(paces, QUICK)
        assert paces.may_run_on_loop(1)


def test_after_a_long_stay_the_return_is_as_easy_as_the_first():
    paces = on_loop()
    for _ in range(3):
        ran(paces, QUICK, LONG_RUNS)
        ran(paces, MUCH_NS)
        assert not paces.may_run_on_loop(1)
        ran(paces, QUICK, FIRST_RUNS - 1)
        assert not paces.may_run_on_loop(1)
        ran(paces, QUICK)
        assert paces.may_run_on_loop(1)


def test_after_a_stay_just_short_of_long_the_return_is_harder():
    paces = on_loop()
    ran(paces, QUICK, LONG_RUNS - 1)
    ran(paces, MUCH_NS)
    ran(paces, QUICK, FIRST_RUNS * MORE_RUNS - 1)
    assert not paces.may_run_on_loop(1)
    ran(paces, QUICK)
    assert paces.may_run_on_loop(1)


def test_a_slow_run_now_and_then_delays_a_return_and_does_not_prevent_it():
    paces = on_loop()
    needed = FIRST_RUNS
    for _ in range(3):  # the next return takes 16,384
        ran(paces, MUCH_NS)
        needed = min(needed * MORE_RUNS, 16_384)
        ran(paces, QUICK, needed)
    ran(paces, MUCH_NS)
    for _ in range(16):
        ran(paces, QUICK, 1_000)
        ran(paces, QUICK_NS + 1)
    left = 16_384 - 16 * (1_000 - SLOW_COST_RUNS)
    ran(paces, QUICK, left - 1)
    assert not paces.may_run_on_loop(1)
    ran(paces, QUICK)
    assert paces.may_run_on_loop(1)


def test_where_one_run_in_fifty_is_slow_no_count_is_ever_reached():
    paces = on_loop()
    ran(paces, MUCH_NS)
    for _ in range(1_000):
        ran(paces, QUICK, 49)
        ran(paces, SLOW)
        assert not paces.may_run_on_loop(1)


def test_a_model_that_was_once_slow_by_far_never_comes_again():
    for cpu_ns, wall_ns in ((FAR_CPU_NS, 0), (QUICK, FAR_WALL_NS)):
        paces = on_loop()
        ran(paces, cpu_ns, wall_ns=wall_ns)
        ran(paces, QUICK, 100_000)
        assert not paces.may_run_on_loop(1)


def test_batches_of_another_size_class_are_measured_for_themselves():
    paces = on_loop()
    assert not paces.may_run_on_loop(2)
    ran(paces, SLOW, 100, size=32)
    ran(paces, QUICK, FIRST_RUNS, size=3)
    assert [paces.may_run_on_loop(size) for size in (1, 2, 3, 4, 32)] == [True, True, True, False, False]


@given(st.lists(st.integers(0, 2 * MUCH_NS), max_size=300))
def test_never_do_more_than_one_in_a_hundred_of_the_runs_of_a_stay_come_slow_before_it_ends(durations):
    paces = on_loop()
    slow = 0
    for runs, cpu_ns in enumerate(durations, 1):
        if not paces.may_run_on_loop(1):
            break
        slow += cpu_ns > SLOW_NS
        assert slow <= (WINDOW_SLOW + 1) * (1 + runs // WINDOW_RUNS)
        ran(paces, cpu_ns)
