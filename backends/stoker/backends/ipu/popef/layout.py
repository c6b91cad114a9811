"""The framing that PopEF files share with other containers (`stoker.backends.containers.framing`); docs/popef.md has the table."""

from stoker.backends.containers.framing import (
    MAX_INFO_BYTES,
    MAX_RECORDS,
    Compression,
    ContainerError,
    Framing,
    RecordHeader,
    parse_message,
)
from stoker.backends.ipu.popef.pb import popef_pb2 as pb
from stoker.backends.ipu.popef.schema import BlobType, PopefError

__all__ = ["CONTAINER_VERSION", "MAX_BLOBS", "MAX_INFLATED_OPAQUE_BYTES", "MAX_INFO_BYTES", "MAX_METADATA_BYTES", "POPEF"]

#: Raised by hand when the layout changes; a file of another version is rejected, and the package hash names it.
CONTAINER_VERSION = 1

MAX_BLOBS = MAX_RECORDS
#: Of all metadata of a file together: they are read, and kept, as soon as a file is opened.
MAX_METADATA_BYTES = 1 << 22
#: Of an opaque blob that is stored compressed: it is read whole.
MAX_INFLATED_OPAQUE_BYTES = 1 << 26


def _name(info: bytes) -> str:
    try:
        return parse_message(pb.BlobInfo, info, {}).name
    except ContainerError:
        return ""


def _check(header: RecordHeader) -> None:
    """What may be compressed."""
    if header.compression is Compression.NONE:
        return
    if header.kind is BlobType.METADATA:
        raise PopefError("metadata are never compressed")
    if header.kind is BlobType.OPAQUE and header.content_bytes > MAX_INFLATED_OPAQUE_BYTES:
        raise PopefError(
            f"{header.content_bytes} bytes of opaque content are compressed; above {MAX_INFLATED_OPAQUE_BYTES} they must not be"
        )


POPEF = Framing(
    # As PNG does it: the first byte is no text, and the line ends show that no transfer has rewritten them.
    magic=b"\x89PopEF\r\n",
    closing_magic=b"\x89PopEND\n",
    version=CONTAINER_VERSION,
    kinds=BlobType,
    noun="blob",
    kind_noun="type",
    failure=PopefError,
    name_of=_name,
    check=_check,
)
