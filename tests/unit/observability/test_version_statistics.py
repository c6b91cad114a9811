"""ModelStatistics as Triton counts it."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.core.state import BatchSizeStatistics, Duration
from stoker.server.observability.recorder import FailureReason, VersionRecorder
from stoker.server.observability.statistics import LatencySummaries, VersionStatistics


def answered(recorder: VersionRecorder, rows: int = 1, **durations: int) -> None:
    request_ns, queue_ns = durations.pop("request_ns", 0), durations.pop("queue_ns", 0)
    times = {"input_ns": 0, "infer_ns": 0, "output_ns": 0} | durations
    recorder.succeeded(rows=[rows], request_ns=[request_ns], queue_ns=[queue_ns], **times)


def test_new_statistics_are_all_zero() -> None:
    snapshot = VersionStatistics(FakeClock()).snapshot("digits", 3)
    assert (snapshot.name, snapshot.version, snapshot.last_inference_ms, snapshot.inference_count) == ("digits", 3, 0, 0)
    assert snapshot.success == snapshot.fail == snapshot.queue == Duration(0, 0)
    assert snapshot.batches == ()


def test_request_counts_once_and_its_rows_count_as_inferences() -> None:
    statistics = VersionStatistics(FakeClock())
    answered(statistics, rows=5, request_ns=1000, queue_ns=100, input_ns=10, infer_ns=500, output_ns=20)
    answered(statistics, rows=2, request_ns=2000, queue_ns=200, input_ns=10, infer_ns=500, output_ns=20)
    snapshot = statistics.snapshot("digits", 1)
    assert snapshot.inference_count == 7
    assert snapshot.success == Duration(2, 3000)
    assert snapshot.compute_input == Duration(2, 20)
    assert snapshot.compute_infer == Duration(2, 1000)
    assert snapshot.compute_output == Duration(2, 40)


def test_queue_count_rises_for_a_request_that_never_waited() -> None:
    statistics = VersionStatistics(FakeClock())
    answered(statistics, queue_ns=0)
    assert statistics.snapshot("simple", 1).queue == Duration(1, 0)


def test_failures_are_counted_by_reason_and_change_no_other_count() -> None:
    statistics = VersionStatistics(FakeClock())
    statistics.failed(FailureReason.REJECTED, request_ns=30)
    statistics.failed(FailureReason.BACKEND, request_ns=50)
    statistics.failed(FailureReason.BACKEND, request_ns=70)
    snapshot = statistics.snapshot("simple", 1)
    assert snapshot.fail == Duration(3, 150)
    assert (snapshot.success, snapshot.queue, snapshot.inference_count) == (Duration(), Duration(), 0)
    assert statistics.failure_counts == {
        FailureReason.REJECTED: 1,
        FailureReason.CANCELED: 0,
        FailureReason.BACKEND: 2,
        FailureReason.OTHER: 0,
    }


def test_execution_is_counted_by_its_batch_size_and_stamps_the_wall_time() -> None:
    clock = FakeClock(wall_ms=1_700_000_000_000)
    statistics = VersionStatistics(clock)
    statistics.executed([4], input_ns=1, infer_ns=20, output_ns=3)
    clock.advance(2.5)
    statistics.executed([1], input_ns=1, infer_ns=8, output_ns=1)
    statistics.executed([4], input_ns=2, infer_ns=22, output_ns=4)
    snapshot = statistics.snapshot("simple", 1)
    assert snapshot.execution_count == 3
    assert snapshot.last_inference_ms == 1_700_000_002_500
    assert snapshot.batches == (
        BatchSizeStatistics(1, Duration(1, 1), Duration(1, 8), Duration(1, 1)),
        BatchSizeStatistics(4, Duration(2, 3), Duration(2, 42), Duration(2, 7)),
    )


def test_unfinished_batch_counts_no_execution() -> None:
    statistics = VersionStatistics(FakeClock())
    statistics.executed([], input_ns=1, infer_ns=20, output_ns=0)
    assert statistics.snapshot("simple", 1).execution_count == 0


@given(
    rows=st.lists(st.integers(1, 64), min_size=1, max_size=12),
    input_ns=st.integers(0, 10**10),
    infer_ns=st.integers(0, 10**10),
    output_ns=st.integers(0, 10**10),
)
def test_retried_executions_share_the_time_and_lose_none_of_it(rows: list[int], input_ns: int, infer_ns: int, output_ns: int) -> None:
    statistics = VersionStatistics(FakeClock())
    statistics.executed(rows, input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)
    batches = statistics.snapshot("simple", 1).batches
    assert sum(batch.compute_input.ns for batch in batches) == input_ns
    assert sum(batch.compute_infer.ns for batch in batches) == infer_ns
    assert sum(batch.compute_output.ns for batch in batches) == output_ns
    assert {batch.batch_size: batch.compute_infer.count for batch in batches} == {size: rows.count(size) for size in rows}


def test_histograms_count_each_completed_request_and_each_execution() -> None:
    statistics = VersionStatistics(FakeClock())
    answered(statistics, request_ns=7_000_000, queue_ns=200_000, input_ns=1_000_000, infer_ns=4_000_000, output_ns=1_000_000)
    statistics.executed([3], input_ns=0, infer_ns=0, output_ns=0)
    assert (statistics.request_histogram.count, statistics.request_histogram.total) == (1, 7_000_000)
    assert (statistics.queue_histogram.count, statistics.queue_histogram.total) == (1, 200_000)
    assert (statistics.compute_histogram.count, statistics.compute_histogram.total) == (1, 6_000_000)
    assert (statistics.rows_histogram.count, statistics.rows_histogram.total) == (1, 3)


def test_requests_that_ran_apart_count_as_if_each_were_reported_alone():
    times_ns = [(1_000, 20_000, 3_000), (2_000, 400_000, 1_000), (0, 90_000, 0)]
    together, alone = (VersionStatistics(FakeClock(), LatencySummaries(FakeClock())) for _ in range(2))
    input_ns, infer_ns, output_ns = (sum(each) for each in zip(*times_ns, strict=True))
    together.executed([2, 2, 2], input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)
    together.succeeded_apart(rows=[2, 2, 2], request_ns=[500_000, 600_000, 700_000], queue_ns=[1, 2, 3], compute_ns=times_ns)
    for request_ns, queue_ns, (input_ns, infer_ns, output_ns) in zip((500_000, 600_000, 700_000), (1, 2, 3), times_ns, strict=True):
        alone.executed([2], input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)
        alone.succeeded(rows=[2], request_ns=[request_ns], queue_ns=[queue_ns], input_ns=input_ns, infer_ns=infer_ns, output_ns=output_ns)
    assert together.snapshot("m", 1) == alone.snapshot("m", 1)
    for name in ("request_histogram", "queue_histogram", "compute_histogram", "rows_histogram"):
        assert list(getattr(together, name).cumulative()) == list(getattr(alone, name).cumulative())
    assert together.summaries is not None
    assert alone.summaries is not None
    assert together.summaries.compute_infer.quantiles_ns((0.5, 1.0), 0) == alone.summaries.compute_infer.quantiles_ns((0.5, 1.0), 0)


def test_cache_hit_is_a_success_with_a_time_in_the_queue_but_no_inference() -> None:
    statistics = VersionStatistics(FakeClock())
    statistics.uses_cache(True)
    answered(statistics, rows=3, request_ns=1000, queue_ns=100, infer_ns=500)
    statistics.cache_missed(lookup_ns=70)
    statistics.cache_hit(request_ns=40, queue_ns=5, lookup_ns=30)
    snapshot = statistics.snapshot("m", 1)
    assert (snapshot.success, snapshot.queue) == (Duration(2, 1040), Duration(2, 105))
    assert (snapshot.compute_infer, snapshot.inference_count) == (Duration(1, 500), 3)
    assert (snapshot.cache_hit, snapshot.cache_miss) == (Duration(1, 30), Duration(1, 70))


def test_counts_of_the_cache_survive_a_reload_without_one() -> None:
    statistics = VersionStatistics(FakeClock())
    statistics.uses_cache(True)
    statistics.cache_hit(request_ns=40, queue_ns=5, lookup_ns=30)
    statistics.uses_cache(False)
    statistics.uses_cache(True)
    assert statistics.snapshot("m", 1).cache_hit == Duration(1, 30)


def test_model_may_set_the_buckets_of_its_first_responses() -> None:
    statistics = VersionStatistics(FakeClock())
    statistics.responses.completed(0, 5_000_000)
    statistics.first_response_buckets(None)
    assert statistics.responses.first_response.count == 1
    statistics.first_response_buckets([1_000_000, 10_000_000])
    statistics.responses.completed(0, 5_000_000)
    assert list(statistics.responses.first_response.cumulative()) == [(1_000_000, 0), (10_000_000, 1), (None, 1)]
