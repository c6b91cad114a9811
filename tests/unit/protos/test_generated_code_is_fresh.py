"""The committed code equals the script's output for `proto/`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("server/stoker/server/pb", "clients/python/stoker_client/_pb", "backends/stoker/backends/ipu/popef/pb")


def generated(root: Path) -> dict[str, str]:
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py*")) if path.suffix in (".py", ".pyi")]
    return {str(path.relative_to(root)): path.read_text() for path in paths}


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".venv-protos").exists(), reason="no .venv-protos here (scripts/generate_protos makes it)")
def test_committed_code_equals_the_output_of_the_script(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/generate_protos"), "--output-root", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert generated(tmp_path) == generated(ROOT)
