"""stoker-compat packs every shim that there is."""

import tomllib
from fnmatch import fnmatch
from importlib import import_module

from tests.fakes.server_process import REPOSITORY_ROOT

COMPAT = REPOSITORY_ROOT / "compat"
PROJECT = tomllib.loads((COMPAT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_package_is_in_the_distribution():
    patterns = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = sorted(folder.parent.name for folder in COMPAT.glob("*/__init__.py"))
    assert {"TopsInference", "model_compiler", "poprt"} <= set(packages)
    assert [name for name in packages if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_every_command_leads_to_a_function():
    for command, target in PROJECT["project"]["scripts"].items():
        module, _, name = target.partition(":")
        assert callable(getattr(import_module(module), name)), command
