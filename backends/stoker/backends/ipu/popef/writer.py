"""Writing PopEF: streams one blob after another, then the closing record. Equal blobs give equal bytes."""

import contextlib
import enum
import io
import os
import secrets
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from stoker.backends.containers.framing import HEADER_BYTES, Compression, RecordHeader
from stoker.backends.containers.record import RecordRow
from stoker.backends.ipu.popef.messages import MAX_BLOBS, MAX_METADATA_BYTES, POPEF, BlobInfo, encode_metadata
from stoker.backends.ipu.popef.reader import Blob, Reader
from stoker.backends.ipu.popef.schema import BlobType, Metadata, PopefError, TensorDataInfo

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


#: zlib's own default; fixed here so that the bytes do not depend on it.
COMPRESSION_LEVEL = 6


class BlobWriter:
    """One open blob: its content goes to `stream`; `close` completes it.

    As a context manager it closes the blob at the end; after an exception it discards the blob, so that the file holds no partial blob.

    Attributes:
        stream: The stream for the content.
        label: Name of the blob in error texts.
        is_open: Whether it is neither complete nor discarded.
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
        # The header stays zeros until the blob is complete, so that a file left behind half written is rejected here.
        row.put(row.offset, bytes(HEADER_BYTES) + self._packed_info)

    def write(self, data: "ReadableBuffer") -> int:
        """Writes the next part of the content; returns the number of bytes.

        Raises:
            PopefError: The blob is closed, or writing to the file fails.
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
            PopefError: The content has another size than its shape and type say, or a size that no reader accepts (the blob is then
                discarded), or writing to the file fails.
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
        """Discards the blob, as if it had never begun."""
        if self.is_open:
            self.is_open = False
            self._row.take_back()

    def __enter__(self) -> Self:
        """For use in a with statement."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes the file; discards it after an exception."""
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


class Writer:
    """Writes blobs to a binary stream that can seek, from its current position; `close` adds the closing record.

    Only one blob may be open at a time. As a context manager it closes at the end, but not after an exception: the file then lacks its
    closing record, and readers reject it as incomplete.
    """

    def __init__(self, stream: BinaryIO, path: str = "<stream>") -> None:
        """Starts at the stream's position.

        Args:
            stream: The stream. The caller closes it.
            path: Its name in error texts.

        Raises:
            PopefError: It is a text stream, or is not seekable.
        """
        try:
            stream.write(b"")
            seekable = stream.seekable()
        except TypeError as error:  # a text stream
            raise PopefError("a binary stream is needed: open the file in mode 'wb'", path=path) from error
        except (OSError, ValueError, AttributeError) as error:  # read-only, closed, or not a stream
            raise PopefError(f"cannot be written to as a stream: {error}", path=path) from error
        if not seekable:
            raise PopefError("a stream that can seek is needed: write to io.BytesIO first", path=path)
        self.path = path
        self._row = RecordRow(stream, POPEF, path)
        self._open: tuple[BlobWriter, tuple[BlobType, str, str]] | None = None
        self._seen: set[tuple[BlobType, str, str]] = set()
        self._metadata_bytes = 0
        self._closed = False

    def create_executable(self, name: str, compress: bool = False) -> BlobWriter:
        """Begins an executable; its name links it to its metadata.

        Raises:
            PopefError: The name is empty or taken, or another blob is open.
        """
        return self._begin(BlobType.POPLAR_EXECUTABLE, BlobInfo(name=name), compress)

    def create_opaque_blob(self, name: str, executable: str, compress: bool = False) -> BlobWriter:
        """Begins an opaque blob: a framework's private bytes.

        Raises:
            PopefError: A name is empty, the executable has one of that name, or another blob is open.
        """
        return self._begin(BlobType.OPAQUE, BlobInfo(name=name, executable=executable), compress)

    def create_tensor_data(self, info: TensorDataInfo, executable: str = "", compress: bool = False) -> BlobWriter:
        """Begins the data of one tensor, exactly as many bytes as `info` says.

        Args:
            info: Name, shape and type.
            executable: The executable; empty: any that has an anchor of that name.
            compress: Whether to store it compressed.

        Raises:
            PopefError: The name is empty or taken, or another blob is open.
        """
        return self._begin(BlobType.DATA_TENSOR, BlobInfo(name=info.name, executable=executable, tensor_info=info.tensor_info), compress)

    def create_feed_data(
        self, info: TensorDataInfo, samples: "Sequence[ReadableBuffer]", executable: str = "", compress: bool = False
    ) -> None:
        """Writes consecutive samples for one tensor; each has as many bytes as `info` says.

        Raises:
            PopefError: The name is empty or taken, a sample has another size, or another blob is open.
        """
        described = BlobInfo(name=info.name, executable=executable, tensor_info=info.tensor_info, samples=len(samples))
        with self._begin(BlobType.DATA_FEED, described, compress) as blob:
            for number, sample in enumerate(samples):
                size, expected = blob.write(sample), info.tensor_info.size_in_bytes
                if size != expected:
                    raise PopefError(f"sample {number} has {size} bytes; {expected} are expected", path=self.path, blob=blob.label)

    def write(self, metadata: Metadata) -> None:
        """Writes metadata.

        Raises:
            PopefError: The metadata are incomplete, their executable already has metadata, or another blob is open.
        """
        content = encode_metadata(metadata)
        if self._metadata_bytes + len(content) > MAX_METADATA_BYTES:
            raise PopefError(f"all metadata of a file take at most {MAX_METADATA_BYTES} bytes; write another file", path=self.path)
        with self._begin(BlobType.METADATA, BlobInfo(name=metadata.executable, executable=metadata.executable), compress=False) as blob:
            blob.write(content)
        self._metadata_bytes += len(content)

    def copy(self, blob: Blob) -> None:
        """Writes a blob of another file as it is stored there.

        Raises:
            PopefError: The blob is damaged, its name is taken in this file, or another blob is open.
        """
        key = self._admit(blob.type, blob.parsed_info)
        at = self._row.offset + HEADER_BYTES
        for piece in (blob.parsed_info.serialized(), *blob.stored_chunks()):
            self._row.put(at, piece)
            at += len(piece)
        self._row.complete(blob.header)
        if blob.type is BlobType.METADATA:
            self._metadata_bytes += blob.header.content_bytes
        self._seen.add(key)

    def close(self) -> None:
        """Writes the closing record; a second call does nothing.

        Raises:
            PopefError: A blob is still open.
        """
        if not self._closed:
            self._settle()
            self._row.close()
            self._closed = True

    def __enter__(self) -> Self:
        """For use in a with statement."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes, unless the block failed."""
        if kind is None:
            self.close()

    def _begin(self, kind: BlobType, info: BlobInfo, compress: bool) -> BlobWriter:
        key = self._admit(kind, info)
        blob = BlobWriter(self._row, kind, info, compress)
        self._open = blob, key
        return blob

    def _admit(self, kind: BlobType, info: BlobInfo) -> tuple[BlobType, str, str]:
        """Checks that such a blob may begin now; returns its key among the blobs."""
        if self._closed:
            raise PopefError("the file is complete: its closing record has been written", path=self.path)
        self._settle()
        try:
            info.check_names(kind)
        except PopefError as error:
            raise PopefError(error.reason, path=self.path) from error
        key = (kind, info.executable, info.name)
        if key in self._seen:
            of = f" of executable {info.executable!r}" if info.executable else ""
            raise PopefError(f"there is a blob {kind.name} {info.name!r}{of} already", path=self.path)
        if self._row.records >= MAX_BLOBS:
            raise PopefError(f"a file holds at most {MAX_BLOBS} blobs", path=self.path)
        return key

    def _settle(self) -> None:
        """Checks that no blob is open, and records the last one if it is in the file."""
        if self._open is None:
            return
        blob, key = self._open
        if blob.is_open:
            raise PopefError(f"{blob.label} is still open: only one blob may be open at a time", path=self.path)
        if blob.is_complete:
            self._seen.add(key)
        self._open = None


class Mode(enum.Enum):
    """The treatment of an existing file."""

    CREATE = "create"
    APPEND = "append"


class FileWriter(Writer):
    """Writes a file atomically: it replaces an existing file of its name only when it is closed.

    As a context manager it closes at the end; after an exception it changes nothing.
    """

    def __init__(self, path: str | os.PathLike[str], mode: Mode = Mode.CREATE) -> None:
        """Opens a temporary file beside `path`.

        Args:
            path: The file.
            mode: `CREATE` replaces an existing file; `APPEND` starts with its blobs.

        Raises:
            PopefError: The file cannot be written, or with `APPEND` is not a complete PopEF file.
        """
        self._target = Path(path)
        reader = Reader()
        if mode is Mode.APPEND:
            reader.parse_file(path)
        try:
            self._beside = self._target.with_name(f".{self._target.name}.{secrets.token_hex(4)}")
            self._file = cast("BinaryIO", self._beside.open("xb"))
        except (OSError, ValueError) as error:  # ValueError: the name is empty or contains a NUL
            reason = error.strerror if isinstance(error, OSError) else error
            raise PopefError(f"cannot be written: {reason}", path=str(path)) from error
        super().__init__(self._file, str(path))
        try:
            for blob in reader.blobs():
                self.copy(blob)
            if mode is Mode.APPEND:
                shutil.copymode(self._target, self._beside)
        except BaseException:
            self.abandon()
            raise

    def close(self) -> None:
        """Completes the file and gives it its name; a second call does nothing.

        Raises:
            PopefError: A blob is still open, or the file cannot be written.
        """
        if self._file.closed:
            return
        super().close()
        try:
            self._file.close()
            self._beside.replace(self._target)
        except OSError as error:
            self.abandon()
            raise PopefError(f"cannot be written: {error.strerror}", path=self.path) from error

    def abandon(self) -> None:
        """Discards the file; does nothing after `close`."""
        with contextlib.suppress(OSError):  # a failed write to a full disk does not matter any more
            self._file.close()
        self._beside.unlink(missing_ok=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes the file, or abandons it after an exception."""
        if kind is None:
            try:
                self.close()
            finally:
                self.abandon()
        else:
            self.abandon()


def append_opaque_blobs(path: str | os.PathLike[str], blobs: Mapping[str, bytes], executable: str | None = None) -> None:
    """Rewrites a file with further opaque blobs after its own, atomically: other readers see the old file or the new one.

    Args:
        path: The file.
        blobs: Contents by name, added in this order.
        executable: The executable of the blobs; may be omitted if the file has only one.

    Raises:
        PopefError: The file is damaged or cannot be written, has no such executable, or has an opaque blob of that name already. The file
            is unchanged then.
    """
    reader = Reader()
    reader.parse_file(path)
    names = sorted({each.name for each in reader.executables()} | {each.executable for each in reader.metadata()})
    if executable is None and len(names) != 1:
        raise PopefError(f"name one of the executables: {', '.join(map(repr, names)) or 'there are none'}", path=os.fspath(path))
    owner = names[0] if executable is None else executable
    if owner not in names:
        raise PopefError(f"no executable {owner!r}; there are: {', '.join(map(repr, names)) or 'none'}", path=os.fspath(path))
    with FileWriter(path, Mode.APPEND) as writer:
        for name, content in blobs.items():
            with writer.create_opaque_blob(name, owner) as blob:
                blob.write(content)
