"""Libraries of ONNX Runtime custom operators for all sessions in which a conversion runs models.

A library is native code that runs in this process. It is loaded only from the path that the user gave.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import onnxruntime

from stoker.compiler.errors import CompileError, OptionError

_in_use: ContextVar[tuple[Path, ...]] = ContextVar("custom_libraries", default=())


def library_paths(given: Sequence[str | Path]) -> tuple[Path, ...]:
    """Returns the paths as absolute paths, because the dynamic loader does not look for bare names in the working directory.

    Raises:
        OptionError: one of them is not there.
    """
    for path in given:
        if not Path(path).is_file():
            raise OptionError(f"custom_library_so_paths: there is no file {path}")
    return tuple(Path(path).resolve() for path in given)


def library_marks(given: Sequence[str | Path]) -> tuple[str, ...]:
    """Returns the name and hash of each file, to identify the same library on the machine that runs the model.

    Raises:
        OptionError: one of them is not there.
    """
    paths = dict.fromkeys(library_paths(given))
    return tuple(f"{path.name} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths)


@contextmanager
def using_libraries(given: Sequence[str | Path]) -> Iterator[None]:
    """Uses these libraries for models that run inside the block, instead of the previous ones.

    Raises:
        OptionError: one of them is not there.
    """
    token = _in_use.set(library_paths(given))
    try:
        yield
    finally:
        _in_use.reset(token)


def register_libraries(options: onnxruntime.SessionOptions) -> None:
    """Loads the current libraries into a session's options.

    Raises:
        CompileError: ONNX Runtime cannot load one; the text says which and why.
    """
    for path in _in_use.get():
        try:
            options.register_custom_ops_library(str(path))
        except Exception as error:  # the exceptions of ONNX Runtime have no common base class
            raise CompileError(f"custom_library_so_paths: {path} cannot be loaded: {' '.join(str(error).split())}") from error
