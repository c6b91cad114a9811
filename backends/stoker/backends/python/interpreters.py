"""Reads what an interpreter is and has: its version, its packages, its environment markers."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stoker.backends.api.errors import ModelLoadError

#: The oldest Python that runs the worker's side.
LEAST: Final = (3, 10)
#: Bound on the start of an interpreter that is asked, seconds.
TIMEOUT_S: Final = 60.0
MAX_OUTPUT_BYTES: Final = 16 << 20

#: Runs in the interpreter that is asked, of any version of Python 3.
_SCRIPT: Final = """
import json, os, platform, sys
packages = {}
try:
    from importlib import metadata
    for each in metadata.distributions():
        name = each.metadata["Name"]
        if name:
            packages.setdefault(name, each.version)
except ImportError:
    pass
info = sys.implementation.version
full = "%d.%d.%d" % tuple(info[:3])
markers = {
    "implementation_name": sys.implementation.name, "implementation_version": full, "os_name": os.name,
    "platform_machine": platform.machine(), "platform_python_implementation": platform.python_implementation(),
    "platform_release": platform.release(), "platform_system": platform.system(), "platform_version": platform.version(),
    "python_full_version": platform.python_version(), "python_version": ".".join(platform.python_version_tuple()[:2]),
    "sys_platform": sys.platform, "extra": "",
}
print(json.dumps({"version": list(sys.version_info[:3]), "packages": packages, "markers": markers}))
"""


@dataclass(frozen=True, slots=True)
class InterpreterFacts:
    """What an interpreter is and has.

    Attributes:
        version: Such as (3, 11, 7).
        packages: Versions by name of the distributions that it finds.
        markers: The values of environment markers (PEP 508).
    """

    version: tuple[int, ...]
    packages: Mapping[str, str] = field(default_factory=dict)
    markers: Mapping[str, str] = field(default_factory=dict)


def facts_of(interpreter: Path | None) -> InterpreterFacts:
    """Starts an interpreter and reads its facts.

    Args:
        interpreter: Its executable; None: the one of this process.

    Raises:
        ModelLoadError: it does not start.
    """
    command = [sys.executable if interpreter is None else str(interpreter), *(() if interpreter is None else ("-I",)), "-c", _SCRIPT]
    try:
        run = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True, stdin=subprocess.DEVNULL)  # noqa: S603 - the operator's
        found: dict[str, Any] = json.loads(run.stdout[:MAX_OUTPUT_BYTES])
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise ModelLoadError(f"the environment's Python does not start: exit code {error.returncode}: {last[0][:200]}") from None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise ModelLoadError(f"the environment's Python does not start: {reason}") from None
    return InterpreterFacts(tuple(found["version"]), found["packages"], found["markers"])


def check_usable(facts: InterpreterFacts) -> None:
    """Checks that an interpreter can run the worker's side.

    Raises:
        ModelLoadError: it is too old, or has no numpy.
    """
    if facts.version[:2] < LEAST:
        has, needs = ".".join(map(str, facts.version)), ".".join(map(str, LEAST))
        raise ModelLoadError(f"the environment has Python {has}; the worker process needs {needs} or newer: build it with a newer Python")
    if "numpy" not in {name.lower() for name in facts.packages}:
        raise ModelLoadError("the environment has no numpy, which the worker process needs: add numpy to it")
