"""Loads a version that the compiler has written once, as a server does, before the version appears in its repository.

`load_once` runs this module in a child process: what the load takes of memory and devices ends with it, and so does a crash. The compiler
may not import the server, so that commands pass `load_once` to it.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

#: Bound on the time of the child process, seconds.
TIMEOUT_S = 600.0
#: More than any executable takes: whether a version loads does not depend on the simulated devices of this machine.
_SIM_IPUS = "1024"
_LOADED, _FAILED = 0, 3


def load_once(name: str, version: int, config: Path, folder: Path) -> str | None:
    """Loads the version in a child process; returns the reason of a failure, or None.

    Args:
        name: The model's name.
        version: The version's number.
        config: Its config.pbtxt, in the model's folder.
        folder: The files of the version; its name may be another one than `version`.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-load-") as area:
        reason = Path(area, "reason")
        words = [sys.executable, "-m", "stoker.cli.written_version", name, str(version), str(config), str(folder), str(reason)]
        try:
            # An argument list without a shell: names are not interpreted.
            ended = subprocess.run(  # noqa: S603
                words, env=_environment(os.environ), capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return f"the load takes longer than {TIMEOUT_S:g} s"
        if ended.returncode == _LOADED:
            return None
        if ended.returncode == _FAILED and reason.exists():
            return reason.read_text(encoding="utf-8")
        last = ended.stderr.strip().splitlines()[-1:] or ["no output"]
        return f"the load ended with code {ended.returncode}: {last[0]}"


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environment.items() if not name.startswith("STOKER_SIM_")}
    paths = [path for path in sys.path if path]
    return {**kept, "STOKER_SIM_IPUS": _SIM_IPUS, "PYTHONPATH": os.pathsep.join(paths)}


def main(arguments: list[str]) -> int:
    """Loads one version in this process, and returns the exit code; the reason of a failure goes to the last file."""
    from stoker.backends.api.registry import BackendRegistry
    from stoker.server.config.pbtxt import parse_pbtxt
    from stoker.server.lifecycle.loader import VersionSource
    from stoker.server.lifecycle.trial_load import failure_of_load

    name, version, config, folder, reason = arguments
    path = Path(config)
    with tempfile.TemporaryDirectory(prefix="stoker-load-") as area:
        try:
            parsed = parse_pbtxt(path.read_text(encoding="utf-8"), source=f"{name}/config.pbtxt", model_name=name)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the configuration is the reason
            failure: str | None = str(error)
        else:
            source = VersionSource(name=name, version=int(version), model_dir=path.parent, version_dir=Path(folder), parsed=parsed)
            failure = asyncio.run(failure_of_load(source, Path(area), BackendRegistry()))
    if failure is None:
        return _LOADED
    Path(reason).write_text(failure, encoding="utf-8")
    return _FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
