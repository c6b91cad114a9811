"""Opens the files next to a model's version folders that a load reads: labels and warm-up data."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.backends.api.errors import ModelLoadError
from stoker.server.lifecycle.folder import open_within


@contextmanager
def open_sibling(model_dir: Path, path: str, links_root: Path | None, *, what: str, where: str) -> Iterator[int]:
    """A descriptor, for reading, of the plain file `path` below the model folder.

    Args:
        model_dir: The model folder.
        path: Relative to it, with `/`.
        links_root: The folder below which links may lead; None: none is followed.
        what: What an error calls the file.
        where: What an error calls the place where it is expected.

    Raises:
        ModelLoadError: it is missing, no plain file, or reached through a link that is not followed.
    """
    try:
        with (
            open_within(links_root or model_dir, model_dir, follows_links=links_root is not None) as folder,
            folder.file(path) as descriptor,
        ):
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ModelLoadError(f"{what}: not a regular file inside {where}")
            yield descriptor
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
            raise ModelLoadError(f"{what}: not a regular file inside {where}") from error
        raise ModelLoadError(f"{what}: {error.strerror}") from error
