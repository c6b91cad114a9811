"""The sample models of the project, through the backend that serves them, and their example scripts."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.backends.testing.samples import signature

ROOT = Path(__file__).resolve().parents[2]
DIGITS = signature({"image": (DataType.FP32, (8, 8))}, {"scores": (DataType.FP32, (10,))}, 32)
SIMPLE = signature(
    dict.fromkeys(("INPUT0", "INPUT1"), (DataType.INT32, (16,))), dict.fromkeys(("OUTPUT0", "OUTPUT1"), (DataType.INT32, (16,))), 8
)


def load(name: str, served: ModelSignature) -> Instance:
    folder = ROOT / "model_repos" / name / "1"
    files = ModelFiles(folder, {"model.onnx": (folder / "model.onnx").stat().st_size})
    return OnnxRuntimeBackend().load(LoadRequest(model_name=name, version=1, files=files, model_filename="model.onnx", signature=served))


def script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits() -> Instance:
    return load("digits", DIGITS)


def test_digits_model_reads_images_outside_its_training_set(digits: Instance) -> None:
    with np.load(ROOT / "examples/digits/heldout.npz") as heldout:
        images, truth = heldout["images"].astype(np.float32), heldout["digits"]
    scores = digits.execute({"image": images}, ["scores"])["scores"]
    assert len(truth) == 450
    assert (scores.argmax(axis=1) == truth).mean() >= 0.97
    assert np.allclose(scores.sum(axis=1), 1, atol=1e-5)


def test_digits_model_has_a_label_for_every_score() -> None:
    assert len((ROOT / "model_repos/digits/labels.txt").read_text().split()) == 10


def test_simple_model_adds_and_subtracts() -> None:
    left, right = np.arange(32, dtype=np.int32).reshape(2, 16), np.ones((2, 16), np.int32)
    found = load("simple", SIMPLE).execute({"INPUT0": left, "INPUT1": right}, ["OUTPUT0", "OUTPUT1"])
    assert found["OUTPUT0"].tolist() == (left + right).tolist()
    assert found["OUTPUT1"].tolist() == (left - right).tolist()


def test_simple_model_equals_the_output_of_its_script() -> None:
    built = script("examples/simple/build.py").build()
    assert (ROOT / "model_repos/simple/1/model.onnx").read_bytes() == built.SerializeToString()
    assert (ROOT / "model_repos/simple/config.pbtxt").read_text() == script("examples/simple/build.py").CONFIG


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P"])
@pytest.mark.parametrize("inverted", [False, True])
def test_picture_in_any_colours_is_classified_correctly(digits: Instance, mode: str, inverted: bool) -> None:
    classify = script("examples/digits/classify.py")
    with Image.open(ROOT / "examples/digits/sample.png") as sample:
        picture = sample.convert("L")
    if inverted:
        picture = picture.point(lambda level: 255 - level)
    image = classify.as_digit(picture.convert(mode))
    assert image.shape == (8, 8)
    assert image.min() == 0
    assert image.max() == 16
    assert digits.execute({"image": image[np.newaxis]}, ["scores"])["scores"].argmax() == 3


def test_blank_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="no digit"):
        script("examples/digits/classify.py").as_digit(Image.new("RGB", (40, 40), "white"))


def test_picture_is_printed_in_blocks(tmp_path: Path) -> None:
    classify = script("examples/digits/classify.py")
    image = np.zeros((8, 8), np.float32)
    image[0, 0], image[7, 7] = 16, 8
    lines = classify.in_blocks(image).split("\n")
    assert lines[0] == "██" + " " * 14
    assert lines[7] == " " * 14 + "▒▒"
    classify.save_enlarged(image, tmp_path / "seen.png")
    with Image.open(tmp_path / "seen.png") as seen:
        assert seen.size == (256, 256)
        assert seen.getpixel((10, 10)) == 255
