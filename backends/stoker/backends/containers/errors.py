"""What reading and writing framed files raises."""

from typing import Protocol


class ContainerError(Exception):
    """A file that cannot be read or written as asked.

    Attributes:
        reason: What was wrong and what was expected.
        path: The file; empty where there is none.
        location: Which record, such as `section 2 (WEIGHT 'fc.weight')`; empty where it is no record's fault.
        offset: Byte of the file where the trouble was found; None where it has no place.
    """

    def __init__(self, reason: str, *, path: str = "", location: str = "", offset: int | None = None) -> None:
        self.reason = reason
        self.path = path
        self.location = location
        self.offset = offset
        found = ", ".join(part for part in (path, location, "" if offset is None else f"offset {offset}") if part)
        super().__init__(f"{found}: {reason}" if found else reason)


class Failure(Protocol):
    """Makes the error of one format; the class of the error itself is one."""

    def __call__(self, reason: str, *, path: str = "", location: str = "", offset: int | None = None) -> ContainerError: ...
