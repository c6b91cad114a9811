"""What one request holds of the budget of bytes in flight."""

from types import TracebackType

from backends.api.errors import Overloaded
from server.engine.interface import Engine


class Reservation:
    """A context manager that gives back at its end all that was taken. Confined to: the event loop."""

    __slots__ = ("_engine", "_held_bytes")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Takes `size_bytes` more.

        Raises:
            Overloaded: they do not fit.
        """
        if not self._engine.reserve(size_bytes):
            raise no_room(size_bytes)
        self._held_bytes += size_bytes

    def release(self) -> None:
        """Gives all of it back."""
        self._engine.release(self._held_bytes)
        self._held_bytes = 0

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def no_room(size_bytes: int) -> Overloaded:
    """The error for a request whose `size_bytes` do not fit beside those in flight."""
    return Overloaded(f"the server holds as many request bytes as it may, no room for {size_bytes} more: try again", retry_after_s=1.0)
