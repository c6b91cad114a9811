"""`stoker status`: readiness and load of a server. Rates come from two readings of its counters."""

from collections.abc import Mapping
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli.connection import connected
from stoker.cli.options import DEFAULT_TIMEOUT_S, DEFAULT_URL, ApiKey, AsJson, Headers, Timeout, Url
from stoker.cli.output import ExitCode, print_json, print_line, print_table

if TYPE_CHECKING:
    from stoker_client import Client

#: The reason of a version that was unloaded on request.
_UNLOADED = "unloaded"

_COLUMNS = {
    "model": "model",
    "version": "version",
    "requests": "requests",
    "failed": "failed",
    "rows": "rows",
    "rows/batch": "rows_per_execution",
    "ms": "request_ms",
    "queue ms": "queue_ms",
    "compute ms": "compute_ms",
    "req/s": "requests_per_s",
    "rows/s": "rows_per_s",
}
_NUMERIC = frozenset(_COLUMNS) - {"model", "version"}
_SPARE = ("rows/s", "rows", "queue ms", "compute ms", "rows/batch")

Interval = Annotated[
    float,
    typer.Option("--interval", metavar="SECONDS", min=0, max=3600, help="Time between the two readings for the rates; 0: no rates."),
]


def status(
    url: Url = DEFAULT_URL,
    interval: Interval = 1.0,
    as_json: AsJson = False,
    api_key: ApiKey = None,
    headers: Headers = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show whether the server is ready, counts, latencies and throughput of each model, and why a model is not ready.

    Exits 1 if the server is not ready.
    """
    with connected(url, api_key, timeout, headers) as client:
        facts: dict[str, Any] = {"url": url, **client.server_metadata(), "live": client.is_live(), "ready": client.is_ready()}
        before_s, before = monotonic(), _by_version(client.statistics())
        after_s, after = before_s, before
        if interval:
            sleep(interval)
            after_s, after = monotonic(), _by_version(client.statistics())
        facts["not_ready"] = _not_ready(client)
    facts["models"] = [
        {"model": name, "version": version, **_averages(now), **_rates(before.get((name, version)), now, after_s - before_s)}
        for (name, version), now in sorted(after.items())
    ]
    if as_json:
        print_json(facts)
    else:
        _print(facts)
    if not (facts["live"] and facts["ready"]):
        raise typer.Exit(ExitCode.FAILED)


def _print(facts: Mapping[str, Any]) -> None:
    print_line(f"{facts.get('name', '')} {facts.get('version', '')} at {facts['url']}")
    print_line(f"live: {_yes(facts['live'])}   ready: {_yes(facts['ready'])}")
    print_line()
    rows = [[_cell(model[key]) for key in _COLUMNS.values()] for model in facts["models"]]
    print_table(tuple(_COLUMNS), rows, numeric=_NUMERIC, spare=_SPARE)
    if facts["not_ready"]:
        print_line()
    for entry in facts["not_ready"]:
        version = f" version {entry['version']}" if entry["version"] else ""
        words = [f"{entry['model']}{version}", f"not ready, {entry['state']}" if entry["state"] else "not ready", entry["reason"]]
        print_line(": ".join(word for word in words if word))


def _not_ready(client: "Client") -> list[dict[str, str]]:
    """Model, version, state and reason of each version that is not ready, except unloaded ones; empty if the index is not to be had."""
    import stoker_client

    try:
        index = client.index()
    except stoker_client.StokerError:  # a restricted API, or a server without it
        return []
    rows = [{"model": str(entry["name"]), **{key: str(entry[key]) for key in ("version", "state", "reason")}} for entry in index]
    return [row for row in rows if row["state"] != "READY" and (row["state"] or row["reason"]) and row["reason"] != _UNLOADED]


def _by_version(statistics: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(str(entry["name"]), str(entry["version"])): entry for entry in statistics}


def _averages(entry: Mapping[str, Any]) -> dict[str, float | int | None]:
    rows, executions = int(entry.get("inference_count", 0)), int(entry.get("execution_count", 0))
    compute = [_mean_ms(entry, f"compute_{part}") for part in ("input", "infer", "output")]
    return {
        "requests": _count(entry, "success"),
        "failed": _count(entry, "fail"),
        "rows": rows,
        "executions": executions,
        "rows_per_execution": rows / executions if executions else None,
        "request_ms": _mean_ms(entry, "success"),
        "queue_ms": _mean_ms(entry, "queue"),
        "compute_ms": None if None in compute else sum(part for part in compute if part is not None),
    }


def _rates(before: Mapping[str, Any] | None, now: Mapping[str, Any], seconds: float) -> dict[str, float | None]:
    if seconds <= 0:
        return {"requests_per_s": None, "rows_per_s": None}
    earlier = before or {}
    requests = _count(now, "success") - _count(earlier, "success")
    rows = int(now.get("inference_count", 0)) - int(earlier.get("inference_count", 0))
    return {"requests_per_s": requests / seconds, "rows_per_s": rows / seconds}


def _duration(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    duration: Mapping[str, Any] = entry.get("inference_stats", {}).get(name, {})
    return duration


def _count(entry: Mapping[str, Any], name: str) -> int:
    return int(_duration(entry, name).get("count", 0))


def _mean_ms(entry: Mapping[str, Any], name: str) -> float | None:
    count = _count(entry, name)
    return int(_duration(entry, name).get("ns", 0)) / count / 1e6 if count else None


def _cell(value: str | float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
