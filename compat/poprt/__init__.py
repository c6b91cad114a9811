"""PopRT's Python API, run by Stoker: ONNX models are converted, compiled and run for simulated IPUs.

Names are PopRT's, what they do is Stoker's; `docs/compat.md` lists them. They are imported when they are first used: what only runs an
executable needs no compiler.
"""

import importlib
from typing import TYPE_CHECKING, Any

from stoker_compat import warn_beside_real
from stoker_compat.absent import absent

if TYPE_CHECKING:
    from poprt.backends import Backend, ORTBackend
    from poprt.compiler import Compiler, CompilerOptions, Executable
    from poprt.converter import Converter
    from poprt.passes import Pass, PassManager

warn_beside_real("poprt")

_EXPORTS = {
    "Backend": "backends",
    "Compiler": "compiler",
    "CompilerOptions": "compiler",
    "Converter": "converter",
    "Executable": "compiler",
    "ORTBackend": "backends",
    "Pass": "passes",
    "PassManager": "passes",
}
_MODULES = ("backend", "backends", "compiler", "converter", "frontend", "optimizer", "passes", "profile", "quantizer", "runtime")

__all__ = ["Backend", "Compiler", "CompilerOptions", "Converter", "Executable", "ORTBackend", "Pass", "PassManager", "__version__"]


_CLOSED = "PopRT's internal modules are not documented"
_absent = absent(
    "poprt", (*_EXPORTS, *_MODULES), {"utils": _CLOSED, "poprt_exec": "`stoker compile --run` and `stoker bench` run an executable"}
)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"poprt.{_EXPORTS[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"poprt.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("stoker")
    return _absent(name)
