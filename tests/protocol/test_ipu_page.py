"""The commands and programs of docs/ipu.md, run as they are written, in order."""

import pytest

from tests.fakes.documentation_page import run_page

pytestmark = [pytest.mark.protocol, pytest.mark.timeout(330)]  # pages run many commands, one after the other


def test_every_example_runs(tmp_path):
    run_page(
        "ipu.md",
        at=tmp_path,
        links=("model_repos", "examples", "backends", "compiler", "server", "cli"),
        languages=["sh", "sh", "python", "sh", "python", "sh"],
    )
    for made in (
        "executable.popef",
        "facts.json",
        "report/summary_report.html",
        "fused/executable.popef",
        "models/mine/1/executable.popef",
    ):
        assert (tmp_path / "out" / made).is_file()
