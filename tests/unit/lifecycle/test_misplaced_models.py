"""Errors about misplaced model files and folders hold the commands that move them."""

import shlex
import subprocess
from pathlib import Path

import pytest

from stoker.backends.api.registry import BackendRegistry
from stoker.cli.main import main
from stoker.server.core.model_config import ListedModel
from stoker.server.lifecycle.check import check_repository
from stoker.server.lifecycle.model_folder import misplaced_model_files, misplaced_root_files
from stoker.server.lifecycle.model_list import ListedModels
from stoker.server.lifecycle.repository import ModelRepository, RepositoryUnreadable
from tests.fakes import onnx_models

MODEL = onnx_models.identity().SerializeToString()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def error_of(repository: ModelRepository, name: str) -> str | None:
    """The error of an existing model."""
    listing = repository.find(name)
    assert listing is not None
    return listing.error


def follow(error: str, root: Path) -> None:
    """Runs the commands that the text ends with, in the repository."""
    commands = error.split("In the repository: ")[1]
    for command in commands.split(" && "):
        assert command.split()[0] in ("mkdir", "mv", "cp")
        subprocess.run(shlex.split(command), cwd=root, check=True)


def errors(root: Path) -> dict[str, str | None]:
    return {name: listing.error for name, listing in ModelRepository([root]).scan().models.items()}


def test_flat_folder_of_models_is_an_error_of_each_and_the_commands_correct_it(root: Path) -> None:
    for name in ("cnn.onnx", "my bert.v2.onnx", "README.md", "labels.txt"):
        (root / name).write_bytes(MODEL)
    found = errors(root)
    assert set(found) == {"cnn", "my_bert"}
    assert found["cnn"] == (
        "'cnn.onnx' lies in the repository itself; a model is a folder with version folders in it. "
        "In the repository: mkdir -p cnn/1 && mv cnn.onnx cnn/1/model.onnx"
    )
    for error in found.values():
        follow(str(error), root)
    assert errors(root) == {"cnn": None, "my_bert": None}
    assert check_repository([root], BackendRegistry()).is_good


def test_name_that_looks_like_an_option_is_quoted_in_the_commands(root: Path) -> None:
    (root / "-rf.onnx").write_bytes(MODEL)
    (error,) = errors(root).values()
    follow(str(error), root)
    assert errors(root) == {"-rf": None}


def test_weights_beside_a_model_are_moved_with_it(root: Path) -> None:
    for name in ("cnn.onnx", "cnn.onnx.data", "net.xml", "net.bin"):
        (root / name).write_bytes(b"x")
    for error in errors(root).values():
        follow(str(error), root)
    assert {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} == {
        "cnn/1/model.onnx",
        "cnn/1/cnn.onnx.data",
        "net/1/model.xml",
        "net/1/model.bin",
    }


@pytest.mark.parametrize("config", [None, "max_batch_size: 8"])
def test_model_folder_without_a_version_folder_is_an_error_with_the_commands(root: Path, config: str | None) -> None:
    (root / "cnn").mkdir()
    (root / "cnn" / "cnn.onnx").write_bytes(MODEL)
    if config is not None:
        (root / "cnn" / "config.pbtxt").write_text(config)
    (error,) = errors(root).values()
    assert str(error).startswith("'cnn.onnx' lies in the model folder, which has no version folder such as '1'. ")
    assert error_of(ModelRepository([root]), "cnn") == error
    follow(str(error), root)
    assert errors(root) == {"cnn": None}


def test_error_of_a_model_to_export_names_the_export_in_any_folder(root: Path) -> None:
    (root / "a.pt").touch()
    (root / "b").mkdir()
    (root / "b" / "model.safetensors").touch()
    (root / "b" / "config.json").touch()
    found = errors(root)
    assert str(found["a"]).endswith(
        "Move such files out of the repository. A TorchScript or PyTorch file has to be converted to ONNX: stoker add a.pt"
    )
    assert str(found["b"]).endswith("has to be converted to ONNX: stoker add b")


def test_file_named_like_a_model_beside_it_hides_nothing(root: Path) -> None:
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "1" / "model.onnx").write_bytes(MODEL)
    (root / "m.onnx").write_bytes(MODEL)
    assert errors(root) == {"m": None}
    assert error_of(ModelRepository([root]), "m") is None


def test_file_in_one_repository_does_not_affect_the_model_of_its_name_in_another(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "m" / "1").mkdir(parents=True)
    (other / "m" / "1" / "model.onnx").write_bytes(MODEL)
    (root / "m.onnx").write_bytes(MODEL)
    repository = ModelRepository([root, other])
    assert repository.scan().models["m"].error is None
    assert error_of(repository, "m") is None


def test_misplaced_file_is_found_by_the_name_of_its_model(root: Path) -> None:
    (root / "m.onnx").write_bytes(MODEL)
    assert "mkdir -p m/1" in str(error_of(ModelRepository([root]), "m"))


def test_folders_and_broken_links_are_not_model_files(root: Path) -> None:
    (root / "folder.onnx").mkdir()
    (root / "link.onnx").symlink_to("nowhere")
    assert ModelRepository([root]).scan().models == {}


def test_error_of_a_hub_cache_folder_of_links_names_the_copy_command(root: Path) -> None:
    snapshot = root / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (root / "blob").write_bytes(MODEL)
    (snapshot / "net.onnx").symlink_to("../../blob")
    (error,) = errors(snapshot).values()
    assert str(error).endswith("In the repository: mkdir -p net/1 && cp -L net.onnx net/1/model.onnx")
    follow(str(error), snapshot)
    assert errors(snapshot) == {"net": None}
    assert not (snapshot / "net" / "1" / "model.onnx").is_symlink()


def test_version_folder_given_as_a_model_folder_is_named_in_the_error(root: Path) -> None:
    version = root / "cnn" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(MODEL)
    listing = ListedModels([ListedModel(name="m", base_path=version)]).find("m")
    assert listing is not None
    assert listing.error == "its base_path is a version folder, which holds 'model.onnx'; give the folder around it"


def refusal(given: Path) -> str:
    with pytest.raises(RepositoryUnreadable) as caught:
        ModelRepository([given]).scan()
    return str(caught.value)


def test_file_given_as_a_repository_is_refused_with_the_commands(root: Path) -> None:
    file = root / "net.onnx"
    file.write_bytes(MODEL)
    with pytest.raises(RepositoryUnreadable) as caught:
        ModelRepository([file]).check_roots()
    text = str(caught.value)
    assert f"mkdir -p models/net/1 && cp {file} models/net/1/model.onnx, then serve --model-repository=models" in text


def test_model_or_version_folder_given_as_a_repository_is_refused_with_the_right_folder(root: Path) -> None:
    version = root / "cnn" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(MODEL)
    model = refusal(root / "cnn")
    assert f"the folder that holds the model folders: {root} (serve --model-name=cnn serves the model alone)" in model
    assert f"it is a version of a model; the repository is the folder that holds the model folders: {root}" in refusal(version)


def test_models_with_version_like_names_are_served(root: Path) -> None:
    (root / "7" / "1").mkdir(parents=True)
    (root / "7" / "1" / "model.onnx").write_bytes(MODEL)
    assert errors(root) == {"7": None}
    (root / "8").mkdir()
    (root / "8" / "model.onnx").write_bytes(MODEL)
    assert "mkdir -p 8/1" in str(errors(root)["8"])


def test_error_of_a_folder_of_repositories_names_the_flag(root: Path, tmp_path: Path) -> None:
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "1" / "model.onnx").write_bytes(MODEL)
    (note,) = ModelRepository([tmp_path]).scan().notes
    assert note.endswith(f"; it holds model folders: give it as a repository (--model-repository={root})")
    assert not check_repository([tmp_path], BackendRegistry()).is_good


def test_empty_repository_is_no_problem(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", str(root)])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out == "no models: the repository is empty; stoker add FILE adds a model, stoker init FOLDER writes a starter project\n"


def test_check_fails_for_a_flat_folder(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "cnn.onnx").write_bytes(MODEL)
    with pytest.raises(SystemExit) as ended:
        main(["check", str(root)])
    assert ended.value.code == 1
    out = capsys.readouterr().out
    assert "mkdir -p cnn/1 && mv cnn.onnx cnn/1/model.onnx" in out
    assert f"note: the folder has model files and no model folder; stoker serve {root} serves each file as it is\n" in out


def test_check_of_a_repository_with_a_misplaced_file_does_not_recommend_to_serve_the_folder(root: Path) -> None:
    (root / "cnn.onnx").write_bytes(MODEL)
    (root / "net" / "1").mkdir(parents=True)
    assert not check_repository([root], BackendRegistry()).notes


@pytest.mark.parametrize("config", [None, 'backend: "python"'])
def test_python_model_without_a_version_folder_is_an_error_and_the_commands_correct_it(root: Path, config: str | None) -> None:
    (root / "net").mkdir()
    (root / "net" / "model.py").write_text("def predict(x: float) -> float:\n    return x\n")
    if config is not None:
        (root / "net" / "config.pbtxt").write_text(config)
    error = str(errors(root)["net"])
    assert error == (
        "'model.py' lies in the model folder, which has no version folder such as '1'. "
        "In the repository: mkdir -p net/1 && mv net/model.py net/1/model.py"
    )
    assert not check_repository([root], BackendRegistry()).is_good
    follow(error, root)
    assert errors(root) == {"net": None}


@pytest.mark.parametrize("folder", ["v1", "V1", "01", "version_1", "1.0"])
@pytest.mark.parametrize("file", ["model.onnx", "model.py"])
def test_version_folder_of_another_name_is_an_error_and_the_commands_correct_it(root: Path, folder: str, file: str) -> None:
    (root / "net" / folder).mkdir(parents=True)
    (root / "net" / folder / file).write_bytes(MODEL)
    error = str(errors(root)["net"])
    assert error == (
        f"'{file}' lies in folder '{folder}'; a version folder is a number from 1 without sign or leading zeros. "
        f"In the repository: mv net/{folder} net/1"
    )
    assert not check_repository([root], BackendRegistry()).is_good
    follow(error, root)
    assert errors(root) == {"net": None}


def test_version_folders_of_other_names_become_different_versions(root: Path) -> None:
    for folder in ("v2", "v10", "02", "data"):
        (root / "net" / folder).mkdir(parents=True)
        (root / "net" / folder / "model.onnx").write_bytes(MODEL)
    assert str(errors(root)["net"]).endswith("In the repository: mv net/02 net/2 && mv net/v10 net/10")


def test_folders_without_a_model_file_are_no_misnamed_versions(root: Path) -> None:
    (root / "net" / "v1").mkdir(parents=True)
    (root / "net" / "v1" / "notes.txt").touch()
    assert errors(root) == {}


def test_parts_of_the_weights_of_one_model_are_one_model():
    parts = {"config.json": False, "model-00001-of-00002.safetensors": False, "model-00002-of-00002.safetensors": False}
    [(model, text)] = misplaced_root_files(parts).items()
    assert model == "model"
    assert "'model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors' lie in the repository itself" in text
    assert text.endswith("A Hugging Face model has to be converted to ONNX: stoker add .")
    in_model = misplaced_model_files("bert", parts)
    assert in_model is not None
    assert in_model.endswith("stoker add bert")
