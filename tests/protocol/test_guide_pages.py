"""The commands of docs/patterns.md and docs/sizing.md, run as they are written, on ports of the test's own."""

from pathlib import Path

import pytest

from tests.fakes.documentation_page import commands, run_page

#: Models are compiled, and measured.
pytestmark = pytest.mark.timeout(400)
LINKS = ["model_repos", "examples"]


def test_patterns_of_processing(tmp_path: Path) -> None:
    variables = commands(tmp_path / "bin")
    printed = run_page("patterns.md", at=tmp_path, links=LINKS, languages=["python", "sh", "python", "sh"], environment=variables)
    assert "pixels  UINT8" in printed
    assert "weather" in printed
    assert "us in its batch" in printed


def test_sizing(tmp_path: Path) -> None:
    variables = commands(tmp_path / "bin")
    printed = run_page("sizing.md", at=tmp_path, links=LINKS, languages=["sh"], environment=variables)
    assert "requests/s with a p99 of" in printed
