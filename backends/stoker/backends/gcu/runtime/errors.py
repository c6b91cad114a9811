"""The error of running on a GCU: `StatusError`, with the status that the vendor's interface would report.

StatusError
+-- OutOfDeviceMemory    HBM does not suffice
+-- DeviceFailed         the card is lost, or needs a reset
+-- StreamTimeout        a stream had not done its work in time; it goes on
+-- StreamClosed         what was queued will not be done
"""

from stoker.backends.gcu.status import Status

__all__ = ["DeviceFailed", "OutOfDeviceMemory", "Status", "StatusError", "StreamClosed", "StreamTimeout"]


class StatusError(Exception):
    """A call that failed; its text ends with the status's name.

    Attributes:
        status: The vendor's.
        message: What was wrong, and where, without the status.
    """

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(f"{message} [{status.name}]")
        self.status = status
        self.message = message


class OutOfDeviceMemory(StatusError):
    """The card's HBM does not suffice."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.TIF_ALLOCATE_FAILED, message)


class DeviceFailed(StatusError):
    """The card does not work.

    Attributes:
        is_lost: Whether it is gone for good; otherwise a reset cures it.
    """

    def __init__(self, message: str, *, is_lost: bool) -> None:
        super().__init__(Status.TIF_ENGINE_RUN_FAILED, message)
        self.is_lost = is_lost


class StreamTimeout(StatusError):
    """Work of a stream was not done in the time given; the stream goes on."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.TIF_ENGINE_RUN_FAILED, message)


class StreamClosed(StatusError):
    """The stream ended before it came to this."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.TIF_TERMINATED, message)
