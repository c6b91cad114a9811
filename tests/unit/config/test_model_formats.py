"""Errors about model files without a backend name the command that converts them, and no test backend."""

import re

import pytest

from stoker.backends.api.registry import BackendRegistry
from stoker.server.config.complete import choose_backend
from stoker.server.config.model_formats import is_model_file, next_step
from stoker.server.config.pbtxt import empty_config, parse_pbtxt
from stoker.server.config.report import ConfigError


def refusal(*files: str, config: str = "") -> str:
    parsed = parse_pbtxt(config, source="m/config.pbtxt", model_name="m") if config else empty_config("m")
    with pytest.raises(ConfigError) as caught:
        choose_backend(parsed, files, BackendRegistry())
    return str(caught.value)


@pytest.mark.parametrize(
    ("files", "command"),
    [
        (["model.pkl"], "a pickled model has to be converted to ONNX: stoker add model.pkl"),
        (["model.joblib"], "stoker add model.joblib"),
        (["model.pt"], "stoker add model.pt"),
        (["net.pth"], "stoker add net.pth"),
        (["model.pt2"], "stoker add model.pt2"),
        (["pytorch_model.bin"], "stoker add FOLDER, where FOLDER holds the weights with their config.json; other"),
        (["model.safetensors"], "weights alone are no model: stoker add FOLDER"),
        (["config.json", "model.safetensors", "tokenizer.json"], "a Hugging Face model has to be converted to ONNX: stoker add ."),
        (["bert/config.json", "bert/pytorch_model.bin"], "stoker add bert"),
        (["model.json"], "an XGBoost model in JSON, if this is one, has to be converted to ONNX: stoker add model.json"),
        (["model.ubj"], "stoker add model.ubj"),
        (["model.txt"], "stoker add model.txt"),
        (["x/saved_model.pb"], "stoker add --convert x"),
        (["net.pdmodel"], "backend openvino serves a PaddlePaddle model as model.pdmodel"),
        (["net.json", "net.pdiparams"], "set the environment variable FLAGS_enable_pir_api=0"),
        (["graph.pb"], "backend openvino serves a frozen TensorFlow graph as model.pb; "),
        (["model.h5"], "stoker add model.h5"),
        (["model.keras"], "stoker add model.keras"),
        (["net.tflite"], 'rename net.tflite to model.tflite, or write default_model_filename: "net.tflite" into config.pbtxt'),
        (["net.py"], "backend python serves a model written in Python as model.py: rename net.py to model.py"),
        (["cnn.onnx"], 'rename cnn.onnx to model.onnx, or write default_model_filename: "cnn.onnx" into config.pbtxt'),
    ],
)  # fmt: skip
def test_refusal_names_the_command_and_suggests_no_test_backend(files: list[str], command: str) -> None:
    text = refusal(*files)
    assert command in text
    assert "identity" not in text
    assert "repeat" not in text
    (offered,) = re.findall(r"known model files: ([^;]*)", text)
    assert offered.split(", ") == sorted(offered.split(", "))


@pytest.mark.parametrize(
    ("config", "command"),
    [
        ('platform: "pytorch_libtorch"', "stoker add model.pt"),
        ('platform: "keras"', "stoker add model.keras"),
        ('backend: "fil"', "stoker add model.ubj"),
    ],
)
def test_unsupported_backend_is_refused_with_the_installed_ones_and_the_next_step(config: str, command: str) -> None:
    text = refusal("model.pt", config=config)
    (offered,) = re.findall(r"allowed: ([^;]*)", text)
    assert offered.split(", ") == sorted(offered.split(", "))
    assert {"onnxruntime", "openvino"} <= set(offered.split(", "))
    assert not {"identity", "repeat"} & set(offered.split(", "))
    assert command in text


def test_misspelled_test_backend_is_recognised() -> None:
    assert "did you mean 'identity'?" in refusal(config='backend: "identitty"')


def test_error_of_a_backend_without_its_file_explains_how_to_make_it() -> None:
    assert "the version folder has no file 'model.onnx'; a TorchScript or PyTorch file has to be" in refusal(
        "model.pt", config='backend: "onnxruntime"'
    )
    text = refusal("model.savedmodel/saved_model.pb", config='backend: "onnxruntime"')
    assert "backend openvino serves a SavedModel as the folder model.savedmodel; for other backends it has to be converted" in text


@pytest.mark.parametrize("name", ["a b.pt", "$(id).pkl", "x'.h5", "\x1b[31m.pt"])
def test_file_name_in_a_command_is_quoted(name: str) -> None:
    step = next_step([name])
    assert step is not None
    assert name not in step


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cnn.onnx", True),
        ("x.pt", True),
        ("saved_model.pb", True),
        ("labels.txt", False),
        ("README.md", False),
        ("a.json", False),
        ("run.py", False),
    ],
)
def test_only_unambiguous_names_are_models_in_any_folder(name: str, expected: bool) -> None:
    assert is_model_file(name) is expected
