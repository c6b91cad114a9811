"""Runs the commands of a documentation page unchanged."""

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.fakes.server_process import REPOSITORY_ROOT

_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: The ports that pages show: of one server, and of a second one.
_PORTS = ("8500", "8501", "8510", "8511")


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
    free = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    program = re.sub(rf"\b(?:{'|'.join(_PORTS)})\b", lambda shown: str(free[shown[0]]), program)
    output = at / "printed.txt"
    with output.open("wb") as out:
        variables = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(str(REPOSITORY_ROOT / each) for each in ("", "clients/python", "compat")),
            # Of commands that use the default ports.
            "STOKER_GRPC_PORT": str(free["8500"]),
            "STOKER_HTTP_PORT": str(free["8501"]),
            "STOKER_URL": f"grpc://127.0.0.1:{free['8500']}",
            **(environment or {}),
        }
        done = subprocess.run(
            ["bash", "-c", program], cwd=at, env=variables, stdout=out, stderr=subprocess.STDOUT, timeout=patience_s, check=False
        )
    printed = output.read_text(errors="replace")
    assert done.returncode == 0, printed
    return printed


def commands(folder: Path, python: Path | str = sys.executable) -> dict[str, str]:
    """An environment in which `stoker`, `serve` and `python` are those of this checkout.

    Args:
        folder: Gets the commands.
        python: The interpreter of the command `python`, if the page's programs need another one than the server.
    """
    folder.mkdir()
    modules = {
        "stoker": f'"{sys.executable}" -m stoker.cli.main',
        "serve": f'"{sys.executable}" -m stoker.server.main',
        "python": f'"{python}"',
    }
    for name, command in modules.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    return {"PATH": os.pathsep.join((str(folder), str(Path(sys.executable).parent), os.environ["PATH"]))}


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as open_sockets:
        made = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in made:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in made]
