"""The inner path really runs, and is reported for each batch size."""

import asyncio
from pathlib import Path

from benchmarks.connection_cost import measure as measure_connections
from benchmarks.inner_way import measure
from benchmarks.models import build_repository
from benchmarks.requests import PROTOCOLS


def test_requests_pass_the_complete_path_and_are_timed_for_each_batch_size(tmp_path: Path) -> None:
    [model] = build_repository(tmp_path, ("tiny",)).values()
    found = asyncio.run(measure(model, tmp_path, [1, 4], 0.01))
    assert [(each.model, each.batch) for each in found] == [("tiny", 1), ("tiny", 4)]
    assert all(0 < each.us < 1e6 and 0 < each.yardstick_us < 1e6 for each in found)


def test_bursts_on_connections_without_sockets_are_timed_in_each_protocol(tmp_path: Path) -> None:
    [model] = build_repository(tmp_path, ("tiny",)).values()
    found = asyncio.run(measure_connections(model, tmp_path, PROTOCOLS, [1, 3], 0.01))
    assert [(each.case, each.requests) for each in found] == [(case, requests) for case in PROTOCOLS for requests in (1, 3)]
    assert all(0 < each.us < 1e6 for each in found)
