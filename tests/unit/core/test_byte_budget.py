"""The budget of bytes in flight: admission, the reserve for small requests, and the eviction of uploads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.server.core.byte_budget import ByteBudget

MIB = 1 << 20
MOST = 64 * MIB
SMALL = 60_000


class Held:
    """An upload that holds `size_bytes` and arrives at `speed`."""

    def __init__(self, budget: ByteBudget, size_bytes: int, speed: float | None) -> None:
        self.budget, self.size_bytes, self.speed = budget, size_bytes, speed
        self.is_ended = False
        assert budget.reserve(size_bytes, 0, self)
        budget.watch(self)

    def held_bytes(self) -> int:
        return self.size_bytes

    def rate(self) -> float | None:
        return self.speed

    def evict(self) -> None:
        self.budget.release(self.size_bytes)
        self.is_ended = True


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now


def budget(clock: Clock | None = None) -> ByteBudget:
    return ByteBudget(MOST, (clock or Clock()).now_ns)


def test_large_requests_leave_a_reserve_for_small_ones():
    most = budget()
    assert most.reserve(60 * MIB)
    assert not most.reserve(MIB)
    for _ in range(4 * MIB // SMALL):
        assert most.reserve(SMALL)
    assert not most.reserve(SMALL)


def test_small_requests_may_use_the_whole_budget():
    most = budget()
    for _ in range(MOST // SMALL):
        assert most.reserve(SMALL)
    assert not most.reserve(SMALL)


def test_oversized_request_passes_alone_beside_small_ones():
    most = budget()
    assert most.reserve(SMALL)
    # As it grows, too: by what is decoded of it, or piece by piece.
    assert most.reserve(SMALL)
    assert most.reserve(10 * MOST, SMALL)
    assert most.reserve(MIB, 10 * MOST + SMALL)
    assert not most.reserve(MIB)
    assert most.reserve(SMALL)
    most.release(10 * MOST + MIB + SMALL)
    assert most.reserve(MIB)


def test_slowest_upload_is_evicted_when_the_budget_is_full():
    most = budget()
    slow, slower, fast = Held(most, 20 * MIB, 1000.0), Held(most, 20 * MIB, 10.0), Held(most, 20 * MIB, 1e6)
    assert most.reserve(MIB)
    assert [each.is_ended for each in (slow, slower, fast)] == [False, True, False]
    assert most.evicted == 1
    assert most.held_bytes == 41 * MIB


def test_eviction_ends_only_as_many_uploads_as_needed():
    most = budget()
    uploads = [Held(most, 15 * MIB, float(speed)) for speed in (3, 1, 2, 4)]
    assert most.reserve(20 * MIB)
    assert [each.is_ended for each in uploads] == [False, True, True, False]


@pytest.mark.parametrize("speed", [None, 50.0])
def test_upload_that_is_young_fast_or_too_small_is_not_evicted(speed: float | None):
    """Uploads too young to judge, faster than the requester, or too small together."""
    clock = Clock()
    most = budget(clock)
    asker = Held(most, MIB, 20.0)
    fast = Held(most, 58 * MIB, speed)
    assert not most.reserve(2 * MIB, MIB, asker)
    assert not fast.is_ended
    clock.now += 1_000_000_000
    fast.speed = 10.0
    assert most.reserve(2 * MIB, MIB, asker)
    assert fast.is_ended


def test_upload_whose_eviction_frees_too_little_is_kept():
    most = budget()
    slow = Held(most, MIB, 1.0)
    assert most.reserve(59 * MIB)
    assert not most.reserve(10 * MIB)
    assert not slow.is_ended


def test_full_budget_is_not_searched_for_every_refusal():
    clock = Clock()
    most = budget(clock)
    asked = 0

    class Counted(Held):
        def rate(self) -> float | None:
            nonlocal asked
            asked += 1
            return None

    Counted(most, 60 * MIB, None)
    for _ in range(100):
        assert not most.reserve(MIB)
    assert asked == 1
    clock.now += 1_000_000_000
    assert not most.reserve(MIB)
    assert asked == 2


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9 * MIB)), max_size=40))
def test_release_returns_the_reserved_size(steps: list[tuple[int, int]]):
    most = budget()
    held = [0] * 5
    for at, size in steps:
        if most.reserve(size, held[at]):
            held[at] += size
        elif held[at]:
            most.release(held[at] // 2, held[at])
            held[at] -= held[at] // 2
        assert most.held_bytes == sum(held)
        assert most.held_bytes <= MOST
    for each in held:
        most.release(each)
    assert most.held_bytes == 0
    fresh, sizes = budget(), (SMALL, 9 * MIB, 50 * MIB, SMALL, 9 * MIB, MOST)
    assert [most.reserve(size) for size in sizes] == [fresh.reserve(size) for size in sizes]
