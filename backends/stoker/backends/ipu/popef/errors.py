"""What reading and writing PopEF files raises."""

from stoker.backends.containers.errors import ContainerError


class PopefError(ContainerError):
    """A PopEF file that cannot be read or written as asked; `location`, called `blob` here too, says which blob of it."""

    def __init__(self, reason: str, *, path: str = "", blob: str = "", location: str = "", offset: int | None = None) -> None:
        """Takes the place under either name.

        Args:
            reason: What was wrong and what was expected.
            path: The file; empty where there is none.
            blob: Which blob, such as `blob 2 (DATA_TENSOR 'weights')`; empty where it is no blob's fault.
            location: The same.
            offset: Byte of the file where the trouble was found; None where it has no place.
        """
        super().__init__(reason, path=path, location=blob or location, offset=offset)

    @property
    def blob(self) -> str:
        """Which blob; empty where it is no blob's fault."""
        return self.location


class PackageHashMismatch(PopefError):
    """The executable was compiled by another version of the compiler than this runtime belongs to."""
