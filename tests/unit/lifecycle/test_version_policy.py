from hypothesis import given
from hypothesis import strategies as st

from stoker.server.core.model_config import AllVersions, LatestVersions, NoVersions, SpecificVersions
from stoker.server.lifecycle.reconcile import desired_versions

versions = st.sets(st.integers(min_value=1, max_value=2**63 - 1))


@given(versions, st.integers(min_value=1, max_value=5))
def test_latest_selects_the_highest(available: set[int], count: int) -> None:
    desired = desired_versions(LatestVersions(count), available)
    assert len(desired) == min(count, len(available))
    assert all(left < taken for left in available - desired for taken in desired)


@given(versions)
def test_all_selects_everything(available: set[int]) -> None:
    assert desired_versions(AllVersions(), available) == available


@given(versions, st.sets(st.integers(min_value=1, max_value=9)))
def test_specific_selects_named_versions_even_if_missing(available: set[int], named: set[int]) -> None:
    assert desired_versions(SpecificVersions(tuple(named)), available) == named


@given(versions)
def test_none_selects_nothing(available: set[int]) -> None:
    assert desired_versions(NoVersions(), available) == frozenset()


def test_latest_of_none_is_none() -> None:
    assert desired_versions(LatestVersions(0), {1, 2}) == frozenset()
