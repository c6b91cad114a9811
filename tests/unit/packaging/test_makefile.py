"""`make setup` states what it does and how long it takes; `make test` runs every test once."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Stands for `python3 -m venv .venv`.
MAKE_VENV = "#!/bin/sh\nmkdir -p .venv/bin\nprintf '#!/bin/sh\\n' > .venv/bin/pip\nchmod +x .venv/bin/pip\n"
#: Stands for pytest: writes its arguments, and fails if one of them matches the pattern $FAILING.
PYTEST = """#!/bin/sh
echo "$* ${PYTHONDONTWRITEBYTECODE-}" >> runs
for word in "$@"; do case "$word" in $FAILING) exit 3 ;; esac; done
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(folder: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    # The tests may run below `make test`, whose make would print the folders that it enters.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *words], cwd=folder, env={**environment, **variables}, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the Makefile and the files that its environments depend on."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "clients" / "python").mkdir(parents=True)
    for name in ("pyproject.toml", "clients/python/pyproject.toml", "constraints.txt", "constraints-clients.txt"):
        (tmp_path / name).touch()
    return tmp_path


def test_first_setup_states_its_duration_and_later_ones_update(project: Path) -> None:
    python = project / "python"
    python.write_text(MAKE_VENV)
    python.chmod(0o755)

    def setup() -> str:
        done = make(project, "setup", f"PYTHON={python}")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[0]

    assert setup() == "setting up .venv: 5 to 10 minutes the first time"
    assert "up to date" in setup() or "Nothing to be done" in setup()
    (project / ".venv" / ".stoker-setup").unlink()
    assert setup() == "updating .venv"


@pytest.mark.parametrize(
    ("failing", "expected"),
    [("", (0, 0)), ("--ignore=*", (0, 3)), ("tests/protocol", (3, 0)), ("*tests/protocol", (3, 3))],
)
def test_every_test_is_in_one_of_two_parts_and_both_run_if_one_fails(project: Path, failing: str, expected: tuple[int, int]) -> None:
    for environment in (".venv", ".venv-clients", ".venv-clients-pb7", ".venv-protos"):
        (project / environment / "bin").mkdir(parents=True)
        (project / environment / ".stoker-setup").touch()
    pytest_of_project = project / ".venv" / "bin" / "pytest"
    pytest_of_project.write_text(PYTEST)
    pytest_of_project.chmod(0o755)
    done = make(project, "test", FAILING=failing, PYTHONDONTWRITEBYTECODE="1")
    # No other selection than by this folder, and no setting that would forbid to write bytecode.
    assert (project / "runs").read_text().splitlines() == ["-n 2 --dist worksteal --ignore=tests/protocol ", "tests/protocol "]
    assert f"exit codes of pytest: {expected[0]} for tests/protocol, {expected[1]} for all other tests" in done.stdout
    assert (done.returncode == 0) == (expected == (0, 0))
