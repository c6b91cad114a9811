"""One blob of a file: a record whose info is understood."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from stoker.backends.containers.byte_source import ByteSource
from stoker.backends.containers.framing import RecordHeader
from stoker.backends.containers.record import Record
from stoker.backends.ipu.popef.errors import PopefError
from stoker.backends.ipu.popef.messages import BlobInfo
from stoker.backends.ipu.popef.schema import BlobType


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob whose header and info have been read; its content is read, and checked, when asked for.

    Attributes:
        record: Where it lies, and what its header says.
        info: Its name and what it belongs to.
    """

    record: Record
    info: BlobInfo

    @property
    def type(self) -> BlobType:
        """The kind of the content."""
        return BlobType(self.record.header.kind)

    @property
    def header(self) -> RecordHeader:
        """Its sizes and checksums."""
        return self.record.header

    @property
    def source(self) -> ByteSource:
        """Where its bytes are."""
        return self.record.source

    @property
    def index(self) -> int:
        """Which of the file's blobs, from 0."""
        return self.record.index

    @property
    def offset(self) -> int:
        """Byte of the file where its header begins."""
        return self.record.offset

    def error(self, reason: str, offset: int | None = None) -> PopefError:
        """An error of this blob, at its content by default."""
        return cast("PopefError", self.record.error(reason, offset))

    def data(self) -> bytes:
        """The whole content, decompressed and checked.

        Raises:
            PopefError: The content is not what its header says; names blob and offset.
        """
        return self.record.data()

    def open(self) -> BinaryIO:
        """The content as a stream; reading its end checks it."""
        return self.record.open()

    def verify(self) -> None:
        """Reads the content through, keeping none of it.

        Raises:
            PopefError: The content is not what its header says; names blob and offset.
        """
        self.record.verify()

    def stored_chunks(self) -> Iterator[bytes]:
        """The content as it is in the file, its checksum compared at the end.

        Raises:
            PopefError: The checksum is another; names blob and offset.
        """
        return self.record.stored_chunks()
