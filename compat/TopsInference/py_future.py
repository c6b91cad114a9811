"""`PyFuture`: what a run will give."""

import concurrent.futures
from typing import Any

from stoker.backends.gcu.runtime.errors import Status, StatusError, StreamTimeout
from stoker.backends.gcu.runtime.stream import Stream
from TopsInference.error_manager import record


class PyFuture:
    """Any thread may use it."""

    def __init__(self, future: "concurrent.futures.Future[list[Any]]", stream: Stream | None) -> None:
        self._future = future
        self._stream = stream

    def get(self, timeout_s: float | None = None) -> list[Any]:
        """The outputs, once the run has ended. If it failed, its stream takes new work again after this.

        Raises:
            StreamTimeout: it has not ended in that time; it goes on.
            StatusError: it failed.
        """
        try:
            return self._future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            late = StreamTimeout(f"a run has not ended in {timeout_s} s")
            record(late)
            raise late from None
        except StatusError as error:
            record(error)
            if self._stream is not None:
                self._stream.acknowledge(error)
            raise

    def wait(self, timeout_s: float | None = None) -> bool:
        """As `get`, for a caller that has the outputs already."""
        self.get(timeout_s)
        return True

    def status(self) -> Status:
        """How the run ended; it is waited for."""
        try:
            self.get()
        except StatusError as error:
            return error.status
        return Status.TIF_SUCCESS

    def done(self) -> bool:
        """Whether the run has ended."""
        return self._future.done()
