"""Tests that install packages need an index."""

import subprocess
import sys
from pathlib import Path

import pytest

#: How long the installation of packages may take before a test gives up, seconds.
INSTALL_PATIENCE_S = 500


def require_package_index(at: Path) -> None:
    """Skips the test if pip reaches no index; downloads one package into the folder `at`."""
    probe = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(at), "setuptools>=77"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=INSTALL_PATIENCE_S, check=False)
    if done.returncode:
        pytest.skip(f"no package index is reachable: {done.stderr.strip().splitlines()[-1:]}")
