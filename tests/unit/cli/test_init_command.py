"""`stoker init`: the starter project passes its own test, loads, and replaces nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.backends.api.registry import BackendRegistry
from stoker.server.lifecycle.check import Loading, check_repository


def written(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_project_has_a_model_a_test_a_client_and_a_page(stoker, tmp_path: Path) -> None:
    ran = stoker("init", str(tmp_path / "my flowers"))
    assert ran.code == 0
    assert written(tmp_path / "my flowers") == ["README.md", "client.py", "models/my_flowers/1/model.py", "test_my_flowers.py"]
    assert ran.out.splitlines()[-7:] == [
        "next:",
        f"  cd '{tmp_path / 'my flowers'}'",
        "  stoker serve --model-repository=models",
        "in another terminal:",
        f"  cd '{tmp_path / 'my flowers'}'",
        "  python client.py",
        "  python -m pytest test_my_flowers.py",
    ]


def test_name_of_the_model_is_that_of_the_option(stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    facts = json.loads(stoker("init", "--name=iris-2.0", "--json").out)
    assert facts["files"] == ["models/iris-2.0/1/model.py", "test_iris_2_0.py", "client.py", "README.md"]
    assert facts["next"][0] == "stoker serve --model-repository=models"
    assert stoker("init", "--name=../x").code == 2


def test_existing_file_is_kept(stoker, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("mine")
    ran = stoker("init", str(tmp_path), "--name=m")
    assert ran.code == 2
    assert "has client.py already" in ran.err
    assert written(tmp_path) == ["client.py"]


@pytest.mark.slow
def test_project_passes_its_own_test_and_the_check(stoker, tmp_path: Path) -> None:
    assert stoker("init", str(tmp_path), "--name=m").code == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-c", "/dev/null", "test_m.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert written(tmp_path / "models") == ["m/1/model.py"]
    (model,) = check_repository([tmp_path / "models"], BackendRegistry(), loading=Loading.ALL).models
    assert model.problems == ()
    assert model.versions[0].is_loaded
