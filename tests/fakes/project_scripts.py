"""The scripts below `scripts/`, as modules."""

import importlib.machinery
import importlib.util
import sys
from types import ModuleType

from tests.fakes.server_process import REPOSITORY_ROOT


def project_script(name: str) -> ModuleType:
    """The script `name`, without running it; it leaves no trace in `sys.path` and writes no bytecode."""
    loader = importlib.machinery.SourceFileLoader(name, str(REPOSITORY_ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    dont_write, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    path = list(sys.path)
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = dont_write
        sys.path[:] = path
    return module
