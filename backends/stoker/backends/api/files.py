"""`ModelFiles`: the only view of a version's files that a backend gets."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stoker.backends.api.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A private, immutable copy of one version folder.

    The server has already rejected links, special files and paths outside the folder. So a backend may open any file below `root` without
    further checks, but no file outside it.

    Attributes:
        root: Folder of the copy; lives as long as the loaded version.
        sizes_bytes: Size of every file by its relative posix path.
    """

    root: Path
    sizes_bytes: Mapping[str, int]

    def path(self, name: str) -> Path:
        """The copy's path of the file `name`, relative to the version folder.

        Raises:
            ModelLoadError: there is no such file; the message lists what there is.
        """
        key = PurePosixPath(name).as_posix()
        if key not in self.sizes_bytes:
            held = ", ".join(sorted(self.sizes_bytes)[:10]) or "nothing"
            raise ModelLoadError(f"version folder has no file '{name}'; it holds: {held}")
        return self.root / key

    def read(self, name: str) -> bytes:
        """The file's content.

        Raises:
            ModelLoadError: there is no such file.
        """
        return self.path(name).read_bytes()
