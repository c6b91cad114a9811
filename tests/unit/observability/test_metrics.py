"""The exposition: Triton's exact lines, the server's own beside them, and series that live as long as their version."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.core.state import VersionState
from stoker.server.observability.metrics import MAX_FAILING_MODELS, Metrics
from stoker.server.observability.recorder import FailureReason
from stoker.server.observability.series import write_exposition
from tests.fakes.busy_metrics import busy_metrics


def lines_of(metrics: Metrics) -> list[str]:
    return metrics.render().decode().splitlines()


def test_triton_metrics_have_tritons_exact_lines() -> None:
    lines = lines_of(busy_metrics())
    for line in (
        'nv_inference_request_success{model="digits",version="1"} 1',
        'nv_inference_request_failure{model="digits",reason="BACKEND",version="1"} 1',
        'nv_inference_count{model="digits",version="1"} 4',
        'nv_inference_exec_count{model="digits",version="1"} 1',
        'nv_inference_request_duration_us{model="digits",version="1"} 3000',
        'nv_inference_queue_duration_us{model="digits",version="1"} 900',
        'nv_inference_compute_input_duration_us{model="digits",version="1"} 10',
        'nv_inference_compute_infer_duration_us{model="digits",version="1"} 2000',
        'nv_inference_compute_output_duration_us{model="digits",version="1"} 7',
        'nv_inference_pending_request_count{model="digits",version="1"} 1',
        'nv_model_load_duration_secs{model="digits",version="1"} 0.25',
        "# TYPE nv_inference_request_success counter",
        "# TYPE nv_inference_pending_request_count gauge",
    ):
        assert line in lines


def test_known_version_exports_every_failure_reason_before_the_first_failure() -> None:
    metrics = Metrics(FakeClock())
    metrics.state("fresh", 7, VersionState.LOADING)
    assert [line for line in lines_of(metrics) if line.startswith("nv_inference_request_failure")] == [
        f'nv_inference_request_failure{{model="fresh",reason="{reason}",version="7"}} 0'
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    ]


def test_families_of_the_server_are_all_exported() -> None:
    lines = lines_of(busy_metrics())
    for line in (
        'stoker_request_duration_seconds_bucket{le="0.0025",model="digits",version="1"} 0',
        'stoker_request_duration_seconds_bucket{le="0.005",model="digits",version="1"} 1',
        'stoker_request_duration_seconds_bucket{le="+Inf",model="digits",version="1"} 1',
        'stoker_request_duration_seconds_sum{model="digits",version="1"} 0.0030004',
        'stoker_request_duration_seconds_count{model="digits",version="1"} 1',
        'stoker_queue_duration_seconds_bucket{le="0.001",model="digits",version="1"} 1',
        'stoker_compute_duration_seconds_count{model="digits",version="1"} 1',
        'stoker_batch_rows_bucket{le="4.0",model="digits",version="1"} 1',
        'stoker_queue_depth{model="digits",version="2"} 1',
        "stoker_requests_in_flight 3",
        "stoker_bytes_in_flight 4096",
        "stoker_ready 1",
        "stoker_log_lines_dropped_total 0",
        "stoker_budget_evictions_total 2",
        'stoker_grpc_goaways_total{reason="reset_flood"} 1',
        'stoker_grpc_goaways_total{reason="shutdown"} 0',
        'stoker_model_load_duration_seconds{model="digits",version="1"} 0.25',
        'stoker_model_state{model="digits",state="READY",version="1"} 1',
        'stoker_model_state{model="digits",state="LOADING",version="1"} 0',
        'stoker_model_state{model="broken",state="FAILED",version="1"} 1',
        'stoker_model_load_failures_total{model="broken"} 1',
        "# TYPE stoker_model_load_failures_total counter",
        "# TYPE stoker_request_duration_seconds histogram",
        "# TYPE process_cpu_seconds_total counter",
    ):
        assert line in lines
    assert any(line.startswith("stoker_build_info{") and 'version="1.2.3"' in line for line in lines)
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_counters_continue_after_a_reload_and_a_version_is_in_one_state() -> None:
    metrics = busy_metrics()
    before = metrics.statistics("digits", 1)
    metrics.state("digits", 1, VersionState.UNLOADED)
    again = metrics.version("digits", 1, {})
    again.succeeded(rows=[1], request_ns=[0], queue_ns=[0], input_ns=0, infer_ns=0, output_ns=0)
    assert metrics.statistics("digits", 1).success.count == before.success.count + 1
    states = [line for line in lines_of(metrics) if line.startswith("stoker_model_state{") and '"digits"' in line and 'version="1"' in line]
    assert [line for line in states if line.endswith(" 1")] == ['stoker_model_state{model="digits",state="UNLOADED",version="1"} 1']
    assert len(states) == len(VersionState)


def test_series_end_when_a_version_is_forgotten() -> None:
    metrics = busy_metrics()
    metrics.load_failed("digits", None)
    metrics.forget("digits", 1)
    text = metrics.render().decode()
    assert 'model="digits",version="1"' not in text
    assert 'nv_inference_count{model="digits",version="2"} 4' in text
    assert 'stoker_model_load_failures_total{model="digits"} 1' in text
    metrics.forget("digits", 2)
    assert "digits" not in metrics.render().decode()
    assert metrics.statistics("digits", 2).success.count == 0


def test_removal_of_an_unknown_version_is_harmless() -> None:
    metrics = Metrics(FakeClock())
    metrics.forget("nobody", 1)
    assert "nobody" not in metrics.render().decode()


def test_names_made_up_by_clients_do_not_grow_the_exposition_without_bound() -> None:
    metrics = Metrics(FakeClock())
    for number in range(MAX_FAILING_MODELS + 5):
        metrics.load_failed(f"guess-{number}", None)
    metrics.load_failed("guess-0", None)
    failures = [line for line in lines_of(metrics) if line.startswith("stoker_model_load_failures_total{")]
    assert len(failures) == MAX_FAILING_MODELS + 1
    assert 'stoker_model_load_failures_total{model="guess-0"} 2' in failures
    assert 'stoker_model_load_failures_total{model="(further models)"} 5' in failures


def test_tags_become_labels_with_an_underscore_and_follow_a_changed_config() -> None:
    metrics = Metrics(FakeClock())
    metrics.version("digits", 1, {"team": "vision", "cost-center": "7"})
    assert 'nv_inference_count{_cost_center="7",_team="vision",model="digits",version="1"} 0' in lines_of(metrics)
    metrics.version("digits", 1, {"team": "sound"})
    assert 'nv_inference_count{_team="sound",model="digits",version="1"} 0' in lines_of(metrics)


def test_hostile_names_and_tags_cannot_forge_a_series() -> None:
    metrics = Metrics(FakeClock())
    name = 'a"} 9\nnv_inference_count{model="b\\'
    metrics.version(name, 1, {"x\ny": 'v"\n'})
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    (sample,) = families["nv_inference_count"].samples
    assert (sample.labels, sample.value) == ({"model": name, "version": "1", "_x_y": 'v"\n'}, 0)


def test_name_that_is_not_utf8_does_not_fail_the_scrape() -> None:
    metrics = Metrics(FakeClock())
    metrics.version("na\udcefve", 1, {})
    assert 'nv_inference_count{model="na?ve",version="1"} 0' in lines_of(metrics)


def test_numbers_are_written_exactly() -> None:
    family = Metric("figures", "Help with a \\ and a\nline end", "gauge")
    for value in (True, 2**63, 3.0, 0.1, 1e300, float("inf"), float("-inf"), float("nan"), -2.5):
        family.add_sample("figures", {}, value)
    assert write_exposition([family]).decode().splitlines() == [
        r"# HELP figures Help with a \\ and a\nline end",
        "# TYPE figures gauge",
        *(f"figures {text}" for text in ("1", "9223372036854775808", "3", "0.1", "1e+300", "+Inf", "-Inf", "NaN", "-2.5")),
    ]


def test_family_without_samples_is_omitted() -> None:
    assert write_exposition([Metric("empty", "Nothing", "gauge")]) == b""


def test_foreign_collectors_are_exported_after_the_servers_own() -> None:
    class Extra:
        def collect(self) -> list[Metric]:
            family = Metric("extra", "Registered by somebody else", "gauge")
            family.add_sample("extra", {}, 1)
            return [family]

    metrics = Metrics(FakeClock())
    metrics.registry.register(Extra())
    assert lines_of(metrics)[-1] == "extra 1"


def test_every_family_is_exported_once_and_contiguously() -> None:
    typed = [line.split()[2] for line in lines_of(busy_metrics()) if line.startswith("# TYPE")]
    assert len(typed) == len(set(typed))


def test_successes_and_failures_sum_to_the_requests_sent() -> None:
    metrics = Metrics(FakeClock())
    recorder = metrics.version("m", 1, {})
    for _ in range(3):
        recorder.succeeded(rows=[2], request_ns=[5], queue_ns=[1], input_ns=1, infer_ns=1, output_ns=1)
    for reason in FailureReason:
        recorder.failed(reason, request_ns=1)
    values = {
        line.rpartition(" ")[0]: int(line.rpartition(" ")[2])
        for line in lines_of(metrics)
        if line.startswith(("nv_inference_request_success{", "nv_inference_request_failure{"))
    }
    assert sum(values.values()) == 7


def test_host_metrics_are_read_from_proc_and_omitted_without_it(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 100 700 100 0 0 0 0 0\nbtime 1700000000\n")
    (tmp_path / "meminfo").write_text("MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     600 kB\n")
    metrics = Metrics(FakeClock(), proc=tmp_path)
    assert "nv_cpu_utilization 0" in lines_of(metrics)
    (tmp_path / "stat").write_text("cpu  150 0 125 750 175 0 0 0 0 0\nbtime 1700000000\n")
    lines = lines_of(metrics)
    assert "nv_cpu_utilization 0.375" in lines
    assert "nv_cpu_memory_total_bytes 1024000" in lines
    assert "nv_cpu_memory_used_bytes 409600" in lines

    for file in ("stat", "meminfo"):
        (tmp_path / file).write_text("nonsense\n")
    assert "nv_cpu_memory" not in metrics.render().decode()
    nowhere = Metrics(FakeClock(), proc=tmp_path / "missing").render().decode()
    assert "nv_cpu" not in nowhere
    assert "process_" not in nowhere
    assert "stoker_ready 0" in nowhere


def test_process_limit_that_reads_unlimited_does_not_fail_the_scrape(tmp_path: Path) -> None:
    own = tmp_path / "self"
    (own / "fd").mkdir(parents=True)
    (tmp_path / "stat").write_text("btime 1700000000\n")
    (own / "stat").write_text("1 (python) " + " ".join(["1"] * 50))
    (own / "limits").write_text("Max open files            unlimited            unlimited            files\n")
    assert "stoker_ready 0" in lines_of(Metrics(FakeClock(), proc=tmp_path))


def test_prometheus_linter_warns_only_about_triton_names() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=busy_metrics().render(), capture_output=True, timeout=30, env=dict(os.environ), check=False
    )
    complaints = (done.stdout + done.stderr).decode().splitlines()
    assert [line for line in complaints if not line.startswith("nv_")] == []
    assert complaints, "promtool is known to dislike Triton's names: silence means that it read nothing"


def test_every_metric_is_explained_in_the_documentation() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "monitoring.md").read_text()
    names = {line.split()[2] for line in lines_of(busy_metrics()) if line.startswith("# TYPE")}
    ours = {name for name in names if name.startswith(("nv_", "stoker_"))}
    assert {name for name in ours if f"`{name}`" not in page} == set()
    explained = set(re.findall(r"^\| `((?:nv|stoker)_\w+)`", page, re.MULTILINE))
    # Simulated devices have figures of their own, which the tests of their backends hold against the page.
    assert {name for name in explained if not name.startswith(("stoker_ipu_", "stoker_gcu_"))} <= ours, "explained, but not there"
