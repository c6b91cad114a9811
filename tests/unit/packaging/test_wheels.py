"""Each wheel contains every package of its distribution, its data, and nothing of another distribution."""

import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.fakes.server_process import REPOSITORY_ROOT

SOURCES = (
    "backends",
    "cli",
    "clients",
    "compiler",
    "compat",
    "server",
    "native_modules.txt",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
)
#: What tools leave behind in a checkout that is worked in.
LEFT_BEHIND = (
    "clients/python/build/lib/stoker_client/__init__.py",
    "clients/python/stoker_client.egg-info/PKG-INFO",
    "server/stoker/server/__pycache__/main.cpython-311.pyc",
)
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources in which a client was built once."""
    at = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        source = REPOSITORY_ROOT / name
        if source.is_dir():
            shutil.copytree(source, at / name, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        else:
            shutil.copy(source, at / name)
    for name in LEFT_BEHIND:
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).touch()
    return at


def wheel_names(source: Path, to: Path) -> set[str]:
    """The names in the wheel that is built from the folder `source`."""
    done = subprocess.run([sys.executable, "-c", BUILD, to], cwd=source, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(to / done.stdout.splitlines()[-1]) as wheel:
        return {name for name in wheel.namelist() if ".dist-info/" not in name}


def packed(root: Path) -> set[str]:
    """The files below `root` that belong into a wheel: modules, and the data that pyproject.toml names."""
    data = ("*.py", "py.typed", "*.pyi", "pages/*.html", "pages/*.css", "static/*.*", "vendor/*.*")
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and any(fnmatch("/".join(path.parts[-2:]), f"*{each}") for each in data)
    }


def test_server_wheel_contains_only_its_four_packages(checkout: Path, tmp_path: Path):
    expected = {name for root in ("backends", "cli", "compiler", "server") for name in packed(checkout / root)}
    assert {
        "stoker/server/web/console/static/vendor/preact-htm.js",
        "stoker/server/web/pages/model_pages.css",
        "stoker/cli/main.py",
        "stoker/server/pb/__init__.py",
    } <= expected
    assert wheel_names(checkout, tmp_path) == expected


def test_client_wheel_contains_only_its_package(checkout: Path, tmp_path: Path):
    expected = {name for name in packed(checkout / "clients" / "python") if name.startswith("stoker_client/")}
    assert {"stoker_client/__init__.py", "stoker_client/py.typed"} <= expected
    assert wheel_names(checkout / "clients" / "python", tmp_path) == expected
