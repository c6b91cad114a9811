"""Scripts written for Adlik's compiler, under its own module names."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.compiler.errors import OptionError
from tests.fakes.compile_requests import Devices, image_model


def test_adliks_example_script_runs_as_written(devices: Devices, model_path: Path, tmp_path: Path) -> None:
    import model_compiler

    request = {
        "serving_type": "engine",
        "input_model": str(model_path),
        "export_path": str(tmp_path / "model_repos"),
        "input_layer_names": ["image"],
        "output_layer_names": ["y"],
        "input_formats": ["channels_first"],
        "input_signatures": ["image"],
        "output_signatures": ["label"],
        "model_name": "resnet50",
        "max_batch_size": 128,
    }
    assert model_compiler.compile_model(request) == {"status": "success", "path": str(tmp_path / "model_repos" / "resnet50_1.zip")}
    assert devices.batches == [1, 2, 4, 8, 16, 32, 64, 128]


def test_compiler_functions_return_paths_and_raise(devices: Devices, request_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    adlik = importlib.import_module("model_compiler.compiler")
    fields = request_of()
    path = fields.pop("input_model")
    assert Path(adlik.compile_model(**fields, model_path=path)).name == "net_1.zip"
    assert Path(adlik.compile_model(**fields, input_model=image_model(), version=5)).name == "net_5.zip"
    ways: list[tuple[Callable[..., str], Any]] = [
        (adlik.compile_from_json, request_of()),
        (adlik.compile_from_json, json.dumps(request_of())),
        (adlik.compile_from_json, json.dumps(request_of()).encode()),
        (adlik.compile_from_env, {**{name.upper(): str(value) for name, value in fields.items()}, "ONNX_PATH": path}),
    ]
    assert [Path(compile_from(request)).name for compile_from, request in ways] == [f"net_{at}.zip" for at in (6, 7, 8, 9)]
    for name, value in fields.items():
        monkeypatch.setenv(name.upper(), str(value))
    monkeypatch.setenv("ONNX_PATH", path)
    assert Path(adlik.compile_from_env()).name == "net_10.zip"
    with pytest.raises(OptionError, match="serving_type is missing"):
        adlik.compile_from_json("{}")


def test_command_is_importable_from_adliks_path() -> None:
    from model_compiler import command

    assert importlib.import_module("model_compiler.main").main is command.main
