"""Writes files atomically: under a hidden name beside the final path, then renamed."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from stoker.compiler.errors import CompileError

#: Weights go to a separate file if the model would approach protobuf's limit of 2 GiB.
_EXTERNAL_DATA_BYTES = 1 << 30


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; the file is renamed to `path` if the block succeeds, and removed otherwise.

    Raises:
        CompileError: the folder cannot be made or written to.
    """
    make_folder(path.parent)
    draft = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        try:
            yield draft
            draft.replace(path)
        except OSError as error:
            raise _not_written(path, error) from error
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a hidden folder beside `path`; it is renamed to `path` if the block succeeds, and removed otherwise.

    Raises:
        FileExistsError: there is a `path` already.
        CompileError: the folder cannot be made or written to.
    """
    make_folder(path.parent)
    draft = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        try:
            draft.mkdir()
            yield draft
            # Renaming onto an existing folder fails unless it is empty; an empty folder is not a served version.
            if path.exists():
                raise FileExistsError(path)
            draft.rename(path)
        except FileExistsError:
            raise
        except OSError as error:
            if path.exists():
                raise FileExistsError(path) from error
            raise _not_written(path, error) from error
    finally:
        if draft.exists():
            shutil.rmtree(draft, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    with written_whole(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_model(path: Path, model: onnx.ModelProto) -> None:
    """Writes an ONNX file atomically; weights of very large models go to `<name>.data` beside it."""
    if model.ByteSize() < _EXTERNAL_DATA_BYTES:
        with written_whole(path) as draft:
            draft.write_bytes(model.SerializeToString())
        return
    data = path.with_name(path.name + ".data")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    with written_whole(path) as draft, written_whole(data) as data_draft:
        # The model's file refers to the data file by its final name.
        onnx.external_data_helper.convert_model_to_external_data(copy, location=data_draft.name)
        onnx.save(copy, draft)
        for tensor in copy.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = data.name
        draft.write_bytes(copy.SerializeToString())


def make_folder(folder: Path) -> None:
    """Creates `folder` and its missing parents.

    Raises:
        CompileError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CompileError(f"cannot make folder {folder}: {os.strerror(error.errno) if error.errno else error}") from None


def _not_written(path: Path, error: OSError) -> CompileError:
    return CompileError(f"cannot write {path}: {error.strerror or error}")


def check_folder(path: Path) -> None:
    """Checks, without creating anything, whether files can probably be written to `path`.

    Raises:
        CompileError: it, or what is to become its parent, is no folder or may not be written to.
    """
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if os.path.lexists(folder))
    if not there.is_dir():
        raise CompileError(f"cannot write to folder {path}: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise CompileError(f"cannot write to folder {path}: permission denied in {there}")
