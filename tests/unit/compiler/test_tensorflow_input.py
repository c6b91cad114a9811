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


# Stands for the real Keras: notes how it is asked to load, and complains as that one does of code in a file.
KERAS = """
from pathlib import Path
__version__ = "{version}"
class saving:
    def load_model(path, **settings):
        (Path(__file__).parent / "asked").write_text(repr((Path(path).name, settings)))
        raise ValueError("Requested the deserialization\\nof a `Lambda` layer")
"""


@pytest.fixture
def keras(tf2onnx: Path, folder: Path) -> Path:
    """The folder of an installed Keras; `net.keras` and `net.h5` are models."""
    package = tf2onnx.parent / "keras"
    package.mkdir()
    (package / "__init__.py").write_text(KERAS.format(version="3.15.1"))
    for name in ("net.keras", "net.h5"):
        (folder / name).write_bytes(b"model")
    return package


@pytest.mark.parametrize("name", ["net.keras", "net.h5"])
def test_code_in_a_keras_file_is_not_run(stoker_compile, keras: Path, name: str) -> None:
    ran = stoker_compile("-i", name, "--framework", "tensorflow")
    assert ran.code == 1
    assert ran.err.splitlines()[-1].endswith(
        f"tf2onnx could not convert {name}: ValueError: Requested the deserialization of a `Lambda` layer"
    )
    assert (keras / "asked").read_text() == repr((name, {"compile": False, "safe_mode": True}))


def test_keras_that_may_run_code_of_a_file_is_rejected(stoker_compile, keras: Path) -> None:
    (keras / "__init__.py").write_text(KERAS.format(version="3.10.0"))
    ran = stoker_compile("-i", "net.h5", "--framework", "tensorflow")
    assert ran.code == 1
    assert "keras 3.10.0 may run code in the file; 3.11.3 or later is needed" in ran.err
    assert not (keras / "asked").exists()


def test_options_of_saved_models_are_rejected_for_a_keras_file(stoker_compile, keras: Path) -> None:
    ran = stoker_compile("-i", "net.keras", "tf2onnx", "--signature_def", "serve")
    assert ran.code == 2
    assert "signature_def: a Keras model has its own inputs and outputs" in ran.err
    assert not (keras / "asked").exists()


def test_missing_keras_is_named(stoker_compile, tf2onnx: Path, folder: Path) -> None:
    (folder / "net.keras").write_bytes(b"model")
    ran = stoker_compile("-i", "net.keras", "--framework", "tensorflow")
    assert ran.code == 1
    assert "net.keras needs the package keras, not installed here: pip install keras" in ran.err


def test_tensorflow_lite_file_is_given_to_tf2onnx_as_such(stoker_compile, tf2onnx: Path, folder: Path) -> None:
    (folder / "net.tflite").write_bytes(b"model")
    ran = stoker_compile("-i", "net.tflite", "--input_shape", "x=4,3", "--output_model", "out.onnx", "--framework", "tensorflow")
    assert ran.code == 0, ran.err
    assert (tf2onnx / "arguments").read_text().splitlines()[:2] == ["--tflite", "net.tflite"]


def test_options_of_tensorflow_models_need_the_framework(stoker_compile, folder: Path) -> None:
    (folder / "c.yaml").write_text("input_model: model.onnx\nsignature_def: serve\n")
    ran = stoker_compile("--config_yaml", "c.yaml")
    assert ran.code == 2
    assert "signature_def concerns TensorFlow models: give --framework tensorflow too" in ran.err
