"""What reading and writing PopEF files raises."""


class PopefError(Exception):
    """A PopEF file that cannot be read or written as asked.

    Attributes:
        reason: What was wrong and what was expected.
        path: The file; empty where there is none.
        blob: Which blob, such as `blob 2 (DATA_TENSOR 'weights')`; empty where it is no blob's fault.
        offset: Byte of the file where the trouble was found; None where it has no place.
    """

    def __init__(self, reason: str, *, path: str = "", blob: str = "", offset: int | None = None) -> None:
        self.reason = reason
        self.path = path
        self.blob = blob
        self.offset = offset
        place = ", ".join(part for part in (path, blob, "" if offset is None else f"offset {offset}") if part)
        super().__init__(f"{place}: {reason}" if place else reason)


class PackageHashMismatch(PopefError):
    """The executable was compiled by another version of the compiler than this runtime belongs to."""
