"""Ranges of load, as the flags write them."""

import pytest

from stoker.cli.bench.levels import Level, levels
from stoker.cli.output import CommandFailed, ExitCode


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, [1]), ("8", [8]), ("1:3", [1, 2, 3]), ("1:8:3", [1, 4, 7]), ("2:2", [2]), ("1,2,16", [1, 2, 16])],
)
def test_concurrency_is_a_number_a_range_or_a_list(text, expected):
    assert levels(text, None) == [Level(concurrency=each) for each in expected]


def test_rates_may_have_fractions_and_include_their_end():
    assert levels(None, "0.5:1.5:0.5") == [Level(rate_per_s=0.5), Level(rate_per_s=1.0), Level(rate_per_s=1.5)]


@pytest.mark.parametrize(
    ("concurrency", "rate", "fragment"),
    [
        ("1", "1", "both"),
        ("x", None, "--concurrency x"),
        ("1:2:3:4", None, "START:END:STEP"),
        ("0", None, "above 0"),
        ("1.5", None, "whole numbers"),
        ("5:1", None, "below the start"),
        ("1:1000", None, "1000 levels"),
        ("5000", None, "at most 4096"),
        (None, "nan", "--request-rate nan"),
        (None, "1:1e300:1e-300", "levels"),
        (None, "1e9", "at most"),
        (None, "1:2:0", "above 0"),
    ],
)
def test_invalid_range_is_refused_with_its_text(concurrency, rate, fragment):
    with pytest.raises(CommandFailed) as failed:
        levels(concurrency, rate)
    assert fragment in failed.value.message
    assert failed.value.exit_code is ExitCode.USAGE
