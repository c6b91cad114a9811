"""One record of a file: its header and info, read while walking, and its content, read and checked when asked for.

Bytes by position, of a file or of a stream that the caller opened. The file stays open as long as something of it may still be read, so
that what was found in its headers and what is read later are of the same file, even after a new one took its name.
"""

import hashlib
import io
import os
import stat
import threading
import weakref
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from stoker.backends.containers.framing import (
    CLOSING_BYTES,
    HEADER_BYTES,
    MAX_RECORDS,
    ClosingRecord,
    Compression,
    ContainerError,
    Failure,
    Framing,
    RecordHeader,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class ByteSource:
    """Reads at any position, by any thread.

    Attributes:
        path: The file's name, or what stands for it in messages.
        size: Bytes in all.
    """

    def __init__(self, stream: BinaryIO, path: str, failure: Failure = ContainerError) -> None:
        self.path = path
        self._stream = stream
        self._failure = failure
        self._lock = threading.Lock()
        self._start = stream.tell()
        self.size = stream.seek(0, io.SEEK_END) - self._start

    @classmethod
    def of_file(cls, path: str | os.PathLike[str], failure: Failure = ContainerError) -> "ByteSource":
        """Opens a file.

        Raises:
            ContainerError: It cannot be opened; the text says why.
        """
        try:
            if not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe would make us wait for ever
                raise failure("is no regular file", path=os.fspath(path))
            stream = Path(path).open("rb", buffering=0)  # noqa: SIM115  # closed with the last reference to the source
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = error.strerror if isinstance(error, OSError) else error
            raise failure(f"cannot be opened: {reason}", path=os.fspath(path)) from error
        try:
            source = cls(stream, os.fspath(path), failure)
        except BaseException:
            stream.close()
            raise
        weakref.finalize(source, stream.close)
        return source

    @classmethod
    def of_stream(cls, stream: BinaryIO, failure: Failure = ContainerError) -> "ByteSource":
        """Takes a stream, from where it stands to its end. It stays the caller's, who closes it after the last read.

        Raises:
            ContainerError: It gives text, or cannot go back.
        """
        name = getattr(stream, "name", None)
        path = name if isinstance(name, str) else "<stream>"
        try:
            if not isinstance(stream.read(0), bytes):
                raise failure("a binary stream is needed: open the file in mode 'rb'", path=path)
            if not stream.seekable():
                raise failure("a stream that can seek is needed: read it into io.BytesIO first", path=path)
            return cls(stream, path, failure)
        except (OSError, ValueError, AttributeError) as error:  # closed, write-only, or no stream at all
            raise failure(f"cannot be read as a stream: {error}", path=path) from error

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on.

        Raises:
            ContainerError: The source ends before, or fails.
        """
        if length > self.size - offset:  # before memory is taken for it
            raise self._failure(f"{length} bytes are expected here, but the file ends at {self.size}", path=self.path, offset=offset)
        parts: list[bytes] = []
        missing = length
        try:
            with self._lock:
                self._stream.seek(self._start + offset)
                while missing:
                    part = self._stream.read(missing)
                    if not part:
                        raise self._failure("the file has become shorter since it was opened", path=self.path, offset=offset)
                    parts.append(part)
                    missing -= len(part)
        except (OSError, ValueError) as error:  # ValueError: the caller closed the stream
            raise self._failure(f"cannot be read: {error}", path=self.path, offset=offset) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)


#: How much is read, and decompressed, at a time.
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """A record whose header has been read.

    Attributes:
        source: Where its bytes are.
        framing: Of the format.
        index: Which of the file's records, from 0.
        offset: Byte of the file where its header begins.
        header: As read.
        info: As read, its checksum compared.
    """

    source: ByteSource
    framing: Framing
    index: int
    offset: int
    header: RecordHeader
    info: bytes

    @property
    def content_offset(self) -> int:
        """Byte of the file where the stored content begins."""
        return self.offset + HEADER_BYTES + self.header.info_bytes

    def error(self, reason: str, offset: int | None = None) -> ContainerError:
        """An error of this record, at its content by default."""
        name = self.framing.name_of(self.info)
        location = f"{self.framing.noun} {self.index} ({self.header.kind.name}{f' {name!r}' if name else ''})"
        at = self.content_offset if offset is None else offset
        return self.framing.failure(reason, path=self.source.path, location=location, offset=at)

    def chunks(self) -> Iterator[bytes]:
        """The content in pieces of at most `CHUNK_BYTES`, decompressed.

        The checksum is known to be right only when the last piece has been taken.

        Raises:
            ContainerError: The content is not what its header says; names record and offset.
        """
        stored = self.stored_chunks()
        return stored if self.header.compression is Compression.NONE else self._inflated(stored)

    def data(self) -> bytes:
        """The whole content, checked.

        Raises:
            ContainerError: The content is not what its header says; names record and offset.
        """
        if self.header.compression is not Compression.NONE:
            return b"".join(self.chunks())
        whole = self.source.read_at(self.content_offset, self.header.stored_bytes)  # at once: no second copy of a large content
        self._check_crc(zlib.crc32(whole))
        return whole

    def open(self) -> BinaryIO:
        """The content as a stream; reading its end checks it."""
        return cast("BinaryIO", io.BufferedReader(_ChunkStream(self.chunks()), CHUNK_BYTES))

    def verify(self) -> None:
        """Reads the content through, keeping none of it.

        Raises:
            ContainerError: The content is not what its header says; names record and offset.
        """
        for _ in self.chunks():
            pass

    def stored_chunks(self) -> Iterator[bytes]:
        """The content as it is in the file, its checksum compared at the end.

        Raises:
            ContainerError: The checksum is another; names record and offset.
        """
        crc = 0
        for at in range(0, self.header.stored_bytes, CHUNK_BYTES):
            piece = self.source.read_at(self.content_offset + at, min(CHUNK_BYTES, self.header.stored_bytes - at))
            crc = zlib.crc32(piece, crc)
            yield piece
        self._check_crc(crc)

    def _check_crc(self, crc: int) -> None:
        if crc != self.header.content_crc:
            raise self.error(
                f"the content's checksum is {crc:08x}, the header says {self.header.content_crc:08x}: the file is damaged here"
            )

    def _inflated(self, stored: Iterator[bytes]) -> Iterator[bytes]:
        """Decompresses piece by piece; never gives more than the header says."""
        inflater = zlib.decompressobj()
        expected, produced = self.header.content_bytes, 0
        for piece in stored:
            pending = piece
            while True:
                try:
                    out = inflater.decompress(pending, CHUNK_BYTES)
                except zlib.error as error:
                    raise self.error(f"the compressed content is damaged: {error}") from error
                produced += len(out)
                if produced > expected:
                    raise self.error(f"the content decompresses to more than the {expected} bytes that the header says")
                if out:
                    yield out
                pending = inflater.unconsumed_tail
                if inflater.eof or not pending:  # what it still holds back comes with the next piece: the end mark is always left
                    break
            if inflater.unused_data:
                raise self.error("something follows the compressed content")
        if not inflater.eof:
            raise self.error(f"the compressed content ends before its end mark, after {produced} of {expected} bytes")
        if produced != expected:
            raise self.error(f"the content decompresses to {produced} bytes, the header says {expected}")


class _ChunkStream(io.RawIOBase):
    """Pieces of bytes, read as one stream."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        while not self._rest:
            piece = next(self._chunks, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


_CLOSING = "closing record"


def walk(source: ByteSource, framing: Framing) -> Iterator[Record]:
    """The records of a file, by their headers and infos; the end of the iteration says that the closing record agrees.

    Raises:
        ContainerError: A header, info or the closing record is damaged or missing; names record and offset.
    """
    offset, index = 0, 0
    digest = hashlib.sha256()
    noun, failure = framing.noun, framing.failure
    while True:
        if offset == source.size:
            cut = f"the file ends after {index} {noun}s without its closing record: it was cut off"
            reason = "the file is empty" if offset == 0 else cut
            raise failure(reason, path=source.path, location=f"{noun} {index}", offset=offset)
        try:
            start = source.read_at(offset, min(HEADER_BYTES, source.size - offset))
            if start[: len(framing.closing_magic)] == framing.closing_magic:
                _check_closing(source, framing, offset, index, digest.digest())
                return
            record = _read(source, framing, index, offset, start)
        except ContainerError as error:
            at = offset if error.offset is None else error.offset
            raise failure(error.reason, path=source.path, location=error.location or f"{noun} {index}", offset=at) from error
        digest.update(start)
        yield record
        offset += record.header.total_bytes
        index += 1
        if index > MAX_RECORDS:
            raise failure(f"more than {MAX_RECORDS} {noun}s", path=source.path, location=f"{noun} {index}", offset=offset)


def _read(source: ByteSource, framing: Framing, index: int, offset: int, start: bytes) -> Record:
    if len(start) < HEADER_BYTES:
        raise framing.failure(f"the file ends at {source.size}, inside a header: it was cut off")
    header = RecordHeader.unpack(start, framing)
    info = source.read_at(offset + HEADER_BYTES, header.info_bytes)
    if zlib.crc32(info) != header.info_crc:
        raise framing.failure(
            f"the checksum of the {framing.noun}'s name and shape does not match: the file is damaged here", offset=offset + HEADER_BYTES
        )
    record = Record(source, framing, index, offset, header, info)
    if record.content_offset + header.stored_bytes > source.size:
        raise record.error(f"{header.stored_bytes} bytes of content begin here, but the file ends at {source.size}: it was cut off")
    return record


def _check_closing(source: ByteSource, framing: Framing, offset: int, records: int, digest: bytes) -> None:
    failure = framing.failure
    if source.size - offset < CLOSING_BYTES:
        raise failure(f"the file ends at {source.size}, inside its closing record: it was cut off", location=_CLOSING)
    try:
        record = ClosingRecord.unpack(source.read_at(offset, CLOSING_BYTES), framing)
    except ContainerError as error:
        raise failure(error.reason, location=_CLOSING) from error
    if record.records != records:
        raise failure(f"the closing record says {record.records} {framing.noun}s, but there are {records}", location=_CLOSING)
    if record.total_bytes != source.size or offset + CLOSING_BYTES != source.size:
        raise failure(f"the closing record ends the file at {record.total_bytes}, but it has {source.size} bytes", location=_CLOSING)
    if record.digest != digest:
        raise failure(
            f"the closing record's digest is not that of the headers: {framing.noun}s were exchanged or changed", location=_CLOSING
        )


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
