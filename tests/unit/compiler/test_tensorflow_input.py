"""TensorFlow models are converted by tf2onnx in a separate process: its arguments, and the use of its result."""

import shutil
import sys
from pathlib import Path

import pytest

# Stands for the real tf2onnx: notes its arguments, and gives the model beside it, or complains as that one does.
CONVERT = """
import shutil, sys
from pathlib import Path
here = Path(__file__).parent
(here / "arguments").write_text("\\n".join(sys.argv[1:]))
if (here / "complaint").exists():
    sys.exit((here / "complaint").read_text())
shutil.copyfile(here / "model.onnx", sys.argv[sys.argv.index("--output") + 1])
"""


@pytest.fixture
def tf2onnx(folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed tf2onnx with a prepared model."""
    site = tmp_path_factory.mktemp("site")
    for package in ("tf2onnx", "tensorflow"):
        (site / package).mkdir()
        (site / package / "__init__.py").touch()
    (site / "tf2onnx" / "convert.py").write_text(CONVERT)
    shutil.copyfile(folder / "model.onnx", site / "tf2onnx" / "model.onnx")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(site))
    (folder / "saved").mkdir()
    return site / "tf2onnx"


def test_tf2onnx_gets_the_options_and_its_model_is_converted(stoker_compile, tf2onnx: Path, folder: Path) -> None:
    words = ("--output_model", "out.onnx", "tf2onnx", "--signature_def", "serve", "--inputs_as_nchw", "x", "--opset", "13")
    ran = stoker_compile("-i", "saved", "--input_shape", "x=4,3", *words)
    assert ran.code == 0, ran.err
    asked = (tf2onnx / "arguments").read_text().splitlines()
    assert asked[:-2] == ["--saved-model", "saved", "--opset", "13", "--signature_def", "serve", "--inputs-as-nchw", "x"]
    assert (folder / "out.onnx").exists()


def test_tf2onnx_errors_are_reported_in_one_line(stoker_compile, tf2onnx: Path) -> None:
    (tf2onnx / "complaint").write_text("Traceback\nValueError: no such signature\n")
    ran = stoker_compile("-i", "saved", "--framework", "tensorflow")
    assert ran.code == 1
    assert ran.err.splitlines()[-1].endswith("tf2onnx could not convert saved: Traceback / ValueError: no such signature")


def test_options_of_tensorflow_models_need_the_framework(stoker_compile, folder: Path) -> None:
    (folder / "c.yaml").write_text("input_model: model.onnx\nsignature_def: serve\n")
    ran = stoker_compile("--config_yaml", "c.yaml")
    assert ran.code == 2
    assert "signature_def concerns TensorFlow models: give --framework tensorflow too" in ran.err
