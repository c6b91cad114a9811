"""The error of running on a GCU: `StatusError`, with the status that the vendor's library would report.

StatusError
+-- OutOfDeviceMemory    too little free HBM
+-- DeviceFailed         the card is lost, or needs a reset
+-- StreamTimeout        the work of a stream did not end before the timeout; it continues
+-- StreamClosed         the stream was closed before the work began
"""

from stoker.backends.gcu.status import Status

__all__ = ["DeviceFailed", "OutOfDeviceMemory", "Status", "StatusError", "StreamClosed", "StreamTimeout"]


class StatusError(Exception):
    """A failed call. The text ends with the status's name.

    Attributes:
        status: The vendor's status.
        message: The text without the status.
    """

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(f"{message} [{status.name}]")
        self.status = status
        self.message = message


class OutOfDeviceMemory(StatusError):
    """The card has too little free HBM."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.TIF_ALLOCATE_FAILED, message)


class DeviceFailed(StatusError):
    """The card does not work.

    Attributes:
        is_lost: Whether the card is lost. Otherwise a reset repairs it.
    """

    def __init__(self, message: str, *, is_lost: bool) -> None:
        super().__init__(Status.TIF_ENGINE_RUN_FAILED, message)
        self.is_lost = is_lost


class StreamTimeout(StatusError):
    """The work of a stream did not end before the timeout. The stream continues."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.TIF_ENGINE_RUN_FAILED, message)


class StreamClosed(StatusError):
    """The stream was closed before this work began."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.TIF_TERMINATED, message)
