"""Runs the commands of a documentation page unchanged."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.fakes.server_process import REPOSITORY_ROOT

_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: The ports that pages show.
_PORTS = ("8500", "8501")


def run_page(
    page: str,
    *,
    at: Path,
    links: Iterable[str],
    languages: Sequence[str],
    environment: Mapping[str, str] | None = None,
    patience_s: float = 300,
) -> str:
    """Runs the sh and python blocks of a page in one shell, in order; what they leave running in the background ends with it.

    Args:
        page: File name below `docs`.
        at: The working directory.
        links: What stands in the checkout that the page's commands use; `.venv` is the environment that runs the tests.
        languages: Of the blocks that must be there, in order: a page whose examples are not found passes nothing.
        environment: Beside the process's own.
        patience_s: For all of it.

    Returns:
        What was printed, standard error included. The first failure fails the test.
    """
    blocks = _BLOCK.findall((REPOSITORY_ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert [language for language, _ in blocks] == list(languages)
    for name in links:
        (at / name).symlink_to(REPOSITORY_ROOT / name)
    (at / ".venv").symlink_to(sys.prefix)
    script = ["set -eu", "trap 'kill $(jobs -p) 2>/dev/null && wait' EXIT"]
    for number, (language, text) in enumerate(blocks, 1):
        script.append(f"echo '--- block {number}'")
        script.append(text if language == "sh" else f"python -W error - <<'PROGRAM'\n{text}PROGRAM")
    program = "\n".join(script)
    for shown, free in zip(_PORTS, _free_ports(), strict=True):
        program = program.replace(shown, str(free))
    output = at / "printed.txt"
    with output.open("wb") as out:
        variables = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(str(REPOSITORY_ROOT / each) for each in ("", "clients/python", "compat")),
            **(environment or {}),
        }
        done = subprocess.run(
            ["bash", "-c", program], cwd=at, env=variables, stdout=out, stderr=subprocess.STDOUT, timeout=patience_s, check=False
        )
    printed = output.read_text(errors="replace")
    assert done.returncode == 0, printed
    return printed


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
