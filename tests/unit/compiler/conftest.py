"""`stoker compile`, run in this process with a target that compiles nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import stoker.compiler.cli
import stoker.compiler.target
from tests.fakes.fake_target import FakeTarget, installed
from tests.fakes.graphs import model_of, tensor


@dataclass(frozen=True)
class Ran:
    """The outcome of a command line."""

    code: int
    out: str
    err: str


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> FakeTarget:
    """The only target of this installation."""
    made = FakeTarget()
    monkeypatch.setattr(stoker.compiler.target, "entry_points", installed(made))
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; it holds `model.onnx`: y = relu(x @ w), where the batch is variable."""
    monkeypatch.chdir(tmp_path)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["product"]), helper.make_node("Relu", ["product"], ["y"])]
    weights = {"w": np.arange(6, dtype=np.float32).reshape(3, 2) - 2}
    onnx.save(model_of(nodes, [tensor("x", ["batch", 3])], [tensor("y", ["batch", 2])], weights, opset=13), tmp_path / "model.onnx")
    return tmp_path


@pytest.fixture
def stoker_compile(target: FakeTarget, folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs the command with the words given, for the fake target."""

    def run(*words: str, default_target: str | None = "fake") -> Ran:
        code = stoker.compiler.cli.main(words, default_target=default_target)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
