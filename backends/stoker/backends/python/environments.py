"""`EXECUTION_ENV_PATH`: finds the interpreter of a model's own environment, a folder or an archive made by conda-pack."""

import atexit
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stoker.backends.api.errors import ModelLoadError

PARAMETER: Final = "EXECUTION_ENV_PATH"
MODEL_DIR_VARIABLE: Final = "$$TRITON_MODEL_DIRECTORY"
#: Bounds of an archive: its members, and their bytes together.
MAX_MEMBERS: Final = 500_000
MAX_BYTES: Final = 32 << 30
#: Bound on conda-unpack, seconds.
UNPACK_TIMEOUT_S: Final = 600.0
_ARCHIVES: Final = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz")


def written_path(parameters: Mapping[str, str], model_dir: Path | None) -> Path | None:
    """The path that `EXECUTION_ENV_PATH` of config.pbtxt names; None: the model has no environment of its own.

    Raises:
        ModelLoadError: it is not absolute.
    """
    written = parameters.get(PARAMETER, "").strip()
    if not written:
        return None
    if MODEL_DIR_VARIABLE in written:
        if model_dir is None:
            raise ModelLoadError(f"{PARAMETER}: {MODEL_DIR_VARIABLE} has no value: the model has no folder in a repository")
        written = written.replace(MODEL_DIR_VARIABLE, str(model_dir))
    path = Path(written)
    if not path.is_absolute():
        raise ModelLoadError(f"{PARAMETER} takes an absolute path, or one that begins with {MODEL_DIR_VARIABLE}")
    return path


class Environments:
    """Environments of models: folders as they are, archives extracted once into a private folder. Safe to ask from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._area: Path | None = None
        self._extracted: dict[str, Path] = {}

    def interpreter(self, path: Path) -> Path:
        """The Python of the environment at `path`.

        Raises:
            ModelLoadError: there is none, or the archive cannot be extracted.
        """
        if path.is_dir():
            return _python_in(path)
        if not path.is_file():
            hint = "; `stoker env build MODEL` makes the folder 'env' of a model" if path.name == "env" else ""
            raise ModelLoadError(f"{PARAMETER}: no such file or folder: '{path.name}'{hint}")
        if not path.name.endswith(_ARCHIVES):
            raise ModelLoadError(f"{PARAMETER}: '{path.name}' is neither a folder nor an archive ({', '.join(_ARCHIVES)})")
        status = path.stat()
        key = hashlib.sha256(f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}".encode()).hexdigest()[:24]
        with self._lock:
            if key not in self._extracted:
                self._extracted[key] = self._extract(path, key)
            return _python_in(self._extracted[key])

    def _extract(self, path: Path, key: str) -> Path:
        if self._area is None:
            self._area = Path(tempfile.mkdtemp(prefix="stoker-environments-"))
            atexit.register(shutil.rmtree, self._area, ignore_errors=True)
        target = self._area / key
        try:
            extract(path, target)
            _unpack(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        return target


def extract(archive: Path, target: Path) -> None:
    """Extracts `archive` into the new folder `target`.

    Raises:
        ModelLoadError: it is no archive, is too large, or has a member or a link that leads out of the folder.
    """
    if not hasattr(tarfile, "data_filter"):
        raise ModelLoadError("archives of environments need Python 3.11.4 or newer in the server")
    target.mkdir(mode=0o700)
    members = total = 0
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                members += 1
                total += member.size
                if members > MAX_MEMBERS or total > MAX_BYTES:
                    raise ModelLoadError(f"{PARAMETER}: the archive has more than {MAX_MEMBERS} members or {MAX_BYTES >> 30} GiB")
                opened.extract(member, target, filter="data")
    except tarfile.FilterError as error:
        raise ModelLoadError(f"{PARAMETER}: the archive is not safe: {type(error).__name__} of a member") from error
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ModelLoadError(f"{PARAMETER}: '{archive.name}' is no archive, or it is damaged: {type(error).__name__}") from error
    except OSError as error:
        raise ModelLoadError(f"{PARAMETER}: the archive cannot be extracted: {error.strerror or type(error).__name__}") from error


def _unpack(folder: Path) -> None:
    """Lets conda-pack's own script write the new place into the environment's files, if there is one."""
    script = folder / "bin" / "conda-unpack"
    if not script.is_file():
        return
    command = [str(_python_in(folder)), str(script)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=UNPACK_TIMEOUT_S, stdin=subprocess.DEVNULL)  # noqa: S603 - the operator's
    except (OSError, subprocess.SubprocessError) as error:
        raise ModelLoadError(f"{PARAMETER}: conda-unpack of the archive failed: {type(error).__name__}") from error


def _python_in(folder: Path) -> Path:
    for name in ("bin/python", "bin/python3"):
        found = folder / name
        if os.access(found, os.X_OK) and found.is_file():
            return found
    raise ModelLoadError(f"{PARAMETER}: the environment '{folder.name}' has no bin/python")
