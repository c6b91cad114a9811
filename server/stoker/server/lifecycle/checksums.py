"""Triton's checksum agent: verifies the files that `model_repository_agents` names before a version loads.

Files of the version are verified in the private copy that the backend reads, so that they cannot change afterwards. Files of other versions
are verified when these load.
"""

import hashlib
import os
from io import BufferedReader
from pathlib import Path, PurePosixPath

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.server.config.checks import checksums
from stoker.server.config.parsed import ParsedConfig
from stoker.server.lifecycle.folder import open_sibling
from stoker.server.lifecycle.settings import parse_version


def verify_checksums(parsed: ParsedConfig, version: int, files: ModelFiles, model_dir: Path, links_root: Path | None) -> None:
    """Compares each file that the configuration names with its checksum; `files` is the copy of the version.

    Raises:
        ModelLoadError: a file is missing, or has another checksum.
    """
    for algorithm, path, expected in checksums(parsed.message):
        first, *rest = PurePosixPath(path).parts
        number = parse_version(first) if rest else None
        if number is not None and number != version:
            continue
        where = f"model_repository_agents: {algorithm.upper()}:{path}"
        if number is not None:
            with files.path("/".join(rest)).open("rb") as file:
                found = _digest(file, algorithm)
        else:
            with (
                open_sibling(model_dir, path, links_root, what=where, where="the model folder") as descriptor,
                os.fdopen(descriptor, "rb", closefd=False) as file,
            ):
                found = _digest(file, algorithm)
        if found != expected:
            raise ModelLoadError(f"{where}: the checksum of the file is {found}, the configuration says {expected}")


def _digest(file: BufferedReader, algorithm: str) -> str:
    return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
