import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.openvino.parameters import DEFAULT_BUCKETS, bucket_for, default_buckets


@pytest.mark.parametrize(
    ("max_batch_size", "expected"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (12, (1, 2, 4, 8, 12)), (16, (1, 2, 4, 8, 16)), (128, (1, 4, 16, 32, 128))],
)
def test_powers_of_two_and_the_largest_batch_are_compiled(max_batch_size: int, expected: tuple[int, ...]) -> None:
    assert default_buckets(max_batch_size) == expected


@given(st.integers(1, 1 << 20))
def test_chosen_sizes_are_few_ascending_and_include_one_and_the_largest(max_batch_size: int) -> None:
    sizes = default_buckets(max_batch_size)
    assert len(sizes) <= DEFAULT_BUCKETS
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == max_batch_size


@given(st.sets(st.integers(1, 64), min_size=1), st.data())
def test_batch_uses_the_smallest_sufficient_size(sizes: set[int], data: st.DataObject) -> None:
    buckets = sorted(sizes)
    rows = data.draw(st.integers(1, buckets[-1]))
    found = bucket_for(rows, buckets)
    assert found == min(size for size in sizes if size >= rows)
