"""The row of records that a file is, while it is being written."""

import hashlib
from typing import TYPE_CHECKING, BinaryIO

from stoker.backends.containers.framing import CLOSING_BYTES, HEADER_BYTES, ClosingRecord, Framing, RecordHeader

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class RecordRow:
    """Where records are put one after the other.

    Attributes:
        framing: Of the format.
        path: What to call the file in messages.
        records: Complete ones.
        offset: Where the next one begins, from the start of the row.
    """

    def __init__(self, stream: BinaryIO, framing: Framing, path: str) -> None:
        self.framing = framing
        self.path = path
        self.records = 0
        self.offset = 0
        self._stream = stream
        self._start = stream.tell()
        self._at = 0
        self._digest = hashlib.sha256()

    def put(self, at: int, data: "ReadableBuffer") -> None:
        """Writes bytes at an offset of the row.

        Raises:
            ContainerError: The stream does not take them.
        """
        try:
            if at != self._at:
                self._stream.seek(self._start + at)
                self._at = at
            rest = memoryview(data).cast("B")
            while rest:  # an unbuffered stream may take less than it is given
                taken = self._stream.write(rest)
                if not taken:  # None: a stream that does not block
                    raise OSError("the stream takes no more")
                self._at += taken
                rest = rest[taken:]
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            raise self.framing.failure(f"cannot be written: {error}", path=self.path, offset=at) from error

    def complete(self, header: RecordHeader) -> None:
        """Ends a record, whose info and content have been put, by its header."""
        packed = header.pack(self.framing)
        self.put(self.offset, packed)
        self._digest.update(packed)
        self.offset += header.total_bytes
        self.records += 1

    def take_back(self) -> None:
        """Drops what was put since the last complete record.

        Raises:
            ContainerError: The stream cannot be cut.
        """
        try:
            self._stream.seek(self._start + self.offset)
            self._stream.truncate()
            self._at = self.offset
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            raise self.framing.failure(f"cannot be written: {error}", path=self.path, offset=self.offset) from error

    def close(self) -> None:
        """Puts the closing record."""
        record = ClosingRecord(records=self.records, total_bytes=self.offset + CLOSING_BYTES, digest=self._digest.digest())
        self.put(self.offset, record.pack(self.framing))

    @property
    def content_start(self) -> int:
        """Where what stands behind the next record's header begins."""
        return self.offset + HEADER_BYTES
