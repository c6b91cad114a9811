"""`scripts/check_wheel`: the wheels hold the modules of the tree, and each imports with what they declare."""

import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.fakes.project_scripts import project_script
from tests.fakes.server_process import REPOSITORY_ROOT

SCRIPT = REPOSITORY_ROOT / "scripts" / "check_wheel"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return project_script("check_wheel")


def wheel_of(at: Path, *names: str) -> Path:
    with zipfile.ZipFile(at / "a.whl", "w") as wheel:
        for name in (*names, "a-1.dist-info/METADATA", "a/data.txt"):
            wheel.writestr(name, "")
    return at / "a.whl"


def tree_of(at: Path, *names: str) -> Path:
    for name in names:
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).touch()
    return at


def test_modules_of_the_wheel_are_named_when_they_equal_the_tree(script: ModuleType, tmp_path: Path):
    root = tree_of(tmp_path / "root", "a/__init__.py", "a/b/c.py", "setup.py")
    assert script.check_names(wheel_of(tmp_path, "a/__init__.py", "a/b/c.py"), [root]) == ["a", "a.b.c"]


@pytest.mark.parametrize(
    ("packed", "text"),
    [(("a/__init__.py", "a/b.py", "a/old.py"), "only in the wheel: a/old.py"), (("a/__init__.py",), "only in the tree: a/b.py")],
)
def test_module_in_only_one_of_wheel_and_tree_is_an_error(script: ModuleType, tmp_path: Path, packed: tuple[str, ...], text: str):
    root = tree_of(tmp_path / "root", "a/__init__.py", "a/b.py")
    with pytest.raises(script.CheckFailed, match=text):
        script.check_names(wheel_of(tmp_path, *packed), [root])


def test_listed_module_that_is_not_compiled_is_an_error(script: ModuleType, tmp_path: Path):
    wheel = wheel_of(tmp_path, "a/b.py", "a/b.cpython-311-x86_64-linux-gnu.so", "a/c.py")
    script.check_compiled(wheel, "# listed\nserver/a/b.py  # plain: B\n")
    with pytest.raises(script.CheckFailed, match="not compiled:\na/c"):
        script.check_compiled(wheel, "server/a/b.py\nserver/a/c.py\n")


def test_offline_environment_has_the_declared_packages_and_no_development_tool(script: ModuleType):
    plain, compiling = set(script.required(["stoker", "stoker-client"])), set(script.required(["stoker[compile]", "stoker-client"]))
    assert {"numpy", "fastapi", "starlette"} <= plain
    assert not plain & {"stoker", "stoker-client", "pytest", "hypothesis", "mypy", "setuptools", "onnx"}
    assert {"onnx", "onnxscript"} <= compiling


def test_module_that_does_not_import_is_reported_with_the_missing_package(script: ModuleType):
    failures = script.import_all(Path(sys.executable), ["json", "no_such_package.module"])
    assert failures == {"no_such_package.module": ("ModuleNotFoundError: No module named 'no_such_package'", "no_such_package")}


def test_extras_are_added_one_by_one_until_a_module_imports(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    needs = {"one": "a", "two": "a,b", "never": "nothing"}

    def import_all(python: Path, modules: list[str]) -> dict[str, tuple[str, str]]:
        return {name: ("ImportError: x", "x") for name in modules if needs[name] != python.name}

    monkeypatch.setattr(script, "import_all", import_all)
    script.check_extras({"one": ("a",), "two": ("a", "b")}, lambda extras: tmp_path / extras)
    with pytest.raises(script.CheckFailed, match=r"never does not import with \[a,b\]: ImportError: x"):
        script.check_extras({"never": ("a", "b")}, lambda extras: tmp_path / extras)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_module_of_the_wheels_imports_in_an_environment_of_declared_packages():
    done = subprocess.run([sys.executable, SCRIPT, "--offline"], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the wheels are complete\n")
