"""Models of TensorFlow, TensorFlow Lite, PaddlePaddle and OpenVINO, served as they are or as OpenVINO IR; Keras needs TensorFlow."""

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_compiler import compile_model

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.tensor import DataType
from stoker.backends.openvino.backend import OpenVinoBackend
from stoker.backends.testing.samples import signature
from tests.fakes.framework_models import FOLDER, expected, feeds

ov = pytest.importorskip("openvino", reason="the 'openvino' extra is not installed")

_CONVERTERS = ("tensorflow", "tf2onnx", "keras")
needs_tensorflow = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in _CONVERTERS), reason=f"{', '.join(_CONVERTERS)} are not all installed"
)

SIGNATURE = ("scores", "logits")
GRAPH = ("Identity_1", "Identity")
PADDLE = ("softmax_0.tmp_0", "tmp_1")


def compiled(tmp_path: Path, source: Path, serving_type: str, **fields: Any) -> dict[str, str]:
    request = {"serving_type": serving_type, "model_name": "m", "max_batch_size": 8, "input_model": str(source)}
    return compile_model({**request, "export_path": str(tmp_path / "models"), **fields})


def error_of(tmp_path: Path, source: Path, serving_type: str, **fields: Any) -> str:
    result = compiled(tmp_path, source, serving_type, **fields)
    assert result["status"] == "failure", result
    assert not (tmp_path / "models" / "m").exists()
    return result["error_msg"]


def run(version: Path, filename: str, outputs: tuple[str, str]) -> list[np.ndarray]:
    sizes = {path.relative_to(version).as_posix(): path.stat().st_size for path in version.rglob("*") if path.is_file()}
    served = signature({"pixels": (DataType.FP32, (4,)), "scale": (DataType.FP32, (1,))}, dict.fromkeys(outputs, (DataType.FP32, (2,))))
    files = ModelFiles(version, sizes)
    instance = OpenVinoBackend().load(LoadRequest(model_name="m", version=1, files=files, model_filename=filename, signature=served))
    pixels, scale = feeds()
    try:
        found = instance.execute({"pixels": pixels, "scale": scale}, outputs)
        return [found[name] for name in outputs]
    finally:
        instance.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "serving_type", "platform", "files", "outputs"),
    [
        (
            "saved_model",
            "tf",
            "tensorflow",
            ["saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index"],
            SIGNATURE,
        ),
        ("model.pb", "tf", "tensorflow", ["model.pb"], GRAPH),
        ("model.tflite", "tflite", "tensorflow_lite", ["model.tflite"], SIGNATURE),
        ("paddle/inference.pdmodel", "paddle", "paddle", ["model.pdmodel", "model.pdiparams"], PADDLE),
        ("saved_model", "openvino", "openvino", ["model.xml", "model.bin"], SIGNATURE),
        ("model.pb", "openvino", "openvino", ["model.xml", "model.bin"], GRAPH),
        ("model.tflite", "openvino", "openvino", ["model.xml", "model.bin"], SIGNATURE),
        ("paddle", "openvino", "openvino", ["model.xml", "model.bin"], PADDLE),
    ],
)
def test_written_version_has_the_outputs_of_its_source(
    tmp_path: Path, source: str, serving_type: str, platform: str, files: list[str], outputs: tuple[str, str]
) -> None:
    result = compiled(tmp_path, FOLDER / source, serving_type)
    assert result == {"status": "success", "path": str(tmp_path / "models" / "m_1.zip")}
    version = tmp_path / "models" / "m" / "1"
    assert sorted(path.relative_to(version).as_posix() for path in version.rglob("*") if path.is_file()) == sorted(files)
    assert f'platform: "{platform}"' in (version.parent / "config.pbtxt").read_text()
    with zipfile.ZipFile(result["path"]) as archive:
        assert sorted(archive.namelist()) == sorted([*(f"1/{name}" for name in files), "config.pbtxt"])
    for found, wanted in zip(run(version, files[0], outputs), expected(*feeds()), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.slow
def test_openvino_ir_is_served_as_it_is(tmp_path: Path) -> None:
    first = compiled(tmp_path / "first", FOLDER / "saved_model", "openvino")
    assert first["status"] == "success"
    source = tmp_path / "first" / "models" / "m" / "1" / "model.xml"
    assert compiled(tmp_path, source, "openvino")["status"] == "success"
    assert (tmp_path / "models" / "m" / "1" / "model.xml").read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    ("source", "serving_type", "fields", "text"),
    [
        ("paddle_pir/inference.json", "paddle", {"framework": "paddle"}, "FLAGS_enable_pir_api=0"),
        ("python_function", "openvino", {}, "EagerPyFunc"),
        ("saved_model", "tf", {"signature_keys": "other"}, "serves the signature serving_default"),
        ("saved_model", "tf", {"build_flag": "KFP16"}, "build_flag: serving_type tf serves this model as it is"),
        ("model.tflite", "tflite", {"input_shapes": [[2, 4], [2, 1]]}, "input_shapes: serving_type tflite serves this model as it is"),
        ("paddle/inference.pdmodel", "tf", {}, "there is no way from PaddlePaddle model"),
        ("paddle_pir", "paddle", {"framework": "paddle"}, "is a folder with 0 .pdmodel files"),
        ("model.pb", "onnx", {}, "input_names and output_names missing"),
    ],
)
def test_request_that_cannot_be_served_is_rejected(
    tmp_path: Path, source: str, serving_type: str, fields: dict[str, Any], text: str
) -> None:
    assert text in error_of(tmp_path, FOLDER / source, serving_type, **fields)


def ir_of(tmp_path: Path, reduced: bool, batch: int) -> Path:
    """y = x, or x without the mean of all rows."""
    ops = ov.opset13
    x = ops.parameter([batch, 2], np.float32, name="x")
    y = ops.subtract(x, ops.reduce_mean(x, ops.constant(np.array([0])), keep_dims=True)) if reduced else ops.relu(x)
    x.output(0).set_names({"x"})
    y.output(0).set_names({"y"})
    tmp_path.mkdir(exist_ok=True)
    ov.save_model(ov.Model([ops.result(y)], [x], "m"), str(tmp_path / "net.xml"), compress_to_fp16=False)
    return tmp_path / "net.xml"


def test_model_whose_rows_depend_on_each_other_is_rejected(tmp_path: Path) -> None:
    assert "of a row depends on the other rows" in error_of(tmp_path, ir_of(tmp_path, True, -1), "openvino")


def test_model_of_another_fixed_batch_is_rejected(tmp_path: Path) -> None:
    assert "its batch is fixed to 2; say 2, or" in error_of(tmp_path, ir_of(tmp_path, False, 2), "openvino")


@needs_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("serving_type", ["openvino", "tf", "tflite", "onnx"])
def test_keras_model_is_compiled_for_every_kind_of_host_file(tmp_path: Path, suffix: str, serving_type: str) -> None:
    keras = importlib.import_module("keras")
    given = keras.Input((4,), name="pixels")
    model = keras.Model(given, keras.layers.Dense(2, name="scores")(given))
    model.save(tmp_path / f"net{suffix}")
    result = compiled(tmp_path, tmp_path / f"net{suffix}", serving_type)
    assert result["status"] == "success", result
    assert 'name: "pixels"' in (tmp_path / "models" / "m" / "config.pbtxt").read_text()


@needs_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_keras_model_with_a_lambda_layer_is_rejected(tmp_path: Path, suffix: str) -> None:
    keras = importlib.import_module("keras")
    given = keras.Input((4,))
    keras.Model(given, keras.layers.Lambda(lambda array: array * 2)(given)).save(tmp_path / f"net{suffix}")
    assert "Lambda" in error_of(tmp_path, tmp_path / f"net{suffix}", "onnx")
