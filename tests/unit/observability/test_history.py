"""The samples of the console's live view: rates, means and quantiles between two times."""

import asyncio
import math
from collections.abc import Sequence
from itertools import accumulate

import pytest

from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.observability import history as module
from stoker.server.observability.history import INTERVAL_S, MOST_SAMPLES, POINT_FIELDS, History, interpolated_quantile
from stoker.server.observability.metrics import Metrics
from stoker.server.observability.recorder import FailureReason

MS = 1_000_000


class Rig:
    """A history with a clock, and the metrics that it reads."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.metrics = Metrics(self.clock)
        self.history: History = self.metrics.history()

    def requests(self, count: int, model: str = "m", version: int = 1, request_ms: int = 3, rows: int = 2) -> None:
        """`count` requests of `rows` rows each, in one batch: 1 ms in the queue, 1 ms of computation."""
        recorder = self.metrics.version(model, version, {})
        recorder.executed([rows * count], input_ns=0, infer_ns=MS, output_ns=0)
        times = {"request_ns": [request_ms * MS] * count, "queue_ns": [MS] * count}
        recorder.succeeded(rows=[rows] * count, input_ns=0, infer_ns=MS, output_ns=0, **times)

    def sample(self) -> dict[tuple[str, int], dict[str, float]]:
        """The points of a sample, `INTERVAL_S` after the previous one."""
        self.clock.advance(INTERVAL_S)
        self.history.sample()
        points = self.history.since(self.history.last_number - 1)[0].points
        return {key: dict(zip(POINT_FIELDS, point, strict=True)) for key, point in points.items()}


def test_point_has_rates_and_means_since_the_previous_sample():
    rig = Rig()
    rig.requests(100)
    rig.sample()
    rig.requests(8)
    rig.metrics.version("m", 1, {}).failed(FailureReason.OTHER, request_ns=MS)
    point = rig.sample()["m", 1]
    assert point["requests_per_s"] == pytest.approx(4)
    assert point["failures_per_s"] == pytest.approx(0.5)
    assert point["rows_per_s"] == pytest.approx(8)
    assert point["queue_ms"] == point["compute_ms"] == pytest.approx(1)
    assert point["batch_rows"] == 16
    # 3 ms lies in the bucket from 2.5 to 3.4 ms or so.
    assert 2 < point["p50_ms"] < point["p99_ms"] < 4


def test_idle_version_has_no_point():
    rig = Rig()
    rig.requests(1)
    assert rig.sample()
    assert rig.sample() == {}


def test_waiting_requests_are_a_point_without_times():
    rig = Rig()
    rig.metrics.version("m", 1, {}).queue_depth = 3
    point = rig.sample()["m", 1]
    assert (point["queue_depth"], point["requests_per_s"]) == (3, 0)
    assert all(math.isnan(point[name]) for name in ("p50_ms", "p99_ms", "queue_ms", "compute_ms", "batch_rows"))


def test_version_that_was_loaded_again_counts_from_zero():
    rig = Rig()
    rig.requests(10)
    rig.sample()
    rig.metrics.forget("m", 1)
    rig.requests(2)
    assert rig.sample()["m", 1]["requests_per_s"] == pytest.approx(1)


def test_number_of_samples_is_bounded_and_the_newest_stay():
    rig = Rig()
    for _ in range(MOST_SAMPLES + 5):
        rig.sample()
    numbers = [sample.number for sample in rig.history.since(0)]
    assert (len(numbers), numbers[0], numbers[-1]) == (MOST_SAMPLES, 6, MOST_SAMPLES + 5)
    assert [sample.number for sample in rig.history.since(MOST_SAMPLES + 3)] == [MOST_SAMPLES + 4, MOST_SAMPLES + 5]


def test_versions_with_the_most_requests_get_the_points(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_VERSIONS", 2)
    rig = Rig()
    for model, count in (("few", 1), ("most", 9), ("more", 5)):
        rig.requests(count, model)
    assert set(rig.sample()) == {("most", 1), ("more", 1)}
    assert rig.history.since(0)[0].left_out == 1


@pytest.mark.parametrize(
    ("counts", "rank", "expected"),
    [
        ([0, 4, 0, 0], 0.5, 15.0),
        ([4, 0, 0, 0], 1.0, 10.0),
        ([1, 1, 2, 0], 0.99, 20 + 20 * 0.98),
        ([0, 0, 0, 5], 0.5, 40.0),
    ],
)
def test_quantile_is_interpolated_within_its_bucket(counts: Sequence[int], rank: float, expected: float):
    assert interpolated_quantile((10, 20, 40), list(accumulate(counts)), rank) == pytest.approx(expected)


def test_quantile_of_nothing_is_not_a_number():
    assert math.isnan(interpolated_quantile((10,), (0, 0), 0.5))


async def _woken(history: History) -> str:
    await history.wait_next()
    return "closed" if history.is_closed else "sampled"


def test_waiting_readers_wake_at_a_sample_and_at_the_end():
    async def run() -> list[str]:
        rig = Rig()
        found = []
        for event in (rig.history.sample, rig.history.close):
            waiting = asyncio.create_task(_woken(rig.history))
            await asyncio.sleep(0)
            assert not waiting.done()
            event()
            found.append(await waiting)
        # Behind the end, nothing waits.
        return [*found, await _woken(rig.history)]

    assert asyncio.run(run()) == ["sampled", "closed", "closed"]


def test_sampling_ends_with_its_task_and_closes_the_history():
    async def run() -> bool:
        rig = Rig()
        sampling = asyncio.create_task(rig.history.run())
        await asyncio.sleep(0)
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
        return rig.history.is_closed

    assert asyncio.run(run())
