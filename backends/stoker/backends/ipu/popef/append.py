"""Adding opaque blobs to a file that is there."""

import os
from collections.abc import Mapping

from stoker.backends.ipu.popef.errors import PopefError
from stoker.backends.ipu.popef.reader import Reader
from stoker.backends.ipu.popef.writer import FileWriter, Mode


def append_opaque_blobs(path: str | os.PathLike[str], blobs: Mapping[str, bytes], executable: str | None = None) -> None:
    """Rewrites a file with further opaque blobs behind those it has; other readers see the old file or the new one, never half of it.

    Args:
        path: The file.
        blobs: Contents by name, added in this order.
        executable: Whose they are; may be left out where the file has only one executable.

    Raises:
        PopefError: The file is damaged or cannot be written, has no such executable, or has an opaque blob of that name already. It stays
            as it was then.
    """
    reader = Reader()
    reader.parse_file(path)
    names = sorted({each.name for each in reader.executables()} | {each.executable for each in reader.metadata()})
    if executable is None and len(names) != 1:
        raise PopefError(f"name one of the executables: {', '.join(map(repr, names)) or 'there are none'}", path=os.fspath(path))
    owner = names[0] if executable is None else executable
    if owner not in names:
        raise PopefError(f"no executable {owner!r}; there are: {', '.join(map(repr, names)) or 'none'}", path=os.fspath(path))
    with FileWriter(path, Mode.APPEND) as writer:
        for name, content in blobs.items():
            with writer.create_opaque_blob(name, owner) as blob:
                blob.write(content)
