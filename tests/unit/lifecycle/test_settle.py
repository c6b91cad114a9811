"""Content that appears, changes or vanishes counts only once it is stable."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stoker.server.lifecycle.listing import ModelListing, RepositorySnapshot, VersionListing
from stoker.server.lifecycle.watch import SettleFilter

S = 1_000_000_000


def snapshot(**models: dict[int, str] | tuple[str, dict[int, str]]) -> RepositorySnapshot:
    """Models by name: version -> fingerprint, with a config fingerprint before it where it matters."""
    listings = {}
    for name, given_ in models.items():
        config, versions = given_ if isinstance(given_, tuple) else ("c", given_)
        listings[name] = ModelListing(
            name=name,
            directory=Path(name),
            root_index=0,
            config=None,
            error=None,
            fingerprint=config,
            versions={v: VersionListing(version=v, directory=Path(name, str(v)), fingerprint=f) for v, f in versions.items()},
        )
    return RepositorySnapshot(listings)


def seen(settled: RepositorySnapshot) -> dict[str, tuple[str, dict[int, str]]]:
    return {
        name: (model.fingerprint, {v: part.fingerprint for v, part in model.versions.items()}) for name, model in settled.models.items()
    }


def started(**models: dict[int, str]) -> SettleFilter:
    settle_filter = SettleFilter(S)
    settle_filter.start(snapshot(**models))
    return settle_filter


def test_everything_is_accepted_at_start() -> None:
    settled, is_settled = started(m={1: "a"}).settle(snapshot(m={1: "a"}), 0)
    assert seen(settled) == {"m": ("c", {1: "a"})}
    assert is_settled


def test_new_version_is_accepted_after_it_is_stable() -> None:
    settle_filter = started(m={1: "a"})
    for now, fingerprint, expected in [(0, "half", {1: "a"}), (S, "whole", {1: "a"}), (2 * S - 1, "whole", {1: "a"})]:
        settled, is_settled = settle_filter.settle(snapshot(m={1: "a", 2: fingerprint}), now)
        assert seen(settled)["m"][1] == expected
        assert not is_settled
    settled, is_settled = settle_filter.settle(snapshot(m={1: "a", 2: "whole"}), 2 * S)
    assert seen(settled)["m"][1] == {1: "a", 2: "whole"}
    assert is_settled


def test_edited_version_keeps_its_earlier_state_until_it_is_stable() -> None:
    settle_filter = started(m={1: "a"})
    assert seen(settle_filter.settle(snapshot(m={1: "b"}), 0)[0])["m"][1] == {1: "a"}
    assert seen(settle_filter.settle(snapshot(m={1: "b"}), S)[0])["m"][1] == {1: "b"}


def test_edited_config_keeps_its_earlier_state_until_it_is_stable() -> None:
    settle_filter = started(m={1: "a"})
    assert seen(settle_filter.settle(snapshot(m=("new", {1: "a"})), 0)[0])["m"][0] == "c"
    assert seen(settle_filter.settle(snapshot(m=("new", {1: "a"})), S)[0])["m"][0] == "new"


def test_reverted_change_has_no_effect() -> None:
    settle_filter = started(m={1: "a"})
    settle_filter.settle(snapshot(m={1: "b"}), 0)
    settled, is_settled = settle_filter.settle(snapshot(m={1: "a"}), S)
    assert seen(settled)["m"][1] == {1: "a"}
    assert is_settled


def test_new_model_is_accepted_with_its_first_complete_version() -> None:
    settle_filter = started()
    assert seen(settle_filter.settle(snapshot(m={}), 0)[0]) == {}
    assert seen(settle_filter.settle(snapshot(m={1: "half"}), S // 2)[0]) == {}
    assert seen(settle_filter.settle(snapshot(m={1: "half"}), S)[0]) == {}, "the config has settled, the version has not"
    assert seen(settle_filter.settle(snapshot(m={1: "half"}), 2 * S)[0]) == {"m": ("c", {1: "half"})}


def test_new_model_that_stays_without_versions_is_accepted_as_such() -> None:
    settle_filter = started()
    settle_filter.settle(snapshot(m={}), 0)
    assert seen(settle_filter.settle(snapshot(m={}), S)[0]) == {"m": ("c", {})}
    settled, _ = settle_filter.settle(snapshot(m={1: "half"}), S)
    assert seen(settled) == {"m": ("c", {})}, "once it counts it does not stop counting because a version arrives"


def test_model_that_returns_in_time_is_never_removed() -> None:
    settle_filter = started(m={1: "a"})
    settled, is_settled = settle_filter.settle(snapshot(), 0)
    assert seen(settled) == {"m": ("c", {1: "a"})}
    assert not is_settled
    assert seen(settle_filter.settle(snapshot(m={1: "b"}), S // 2)[0]) == {"m": ("c", {1: "a"})}
    assert seen(settle_filter.settle(snapshot(m={1: "b"}), 2 * S)[0]) == {"m": ("c", {1: "b"})}


def test_model_that_stays_away_is_removed() -> None:
    settle_filter = started(m={1: "a"})
    settle_filter.settle(snapshot(), 0)
    settled, is_settled = settle_filter.settle(snapshot(), S)
    assert seen(settled) == {}
    assert is_settled


def test_version_is_removed_only_when_no_replacement_is_arriving() -> None:
    settle_filter = started(m={1: "a"})
    settle_filter.settle(snapshot(m={2: "h1"}), 0)
    assert seen(settle_filter.settle(snapshot(m={2: "h2"}), 2 * S)[0])["m"][1] == {1: "a"}
    assert seen(settle_filter.settle(snapshot(m={2: "h2"}), 3 * S)[0])["m"][1] == {2: "h2"}


VERSIONS = st.dictionaries(st.integers(1, 3), st.sampled_from("ab"), max_size=3)
SNAPSHOTS = st.dictionaries(st.sampled_from("mn"), st.tuples(st.sampled_from("cd"), VERSIONS), max_size=2).map(
    lambda models: snapshot(**models)
)


@given(SNAPSHOTS, st.lists(st.tuples(SNAPSHOTS, st.integers(0, 2 * S))), SNAPSHOTS)
def test_stable_content_is_accepted_whatever_its_history(first, history, last) -> None:
    settle_filter = SettleFilter(S)
    settle_filter.start(first)
    now = 0
    for scan, step in [*history, (last, 0)]:
        now += step
        settle_filter.settle(scan, now)
    settle_filter.settle(last, now + S)
    settled, is_settled = settle_filter.settle(last, now + 2 * S)
    assert is_settled
    assert seen(settled) == seen(last)


@given(SNAPSHOTS, st.lists(SNAPSHOTS))
def test_state_is_unchanged_while_no_time_passes(first, scans) -> None:
    settle_filter = SettleFilter(S)
    settle_filter.start(first)
    for scan in scans:
        assert seen(settle_filter.settle(scan, 0)[0]) == seen(first)
