"""`stoker env build`, with a stand-in for pip: nothing is installed."""

import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.cli import env

WRITTEN = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env" } }\n'


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose environment's Python is this one; its programs are recorded in `env.ran`."""
    ran: list[list[str]] = []
    monkeypatch.setattr(env, "_run", lambda command, what: ran.append(command))
    monkeypatch.setattr(env, "ran", ran, raising=False)

    def create(environment: Path, **_options: Any) -> None:
        python = environment / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)

    monkeypatch.setattr(venv, "create", create)
    folder = tmp_path / "digits"
    (folder / "2").mkdir(parents=True)
    (folder / "2" / "model.py").write_text("def predict(x: int) -> int: ...\n")
    return folder


def test_environment_is_made_installed_and_written_into_the_configuration(model: Path, stoker: Callable[..., Any]):
    (model / "2" / "requirements.txt").write_text("numpy>=1\n")
    done = stoker("env", "build", str(model))
    assert done.code == 0, done
    (command,) = env.ran  # type: ignore[attr-defined]
    assert command[0] == str(model / "env" / "bin" / "python")
    assert command[-3:] == ["numpy", "-r", str(model / "2" / "requirements.txt")]
    assert (model / "config.pbtxt").read_text() == f'backend: "python"\n{WRITTEN}'
    assert "installing numpy and 2/requirements.txt" in done.out


def test_second_build_updates_the_environment_and_leaves_the_configuration(model: Path, stoker: Callable[..., Any]):
    (model / "config.pbtxt").write_text('backend: "python"\nmax_batch_size: 0')
    stoker("env", "build", str(model))
    text = (model / "config.pbtxt").read_text()
    assert text == f'backend: "python"\nmax_batch_size: 0\n{WRITTEN}'
    done = stoker("env", "build", str(model))
    assert "creating" not in done.out
    assert (model / "config.pbtxt").read_text() == text
    assert len(env.ran) == 2  # type: ignore[attr-defined]


def test_requirements_that_are_still_not_met_fail_the_command(model: Path, stoker: Callable[..., Any]):
    (model / "requirements.txt").write_text("no-such-package-of-the-model\n")
    done = stoker("env", "build", str(model))
    assert done.code == 1
    assert "no-such-package-of-the-model (requirements.txt:1) is not installed" in done.err
    assert not (model / "config.pbtxt").exists()


def test_other_environment_in_the_configuration_is_not_replaced(model: Path, stoker: Callable[..., Any]):
    text = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/opt/env" } }\n'
    (model / "config.pbtxt").write_text(text)
    done = stoker("env", "build", str(model))
    assert done.code == 1
    assert "names another environment: replace the value of EXECUTION_ENV_PATH by $$TRITON_MODEL_DIRECTORY/env" in done.err
    assert (model / "config.pbtxt").read_text() == text


@pytest.mark.parametrize(("place", "expected"), [("2", "holds no version folder such as '1' with a model.py"), ("none", "is no folder")])
def test_folder_that_is_no_model_is_rejected(model: Path, stoker: Callable[..., Any], place: str, expected: str):
    done = stoker("env", "build", str(model / place))
    assert done.code == 1
    assert expected in done.err


def test_python_that_is_too_old_is_rejected(model: Path, tmp_path: Path, stoker: Callable[..., Any]):
    old = tmp_path / "old"
    old.write_text("""#!/bin/sh\necho '{"version": [3, 8, 1], "packages": {}, "markers": {}}'\n""")
    old.chmod(0o755)
    done = stoker("env", "build", str(model), "--python", str(old))
    assert done.code == 1
    assert "is Python 3.8.1; the environment needs 3.10 or newer" in done.err
    assert not (model / "env").exists()
