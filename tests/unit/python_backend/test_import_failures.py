"""Reasons of failed loads name the line of the model, and no folder of the host."""

from pathlib import Path

import pytest

from stoker.backends.python.importing import load_failure


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from json import nothing", "importing model.py raised ImportError: cannot import name 'nothing' from 'json'"),
        ("open('/no/such/folder/weights.bin')", "importing model.py raised FileNotFoundError: No such file or directory: 'weights.bin'"),
        ("raise OSError('no weights')", "importing model.py raised OSError: no weights"),
    ],
)
def test_reason_of_a_failed_import_names_no_folder_of_the_host(tmp_path: Path, source: str, expected: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever the model raises
        exec(compile(source, str(tmp_path / "model.py"), "exec"), {})
    failure = load_failure(raised.value, tmp_path, "importing model.py")
    assert failure.message == f"model.py:1: {expected}"
