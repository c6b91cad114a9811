"""The modules that a model's own interpreter runs: Python 3.10, numpy and the standard library."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker.backends
import stoker.models

BACKENDS = Path(next(iter(stoker.backends.__path__)))
MODELS = Path(next(iter(stoker.models.__path__)))
#: Run in the server only.
OF_THE_SERVER = frozenset({"environments", "interpreters", "places", "requirements"})
#: Run in the server's process only.
_SERVER_SIDE_OF_WORKER = frozenset({"process"})
#: Names of the standard library that came after 3.10, by module.
NEWER = {
    "typing": {"Self", "Never", "assert_never", "LiteralString", "NotRequired", "Required", "TypeVarTuple", "Unpack", "override"},
    "enum": {"StrEnum", "ReprEnum", "verify", "EnumCheck", "member", "nonmember"},
    "asyncio": {"TaskGroup", "timeout", "Runner", "Barrier"},
    "datetime": {"UTC"},
    "contextlib": {"chdir"},
    "itertools": {"batched"},
    "hashlib": {"file_digest"},
}  # fmt: skip
NEWER_MODULES = frozenset({"tomllib", "wsgiref.types"})
ALLOWED = frozenset(sys.stdlib_module_names) | {"numpy", "stoker"}


def modules() -> Iterator[Path]:
    for path in sorted((BACKENDS / "python").glob("*.py")):
        if path.stem not in OF_THE_SERVER:
            yield path
    for path in sorted((BACKENDS / "worker").glob("*.py")):
        if path.stem not in _SERVER_SIDE_OF_WORKER:
            yield path
    yield from sorted(MODELS.glob("*.py"))
    yield from (path for path in sorted((BACKENDS / "api").glob("*.py")) if path.stem != "registry")


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module and name of every import that runs: not those for type checkers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)


def without_type_checking(tree: ast.Module) -> ast.Module:
    class Remove(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
            is_for_checkers = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            return node.orelse if is_for_checkers else self.generic_visit(node)

    found = Remove().visit(tree)
    assert isinstance(found, ast.Module)
    return found


@pytest.mark.parametrize("path", list(modules()), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_module_has_the_syntax_and_the_names_of_310(path: Path):
    tree = without_type_checking(ast.parse(path.read_text(), feature_version=(3, 10)))
    for module, name in imports(tree):
        assert module not in NEWER_MODULES, f"{path.name}: {module}"
        assert name not in NEWER.get(module, ()), f"{path.name}: {module}.{name}"
        assert module.partition(".")[0] in ALLOWED, f"{path.name}: {module} is neither numpy nor of the standard library"
        if module.startswith("stoker."):
            assert module.split(".")[1] in ("backends", "models"), f"{path.name}: {module}"
    for node in ast.walk(tree):
        assert type(node).__name__ not in ("TryStar", "TypeAlias"), f"{path.name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.attr not in NEWER.get(node.value.id, ()), f"{path.name}:{node.lineno}: {node.value.id}.{node.attr}"


@pytest.mark.parametrize("source", ["from typing import Self", "import enum\nclass A(enum.StrEnum): ...", "import tomllib"])
def test_names_that_came_later_are_found(source: str, tmp_path: Path):
    (tmp_path / "newer.py").write_text(source)
    with pytest.raises(AssertionError):
        test_module_has_the_syntax_and_the_names_of_310(tmp_path / "newer.py")


def old_interpreter() -> Path | None:
    """A Python 3.10 with numpy: that of the environment variable STOKER_PYTHON_310, or on the path; None: there is none."""
    for place in (os.environ.get("STOKER_PYTHON_310"), shutil.which("python3.10")):
        if place and subprocess.run([place, "-c", "import numpy"], capture_output=True, check=False).returncode == 0:
            return Path(place)
    return None


@pytest.mark.slow
def test_worker_side_runs_with_310(tmp_path: Path):
    interpreter = old_interpreter()
    if interpreter is None:
        pytest.skip("no Python 3.10 with numpy on this machine")
    from stoker.backends.worker.process import run_in_child

    (tmp_path / "model.py").write_text(
        "from typing import NamedTuple, TypedDict\nfrom stoker.models import *\nimport triton_python_backend_utils as pb_utils\n"
        "class R(TypedDict):\n    a: Array['n', 2, float32]\n    b: Array['n', bfloat16]\n"
        "@batched(max=4)\ndef predict(x: Array['n', 2, float32]) -> R: ...\n"
    )
    payload = {"folder": str(tmp_path), "filename": "model.py", "model_name": "m", "version": 1, "config": {"name": "m"}}
    found = run_in_child(interpreter, "stoker.backends.python.describe:describe", payload, 60.0)
    assert [tensor["name"] for tensor in found["config"]["output"]] == ["a", "b"]
