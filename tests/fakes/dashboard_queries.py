"""The queries of docker/grafana/dashboards/stoker.json, as Grafana would send them."""

import json
from pathlib import Path

DASHBOARD = Path(__file__).resolve().parents[2] / "docker" / "grafana" / "dashboards" / "stoker.json"


def dashboard_queries() -> list[str]:
    """Every panel's PromQL, variables not yet replaced."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def substituted(query: str, *, interval: str = "1m") -> str:
    """The query for all servers and models, rates over `interval`."""
    return query.replace("$__rate_interval", interval).replace("$instance", ".*").replace("$model", ".*")
