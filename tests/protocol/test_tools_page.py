"""The commands of docs/tools.md and docs/plan.md, run as they are written, on ports of the test's own."""

from pathlib import Path

import pytest

from tests.fakes.documentation_page import run_page


def test_every_example_runs(tmp_path: Path):
    printed = run_page("tools.md", at=tmp_path, links=["model_repos"], languages=["sh"])
    assert "OUTPUT0  INT32[1, 16]" in printed
    assert "CONCURRENCY  " in printed
    assert "REQUEST RATE  " in printed
    assert "Request Rate,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue" in printed


@pytest.mark.timeout(400)  # Plans measure the CPU, for up to a minute each.
def test_every_example_of_a_plan_runs(tmp_path: Path):
    printed = run_page("plan.md", at=tmp_path, links=["model_repos", "examples"], languages=["sh", "sh"])
    assert "The most rows per IPU: " in printed
    assert "carries 2,000 requests/s with a p99 of" in printed
