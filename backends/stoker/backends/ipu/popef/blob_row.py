"""The one blob of a file that is being written."""

import io
import zlib
from types import TracebackType
from typing import TYPE_CHECKING, Self

from stoker.backends.containers.framing import HEADER_BYTES, Compression, RecordHeader
from stoker.backends.containers.record_row import RecordRow
from stoker.backends.ipu.popef.errors import PopefError
from stoker.backends.ipu.popef.layout import POPEF
from stoker.backends.ipu.popef.messages import BlobInfo
from stoker.backends.ipu.popef.schema import BlobType

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

#: zlib's own default; fixed here so that the bytes do not depend on it.
COMPRESSION_LEVEL = 6


class BlobWriter:
    """One open blob: its content goes to `stream`; `close` completes it.

    As a context manager it closes at the end; after an exception it takes the blob back, so that the file holds no half one.

    Attributes:
        stream: Where to write the content.
        label: What to call the blob in messages.
        is_open: Whether it is neither complete nor taken back.
        is_complete: Whether it is in the file.
    """

    def __init__(self, row: RecordRow, kind: BlobType, info: BlobInfo, compress: bool) -> None:
        self.label = f"blob {row.records} ({kind.name} {info.name!r})"
        self.is_open = True
        self.is_complete = False
        self.stream: io.RawIOBase = _ContentStream(self)
        self._row = row
        self._kind = kind
        self._info = info
        self._packed_info = info.serialized()
        self._deflater = zlib.compressobj(COMPRESSION_LEVEL) if compress else None
        self._content_bytes = 0
        self._stored_bytes = 0
        self._crc = 0
        # The header stays zeros until the blob is complete, so that a file left behind half written is refused here.
        row.put(row.offset, bytes(HEADER_BYTES) + self._packed_info)

    def write(self, data: "ReadableBuffer") -> int:
        """Takes the next part of the content; returns its bytes.

        Raises:
            PopefError: The blob is closed, or the file does not take it.
        """
        if not self.is_open:
            raise PopefError("the blob is closed", path=self._row.path, blob=self.label)
        view = memoryview(data)
        content = view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())
        self._content_bytes += len(content)
        self._store(self._deflater.compress(content) if self._deflater else content)
        return len(content)

    def close(self) -> None:
        """Completes the blob; a second call does nothing.

        Raises:
            PopefError: The content has another size than its shape and type say, or one that no reader takes (the blob is taken back then),
                or the file does not take it.
        """
        if not self.is_open:
            return
        if self._deflater:
            self._store(self._deflater.flush())
        header = RecordHeader(
            kind=self._kind,
            compression=Compression.ZLIB if self._deflater else Compression.NONE,
            info_bytes=len(self._packed_info),
            stored_bytes=self._stored_bytes,
            content_bytes=self._content_bytes,
            info_crc=zlib.crc32(self._packed_info),
            content_crc=self._crc,
        )
        try:
            self._info.check(self._kind, self._content_bytes)
            header.check(POPEF)
        except PopefError as error:
            self.discard()
            raise PopefError(error.reason, path=self._row.path, blob=self.label) from error
        self._row.complete(header)
        self.is_open = False
        self.is_complete = True

    def discard(self) -> None:
        """Takes the blob back, as if it had never been begun."""
        if self.is_open:
            self.is_open = False
            self._row.take_back()

    def __enter__(self) -> Self:
        """For use in a with statement."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes, or after an exception discards."""
        if kind is None:
            self.close()
        else:
            self.discard()

    def _store(self, data: "bytes | memoryview") -> None:
        self._row.put(self._row.offset + HEADER_BYTES + len(self._packed_info) + self._stored_bytes, data)
        self._crc = zlib.crc32(data, self._crc)
        self._stored_bytes += len(data)


class _ContentStream(io.RawIOBase):
    """The content of an open blob as a stream; closing it leaves the blob open."""

    def __init__(self, blob: BlobWriter) -> None:
        self._blob = blob

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer") -> int:
        return self._blob.write(data)
