"""A real Prometheus (Debian's package) scrapes the running server; every query of the dashboard has data."""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.dashboard_queries import dashboard_queries, substituted
from tests.fakes.server_process import ServerProcess, wait_until

REQUESTS = 5
# Series that exist only once something went wrong, and only with worker processes, a response cache, or padding.
NOT_HERE = ("stoker_model_load_failures_total", "stoker_worker_", "nv_cache_", "stoker_cache_", "stoker_padded_")


def installed(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed (Debian: apt-get install prometheus)")
    return path


class Prometheus:
    """A running Prometheus."""

    def __init__(self, address: str) -> None:
        self._address = address

    def api(self, path: str, **parameters: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        result = self.api("query", query=expression)["result"]
        assert isinstance(result, list)
        return result


@contextmanager
def running_prometheus(program: str, target: str, at: Path) -> Iterator[Prometheus]:
    config, log_path = at / "prometheus.json", at / "prometheus.log"
    job = {"job_name": "stoker", "static_configs": [{"targets": [target]}]}
    # JSON is YAML.
    config.write_text(json.dumps({"global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"}, "scrape_configs": [job]}))
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={at / 'data'}", "--web.listen-address=127.0.0.1:0"]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=at)
    try:

        def listening() -> "re.Match[str] | None":
            assert process.poll() is None, log_path.read_text()
            return re.search(r'"?Listening on"?.*address=(127\.0\.0\.1:[1-9]\d*)', log_path.read_text())

        wait_until(lambda: listening() is not None, what="Prometheus to listen")
        found = listening()
        assert found is not None
        wait_until(lambda: "Server is ready" in log_path.read_text(), what="Prometheus to be ready")
        yield Prometheus(found[1])
    finally:
        process.terminate()
        process.wait(30)


def test_prometheus_scrapes_without_error_and_every_dashboard_query_has_data(server: ServerProcess, tmp_path: Path) -> None:
    program = installed("prometheus")
    body = {"inputs": [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": list(range(16))} for name in ("INPUT0", "INPUT1")]}
    for _ in range(REQUESTS):
        server.json("/v2/models/simple/infer", body)

    with running_prometheus(program, server.http, tmp_path) as prometheus:
        wait_until(
            lambda: any(int(row["value"][1]) >= 3 for row in prometheus.query('count_over_time(up{job="stoker"}[1m])')),
            what="three scrapes",
        )
        (target,) = prometheus.api("targets", state="active")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        assert [row["value"][1] for row in prometheus.query("min_over_time(up[1m])")] == ["1"], "every scrape succeeded"

        (answered,) = prometheus.query('nv_inference_request_success{model="simple",version="1"}')
        assert int(answered["value"][1]) >= REQUESTS
        (count,) = prometheus.query('stoker_request_duration_seconds_count{model="simple",version="1"}')
        assert count["value"][1] == answered["value"][1]

        for query in dashboard_queries():
            rows = prometheus.query(substituted(query))
            assert rows or any(name in query for name in NOT_HERE), f"no series answers {query}"


def test_promtool_warns_only_about_triton_names(server: ServerProcess) -> None:
    status, text = server.get("/metrics")
    assert status == 200
    done = subprocess.run([installed("promtool"), "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)
    complaints = (done.stdout + done.stderr).decode().splitlines()
    assert [line for line in complaints if not line.startswith("nv_")] == []
