"""Imports the file of a model, so that two models in one process do not share modules.

The file becomes a module with a name of its own, and is a package as well, so that it may import its neighbours relatively. While it is
imported, its folder is first on `sys.path`, and the model's folder in the repository last, as in Triton. Modules from these folders are
the model's: in a process with several models they leave `sys.modules` again, so that another model, or another version, imports its own.
"""

import importlib.util
import itertools
import linecache
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.backends.api.errors import ModelLoadError, ServingError
from stoker.backends.python.hints import hint_of

#: `sys.path` and `sys.modules` are of the whole process.
_imports = threading.RLock()
_numbers = itertools.count(1)

#: The words before the text of the compiler, which may be no more than "expected ':'".
SYNTAX_ERROR = "syntax error"

_IMPORTED_FROM = re.compile(r" \(/[^()]*\)\Z")


class ModelImport:
    """The modules of one model instance.

    Attributes:
        root: The folder of the model's file.
    """

    def __init__(self, root: Path, utils: ModuleType, *, model_dir: Path | None = None, owns_process: bool = False) -> None:
        """Prepares the import from `root`.

        Args:
            root: The folder of the model's file, which other files of the model may lie in.
            utils: The module that the model imports as `triton_python_backend_utils`.
            model_dir: The model's folder in the repository, for modules that its versions share; None: there is none.
            owns_process: Whether this process runs no other model: then the folder and the modules stay, for imports at run time.
        """
        self.root = root
        self._model_dir = model_dir
        self._utils = utils
        self._owns_process = owns_process

    @contextmanager
    def active(self) -> Iterator[None]:
        """While it is open, imports find the model's files; other models of the process wait."""
        with _imports:
            path, utils = str(self.root), self._utils
            shared = [] if self._model_dir is None else [str(self._model_dir)]
            sys.path[:] = [path, *sys.path, *shared]
            writes_nothing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
            sys.modules[utils.__name__] = utils
            own_before = self._own_modules()
            importlib.invalidate_caches()
            try:
                yield
            finally:
                if not self._owns_process:
                    sys.dont_write_bytecode = writes_nothing
                    sys.path.remove(path)
                    for each in shared:
                        # The last one: another of that name may have been there before.
                        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(each)]
                    for name in self._own_modules() - own_before:
                        del sys.modules[name]

    def module(self, filename: str) -> ModuleType:
        """The module of the file `filename`, relative to the folder. REQUIRES: `active`.

        Raises:
            ModelLoadError: the file has a syntax error or raised; the message names the line.
        """
        path = self.root / filename
        name = f"stoker_model_{next(_numbers)}"
        spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(self.root)])
        if spec is None or spec.loader is None:
            raise ModelLoadError(f"'{filename}' is no Python file")
        module = importlib.util.module_from_spec(spec)
        # Dataclasses and typing look annotations up in the module of a class.
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except SyntaxError as error:
            del sys.modules[name]
            raise ModelLoadError(f"{_shown(error.filename, self.root, filename)}:{error.lineno}: {SYNTAX_ERROR}: {error.msg}") from error
        except BaseException as error:
            del sys.modules[name]
            raise load_failure(error, self.root, f"importing {filename}") from error
        return module

    def forget(self, module: ModuleType) -> None:
        """Removes the module of the model's file, when the model is closed."""
        for name in [each for each in sys.modules if each == module.__name__ or each.startswith(f"{module.__name__}.")]:
            del sys.modules[name]
        linecache.checkcache(str(module.__file__))

    def _own_modules(self) -> set[str]:
        roots = tuple(f"{folder}/" for folder in (self.root, self._model_dir) if folder is not None)
        return {
            name
            for name, module in list(sys.modules.items())
            if str(getattr(module, "__file__", None) or "").startswith(roots) and not name.startswith("stoker_model_")
        }


def _shown(filename: Any, root: Path, otherwise: str) -> str:
    """`filename` relative to `root`: no path of the host is shown."""
    try:
        return Path(str(filename)).relative_to(root).as_posix()
    except ValueError:
        return otherwise


def line_of(error: BaseException, root: Path) -> str:
    """`model.py:12`, the innermost line below `root` that raised `error`; empty: none did."""
    at = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(f"{root}/"):
            at = f"{_shown(frame.filename, root, '')}:{frame.lineno}"
    return at


def _text_of(error: BaseException) -> str:
    """The text of `error` without the folders of this host, as the reason of a failed load is shown to clients."""
    if isinstance(error, ServingError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: '{Path(str(error.filename)).name}'" if error.filename else error.strerror
    # "cannot import name 'a' from 'b' (/folder/b.py)"
    return _IMPORTED_FROM.sub("", str(error)) if isinstance(error, ImportError) else str(error)


def load_failure(error: BaseException, root: Path, doing: str) -> ModelLoadError:
    """The failure of a load whose model raised `error` while `doing` something."""
    if isinstance(error, ModelLoadError):
        return error
    at = line_of(error, root)
    text = _text_of(error).replace(f"{root}/", "").replace(str(root), "the version folder")
    hint = hint_of(error)
    text += hint
    if isinstance(error, ModuleNotFoundError) and error.name is not None and not hint:
        text += (
            f"; the model's interpreter has no package '{error.name}': name it in requirements.txt beside the model's file, "
            "and run `stoker env build MODEL`"
        )
    where = f"{at}: " if at else ""
    return ModelLoadError(f"{where}{doing} raised {type(error).__name__}{f': {text}' if text else ''}")
