"""The sample executable in the model repository is what the compiler of this checkout makes."""

import runpy
from pathlib import Path

import pytest

from tests.fakes.server_process import REPOSITORY_ROOT


@pytest.mark.slow
def test_sample_executable_equals_what_its_script_compiles(tmp_path: Path) -> None:
    script = runpy.run_path(str(REPOSITORY_ROOT / "examples/digits/compile_ipu.py"))
    made = script["build"](REPOSITORY_ROOT / "model_repos/digits", tmp_path)
    kept = REPOSITORY_ROOT / "model_repos/digits_ipu"
    for name in ("1/executable.popef", "config.pbtxt", "labels.txt"):
        assert (made / name).read_bytes() == (kept / name).read_bytes(), name
