"""A version that the compiler writes is loaded once, in another process, before it appears."""

import shutil
import sys
from pathlib import Path

import model_compiler.compiling
import numpy as np
import onnx
import pytest
from model_compiler.compiling import compile_fields

from stoker.cli import main as stoker_main
from stoker.cli.written_version import load_once
from stoker.compiler.cli import main as compile_command
from stoker.compiler.errors import CompileError
from tests.fakes.graphs import parse

pytestmark = pytest.mark.slow

MODEL = parse("g (float[n,4] x) => (float[n,3] y) { y = MatMul(x, w) }", {"w": np.ones((4, 3), np.float32)})


def words(tmp_path: Path, *more: str) -> list[str]:
    onnx.save(MODEL, tmp_path / "m.onnx")
    served = ["--model_repository", str(tmp_path / "repo"), "--model_name", "m"]
    return ["--target", "gcu", "-i", str(tmp_path / "m.onnx"), "--batch_sizes", "1,4", *served, *more]


def test_command_loads_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def recorded(name: str, version: int, config: Path, folder: Path) -> str | None:
        seen.append((name, version, (folder / "model.exec").exists(), list((tmp_path / "repo").glob("m"))))
        return load_once(name, version, config, folder)

    monkeypatch.setattr(stoker_main, "load_once", recorded)
    with pytest.raises(SystemExit) as ended:
        stoker_main.main(["compile", *words(tmp_path)])
    assert ended.value.code == 0
    assert seen == [("m", 1, True, [])]
    assert (tmp_path / "repo/m/1/model.exec").exists()


@pytest.mark.parametrize("is_first", [True, False])
def test_version_that_does_not_load_is_not_written(is_first: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not is_first:
        assert compile_command(words(tmp_path)) == 0

    def damaged(name: str, version: int, config: Path, folder: Path) -> str | None:
        (folder / "model.exec").write_bytes(b"damaged")
        return load_once(name, version, config, folder)

    assert compile_command(words(tmp_path), load_once=damaged) == 1
    said = capsys.readouterr()
    assert "model 'm' is compiled, but a server cannot load it, so that it is not written: " in said.err
    assert said.out.count("wrote") == (0 if is_first else 1)
    found = sorted(path.relative_to(tmp_path / "repo").as_posix() for path in (tmp_path / "repo").rglob("*"))
    assert found == ([] if is_first else ["m", "m/1", "m/1/model.exec", "m/config.pbtxt"])


def test_request_of_adlik_loads_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"serving_type": "engine", "input_model": MODEL, "model_name": "m", "export_path": str(tmp_path / "repo"), "max_batch_size": 4}
    compile_fields(fields)
    monkeypatch.setattr(model_compiler.compiling, "load_once", lambda *version: "no device")
    with pytest.raises(CompileError, match="not written: no device"):
        compile_fields(fields)
    assert sorted(path.name for path in (tmp_path / "repo").rglob("*")) == ["1", "config.pbtxt", "m", "m_1.zip", "model.exec"]


def test_simulated_devices_of_the_environment_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compile_command(words(tmp_path)) == 0
    monkeypatch.setenv("STOKER_SIM_IPUS", "no number")
    monkeypatch.setenv("STOKER_SIM_FAULTS", "no fault")
    assert load_once("m", 1, tmp_path / "repo/m/config.pbtxt", tmp_path / "repo/m/1") is None


def test_process_that_fails_otherwise_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert load_once("m", 1, tmp_path / "config.pbtxt", tmp_path) == "the load ended with code 1: no output"
