"""No part of the product loads pickles or evaluates code from data, except the process that converts a model with the user's consent."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: The process of `stoker add` that loads a pickle after the user has agreed.
ALLOWED = ROOT / "cli" / "stoker" / "cli" / "add" / "child"
MODULES = frozenset({"pickle", "_pickle", "marshal", "shelve", "joblib", "dill", "cloudpickle"})
CALLS = frozenset({"eval", "exec"})
#: A reader of poprt's calibration data with a list of allowed classes.
RESTRICTED = {"compiler/stoker/compiler/precision/samples.py": {"pickle"}}


def dangers(source: str) -> Iterator[str]:
    """The modules and calls of a source text that run code from data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module.partition(".")[0] in MODULES:
            yield node.module
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in CALLS:
                yield node.func.id
            yield from (
                "allow_pickle" for word in node.keywords if word.arg == "allow_pickle" and getattr(word.value, "value", True) is not False
            )


@pytest.mark.parametrize("part", ["server", "backends", "compiler", "cli"])
def test_only_the_process_of_a_conversion_loads_pickles(part: str) -> None:
    found = {
        path.relative_to(ROOT).as_posix(): set(dangers(path.read_text(encoding="utf-8")))
        for path in sorted((ROOT / part / "stoker").rglob("*.py"))
        if not path.is_relative_to(ALLOWED)
    }
    assert {path: names for path, names in found.items() if names} == {
        path: names for path, names in RESTRICTED.items() if path.startswith(f"{part}/")
    }


def test_dangers_are_found() -> None:
    text = (
        "import pickle, os\nfrom joblib import load\nnp.load(x, allow_pickle=True)\nnp.load(x, allow_pickle=False)\neval('1')\nmodel.eval()"
    )
    assert list(dangers(text)) == ["pickle", "joblib", "allow_pickle", "eval"]
    assert {"pickle", "joblib"} <= {name for path in ALLOWED.glob("*.py") for name in dangers(path.read_text(encoding="utf-8"))}
