"""Windows of samples, their percentiles, and when three of them agree."""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.bench.figures import Figures, Outcome, Window, agree, failures, measure, percentile
from stoker.cli.bench.levels import Level
from stoker.cli.bench.loops import MOST_TEXTS, OTHER_ERRORS, Samples
from stoker.cli.bench.report import print_outcomes, write_csv
from stoker.cli.bench.sender import Trip
from stoker.cli.bench.server_times import between, read
from stoker.cli.output import CommandFailed


def figures(rate=100.0, mean_us=1000.0, requests=100):
    return Figures(1.0, requests, 0, rate, mean_us, dict.fromkeys((50, 90, 95, 99), mean_us), 10.0, 5.0, 0.0)


def outcome(concurrency=1, rate=100.0, rows=1, server=None, **more):
    settings = {"is_stable": True, "client_cpu": 0.1, "failures": {}, "ended": "stable", **more}
    return Outcome(Level(concurrency=concurrency), figures(rate), rows, server=server, **settings)


def statistics(count, queue_ns, infer_ns, executions=1):
    stats = {"success": {"count": count}, "queue": {"ns": queue_ns}, "compute_infer": {"ns": infer_ns}}
    return [{"inference_count": count * 2, "execution_count": executions, "inference_stats": stats}]


def test_window_counts_only_requests_that_ended_in_it():
    samples = Samples()
    for at in range(10):
        samples.add(at * 100, 1000 * (at + 1), Trip(10, 20), 0)
    samples.add_failure(450, "no")
    samples.add_failure(900, "no")
    found = measure(samples, Window(300, 600))
    assert (found.requests, found.errors) == (3, 1)
    assert found.mean_us == 5.0
    assert found.latency_us == {50: 5.0, 90: 6.0, 95: 6.0, 99: 6.0}
    assert found.requests_per_s == pytest.approx(3 / 300e-9)


@given(st.lists(st.integers(0, 10**12), min_size=1).map(sorted), st.floats(0.1, 100))
def test_percentile_is_an_observed_value(ordered, percent):
    value = percentile(ordered, percent)
    assert value in ordered
    assert sum(each <= value for each in ordered) >= len(ordered) * percent / 100 - 1e-6


@pytest.mark.parametrize(
    ("rates", "means", "expected"),
    [((100, 105, 95), (10, 10, 10), True), ((100, 130, 95), (10, 10, 10), False), ((100, 100, 100), (10, 14, 10), False)],
)
def test_windows_agree_if_throughput_and_latency_do(rates, means, expected):
    assert agree([figures(rate, mean) for rate, mean in zip(rates, means, strict=True)], 0.1) is expected


def test_window_without_responses_agrees_with_none():
    assert not agree([figures(), figures(), figures(0.0, 0.0, requests=0)], 0.1)


def test_failure_texts_are_bounded():
    samples = Samples()
    for at in range(100):
        samples.add_failure(at, f"text {at}")
    found = failures(samples, Window(0, 100))
    assert next(iter(found.items())) == (OTHER_ERRORS, 100 - MOST_TEXTS)
    assert (len(found), samples.count) == (MOST_TEXTS + 1, 100)


def test_failure_texts_are_counted_in_the_window_and_sorted_by_frequency():
    samples = Samples()
    for at, text in enumerate(["warm-up", "rare", "full", "full", "after"]):
        samples.add_failure(at * 100, text)
    window = Window(100, 400)
    assert list(failures(samples, window).items()) == [("full", 2), ("rare", 1)]
    assert measure(samples, window).errors == 3


def test_server_times_are_means_between_two_readings():
    times = between(read(statistics(10, 1000, 5000)), read(statistics(14, 9000, 45_000, executions=3)))
    assert times is not None
    assert (times.queue_us, times.compute_infer_us, times.rows_per_batch) == (2.0, 10.0, 4.0)
    assert between(read(statistics(10, 0, 0)), read(statistics(10, 0, 0))) is None


def test_csv_has_perf_analyzers_columns_and_rows_by_throughput(tmp_path):
    times = between(read(statistics(0, 0, 0)), read(statistics(10, 400_000, 3_000_000)))
    write_csv(tmp_path / "out.csv", [outcome(2, 300.0, rows=4, server=times), outcome(1, 100.0, server=times)])
    header, *rows = list(csv.reader((tmp_path / "out.csv").read_text().splitlines()))
    assert ",".join(header) == (
        "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,Server Compute Infer,"
        "Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency"
    )
    assert rows[0] == ["1", "100", "10", "645", "40", "0", "300", "0", "5", "1000", "1000", "1000", "1000"]
    assert rows[1][:2] == ["2", "1200"]


def test_csv_omits_values_that_the_server_does_not_report(tmp_path):
    write_csv(tmp_path / "out.csv", [outcome()])
    assert (tmp_path / "out.csv").read_text().startswith("Concurrency,Inferences/Second,Client Send,Client Recv,p50 latency")
    with pytest.raises(CommandFailed, match="cannot write"):
        write_csv(tmp_path / "no" / "out.csv", [outcome()])


def test_table_names_the_reasons_for_doubt(capsys):
    print_outcomes([outcome(8, is_stable=False, client_cpu=0.97, failures={"UNAVAILABLE: full": 3})], 0.1, "m over kserve-grpc")
    out = capsys.readouterr().out
    assert "8: not stable: three windows in a row never agreed within 10%" in out
    assert "used 97% of a core" in out
    assert "8: 3 x UNAVAILABLE: full" in out


def test_level_without_a_good_response_is_reported_as_such(capsys):
    nothing = Outcome(Level(concurrency=8), figures(0.0, 0.0, requests=0), 1, False, 0.1, None, {"full": 3}, "errors")
    print_outcomes([nothing], 0.001, "m over kserve-grpc")
    out = capsys.readouterr().out
    assert "8: no request got a good response" in out
    assert "not stable" not in out


def test_stability_below_one_percent_is_printed_as_given(capsys):
    print_outcomes([outcome(8, is_stable=False)], 0.001, "m over kserve-grpc")
    assert "never agreed within 0.1%" in capsys.readouterr().out
