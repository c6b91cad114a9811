"""`ProcessMark`: which process something was made in."""

import os

from stoker.backends.gcu.runtime.errors import Status, StatusError


class ProcessMark:
    """Made with what only the process that made it can use: threads do not follow into a forked one. Any thread may use it."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process."""
        return os.getpid() == self._process

    def check(self) -> None:
        """Refuses any other process.

        Raises:
            StatusError: this one was forked from it.
        """
        if not self.is_here:
            raise StatusError(
                Status.TIF_RUNTIME_PREREQUISITE_MISSING,
                f"process {os.getpid()} was forked from process {self._process}, which made this simulated device; "
                "make devices after the fork, or start the process by 'spawn'",
            )
