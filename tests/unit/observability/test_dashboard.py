"""The Grafana dashboard: valid, wired to its variables, and every queried metric is exported by the server."""

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.busy_metrics import busy_metrics
from tests.fakes.dashboard_queries import DASHBOARD, dashboard_queries, substituted
from tests.fakes.server_process import REPOSITORY_ROOT

METRIC = re.compile(r"\b(?:stoker|nv|process|python)_[a-z0-9_]+")
MATCHER = re.compile(r"([a-zA-Z_]+)\s*(?:=~|!~|!=|=)\s*\"")


def dashboard() -> dict[str, Any]:
    loaded = json.loads(DASHBOARD.read_text())
    assert isinstance(loaded, dict)
    return loaded


@functools.cache
def shown_labels() -> dict[str, set[str]]:
    """Label names by sample name, of a server with something in every family."""
    # Read by hand: prometheus-client's parser would append `_total` to Triton's counters.
    labels: dict[str, set[str]] = {}
    for line in busy_metrics().render().decode().splitlines():
        if not line.startswith("#"):
            name = line.partition(" ")[0].partition("{")[0]
            labels.setdefault(name, set()).update(MATCHER.findall(line))
    return labels


def families(exposition: bytes) -> set[str]:
    """Names of the families in an exposition."""
    return {line.split()[2] for line in exposition.decode().splitlines() if line.startswith("# TYPE")}


def selectors(query: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric of the query, with the labels it is selected by."""
    for found in re.finditer(METRIC.pattern + r"(?:\{([^}]*)\})?", query):
        yield re.match(METRIC, found.group()).group(), set(MATCHER.findall(found.group(1) or ""))  # type: ignore[union-attr]


@pytest.mark.parametrize("query", dashboard_queries())
def test_every_queried_metric_and_label_is_exported_by_the_server(query: str) -> None:
    shown = shown_labels()
    found = list(selectors(query))
    assert found, f"no metric in {query}"
    for metric, labels in found:
        assert metric in shown, f"{metric} is not exposed"
        # Prometheus itself adds the address it scraped.
        assert labels - {"instance"} <= shown[metric], f"{metric} has no label {labels - shown[metric]}"


def test_variables_query_exported_metrics() -> None:
    shown = shown_labels()
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\(([a-z_]+)(?:\{.*\})?, ([a-z]+)\)", variable["definition"])
            assert found, variable["definition"]
            assert found[2] in shown[found[1]] | {"instance"}


def test_every_panel_uses_the_chosen_data_source_and_its_own_position() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not own & cells, f"'{panel['title']}' overlaps another panel"
        cells |= own
        for target in panel.get("targets", []):
            assert panel["datasource"]["uid"] == target["datasource"]["uid"] == "${datasource}"
            assert panel["description"]


def test_required_panels_are_on_the_dashboard() -> None:
    text = "\n".join(dashboard_queries())
    for needed in (
        "nv_inference_request_success",
        "nv_inference_request_failure",
        *(f"histogram_quantile({q}, sum by (le, model) (rate(stoker_request_duration_seconds_bucket" for q in (0.5, 0.95, 0.99)),
        "stoker_queue_depth",
        "stoker_batch_rows_bucket",
        "stoker_requests_in_flight",
        "stoker_compute_duration_seconds_bucket",
        "stoker_model_state",
        "stoker_instances_ejected",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
    ):
        assert needed in text


def test_every_family_of_the_server_is_on_the_dashboard() -> None:
    text = "\n".join(dashboard_queries())
    own = {name for name in families(busy_metrics().render()) if name.startswith("stoker_")}
    # A constant and a deprecated name need no panel.
    assert {name for name in own if name not in text} == {"stoker_build_info", "stoker_instances_resting"}


def test_every_family_is_explained() -> None:
    docs = REPOSITORY_ROOT / "docs"
    text = (docs / "monitoring.md").read_text()
    undocumented = {name for name in families(busy_metrics().render()) if name not in text}
    assert {name for name in undocumented if not name.startswith("process_")} == set()
    serving = (docs / "tfs.md").read_text()
    short = {name.removeprefix(":tensorflow:serving:") for name in families(busy_metrics().render_serving())}
    assert {name for name in short if name not in serving} == set()


def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    rules = [{"record": f"panel:{number}", "expr": substituted(query)} for number, query in enumerate(dashboard_queries())]
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
