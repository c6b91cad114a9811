"""The command line of `stoker compile --target cpu` in this process, in a folder with a model and samples."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import stoker.backends.cpu.comparison
import stoker.compiler.target
from stoker.backends.cpu.target import CpuTarget
from tests.fakes.cpu_compiler import Compile
from tests.fakes.cpu_models import network, samples
from tests.fakes.fake_target import installed


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
    monkeypatch.setattr(stoker.backends.cpu.comparison, "WINDOW_S", 0.0001)

    return Compile(capsys)
