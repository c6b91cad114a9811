"""What is refused before a model is compiled: folders that cannot be written to, and models that cannot be converted."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stoker.compiler.errors import CompileError, NotStaticError, OptionError, PassError, ShapeError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import Target

#: Errors that are made of their text alone.
_PLAIN_ERRORS = (CompileError, OptionError, PassError, ShapeError)


def check_folder(path: Path) -> None:
    """Whether files can be written to `path`, as far as that can be told while nothing is made there.

    Raises:
        CompileError: it, or what is to become its parent, is no folder or may not be written to.
    """
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if os.path.lexists(folder))
    if not there.is_dir():
        raise CompileError(f"cannot write to folder {path}: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise CompileError(f"cannot write to folder {path}: permission denied in {there}")


@contextmanager
def refusals_of(target: Target, options: CompilerOptions, *, label: str = "", custom_libraries: Sequence[str] = ()) -> Iterator[None]:
    """Errors of the block, a conversion, begin with `label`; a model without static shapes is looked at by the target, too.

    The target may add to the text of each.
    """
    try:
        try:
            yield
        except NotStaticError as error:
            target.check_operators(error.model, options, custom_libraries)
            raise ShapeError(str(error)) from error
    except CompileError as error:
        target.explain(error)
        if not label or type(error) not in _PLAIN_ERRORS:
            raise
        raise type(error)(f"{label}: {error}") from error
