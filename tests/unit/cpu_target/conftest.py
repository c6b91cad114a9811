"""The command line of `stoker compile --target cpu` in this process, in a folder with a model and samples."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

import stoker.backends.cpu.speed
import stoker.compiler.cli
import stoker.compiler.target
from stoker.backends.cpu.target import CpuTarget
from tests.fakes.cpu_models import network, samples
from tests.fakes.fake_target import installed


@dataclass(frozen=True)
class Ran:
    """The result of a command line."""

    code: int
    out: str
    err: str


Compile = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; it holds `model.onnx`, whose batch is variable, and `samples.npz`."""
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), tmp_path / "model.onnx")
    np.savez(tmp_path / "samples.npz", x=samples())
    return tmp_path


@pytest.fixture
def compile_cpu(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Compile:
    monkeypatch.setattr(stoker.compiler.target, "entry_points", installed(CpuTarget()))
    monkeypatch.setattr(stoker.backends.cpu.speed, "WINDOW_S", 0.0001)

    def run(*words: str) -> Ran:
        is_sized = any(word.startswith(("--input_shape", "--batch_size")) for word in words)
        sized = () if is_sized else ("--batch_size", "8", "--batch_axis", "0")
        return run_plainly(*sized, *words)

    def run_plainly(*words: str) -> Ran:
        code = stoker.compiler.cli.main(["--target", "cpu", "-i", "model.onnx", "--disable_compilation_progress_bar", *words])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    run.plainly = run_plainly  # type: ignore[attr-defined] # without a batch size
    return run
