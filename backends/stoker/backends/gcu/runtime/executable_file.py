"""`model.exec` files as the runtime opens them."""

from pathlib import Path

from stoker.backends.gcu.executable import ExecutableError, read_executable
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.runtime.errors import Status, StatusError


def open_executable(path: str | Path) -> GcuExecutable:
    """Reads the file at `path`.

    Raises:
        StatusError: there is no such file, or it is damaged.
    """
    if not Path(path).is_file():
        raise StatusError(Status.TIF_LOAD_NON_EXIST_FILE, f"there is no file '{path}'")
    try:
        return read_executable(path)
    except ExecutableError as error:
        raise StatusError(Status.TIF_EXECUTABLE_CRC_VERIFY_FAILED, str(error)) from error
