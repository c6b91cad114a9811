"""Every third-party package that the product imports is declared in `pyproject.toml`, with a lower bound."""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.fakes.server_process import REPOSITORY_ROOT

ROOTS = ("server", "backends", "compiler", "cli")
OWN = {"stoker", "stoker_client"}
#: Packages that only annotations name: `_typeshed` exists for type checkers, `mypy_extensions` has what mypyc reads.
TYPES_ONLY = {"_typeshed", "mypy_extensions"}
#: Packages that several distributions share, and one that its owner pins to an exact version.
NAMESPACES = {
    "google.protobuf": {"protobuf"},
    "opentelemetry": {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"},
    "pydantic_core": {"pydantic"},
}
INSTALLED = packages_distributions()


def normalised(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> dict[str, str]:
    """The requirements by distribution, for example `{"numpy": "numpy>=2.0"}`."""
    return {normalised(re.split(r"[\[<>=!~; ]", each, maxsplit=1)[0]): each for each in requirements}


def imported(source: Path) -> Iterator[str]:
    """The top-level packages that a module imports, also inside functions and by `import_module("...")`."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            # A namespace of several distributions: its second name identifies it.
            yield ".".join(node.module.split(".")[: 2 if node.module.startswith("google.") else 1])
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module" and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value).partition(".")[0]


def distributions(package: str) -> set[str]:
    """The distributions that may provide `package`, by normalised name."""
    if package in NAMESPACES:
        return NAMESPACES[package]
    # A package that this environment lacks, such as nncf, is taken to be of the distribution of its name.
    return {normalised(name) for name in INSTALLED.get(package, [package])}


def manifest() -> dict:
    return tomllib.loads((REPOSITORY_ROOT / "pyproject.toml").read_text())


def modules_of_extras() -> dict[str, list[str]]:
    """By module or package, the extras that own its imports: a serving install imports none of them."""
    return manifest()["tool"]["stoker"]["modules-of-extras"]


def test_every_import_is_declared_in_the_dependencies_or_in_the_extra_that_owns_the_module() -> None:
    table = manifest()["project"]
    always = declared(table["dependencies"])
    undeclared: dict[str, set[str]] = defaultdict(set)
    for root in ROOTS:
        for source in sorted((REPOSITORY_ROOT / root).rglob("*.py")):
            name = ".".join(source.relative_to(REPOSITORY_ROOT / root).with_suffix("").parts)
            allowed = set(always)
            for owner, extras in modules_of_extras().items():
                if f"{name}.".startswith(f"{owner}."):
                    allowed |= {each for extra in extras for each in declared(table["optional-dependencies"][extra])}
            for package in set(imported(source)) - OWN - TYPES_ONLY:
                if package not in sys.stdlib_module_names and not distributions(package) & allowed:
                    undeclared[package].add(name)
    assert undeclared == {}


@pytest.mark.parametrize("name", ["pyproject.toml", "clients/python/pyproject.toml", "compat/pyproject.toml"])
def test_every_requirement_has_a_lower_bound(name: str) -> None:
    table = tomllib.loads((REPOSITORY_ROOT / name).read_text())["project"]
    requirements = [*table["dependencies"], *(each for extra in table.get("optional-dependencies", {}).values() for each in extra)]
    assert [each for each in requirements if ">=" not in each] == []


def test_table_of_extras_names_existing_modules_and_extras() -> None:
    known = manifest()["project"]["optional-dependencies"]
    paths = {owner: REPOSITORY_ROOT / owner.split(".")[1] / owner.replace(".", "/") for owner in modules_of_extras()}
    assert [owner for owner, path in paths.items() if not (path.exists() or path.with_suffix(".py").exists())] == []
    assert {extra for extras in modules_of_extras().values() for extra in extras} <= known.keys()
