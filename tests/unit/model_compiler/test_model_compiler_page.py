"""docs/model_compiler.md: its example runs, and it names every field and target."""

import dataclasses
import re
from pathlib import Path

import pytest
from model_compiler.compiling import TARGETS
from model_compiler.request import CompileRequest

import stoker.compiler.target
from stoker.backends.gcu.target import SimulatedGcuTarget
from tests.fakes.fake_target import installed

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "model_compiler.md").read_text(encoding="utf-8")


def test_example_runs_and_prints_the_output_of_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stoker.compiler.target, "entry_points", installed(SimulatedGcuTarget()))
    monkeypatch.chdir(ROOT)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(example.replace("/tmp", str(tmp_path)), {})
    (promised,) = re.findall(r"^# (\{'status': 'success', .*?\}), or", example, re.MULTILINE)
    assert capsys.readouterr().out == promised.replace("/tmp", str(tmp_path)) + "\n"
    (tree,) = re.findall(r"```\n(/tmp/.*?)```", PAGE, re.DOTALL)
    listed = {line.split()[0].replace("/tmp", str(tmp_path)) for line in tree.splitlines()}
    assert listed == {str(path) for path in tmp_path.rglob("*") if path.is_file()}


def test_every_field_and_target_is_on_the_page() -> None:
    names = {field.name for field in dataclasses.fields(CompileRequest)} - {"enable_int8"}
    assert [name for name in (*names, *TARGETS) if f"`{name}`" not in PAGE] == []
