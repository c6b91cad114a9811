"""Models of TensorFlow, TensorFlow Lite and PaddlePaddle, read by OpenVINO's front ends; `test_openvino_backend.py` has ONNX and IR."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import ModelFacts
from stoker.backends.api.tensor import DataType
from stoker.backends.openvino.backend import OpenVinoBackend
from stoker.backends.openvino.tflite_signature import DamagedTflite, signature_names
from stoker.backends.testing.samples import signature, version_files
from tests.fakes.framework_models import VERSION_FOLDERS, VersionFolder, expected, feeds, tree

pytest.importorskip("openvino", reason="the 'openvino' extra is not installed")

FP32 = DataType.FP32
each_folder = pytest.mark.parametrize("version", VERSION_FOLDERS.values(), ids=VERSION_FOLDERS)


def inspected(folder: Path, files: Mapping[str, bytes], filename: str) -> ModelFacts:
    return OpenVinoBackend().inspect(version_files(folder, files), filename)


def error_of(folder: Path, files: Mapping[str, bytes], filename: str) -> str:
    with pytest.raises(ModelLoadError) as caught:
        inspected(folder, files, filename)
    return str(caught.value)


def run(folder: Path, version: VersionFolder, inputs: tuple[str, str], outputs: tuple[str, str], **parameters: str) -> list[np.ndarray]:
    """Loads the model with these names, in the order of `VersionFolder`, and runs three rows."""
    served = signature({inputs[0]: (FP32, (4,)), inputs[1]: (FP32, (1,))}, dict.fromkeys(outputs, (FP32, (2,))))
    files = version_files(folder, version.files)
    request = LoadRequest(model_name="m", version=1, files=files, model_filename=version.filename, signature=served, parameters=parameters)
    instance = OpenVinoBackend().load(request)
    try:
        found = instance.execute(dict(zip(inputs, feeds(), strict=True)), outputs)
        return [found[name] for name in outputs]
    finally:
        instance.close()


@each_folder
def test_facts_have_the_names_types_and_open_batch_that_clients_see(tmp_path: Path, version: VersionFolder) -> None:
    facts = inspected(tmp_path, version.files, version.filename)
    assert {(tensor.name, tensor.datatype, tensor.shape) for tensor in facts.inputs or ()} == {
        (version.inputs[0], FP32, (-1, 4)),
        (version.inputs[1], FP32, (-1, 1)),
    }
    assert {(tensor.name, tensor.datatype, tensor.shape) for tensor in facts.outputs or ()} == {
        (name, FP32, (-1, 2)) for name in version.outputs
    }


@each_folder
def test_outputs_are_those_of_the_source_model(tmp_path: Path, version: VersionFolder) -> None:
    for found, wanted in zip(run(tmp_path, version, version.inputs, version.outputs), expected(*feeds()), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs"),
    [
        ("frozen graph", ("pixels:0", "scale:0"), ("Identity_1:0", "Identity:0")),
        (
            "tflite",
            ("serving_default_pixels:0", "serving_default_scale:0"),
            ("StatefulPartitionedCall:1", "StatefulPartitionedCall:0"),
        ),
    ],
)
def test_configuration_may_use_the_names_of_the_tensors(
    tmp_path: Path, kind: str, inputs: tuple[str, str], outputs: tuple[str, str]
) -> None:
    for found, wanted in zip(run(tmp_path, VERSION_FOLDERS[kind], inputs, outputs), expected(*feeds()), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_comparison_with_onnxruntime_is_rejected_for_other_formats(tmp_path: Path) -> None:
    version = VERSION_FOLDERS["tflite"]
    with pytest.raises(ModelLoadError, match=r"compare_with_onnxruntime.*is for ONNX files"):
        run(tmp_path, version, version.inputs, version.outputs, compare_with_onnxruntime="true")


def test_operator_that_is_not_converted_is_named(tmp_path: Path) -> None:
    text = error_of(tmp_path, tree("python_function"), "saved_model.pb")
    assert "does not read 'saved_model.pb' as TensorFlow SavedModel: " in text
    assert "EagerPyFunc" in text
    assert str(tmp_path) not in text


def test_paddles_default_form_is_rejected_with_the_flag_that_selects_the_other(tmp_path: Path) -> None:
    text = error_of(tmp_path, tree("paddle_pir"), "inference.json")
    assert "FLAGS_enable_pir_api=0" in text
    assert "'inference.json'" in text


@pytest.mark.parametrize(
    ("kind", "missing", "text"),
    [
        ("SavedModel", "variables/variables.data-00000-of-00001", "needs its variables in 'variables/variables.data-"),
        ("SavedModel", "variables/variables.index", "needs the index of its variables, 'variables/variables.index'"),
        ("SavedModel in a folder", "model.savedmodel/variables/variables.index", "'model.savedmodel/variables/variables.index'"),
        ("paddle", "inference.pdiparams", "the version folder has no 'inference.pdiparams'"),
    ],
)
def test_missing_file_is_named(tmp_path: Path, kind: str, missing: str, text: str) -> None:
    version = VERSION_FOLDERS[kind]
    found = error_of(tmp_path, {name: content for name, content in version.files.items() if name != missing}, version.filename)
    assert text in found
    assert str(tmp_path) not in found


@each_folder
@pytest.mark.parametrize("damage", ["empty", "text", "cut off"])
def test_damaged_model_file_is_an_error(tmp_path: Path, version: VersionFolder, damage: str) -> None:
    whole = version.files[version.filename]
    content = {"empty": b"", "text": b"this is no model\n" * 20, "cut off": whole[: len(whole) // 2]}[damage]
    text = error_of(tmp_path, {**version.files, version.filename: content}, version.filename)
    assert f"'{version.filename}'" in text
    assert str(tmp_path) not in text


def test_large_index_of_variables_is_not_read(tmp_path: Path) -> None:
    index = "variables/variables.index"
    files = version_files(tmp_path, VERSION_FOLDERS["SavedModel"].files)
    large = dataclasses.replace(files, sizes_bytes={**files.sizes_bytes, index: 1 << 40})
    with pytest.raises(ModelLoadError, match=f"'{index}' has 1099511627776 bytes"):
        OpenVinoBackend().inspect(large, "saved_model.pb")


def test_changed_tflite_file_is_read_or_rejected_and_never_crashes(tmp_path: Path) -> None:
    whole = VERSION_FOLDERS["tflite"].files["model.tflite"]
    outcomes = set()
    for place in range(0, len(whole), 23):
        changed = whole[:place] + b"\xff\xff\xff\x7f" + whole[place + 4 :]
        (tmp_path / "model.tflite").write_bytes(changed)
        try:
            outcomes.add(len(signature_names(tmp_path / "model.tflite").inputs))
        except DamagedTflite:
            outcomes.add(-1)
    assert {-1, 2} <= outcomes


def test_changed_index_of_variables_is_an_error_and_never_reaches_openvino(tmp_path: Path) -> None:
    version, index = VERSION_FOLDERS["SavedModel"], "variables/variables.index"
    whole = version.files[index]
    for place in range(0, len(whole) - 48, 7):
        changed = whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :]
        assert "is damaged" in error_of(tmp_path / str(place), {**version.files, index: changed}, version.filename)
    for size in range(0, len(whole), 16):
        assert "is damaged" in error_of(tmp_path / f"cut{size}", {**version.files, index: whole[:size]}, version.filename)
