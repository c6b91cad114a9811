"""The histogram counts as Prometheus does: inclusive upper ends, cumulative, the last bucket without end."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.server.observability.statistics import DURATION_BOUNDS_NS, ROWS_BOUNDS, Histogram


def test_value_on_a_bound_belongs_to_that_bucket() -> None:
    histogram = Histogram((10, 20))
    histogram.observe(10)
    histogram.observe(11)
    histogram.observe(21)
    assert list(histogram.cumulative()) == [(10, 1), (20, 2), (None, 3)]
    assert (histogram.count, histogram.total) == (3, 42)


def test_default_bounds_ascend_from_100_us_to_60_s_and_from_one_row_to_1024() -> None:
    assert DURATION_BOUNDS_NS[0] == 100_000
    assert DURATION_BOUNDS_NS[-1] == 60_000_000_000
    assert list(DURATION_BOUNDS_NS) == sorted(set(DURATION_BOUNDS_NS))
    assert (ROWS_BOUNDS[0], ROWS_BOUNDS[-1]) == (1, 1024)


@given(
    bounds=st.lists(st.integers(0, 1000), min_size=1, max_size=8, unique=True).map(sorted),
    values=st.lists(st.integers(0, 1200), max_size=60),
)
def test_each_bucket_counts_values_up_to_its_bound(bounds: list[int], values: list[int]) -> None:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    below = [(bound, sum(value <= bound for value in values)) for bound in bounds]
    assert list(histogram.cumulative()) == [*below, (None, len(values))]
    assert histogram.total == sum(values)
