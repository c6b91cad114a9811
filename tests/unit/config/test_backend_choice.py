"""Which backend a model gets, and which of its files."""

import pytest

from stoker.backends.api.registry import BackendRegistry
from stoker.server.config.complete import choose_backend
from stoker.server.config.pbtxt import empty_config, parse_pbtxt
from stoker.server.config.report import ConfigError
from tests.fakes.named_backends import NamedBackend, onnx_like, registry


def chosen(text: str, *files: str, installed: BackendRegistry | None = None) -> tuple[str, str]:
    parsed = parse_pbtxt(text, source="m/config.pbtxt", model_name="m")
    backend, filename = choose_backend(parsed, files, installed or registry())
    return backend.name, filename


def error_of(text: str, *files: str, installed: BackendRegistry | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        chosen(text, *files, installed=installed)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        'backend: "onnxruntime"',
        'backend: "onnx"',
        'platform: "onnxruntime_onnx"',
        'platform: "onnx"',
        'backend: "onnxruntime" platform: "onnx"',
    ],
)
def test_every_spelling_of_onnx_chooses_its_backend(text: str) -> None:
    assert chosen(text, "model.onnx", "model.exec") == ("onnxruntime", "model.onnx")


def test_version_folder_decides_the_backend_by_default() -> None:
    assert choose_backend(empty_config("m"), ["model.exec", "readme.txt"], registry())[0].name == "topsinference"


def test_configured_file_name_is_used_and_selects_the_backend() -> None:
    assert chosen('default_model_filename: "small/fp16.onnx"', "small/fp16.onnx", "model.exec") == ("onnxruntime", "small/fp16.onnx")


def test_configured_file_that_is_missing_is_named() -> None:
    text = error_of('backend: "onnx"\ndefault_model_filename: "model.onxn"', "model.onnx", "notes.txt")
    assert text == (
        "m/config.pbtxt:2: default_model_filename: the version folder has no file 'model.onxn'; did you mean 'model.onnx'? "
        "allowed: model.onnx, notes.txt"
    )


def test_unknown_backend_is_refused_with_the_installed_ones() -> None:
    assert error_of('\nbackend: "onnxruntme"', "model.onnx") == (
        "m/config.pbtxt:2: backend: no backend 'onnxruntme' is installed; did you mean 'onnxruntime'? "
        "allowed: onnx, onnxruntime, topsinference"
    )
    assert error_of('platform: "tensorrt_plan"').startswith("m/config.pbtxt:1: platform: no platform 'tensorrt_plan' is installed; ")


def test_contradicting_backend_and_platform_are_refused() -> None:
    assert error_of('backend: "onnxruntime"\nplatform: "topsinference"') == (
        "m/config.pbtxt:2: platform: 'topsinference' is of backend 'topsinference', but 'backend' says 'onnxruntime'"
    )


def test_missing_model_file_is_refused_with_the_existing_and_the_expected_files() -> None:
    text = error_of("", "weights.bin")
    assert "holds weights.bin" in text
    assert "model.exec (topsinference), model.onnx (onnxruntime)" in text or "model.onnx (onnxruntime), model.exec (topsinference)" in text


def test_files_of_two_backends_need_an_explicit_backend() -> None:
    assert "must be written" in error_of("", "model.onnx", "model.exec")
    twins = BackendRegistry((onnx_like(), NamedBackend("other", "net.onnx")))
    assert "fits onnxruntime and other" in error_of('default_model_filename: "a.onnx"', "a.onnx", installed=twins)


def several_formats() -> BackendRegistry:
    several = NamedBackend("several", "model.first", platforms=("several", "second"))
    several.further_model_filenames = ("model.second", "model.third", "model.onnx", "model.folder/mark.pb")
    several.platform_filenames = {"second": ("model.second",), "onnx": ("model.onnx",)}
    several.folder_marks = ("mark.pb",)
    return BackendRegistry((several, onnx_like()))


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ('backend: "several"', ["model.third"], "model.third"),
        ('backend: "several"', ["model.third", "model.first"], "model.first"),
        ('backend: "several"', [], "model.first"),
        ('platform: "second"', ["model.third", "model.second"], "model.second"),
        ('backend: "several" platform: "onnx"', ["model.onnx", "model.third"], "model.onnx"),
        ('backend: "several"', ["model.folder/mark.pb", "model.folder/data"], "model.folder/mark.pb"),
        ('default_model_filename: "model.folder"', ["model.folder/mark.pb"], "model.folder/mark.pb"),
        ('backend: "several" default_model_filename: "x/y/"', ["x/y/mark.pb"], "x/y/mark.pb"),
        ("", ["model.third"], "model.third"),
        ("", ["model.folder/mark.pb"], "model.folder/mark.pb"),
    ],
)
def test_backend_of_several_formats_gets_its_file(text: str, files: list[str], expected: str) -> None:
    assert chosen(text, *files, installed=several_formats()) == ("several", expected)


@pytest.mark.parametrize(("text", "files"), [("", ["model.onnx"]), ('platform: "onnx"', ["model.onnx", "model.third"])])
def test_file_of_two_backends_is_of_the_one_whose_default_it_is(text: str, files: list[str]) -> None:
    assert chosen(text, *files, installed=several_formats()) == ("onnxruntime", "model.onnx")


@pytest.mark.parametrize("filename", ["model.onnx", "other.third", "model.folder/mark.pb"])
def test_written_file_of_another_format_than_the_platforms_is_rejected(filename: str) -> None:
    text = error_of(f'platform: "second"\ndefault_model_filename: "{filename}"', filename, "model.second", installed=several_formats())
    assert text == (
        f"m/config.pbtxt:2: default_model_filename: '{filename}' is of another format than platform 'second', which takes model.second"
    )


def test_written_file_of_the_platforms_format_may_have_any_name() -> None:
    text = 'platform: "second" default_model_filename: "x/other.second"'
    assert chosen(text, "x/other.second", "model.second", installed=several_formats()) == ("several", "x/other.second")


def test_several_models_of_one_backend_are_rejected_with_their_names() -> None:
    for text in ("", 'backend: "several"'):
        assert error_of(text, "model.third", "model.second", installed=several_formats()) == (
            "m/config.pbtxt:1: default_model_filename: must be written: the version folder has several models: model.second, model.third"
        )


def test_model_file_of_another_name_is_named_for_its_backend() -> None:
    assert error_of('backend: "several"', "net.third", installed=several_formats()) == (
        "m/config.pbtxt:1: default_model_filename: the version folder has no file 'model.first'; "
        'write default_model_filename: "net.third" into config.pbtxt'
    )


def test_error_of_a_saved_model_names_the_conversion_to_onnx() -> None:
    with pytest.raises(ConfigError, match=r"known model files: .*; backend openvino serves a SavedModel .*: stoker add --convert"):
        choose_backend(empty_config("m"), ["model.savedmodel/saved_model.pb", "model.savedmodel/variables/variables.index"], registry())
    assert "stoker add" in error_of('platform: "tensorflow_savedmodel"')
    assert "stoker add" not in error_of('platform: "tensorrt_plan"')
