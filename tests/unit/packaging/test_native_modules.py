"""The modules of native_modules.txt: `scripts/check_native` finds what would be slow or fail, and the native build has compiled all."""

import importlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from stoker.server.core.build_kind import BUILD
from tests.fakes.project_scripts import project_script
from tests.fakes.server_process import REPOSITORY_ROOT


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return project_script("check_native")


def broken(script: ModuleType, at: Path, source: str, *, other: str = "", note: str = "") -> list[str]:
    """The rules that a listed module `server/a/hot.py` and an interpreted `server/a/cold.py` break, without their places."""
    (at / "server" / "a").mkdir(parents=True, exist_ok=True)
    (at / "native_modules.txt").write_text(f"# a comment\nserver/a/hot.py{note}\n")
    (at / "server" / "a" / "hot.py").write_text(source)
    (at / "server" / "a" / "cold.py").write_text(other)
    return [line.partition(": ")[2] for line in script.broken_rules(at)]


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("@dataclass(slots=True)\nclass A:\n    x: int\n", "A is a dataclass"),
        ("@dataclasses.dataclass\nclass A:\n    x: int\n", "A is a dataclass"),
        ("class A(NamedTuple):\n    x: int\n", "A is a NamedTuple"),
        ("class A(asyncio.Protocol):\n    pass\n", "A inherits asyncio.Protocol, which is interpreted"),
        ("from a.cold import B\nclass A(B):\n    pass\n", "A inherits B, which is interpreted"),
    ],
)
def test_class_that_would_be_slow_is_reported_unless_it_is_listed_as_plain(script: ModuleType, tmp_path: Path, source: str, rule: str):
    (found,) = broken(script, tmp_path, source)
    assert found.startswith(rule)
    assert broken(script, tmp_path, source, note="  # plain: A") == []


def test_plain_class_that_does_not_exist_is_reported(script: ModuleType, tmp_path: Path):
    assert broken(script, tmp_path, "class A:\n    pass\n", note="  # plain: B") == ["server/a/hot.py has no class B"]


@pytest.mark.parametrize(
    ("source", "is_allowed"),
    [
        ("class A:\n    pass\n", False),
        ("class A(Generic[T]):\n    pass\n", False),
        ("@mypyc_attr(allow_interpreted_subclasses=True)\nclass A:\n    pass\n", True),
        ("class A(Protocol):\n    pass\n", True),
        ("class A(ValueError):\n    pass\n", True),
    ],
)
def test_interpreted_subclass_of_a_compiled_class_is_reported(script: ModuleType, tmp_path: Path, source: str, is_allowed: bool):
    found = broken(script, tmp_path, source, other="from a.hot import A as Base\nclass B(Base):\n    pass\n")
    assert found == ([] if is_allowed else ["B is interpreted and cannot inherit from A, which is compiled"])


@pytest.mark.parametrize(
    ("body", "is_allowed"),
    [
        ("try:\n        await b\n    except E:\n        raise\n", True),
        ("try:\n        pass\n    except E:\n        def c():\n            yield 1\n", True),
        ("try:\n        pass\n    except E:\n        await b\n        raise\n", False),
        ("try:\n        pass\n    finally:\n        if b:\n            await b\n", False),
        ("async with b:\n        pass\n", False),
    ],
)
def test_wait_while_an_exception_is_handled_is_reported(script: ModuleType, tmp_path: Path, body: str, is_allowed: bool):
    found = broken(script, tmp_path, f"async def a(b):\n    {body}")
    message = "an await in `except` or `finally`, or an `async with`: a later `raise` may raise another exception"
    assert found == ([] if is_allowed else [message])


def test_missing_module_and_wrong_order_are_reported(script: ModuleType, tmp_path: Path):
    (tmp_path / "native_modules.txt").write_text("server/b.py\nserver/a.py\n")
    assert list(script.broken_rules(tmp_path)) == [
        "native_modules.txt: the lines are not in order, or not unique",
        "native_modules.txt: there is no server/b.py",
        "native_modules.txt: there is no server/a.py",
    ]


def test_listed_modules_obey_the_rules(script: ModuleType):
    assert list(script.broken_rules(REPOSITORY_ROOT)) == []


def test_listed_modules_are_compiled_in_a_native_run_and_in_no_other(script: ModuleType, pytestconfig: pytest.Config):
    """Source roots on `sys.path` hide the compiled modules; a compiled module in a source root hides the sources."""
    modules = [each.module for each in script.read_list((REPOSITORY_ROOT / "native_modules.txt").read_text())]
    assert len(modules) > 50
    expected = ".so" if pytestconfig.getoption("--native") else ".py"
    files = {name: str(importlib.import_module(name).__file__) for name in modules}
    assert {name: file for name, file in files.items() if Path(file).suffix != expected} == {}


def test_version_text_names_the_build():
    done = subprocess.run([sys.executable, "-m", "stoker.server.main", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"stoker {version('stoker')} ({BUILD})\n"
