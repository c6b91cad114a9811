"""The bytes around a blob, and at the end of a file. All numbers are little-endian; docs/popef.md shows the same as a table.

A file is a row of blobs and a closing record, without gaps. A blob is a header of fixed size, its info (a protobuf `BlobInfo`) and its
content. The header holds checksums of itself, the info and the content, and the closing record a digest of all headers: so the end of
the file speaks for every byte of it, and a reader who walks the headers knows that the file is whole without reading any content.
"""

import enum
import struct
import zlib
from dataclasses import dataclass

from backends.ipu.popef.errors import PopefError
from backends.ipu.popef.schema import BlobType

#: Raised by hand when the layout changes; a file of another version is refused, and the package hash names it.
CONTAINER_VERSION = 1

# As PNG does it: the first byte is no text, and the line ends show that no transfer has rewritten them.
BLOB_MAGIC = b"\x89PopEF\r\n"
CLOSING_MAGIC = b"\x89PopEND\n"

_HEADER = struct.Struct("<8sHBBIQQIII")
_CLOSING = struct.Struct("<8sHHIQ32sII")
HEADER_BYTES = _HEADER.size
CLOSING_BYTES = _CLOSING.size

#: Bounds that keep a made-up file from taking memory beyond its own size; far above what compilers write.
MAX_BLOBS = 1 << 16
MAX_INFO_BYTES = 1 << 16
#: Of all metadata of a file together: they are read, and kept, as soon as a file is opened.
MAX_METADATA_BYTES = 1 << 22
#: Of an opaque blob that is stored compressed: it is read whole.
MAX_INFLATED_OPAQUE_BYTES = 1 << 26
#: What deflate can reach at most is 1032 to 1; a header that claims more lies.
MAX_DEFLATE_RATIO = 1032


class Compression(enum.IntEnum):
    """How the content is stored."""

    NONE = 0
    ZLIB = 1


_BLOB_TYPES, _COMPRESSIONS = set(BlobType), set(Compression)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobHeader:
    """What stands before every blob.

    Attributes:
        type: What the content is.
        compression: How it is stored.
        info_bytes: Length of the info behind the header.
        stored_bytes: Length of the content in the file.
        content_bytes: Length of the content once decompressed.
        info_crc: CRC-32 of the info.
        content_crc: CRC-32 of the content as stored.
    """

    type: BlobType
    compression: Compression
    info_bytes: int
    stored_bytes: int
    content_bytes: int
    info_crc: int
    content_crc: int

    @property
    def total_bytes(self) -> int:
        """From this header to the next."""
        return HEADER_BYTES + self.info_bytes + self.stored_bytes

    def check(self) -> None:
        """Whether the sizes agree with each other and stay within bounds; writing holds itself to them too.

        Raises:
            PopefError: They do not. The caller adds the place.
        """
        if self.info_bytes > MAX_INFO_BYTES:
            raise PopefError(f"the header says {self.info_bytes} bytes of info; at most {MAX_INFO_BYTES} are allowed")
        if self.compression is Compression.NONE:
            if self.stored_bytes != self.content_bytes:
                raise PopefError(
                    f"the header says {self.stored_bytes} bytes stored but {self.content_bytes} of content, without compression"
                )
        elif self.content_bytes > self.stored_bytes * MAX_DEFLATE_RATIO:
            raise PopefError(
                f"the header says that {self.stored_bytes} compressed bytes hold {self.content_bytes}, which zlib cannot reach"
            )
        elif self.type is BlobType.METADATA:
            raise PopefError("metadata are never compressed")
        elif self.type is BlobType.OPAQUE and self.content_bytes > MAX_INFLATED_OPAQUE_BYTES:
            raise PopefError(
                f"{self.content_bytes} bytes of opaque content are compressed; above {MAX_INFLATED_OPAQUE_BYTES} they must not be"
            )

    def pack(self) -> bytes:
        """The header's bytes, its own checksum last."""
        fields = (self.info_bytes, self.stored_bytes, self.content_bytes, self.info_crc, self.content_crc)
        packed = _HEADER.pack(BLOB_MAGIC, CONTAINER_VERSION, self.type, self.compression, *fields, 0)
        return packed[:-4] + zlib.crc32(packed[:-4]).to_bytes(4, "little")

    @classmethod
    def unpack(cls, data: bytes) -> "BlobHeader":
        """Reads `HEADER_BYTES` bytes.

        Raises:
            PopefError: They are not a header of this version, or contradict themselves. The caller adds the place.
        """
        magic, version, kind, compression, info_bytes, stored, content, info_crc, content_crc, own_crc = _HEADER.unpack(data)
        _check_start(magic, BLOB_MAGIC, version)
        if zlib.crc32(data[:-4]) != own_crc:
            raise PopefError("the header's checksum does not match: the file is damaged here")
        if kind not in _BLOB_TYPES:
            raise PopefError(f"blob type {kind} is none of {', '.join(f'{each} {each.name}' for each in BlobType)}")
        if compression not in _COMPRESSIONS:
            raise PopefError(f"compression {compression} is none of {', '.join(f'{each} {each.name}' for each in Compression)}")
        header = cls(
            type=BlobType(kind),
            compression=Compression(compression),
            info_bytes=info_bytes,
            stored_bytes=stored,
            content_bytes=content,
            info_crc=info_crc,
            content_crc=content_crc,
        )
        header.check()
        return header


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRecord:
    """What ends every file.

    Attributes:
        blobs: How many there are.
        total_bytes: Length of the file, this record included.
        digest: SHA-256 over the headers of all blobs in their order.
    """

    blobs: int
    total_bytes: int
    digest: bytes

    def pack(self) -> bytes:
        """The record's bytes, its own checksum last."""
        packed = _CLOSING.pack(CLOSING_MAGIC, CONTAINER_VERSION, 0, self.blobs, self.total_bytes, self.digest, 0, 0)
        return packed[:-4] + zlib.crc32(packed[:-4]).to_bytes(4, "little")

    @classmethod
    def unpack(cls, data: bytes) -> "ClosingRecord":
        """Reads `CLOSING_BYTES` bytes.

        Raises:
            PopefError: They are not a closing record of this version. The caller adds the place.
        """
        magic, version, _, blobs, total_bytes, digest, _, own_crc = _CLOSING.unpack(data)
        _check_start(magic, CLOSING_MAGIC, version)
        if zlib.crc32(data[:-4]) != own_crc:
            raise PopefError("the closing record's checksum does not match: the file is damaged here")
        return cls(blobs=blobs, total_bytes=total_bytes, digest=digest)


def _check_start(magic: bytes, expected: bytes, version: int) -> None:
    if magic != expected:
        raise PopefError(f"neither a blob nor the closing record begins here: found {magic.hex(' ')}")
    if version != CONTAINER_VERSION:
        raise PopefError(f"container version {version}; this build reads version {CONTAINER_VERSION}: compile the model again")
