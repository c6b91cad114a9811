"""`Logger` of `triton_python_backend_utils`: lines in the log of the server, with the model's name."""

import enum
import logging


class LogLevel(enum.Enum):
    """Triton's levels."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_LEVELS: dict[enum.Enum, int] = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.VERBOSE: logging.DEBUG,
}


class Logger:
    """Writes log lines. `triton_python_backend_utils` has a subclass for each model."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    #: Name and version of the model.
    model = ""
    version = 0

    @classmethod
    def log(cls, message: str, level: enum.Enum = LogLevel.INFO) -> None:
        """Writes a line of `level`."""
        logging.getLogger("stoker.models").log(_LEVELS[level], "%s", message, extra={"model": cls.model, "version": cls.version})

    @classmethod
    def log_info(cls, message: str) -> None:
        """Writes a line of level INFO."""
        cls.log(message, LogLevel.INFO)

    @classmethod
    def log_warn(cls, message: str) -> None:
        """Writes a line of level WARNING."""
        cls.log(message, LogLevel.WARNING)

    @classmethod
    def log_error(cls, message: str) -> None:
        """Writes a line of level ERROR."""
        cls.log(message, LogLevel.ERROR)

    @classmethod
    def log_verbose(cls, message: str) -> None:
        """Writes a line of level VERBOSE, which the server shows if it logs verbosely."""
        cls.log(message, LogLevel.VERBOSE)
