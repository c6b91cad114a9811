"""PyTorch models: the error without PyTorch, and, if it is installed, equal results of the served model."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from model_compiler import compile_model

from tests.fakes.compile_requests import Devices

SCRIPT = """
import torch

class TheModelClass(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.last = torch.nn.Linear(4, 5)

    def forward(self, image):
        return self.last(torch.relu(self.conv(image)).mean((2, 3)))
"""

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
#: PyTorch's own, of its exporter.
quiet = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def network(script: Path) -> Any:
    torch = pytest.importorskip("torch")
    space: dict[str, Any] = {}
    exec(script.read_text(), space)
    torch.manual_seed(0)
    return space["TheModelClass"]().eval()


def served(folder: Path) -> tuple[onnxruntime.InferenceSession, np.ndarray]:
    """The served file, and a batch of three images."""
    session = onnxruntime.InferenceSession(folder / "net/1/model.onnx", providers=["CPUExecutionProvider"])
    return session, np.random.default_rng(0).standard_normal((3, 3, 8, 8), dtype=np.float32)


def test_missing_pytorch_is_named_with_the_package_to_install(
    devices: Devices, failure: Any, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_compiler.importing.importlib.util.find_spec", lambda name: None if name == "torch" else object())
    for name, fields in (("m.pt2", {}), ("m.pth", {"script_path": str(script)})):
        (tmp_path / name).write_bytes(b"")
        text = failure(input_model=str(tmp_path / name), **fields)
        assert text.startswith("PyTorch models need the package torch, not installed here: pip install torch onnxscript")


def test_state_dict_needs_its_script(devices: Devices, failure: Any, tmp_path: Path) -> None:
    (tmp_path / "m.pth").write_bytes(b"")
    assert "a state needs script_path, a Python file that defines its class TheModelClass" in failure(input_model=str(tmp_path / "m.pth"))
    assert "script_path: there is no file gone.py" in failure(input_model=str(tmp_path / "m.pth"), script_path="gone.py")


@needs_torch
@quiet
def test_exported_program_computes_like_pytorch(network: Any, request_of: Any, tmp_path: Path) -> None:
    import torch

    program = torch.export.export(network, (torch.ones(2, 3, 8, 8),), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    torch.export.save(program, tmp_path / "m.pt2")
    assert compile_model(request_of(serving_type="onnx", input_model=str(tmp_path / "m.pt2")))["status"] == "success"
    session, images = served(tmp_path / "models")
    np.testing.assert_allclose(session.run(None, {"image": images})[0], network(torch.tensor(images)).detach().numpy(), atol=1e-5)


@needs_torch
@quiet
def test_state_dict_computes_like_pytorch(network: Any, devices: Devices, request_of: Any, script: Path, tmp_path: Path) -> None:
    import torch

    torch.save(network.state_dict(), tmp_path / "m.pth")
    fields = {"input_model": str(tmp_path / "m.pth"), "script_path": str(script), "data_type": "FLOAT"}
    named = {"input_names": ["pixels"], "output_names": ["scores"], "input_shapes": {"pixels": [3, 8, 8]}, "opset_version": 18}
    assert compile_model(request_of(serving_type="onnx", **fields, **named))["status"] == "success"
    session, images = served(tmp_path / "models")
    (scores,) = session.run(["scores"], {"pixels": images})
    np.testing.assert_allclose(scores, network(torch.tensor(images)).detach().numpy(), atol=1e-5)
    result = compile_model(request_of(model_name="device", **fields, input_shapes=[[3, 8, 8]], input_formats=["channels_first"]))
    assert result["status"] == "success"
    assert devices.batches == [1, 8]


@needs_torch
@quiet
def test_model_that_pytorch_cannot_read_or_export_is_reported_in_one_line(
    network: Any, devices: Devices, failure: Any, script: Path, tmp_path: Path
) -> None:
    import torch

    torch.save(network.state_dict(), tmp_path / "m.pth")
    torch.save({"other": torch.ones(1)}, tmp_path / "other.pth")
    torch.save(ValueError, tmp_path / "code.pth")
    (tmp_path / "m.pt2").write_bytes(b"no program")
    state = {"input_model": str(tmp_path / "m.pth"), "script_path": str(script)}
    shapes = {"input_shapes": [[3, 8, 8]]}
    assert failure(**state) == "input_shapes is missing: a PyTorch state does not say what its inputs are"
    assert "holds more than tensors and is not read" in failure(**{**state, "input_model": str(tmp_path / "code.pth")}, **shapes)
    assert "is no state of TheModelClass" in failure(**{**state, "input_model": str(tmp_path / "other.pth")}, **shapes)
    assert "m.pt2 cannot be read as an exported program" in failure(input_model=str(tmp_path / "m.pt2"))
    assert "data_type: PyTorch has no element type 'FLOAT7'" in failure(**state, **shapes, data_type="FLOAT7")
    assert "data_type: 2 types for 1 inputs" in failure(**state, **shapes, data_type="FLOAT,FLOAT")
    assert "the inputs of TheModelClass are image, not 'picture'" in failure(**state, input_shapes={"picture": [1]})
    text = failure(**state, input_shapes=[[4, 8, 8]])
    assert text.startswith("PyTorch cannot export")
    assert "\x1b" not in text
    script.write_text("class Other: pass")
    assert "defines no class TheModelClass; it defines Other" in failure(**state, **shapes)
    script.write_text("raise RuntimeError('at once')")
    assert f"script_path: {script} failed: RuntimeError: at once" in failure(**state, **shapes)
