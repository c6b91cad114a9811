"""The bytes around a record, and at the end of a file. All numbers are little-endian.

A file is a row of records and a closing record, without gaps. A record is a header of fixed size, its info (a small protobuf message of
the format) and its content. The header holds checksums of itself, the info and the content, and the closing record a digest of all headers:
so the end of the file speaks for every byte of it, and a reader who walks the headers knows that the file is whole without reading any
content.

    header   8 magic, u16 version, u8 kind, u8 compression, u32 info bytes, u64 stored bytes, u64 content bytes,
             u32 CRC-32 of the info, u32 of the content as stored, u32 of the header before it
    closing  8 magic, u16 version, u16 0, u32 records, u64 bytes of the file, 32 SHA-256 of all headers, u32 0,
             u32 CRC-32 of what is before it
"""

import enum
import struct
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from stoker.backends.api.wire import WireReader


class ContainerError(Exception):
    """A file that cannot be read or written as asked.

    Attributes:
        reason: What was wrong and what was expected.
        path: The file; empty where there is none.
        location: Which record, such as `section 2 (WEIGHT 'fc.weight')`; empty where it is no record's fault.
        offset: Byte of the file where the trouble was found; None where it has no place.
    """

    def __init__(self, reason: str, *, path: str = "", location: str = "", offset: int | None = None) -> None:
        self.reason = reason
        self.path = path
        self.location = location
        self.offset = offset
        found = ", ".join(part for part in (path, location, "" if offset is None else f"offset {offset}") if part)
        super().__init__(f"{found}: {reason}" if found else reason)


class Failure(Protocol):
    """Makes the error of one format; the class of the error itself is one."""

    def __call__(self, reason: str, *, path: str = "", location: str = "", offset: int | None = None) -> ContainerError: ...


_HEADER = struct.Struct("<8sHBBIQQIII")
_CLOSING = struct.Struct("<8sHHIQ32sII")
HEADER_BYTES = _HEADER.size
CLOSING_BYTES = _CLOSING.size

#: Bounds that keep a made-up file from taking memory beyond its own size; far above what compilers write.
MAX_RECORDS = 1 << 16
MAX_INFO_BYTES = 1 << 16
#: What deflate can reach at most is 1032 to 1; a header that claims more lies.
MAX_DEFLATE_RATIO = 1032


class Compression(enum.IntEnum):
    """How a content is stored."""

    NONE = 0
    ZLIB = 1


def _no_name(info: bytes) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """The layout of the files of one format.

    Attributes:
        magic, closing_magic: What a record and the closing record begin with; eight bytes each.
        version: Raised by hand when the layout changes; a file of another version is rejected.
        kinds: What a record may be.
        compressions: How a content may be stored.
        noun: What people call a record.
        kind_noun: What they call its kind.
        failure: Makes the format's errors.
        name_of: The name in a record's info, for messages; empty where there is none.
        check: Further rules for a header; raises `ContainerError`.
    """

    magic: bytes
    closing_magic: bytes
    version: int
    kinds: type[enum.IntEnum]
    compressions: Collection[Compression] = (Compression.NONE, Compression.ZLIB)
    noun: str = "section"
    kind_noun: str = "kind"
    failure: Failure = ContainerError
    name_of: Callable[[bytes], str] = _no_name
    check: "Callable[[RecordHeader], None] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeader:
    """The header of every record.

    Attributes:
        kind: What the content is, one of the framing's kinds.
        compression: How it is stored.
        info_bytes: Length of the info behind the header.
        stored_bytes: Length of the content in the file.
        content_bytes: Length of the content once decompressed.
        info_crc: CRC-32 of the info.
        content_crc: CRC-32 of the content as stored.
    """

    kind: enum.IntEnum
    compression: Compression
    info_bytes: int
    stored_bytes: int
    content_bytes: int
    info_crc: int
    content_crc: int

    @property
    def total_bytes(self) -> int:
        """Bytes from the start of this header to the start of the next."""
        return HEADER_BYTES + self.info_bytes + self.stored_bytes

    def check(self, framing: Framing) -> None:
        """Checks that the sizes agree with each other and stay within bounds; the writer calls it too.

        Raises:
            ContainerError: They do not. The caller adds the place.
        """
        if self.info_bytes > MAX_INFO_BYTES:
            raise framing.failure(f"the header says {self.info_bytes} bytes of info; at most {MAX_INFO_BYTES} are allowed")
        if self.compression is Compression.NONE:
            if self.stored_bytes != self.content_bytes:
                raise framing.failure(
                    f"the header says {self.stored_bytes} bytes stored but {self.content_bytes} of content, without compression"
                )
        elif self.content_bytes > self.stored_bytes * MAX_DEFLATE_RATIO:
            raise framing.failure(
                f"the header says that {self.stored_bytes} compressed bytes hold {self.content_bytes}, which zlib cannot reach"
            )
        if framing.check is not None:
            framing.check(self)

    def pack(self, framing: Framing) -> bytes:
        """The header's bytes, its own checksum last."""
        fields = (self.info_bytes, self.stored_bytes, self.content_bytes, self.info_crc, self.content_crc)
        packed = _HEADER.pack(framing.magic, framing.version, self.kind, self.compression, *fields, 0)
        return packed[:-4] + zlib.crc32(packed[:-4]).to_bytes(4, "little")

    @classmethod
    def unpack(cls, data: bytes, framing: Framing) -> "RecordHeader":
        """Reads `HEADER_BYTES` bytes.

        Raises:
            ContainerError: They are not a header of this version, or contradict themselves. The caller adds the place.
        """
        magic, version, kind, compression, info_bytes, stored, content, info_crc, content_crc, own_crc = _HEADER.unpack(data)
        _check_start(magic, framing.magic, version, framing)
        if zlib.crc32(data[:-4]) != own_crc:
            raise framing.failure("the header's checksum does not match: the file is damaged here")
        if kind not in set(framing.kinds):
            known = ", ".join(f"{each.value} {each.name}" for each in framing.kinds)
            raise framing.failure(f"{framing.noun} {framing.kind_noun} {kind} is none of {known}")
        if compression not in framing.compressions:
            known = ", ".join(f"{each.value} {each.name}" for each in framing.compressions)
            raise framing.failure(f"compression {compression} is none of {known}")
        header = cls(
            kind=framing.kinds(kind),
            compression=Compression(compression),
            info_bytes=info_bytes,
            stored_bytes=stored,
            content_bytes=content,
            info_crc=info_crc,
            content_crc=content_crc,
        )
        header.check(framing)
        return header


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRecord:
    """The end of every file.

    Attributes:
        records: How many there are.
        total_bytes: Length of the file, this record included.
        digest: SHA-256 over the headers of all records in their order.
    """

    records: int
    total_bytes: int
    digest: bytes

    def pack(self, framing: Framing) -> bytes:
        """The record's bytes, its own checksum last."""
        packed = _CLOSING.pack(framing.closing_magic, framing.version, 0, self.records, self.total_bytes, self.digest, 0, 0)
        return packed[:-4] + zlib.crc32(packed[:-4]).to_bytes(4, "little")

    @classmethod
    def unpack(cls, data: bytes, framing: Framing) -> "ClosingRecord":
        """Reads `CLOSING_BYTES` bytes.

        Raises:
            ContainerError: They are not a closing record of this version. The caller adds the place.
        """
        magic, version, _, records, total_bytes, digest, _, own_crc = _CLOSING.unpack(data)
        _check_start(magic, framing.closing_magic, version, framing)
        if zlib.crc32(data[:-4]) != own_crc:
            raise framing.failure("the closing record's checksum does not match: the file is damaged here")
        return cls(records=records, total_bytes=total_bytes, digest=digest)


def _check_start(magic: bytes, expected: bytes, version: int, framing: Framing) -> None:
    if magic != expected:
        raise framing.failure(f"neither a {framing.noun} nor the closing record begins here: found {magic.hex(' ')}")
    if version != framing.version:
        raise framing.failure(f"container version {version}; this build reads version {framing.version}: compile the model again")


#: Outermost fields of one message; bounds the time of `check_wire`.
MAX_FIELDS = 1 << 20

_Message = TypeVar("_Message", bound=Message)


def check_wire(data: bytes, limits: Mapping[int, int], failure: Failure = ContainerError) -> None:
    """Counts the outermost fields of a message before it is parsed.

    An empty sub-message takes two bytes in a file but a hundred in memory, so a bound on bytes alone would let a crafted file take fifty
    times its size.

    Args:
        data: The message.
        limits: Most entries allowed, by field number.
        failure: Makes the error.

    Raises:
        ContainerError: A field has more entries than its limit, or the bytes are not a message.
    """
    counts = dict.fromkeys(limits, 0)
    for tag, _, _, _ in WireReader(data, max_fields=MAX_FIELDS, failure=failure).fields(0, len(data)):
        number = tag >> 3
        if number in counts:
            counts[number] += 1
            if counts[number] > limits[number]:
                raise failure(f"a message has more than {limits[number]} entries of field {number}")


def parse_message(kind: Callable[[], _Message], data: bytes, limits: Mapping[int, int], failure: Failure = ContainerError) -> _Message:
    """Parses bytes as a message of that type, with at most `limits[field]` entries of a repeated field.

    Raises:
        ContainerError: They are not one, or have more entries.
    """
    check_wire(data, limits, failure)
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise failure(f"not a {message.DESCRIPTOR.name} message: {error}") from error
    return message


def make_message(kind: Callable[..., _Message], /, **fields: object) -> _Message:
    """A message of these values.

    Raises:
        ContainerError: A value does not fit its field: a negative count, text that is no Unicode.
    """
    try:
        return kind(**fields)
    except (ValueError, TypeError) as error:
        raise ContainerError(f"a value cannot be stored: {error}") from error
