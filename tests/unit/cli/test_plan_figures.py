"""Figures of a plan: error bars in other units, and as text."""

import math

import pytest

from stoker.backends.simulated.model_error import ModelError
from stoker.cli.plan.cpu import spread
from stoker.cli.plan.figures import Figure, Origin, modelled, number, with_bar
from stoker.compiler.sizing import factors_of_latency, factors_of_throughput


def test_rate_of_a_time_has_the_slow_end_as_its_lower_end() -> None:
    rate = Figure(value=0.5, low=0.25, high=1.0, origin=Origin.MEASURED).rate(4)
    assert (rate.value, rate.low, rate.high, rate.origin) == (8.0, 4.0, 16.0, Origin.MEASURED)


def test_figure_without_a_known_error_says_so() -> None:
    assert with_bar(modelled(2.0, None)) == "2 (error unknown)"
    assert with_bar(modelled(2.0, (0.5, 1.5))) == "2 (1-3)"
    assert with_bar(Figure(value=2.0, low=1.0, high=None, origin=Origin.SIMULATED)) == "2 (1 and more)"


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (0.0, "0"), (0.0123456, "0.0123"), (1.0, "1"), (12.345, "12.3"), (1234.5, "1,230"), (math.inf, "inf")]
)
def test_number_has_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_error_of_the_throughput_bounds_the_throughput() -> None:
    error = ModelError(median=0.1, worst=0.25, rows=3, source="table")
    assert factors_of_throughput(error) == (0.75, 1.25)
    rate = modelled(1.0, factors_of_throughput(error)).rate(1)
    assert (rate.low, rate.high) == error.interval(1.0)
    assert factors_of_latency(error) == error.interval(1.0)


@pytest.mark.parametrize(
    "error", [ModelError(median=0.0, worst=0.0, rows=0, source=""), ModelError(median=0.5, worst=1.2, rows=2, source="")]
)
def test_error_that_says_nothing_gives_no_bar(error: ModelError) -> None:
    assert factors_of_latency(error) is None
    assert factors_of_throughput(error) is None


def test_spread_of_measured_times_leaves_out_a_tenth_at_each_end() -> None:
    figure = spread([float(each) for each in range(1, 12)])
    assert (figure.value, figure.low, figure.high) == (6.0, 2.0, 10.0)
    assert spread([3.0]) == Figure(value=3.0, low=None, high=None, origin=Origin.MEASURED)
