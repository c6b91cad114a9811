"""Reading PopEF files: the headers at once, the contents when asked for."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np

from stoker.backends.containers.record import ByteSource, Record
from stoker.backends.containers.record import walk as walk_records
from stoker.backends.ipu.popef.messages import MAX_METADATA_BYTES, POPEF, BlobInfo, decode_metadata
from stoker.backends.ipu.popef.schema import BlobType, Metadata, PopefError, TensorDataInfo


@dataclass(frozen=True, slots=True)
class Blob(Record):
    """A blob whose header and info have been read. Its content is read and checked at access.

    Attributes:
        parsed_info: Its name and what it belongs to.
    """

    parsed_info: BlobInfo

    @property
    def type(self) -> BlobType:
        """The kind of the content."""
        return BlobType(self.header.kind)

    def error(self, reason: str, offset: int | None = None) -> PopefError:
        """Returns an error for this blob, by default at the offset of its content."""
        return cast("PopefError", Record.error(self, reason, offset))


@dataclass(frozen=True, slots=True)
class BlobReader:
    """A named blob, whose content is read at access."""

    blob: Blob

    @property
    def name(self) -> str:
        """The name of the blob."""
        return self.blob.parsed_info.name

    @property
    def executable(self) -> str:
        """Name of the executable that it belongs to; empty if not stated."""
        return self.blob.parsed_info.executable

    @property
    def size_in_bytes(self) -> int:
        """Size of the decompressed content."""
        return self.blob.header.content_bytes

    def data(self) -> bytes:
        """Reads and checks the content.

        Raises:
            PopefError: The content is damaged.
        """
        return self.blob.data()

    def get_standalone_data_stream(self) -> BinaryIO:
        """Returns the content as a separate stream, which is checked when its end is read."""
        return self.blob.open()


@dataclass(frozen=True, slots=True)
class ExecutableReader(BlobReader):
    """An executable blob; `name` links it to its metadata."""

    def get_standalone_executable_stream(self) -> BinaryIO:
        """Returns the executable as a separate stream, which is checked when its end is read."""
        return self.blob.open()


@dataclass(frozen=True, slots=True)
class OpaqueReader(BlobReader):
    """A framework's private bytes."""


@dataclass(frozen=True, slots=True)
class TensorReader(BlobReader):
    """Values of one tensor."""

    @property
    def info(self) -> TensorDataInfo:
        """Name, shape and type."""
        assert self.blob.parsed_info.tensor_info is not None  # the walk rejected blobs without it
        return TensorDataInfo(self.name, self.blob.parsed_info.tensor_info)

    def array(self) -> "np.ndarray[Any, np.dtype[Any]]":
        """Returns the read-only values in the shape and type of `info` (8-bit floats as their codes in uint8).

        Raises:
            PopefError: The content is damaged.
        """
        info = self.info.tensor_info
        return np.frombuffer(self.data(), info.data_type.numpy).reshape(info.shape)


@dataclass(frozen=True, slots=True)
class FeedReader(TensorReader):
    """Several consecutive samples for one tensor; `info` is of one sample."""

    def __len__(self) -> int:
        """Returns the number of samples."""
        return self.blob.parsed_info.samples

    def array(self) -> "np.ndarray[Any, np.dtype[Any]]":
        """Returns all samples, read-only, along a new first axis.

        Raises:
            PopefError: The content is damaged.
        """
        info = self.info.tensor_info
        return np.frombuffer(self.data(), info.data_type.numpy).reshape(len(self), *info.shape)


class Reader:
    """Reads the blobs of one or several files.

    Parsing a file reads the metadata and checks all headers, and so that the file is complete. Contents are read and checked at access;
    `verify` reads all of them. Two blobs of the same type, executable and name are rejected, in one file or in two.
    """

    def __init__(self) -> None:
        self._blobs: list[Blob] = []
        self._metadata: list[Metadata] = []
        self._seen: dict[tuple[BlobType, str, str], Blob] = {}

    def parse_file(self, path: str | os.PathLike[str]) -> None:
        """Adds a file.

        Raises:
            PopefError: The file cannot be opened, or is not a complete PopEF file; the text names blob and offset. The reader is unchanged
                then.
        """
        self._parse(ByteSource.of_file(path, PopefError))

    def parse_stream(self, stream: BinaryIO) -> None:
        """Adds a seekable binary stream from its current position. The stream must stay open while contents may be read.

        Raises:
            PopefError: The stream is a text stream, or not a complete PopEF file; the text names blob and offset. The reader is unchanged
                then.
        """
        self._parse(ByteSource.of_stream(stream, PopefError))

    def blobs(self) -> tuple[Blob, ...]:
        """Returns all blobs in the order of the files."""
        return tuple(self._blobs)

    def metadata(self) -> tuple[Metadata, ...]:
        """The metadata of every executable."""
        return tuple(self._metadata)

    def executables(self) -> tuple[ExecutableReader, ...]:
        """Executable blobs."""
        return tuple(ExecutableReader(blob) for blob in self._of(BlobType.POPLAR_EXECUTABLE))

    def tensors(self) -> tuple[TensorReader, ...]:
        """Tensor data."""
        return tuple(TensorReader(blob) for blob in self._of(BlobType.DATA_TENSOR))

    def feeds(self) -> tuple[FeedReader, ...]:
        """Feed data."""
        return tuple(FeedReader(blob) for blob in self._of(BlobType.DATA_FEED))

    def opaque_blobs(self) -> tuple[OpaqueReader, ...]:
        """Opaque blobs."""
        return tuple(OpaqueReader(blob) for blob in self._of(BlobType.OPAQUE))

    def verify(self) -> None:
        """Reads and checks all contents.

        Raises:
            PopefError: A content is damaged; the text names blob and offset.
        """
        for blob in self._blobs:
            blob.verify()

    def _of(self, kind: BlobType) -> Iterator[Blob]:
        return (blob for blob in self._blobs if blob.type is kind)

    def _parse(self, source: ByteSource) -> None:
        blobs: list[Blob] = []
        metadata: list[Metadata] = []
        seen = dict(self._seen)
        metadata_bytes = 0
        for blob in walk(source):
            key = (blob.type, blob.parsed_info.executable, blob.parsed_info.name)
            if key in seen:
                other = seen[key]
                raise blob.error(f"the same blob is in {other.source.path} at offset {other.offset} already", blob.offset)
            seen[key] = blob
            blobs.append(blob)
            if blob.type is BlobType.METADATA:
                metadata_bytes += blob.header.content_bytes
                if metadata_bytes > MAX_METADATA_BYTES:
                    raise blob.error(f"the file has more than {MAX_METADATA_BYTES} bytes of metadata", blob.offset)
                metadata.append(_read_metadata(blob))
        self._blobs += blobs
        self._metadata += metadata
        self._seen = seen


def walk(source: ByteSource) -> Iterator[Blob]:
    """Yields the blobs of a file from their headers and infos. The iteration ends normally only if the closing record matches.

    Raises:
        PopefError: A header, info or the closing record is damaged or missing; the text names blob and offset.
    """
    for record in walk_records(source, POPEF):
        try:
            info = BlobInfo.parse(record.info)
            info.check(BlobType(record.header.kind), record.header.content_bytes)
        except PopefError as error:
            raise record.error(error.reason, record.offset) from error
        yield Blob(record.source, record.framing, record.index, record.offset, record.header, record.info, info)


def _read_metadata(blob: Blob) -> Metadata:
    try:
        metadata = decode_metadata(blob.data())
    except PopefError as error:
        if error.blob:
            raise
        raise blob.error(error.reason) from error
    if metadata.executable != blob.parsed_info.executable:
        raise blob.error(f"the metadata are of executable {metadata.executable!r}, the blob is of {blob.parsed_info.executable!r}")
    return metadata
