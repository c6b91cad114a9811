"""One record of a file: its header and info, read while walking, and its content, read and checked when asked for."""

import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from stoker.backends.containers.byte_source import ByteSource
from stoker.backends.containers.errors import ContainerError
from stoker.backends.containers.framing import HEADER_BYTES, Compression, Framing, RecordHeader

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

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
