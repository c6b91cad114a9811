"""The model compiler with targets that compile nothing, and a small model to compile."""

import sys
from pathlib import Path
from typing import Any

import model_compiler.compiling
import onnx
import pytest
from model_compiler import compile_model

import stoker.compiler.target
from tests.fakes.compile_requests import Devices, image_model
from tests.fakes.fake_target import FakeEntryPoint

# The shims are a distribution of their own, which the tests' environment need not have.
sys.path.insert(0, str(Path(__file__).parents[3] / "compat"))


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    made = Devices()
    points = [FakeEntryPoint("gcu", lambda: lambda: made.gcu), FakeEntryPoint("ipu", lambda: lambda: made.ipu)]
    monkeypatch.setattr(stoker.compiler.target, "entry_points", lambda *, group: points)
    monkeypatch.setattr(model_compiler.compiling, "load_once", lambda *version: None)  # what they write is no executable
    return made


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(image_model(), path)
    return path


@pytest.fixture
def request_of(model_path: Path, tmp_path: Path) -> Any:
    """Makes the fields of a request; None removes one."""

    def make(**fields: Any) -> dict[str, Any]:
        usual = {
            "serving_type": "engine",
            "model_name": "net",
            "max_batch_size": 8,
            "input_model": str(model_path),
            "export_path": str(tmp_path / "models"),
        }
        return {name: value for name, value in {**usual, **fields}.items() if value is not None}

    return make


@pytest.fixture
def failure(request_of: Any) -> Any:
    """Compiles a request that must fail, and returns the text."""

    def fail(**fields: Any) -> str:
        result = compile_model(request_of(**fields))
        assert result["status"] == "failure", result
        assert set(result) == {"status", "error_msg"}
        return result["error_msg"]

    return fail
