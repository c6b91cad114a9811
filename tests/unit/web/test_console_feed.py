"""The console's feed: the versions and their load belong together, also where several models have one name."""

from typing import Any

import orjson

from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.observability.history import INTERVAL_S, POINT_FIELDS
from stoker.server.observability.metrics import Metrics
from stoker.server.web.console.feed import Feed
from tests.fakes.fake_engine import FakeEngine, simple


class Engine(FakeEngine):
    """Has the models of `entries`."""

    entries: tuple[IndexEntry, ...] = ()

    def index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        return list(self.entries)


def entry(name: str, key: str = "") -> IndexEntry:
    return IndexEntry(name, 1, VersionState.READY, "", "fake", key)


def rows_per_s(requests: dict[str, int], *entries: IndexEntry) -> dict[tuple[str, str], float]:
    """The rate of each listed version, by name and key, after `requests` by the key that the metrics have."""
    clock = FakeClock()
    metrics = Metrics(clock)
    metrics.watch(namespaces=("/first", "/second"))
    history = metrics.history()
    engine = Engine(simple())
    engine.entries = entries
    feed = Feed(engine, history)
    for key, count in requests.items():
        metrics.version(key, 1, {}).succeeded(
            rows=[1] * count, request_ns=[1] * count, queue_ns=[1] * count, input_ns=0, infer_ns=0, output_ns=0
        )
    clock.advance(INTERVAL_S)
    history.sample()
    sample = data_of(feed.sample(history.since(history.last_number - 1)[0]))
    points = {(key, version): values[POINT_FIELDS.index("rows_per_s")] for key, version, values in sample["points"]}
    listed = data_of(feed.listing())["models"]
    return {(model["name"], model["key"]): points[model["key"], model["version"]] for model in listed}


def data_of(event: bytes) -> Any:
    return orjson.loads(event.split(b"data: ")[1])


def test_points_are_those_of_the_listed_versions():
    found = rows_per_s({"a": 8, "b": 4}, entry("a"), entry("b"))
    assert found == {("a", "a"): 8 / INTERVAL_S, ("b", "b"): 4 / INTERVAL_S}


def test_models_of_one_name_have_points_of_their_own():
    found = rows_per_s({"m@1": 8, "m@2": 4, "a@1": 2}, entry("a", "a@1"), entry("m", "m@1"), entry("m", "m@2"))
    assert found == {("a", "a@1"): 2 / INTERVAL_S, ("m", "m@1"): 8 / INTERVAL_S, ("m", "m@2"): 4 / INTERVAL_S}
