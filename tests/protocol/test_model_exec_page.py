"""The commands and programs of docs/model_exec.md, run as they are written, in order."""

import pytest

from tests.fakes.documentation_page import run_page

pytestmark = pytest.mark.protocol


def test_every_example_runs(tmp_path):
    printed = run_page(
        "model_exec.md", at=tmp_path, links=("model_repos", "backends", "compiler", "cli"), languages=["sh", "python", "python"]
    )
    assert "model.exec, 72," in printed
    assert "[1, 8, 32] (64, 128)" in printed
    assert "mixed 32 34304" in printed
    assert (tmp_path / "out" / "copy.exec").read_bytes() == (tmp_path / "out" / "model.exec").read_bytes()
