"""Streams under the vendor's names."""

from typing import Any

from stoker.backends.gcu.runtime.errors import Status, StatusError
from stoker.backends.gcu.runtime.stream import Stream
from TopsInference.error_manager import recorded
from TopsInference.owned_devices import owned_device


@recorded
def create_stream() -> Stream:
    """A stream of this thread's device.

    Raises:
        StatusError: no device is set, or its card has as many streams as it can have.
    """
    return owned_device("create_stream").create_stream()


@recorded
def synchronize_stream(stream: Stream) -> bool:
    """Returns when all that was queued on `stream` has ended.

    Raises:
        StatusError: the first failure since the last call.
    """
    checked_stream(stream, "synchronize_stream").synchronize()
    return True


@recorded
def destroy_stream(stream: Stream) -> bool:
    """Ends `stream`; what has not begun is dropped.

    Raises:
        StatusError: it is no stream, or was destroyed before.
    """
    if checked_stream(stream, "destroy_stream").is_closed:
        raise StatusError(Status.TIF_INVALID_PARAM, f"destroy_stream: stream {stream.number} is destroyed already")
    stream.close()
    return True


def checked_stream(stream: Any, purpose: str) -> Stream:
    """`stream`, which came from a user.

    Raises:
        StatusError: it is none.
    """
    if not isinstance(stream, Stream):
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: a stream from create_stream is needed, not {type(stream).__name__}")
    return stream
