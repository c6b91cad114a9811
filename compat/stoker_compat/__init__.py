"""Shared code of the shims: the warning beside a real SDK."""

import importlib.machinery
import sys
import warnings
from pathlib import Path

_HERE = Path(__file__).resolve().parents[1]
_said: set[str] = set()
#: Every shim imports this package at its beginning; no vendor's package does.
_MARK = b"from stoker_compat import warn_beside_real"
_READ_BYTES = 1 << 16


def warn_beside_real(package: str) -> None:
    """Warns, once a process, where another package of the name `package` is installed: it is hidden by ours, or hides ours elsewhere.

    Another copy of the shim itself (installed beside a checkout that has it too) is none of these.
    """
    if package in _said:
        return
    _said.add(package)
    for entry in sys.path:
        folder = Path(entry or ".").resolve()
        if folder == _HERE:
            continue
        spec = importlib.machinery.PathFinder.find_spec(package, [str(folder)])
        if spec is not None and spec.origin is not None and not _is_shim(Path(spec.origin)):
            warnings.warn(
                f"'{package}' is Stoker's shim (simulated devices), and another '{package}' is installed at {spec.origin}: "
                "uninstall stoker-compat to use that one",
                RuntimeWarning,
                stacklevel=3,
            )
            return


def _is_shim(origin: Path) -> bool:
    try:
        with origin.open("rb") as file:
            return _MARK in file.read(_READ_BYTES)
    except OSError:
        return False
