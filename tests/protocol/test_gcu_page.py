"""docs/gcu.md: its commands and programs, run as they are written, in order; its figures, held against the benchmark's."""

import json
import re

import pytest

from benchmarks.gcu_model import Networks, cells
from stoker.backends.gcu.compile.cost_model import FITTED
from tests.fakes.documentation_page import run_page
from tests.fakes.server_process import REPOSITORY_ROOT

pytestmark = [pytest.mark.protocol, pytest.mark.timeout(330)]  # pages run many commands, one after the other

_BATCH = re.compile(r"^\| ([\w ]+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)


def test_every_example_runs(tmp_path):
    printed = run_page(
        "gcu.md",
        at=tmp_path,
        links=("model_repos", "examples", "backends", "compiler", "server", "cli"),
        languages=["sh", "sh", "python", "python", "sh", "python", "sh", "sh"],
    )
    facts = json.loads((tmp_path / "out" / "facts.json").read_text())
    assert [batch["batch_size"] for batch in facts["files"][0]["batches"]] == [1, 8, 32]
    difference = re.search(r"largest difference to the source: (\S+)", printed)
    assert difference is not None
    assert float(difference[1]) < 0.02, "what FLOAT16 costs a sum of scores that are shares"
    assert '"outputs":{"scores"' in printed
    assert re.search(r"^\(5, 10\)\n\[\d, \d, \d\]$", printed, re.MULTILINE)
    assert "3 questions: " in printed
    assert 'stoker_gcu_runs_total{card="0",compiled_batch="8",simulated="true"} ' in printed


def test_quoted_times_equal_those_of_the_benchmark():
    page = (REPOSITORY_ROOT / "docs" / "gcu.md").read_text(encoding="utf-8")
    networks = Networks.build()
    largest = {cell.network: cell.batch for cell in cells() if cell.measure == "raw"}
    assert _BATCH.findall(page) == [
        (name, *(f"{networks.modelled_ms(name, computed, 1, FITTED):.2f}" for computed in (1, batch))) for name, batch in largest.items()
    ]
