"""Which format a file or folder is, by its name and its first bytes; nothing is unpickled."""

import json
import pickle
import zipfile
from pathlib import Path

import pytest

from stoker.cli.add import formats
from stoker.cli.add.formats import ModelFormat, recognise
from stoker.cli.output import CommandFailed


class Bomb:
    """Unpickling it would write a file."""

    def __reduce__(self):
        return (Path.touch, (Path("unpickled"),))


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(name, b"")
    return path


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("net.onnx", b"", formats.ONNX),
        ("NET.ONNX", b"", formats.ONNX),
        ("iris.joblib", b"", formats.PICKLE),
        ("iris.pkl", b"", formats.PICKLE),
        ("net.ubj", b"", formats.XGBOOST),
        ("net.json", json.dumps({"learner": {}, "version": [2, 0, 0]}).encode(), formats.XGBOOST),
        ("net.txt", b"tree\nversion=v4\n", formats.LIGHTGBM),
        ("net.cbm", b"CBM1", formats.CATBOOST),
        ("net.keras", b"PK", formats.KERAS),
        ("net.h5", b"\x89HDF\r\n", formats.KERAS),
        ("net.tflite", b"", formats.TFLITE),
        ("net.pb", b"", formats.FROZEN_GRAPH),
        ("net.pt", b"\x80\x02", formats.TORCH_PICKLE),
        ("net.pdmodel", b"", formats.PADDLE),
        ("net.popef", b"", formats.POPEF),
    ],
)
def test_file_is_recognised(tmp_path: Path, name: str, content: bytes, expected: ModelFormat) -> None:
    (tmp_path / name).write_bytes(content)
    assert recognise(tmp_path / name).format is expected
    assert recognise(tmp_path).path == tmp_path / name


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["net/archive_format", "net/models/model.json"], formats.TORCH_PROGRAM),
        (["serialized_exported_program.json"], formats.TORCH_PROGRAM),
        (["net/code/__torch__.py", "net/data.pkl"], formats.TORCHSCRIPT),
        (["net/data.pkl", "net/version"], formats.TORCH_PICKLE),
    ],
)
def test_archive_of_pytorch_is_recognised_by_its_entries(tmp_path: Path, names: list[str], expected: ModelFormat) -> None:
    assert recognise(archive(tmp_path / "net.pt", *names)).format is expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("readme.txt", b"hello"),
        ("config.json", b'{"a": 1}'),
        ("broken.json", b"{"),
        ("deep.json", b"[" * 100_000),
        ("photo.png", b""),
        ("net.h5", b"x"),
    ],
)
def test_other_file_is_rejected_with_the_list_of_formats(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CommandFailed, match=r"its format is not recognised; formats are ONNX, scikit-learn pickles"):
        recognise(tmp_path / name)


def test_folders_of_saved_models_and_model_hubs_are_models(tmp_path: Path) -> None:
    for name, files in {"saved": ["saved_model.pb"], "hub": ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"]}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_bytes(b"{}")
    assert recognise(tmp_path / "saved").format is formats.SAVED_MODEL
    assert recognise(tmp_path / "hub").format is formats.HUB
    with pytest.raises(CommandFailed, match=r"holds weights alone; their folder is the model: stoker add .*hub"):
        recognise(tmp_path / "hub" / "model.safetensors")


def test_folder_with_several_models_names_them(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").touch()
    (tmp_path / "b.onnx").touch()
    with pytest.raises(CommandFailed, match=r"it holds several models \(a\.onnx, b\.onnx\); name one"):
        recognise(tmp_path)
    with pytest.raises(CommandFailed, match="no such file or folder"):
        recognise(tmp_path / "none")


def test_ir_is_recognised_with_its_weights_only(tmp_path: Path) -> None:
    (tmp_path / "net.xml").write_text("<?xml version='1.0'?><net name='x'>")
    with pytest.raises(CommandFailed, match="not recognised"):
        recognise(tmp_path / "net.xml")
    (tmp_path / "net.bin").touch()
    assert recognise(tmp_path / "net.xml").format is formats.OPENVINO


def test_pickle_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bomb.pkl", "bomb.joblib", "bomb.pt"):
        (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
        recognise(tmp_path / name)
    assert not (tmp_path / "unpickled").exists()
