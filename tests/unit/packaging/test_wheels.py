"""Each wheel contains every package of its distribution, its data, and nothing of another distribution. The source distribution builds the
same wheel, and the page of the package has no relative links.
"""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.package_index import INSTALL_PATIENCE_S, require_package_index
from tests.fakes.server_process import REPOSITORY_ROOT

SOURCES = (
    "backends",
    "cli",
    "clients",
    "compiler",
    "compat",
    "constraints.txt",
    "server",
    "MANIFEST.in",
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
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
#: The projects by name, with their folders.
PROJECTS = {"stoker": ".", "stoker-client": "clients/python"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources."""
    at = tmp_path_factory.mktemp("clean")
    for name in SOURCES:
        source = REPOSITORY_ROOT / name
        if source.is_dir():
            shutil.copytree(source, at / name, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        else:
            shutil.copy(source, at / name)
    return at


@pytest.fixture(scope="module")
def checkout(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources in which a client was built once."""
    at = tmp_path_factory.mktemp("checkout") / "sources"
    shutil.copytree(clean, at, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    for name in LEFT_BEHIND:
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).touch()
    return at


def built(source: Path, to: Path, kind: str) -> Path:
    """The `kind` (wheel or sdist) that is built from the folder `source` into the folder `to`."""
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(to)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return to / done.stdout.splitlines()[-1]


def wheel_names(source: Path, to: Path) -> set[str]:
    """The names in the wheel that is built from the folder `source`."""
    with zipfile.ZipFile(built(source, to, "wheel")) as wheel:
        return {name for name in wheel.namelist() if ".dist-info/" not in name}


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


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


@pytest.fixture(scope="module", params=PROJECTS)
def distributions(request: pytest.FixtureRequest, clean: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source distribution of a project."""
    source, to = clean / PROJECTS[request.param], tmp_path_factory.mktemp("dist")
    return built(source, to, "wheel"), built(source, to, "sdist")


def test_source_distribution_builds_the_same_wheel(distributions: tuple[Path, Path], tmp_path: Path):
    wheel, source = distributions
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    [folder] = tmp_path.iterdir()
    (tmp_path / "again").mkdir()
    expected, found = contents(wheel), contents(built(folder, tmp_path / "again", "wheel"))
    assert found.keys() == expected.keys()
    assert [name for name, data in found.items() if data != expected[name] and not name.endswith("/RECORD")] == []


def test_page_of_the_package_has_absolute_links_to_existing_files(distributions: tuple[Path, Path]):
    files = contents(distributions[0])
    [metadata] = [data for name, data in files.items() if name.endswith(".dist-info/METADATA")]
    facts: Any = email.message_from_bytes(metadata)
    assert facts["Description-Content-Type"] == "text/markdown"
    page = facts.get_payload(decode=True).decode()
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(links) >= 2
    assert [link for link in links if not re.match(r"https?://|#", link)] == []
    urls = dict(text.split(", ", 1) for text in facts.get_all("Project-URL"))
    own = {link.partition("#")[0] for link in [*links, *urls.values()] if link.startswith(urls["Repository"])} - {urls["Repository"]}
    paths = [re.sub(r"^/(?:blob|raw)/(?:HEAD|v[0-9.]+)/", "", url.removeprefix(urls["Repository"])) for url in own]
    assert len(paths) >= 2
    assert [path for path in paths if not (REPOSITORY_ROOT / path).exists()] == []


def test_metadata_names_licence_interpreters_and_the_one_repository(distributions: tuple[Path, Path]):
    files = contents(distributions[0])
    [metadata] = [data for name, data in files.items() if name.endswith(".dist-info/METADATA")]
    facts: Any = email.message_from_bytes(metadata)
    assert facts["License-Expression"] == "Apache-2.0"
    [licence] = [data for name, data in files.items() if name.endswith(".dist-info/licenses/LICENSE")]
    assert licence == (REPOSITORY_ROOT / "LICENSE").read_bytes()
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)} <= set(facts.get_all("Classifier"))
    urls = tomllib.loads((REPOSITORY_ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert f"Repository, {urls['Repository']}" in facts.get_all("Project-URL")


@pytest.fixture(scope="module")
def twine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package twine and what it needs."""
    require_package_index(tmp_path_factory.mktemp("probe"))
    at = tmp_path_factory.mktemp("twine")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(at), "twine"]
    subprocess.run(install, capture_output=True, timeout=INSTALL_PATIENCE_S, check=True)
    return at


@pytest.mark.timeout(2 * INSTALL_PATIENCE_S)
def test_twine_accepts_the_distributions(distributions: tuple[Path, Path], twine: Path):
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions)]
    variables = {**os.environ, "PYTHONPATH": str(twine)}
    done = subprocess.run(check, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_has_every_extra_that_can_be_installed_beside_the_others():
    extras = tomllib.loads((REPOSITORY_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [requirement] = extras["all"]
    named = re.fullmatch(r"stoker\[(.+)\]>=[0-9.]+", requirement)
    assert named is not None
    apart = {"all", "bench", "examples", "gpu", "nncf", "test", "torch"}
    assert set(named[1].split(",")) == {name for name in extras.keys() - apart if not name.startswith("import-")}
