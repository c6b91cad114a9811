"""The records of a file, in order, by their headers: cheap, and at its end the file is known to be whole."""

import hashlib
import zlib
from collections.abc import Iterator

from stoker.backends.containers.byte_source import ByteSource
from stoker.backends.containers.errors import ContainerError
from stoker.backends.containers.framing import CLOSING_BYTES, HEADER_BYTES, MAX_RECORDS, ClosingRecord, Framing, RecordHeader
from stoker.backends.containers.record import Record

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
