"""`make setup` states what it does and how long it takes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Stands for `python3 -m venv .venv`.
MAKE_VENV = "#!/bin/sh\nmkdir -p .venv/bin\nprintf '#!/bin/sh\\n' > .venv/bin/pip\nchmod +x .venv/bin/pip\n"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_first_setup_states_its_duration_and_later_ones_update(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "clients" / "python").mkdir(parents=True)
    for name in ("pyproject.toml", "clients/python/pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    python = tmp_path / "python"
    python.write_text(MAKE_VENV)
    python.chmod(0o755)

    def make() -> str:
        command = ["make", "setup", f"PYTHON={python}"]
        # The tests may run below `make test`, whose make would print the folders that it enters.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()[0]

    assert make() == "setting up .venv: 5 to 10 minutes the first time"
    assert "up to date" in make() or "Nothing to be done" in make()
    (tmp_path / ".venv" / ".stoker-setup").unlink()
    assert make() == "updating .venv"
