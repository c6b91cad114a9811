"""How a command fails: one line on stderr, and an exit code that scripts can distinguish."""

import enum


class ExitCode(enum.IntEnum):
    """What became of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CANNOT_CONNECT = 3
    INTERRUPTED = 130


class CommandFailed(Exception):
    """Ends the command with one line and an exit code.

    Attributes:
        message: The line.
        exit_code: What the process ends with.
    """

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
