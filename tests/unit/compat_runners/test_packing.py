"""Packs are formed by three algorithms and three limits; nothing is lost, nothing overlaps, the order is preserved."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poprt.runtime.packing import Pack, PackAlgorithm, Packing, RowShape

LONG = 10**9
ALGORITHMS = list(PackAlgorithm)


def starts(pack: Pack) -> list[int]:
    return [placed.starts[0] for placed in pack.items]


def packed(lengths, algorithm, *, rows=2, row_length=10, max_items=100, gap=0) -> list[list[int]]:
    packing: Packing[int] = Packing([RowShape(rows, row_length, gap)], algorithm, max_items=max_items, window_ns=LONG)
    packs = [pack for number, length in enumerate(lengths) for pack in packing.add(number, [length], 0)]
    return [starts(pack) for pack in packs + packing.flush()]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (PackAlgorithm.end_to_end, [[0, 6, 13, 16], [0]]),
        (PackAlgorithm.next_fit, [[0, 10, 17], [0, 10]]),
        (PackAlgorithm.first_fit, [[0, 10, 6], [0, 10]]),
    ],
)
def test_each_algorithm_places_as_specified(algorithm, expected) -> None:
    assert packed([6, 7, 3, 4, 8], algorithm) == expected


def test_first_fit_returns_to_a_row_that_next_fit_has_left() -> None:
    assert packed([6, 7, 4, 3], PackAlgorithm.first_fit) == [[0, 10, 6, 17]]
    assert packed([6, 7, 4, 3], PackAlgorithm.next_fit) == [[0, 10], [0, 4]]


def test_gap_stays_free_between_neighbours() -> None:
    assert packed([4, 4, 2], PackAlgorithm.next_fit, gap=2) == [[0, 6, 10]]


def test_pack_with_the_maximum_number_of_items_is_complete() -> None:
    packing: Packing[str] = Packing([RowShape(2, 10)], max_items=2, window_ns=LONG)
    assert packing.add("a", [1], 0) == []
    (pack,) = packing.add("b", [1], 5)
    assert [placed.item for placed in pack.items] == ["a", "b"]
    assert packing.deadline_ns is None


def test_pack_is_complete_when_the_next_item_exceeds_it() -> None:
    packing: Packing[str] = Packing([RowShape(1, 10)], max_items=9, window_ns=7)
    assert packing.add("a", [6], 100) == []
    (pack,) = packing.add("b", [5], 103)
    assert [placed.item for placed in pack.items] == ["a"]
    assert packing.deadline_ns == 110  # of b


def test_pack_is_due_when_the_window_of_its_first_item_is_over() -> None:
    packing: Packing[str] = Packing([RowShape(1, 10)], max_items=9, window_ns=50)
    packing.add("a", [2], 100)
    packing.add("b", [2], 140)
    assert packing.due(149) == []
    (pack,) = packing.due(150)
    assert [placed.item for placed in pack.items] == ["a", "b"]
    assert packing.due(10**6) == []


def test_groups_are_placed_together() -> None:
    packing: Packing[str] = Packing([RowShape(1, 10), RowShape(1, 4)], max_items=9, window_ns=0)
    assert packing.add("a", [3, 3], 0) == []
    (pack,) = packing.add("b", [3, 2], 0)  # room for the first length only
    assert [(placed.item, placed.starts) for placed in pack.items] == [("a", (0, 0))]
    with pytest.raises(ValueError, match="1 lengths given for 2"):
        packing.add("c", [1], 0)


@pytest.mark.parametrize(("algorithm", "longest"), [("end_to_end", 20), ("next_fit", 10), ("first_fit", 10)])
def test_item_larger_than_a_pack_is_refused(algorithm, longest) -> None:
    packing: Packing[str] = Packing([RowShape(2, 10)], PackAlgorithm[algorithm], max_items=9, window_ns=0)
    for length in (0, longest + 1):
        with pytest.raises(ValueError, match=f"1 to {longest} do"):
            packing.add("a", [length], 0)


@pytest.mark.parametrize(
    ("shapes", "settings", "text"),
    [
        ([], {"max_items": 1, "window_ns": 0}, "1 token or more"),
        ([RowShape(0, 3)], {"max_items": 1, "window_ns": 0}, "1 token or more"),
        ([RowShape(1, 3)], {"max_items": 0, "window_ns": 0}, "1 item or more"),
        ([RowShape(1, 3)], {"max_items": 1, "window_ns": -1}, "0 ns or more"),
    ],
)
def test_invalid_sizes_are_refused(shapes, settings, text) -> None:
    with pytest.raises(ValueError, match=text):
        Packing(shapes, **settings)


@given(
    algorithm=st.sampled_from(ALGORITHMS),
    rows=st.integers(1, 4),
    row_length=st.integers(1, 12),
    gap=st.integers(0, 2),
    max_items=st.integers(1, 6),
    events=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 30)), max_size=40),
)
def test_every_item_is_in_one_pack_in_order_and_without_overlap(algorithm, rows, row_length, gap, max_items, events) -> None:
    packing: Packing[int] = Packing([RowShape(rows, row_length, gap)], algorithm, max_items=max_items, window_ns=40)
    now = 0
    packs: list[Pack[int]] = []
    added: list[int] = []
    arrived: dict[int, int] = {}
    for length, wait in events:
        now += wait
        packs += packing.due(now)
        length = min(length, packing.longest())
        arrived[len(added)] = now
        packs += packing.add(len(added), [length], now)
        added.append(length)
        assert packing.deadline_ns is None or now <= packing.deadline_ns
    packs += packing.flush()
    items = [placed for pack in packs for placed in pack.items]
    assert [placed.item for placed in items] == list(range(len(added)))
    assert [placed.lengths[0] for placed in items] == added
    for pack in packs:
        assert 1 <= len(pack.items) <= max_items
        assert arrived[pack.items[-1].item] - arrived[pack.items[0].item] <= 40
        spans = sorted((placed.starts[0], placed.starts[0] + placed.lengths[0]) for placed in pack.items)
        assert spans[0][0] >= 0
        assert spans[-1][1] <= rows * row_length
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end + (gap if start // row_length == end // row_length and end % row_length else 0)
        if algorithm is not PackAlgorithm.end_to_end:
            assert all(start // row_length == (end - 1) // row_length for start, end in spans)
