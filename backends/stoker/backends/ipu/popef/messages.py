"""Converts the schema's records to protobuf messages and back.

Writing performs the same checks as reading, so every written file can be read.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from stoker.backends.containers import framing
from stoker.backends.containers.framing import MAX_INFO_BYTES, MAX_RECORDS, Compression, ContainerError, Framing, RecordHeader
from stoker.backends.ipu.popef.pb import popef_pb2 as pb
from stoker.backends.ipu.popef.schema import Anchor, BlobType, DataType, Metadata, Option, PopefError, ProgramFlow, TensorInfo, TensorType

#: Incremented by hand when the layout changes; a file of another version is rejected, and the package hash names it.
CONTAINER_VERSION = 1

MAX_BLOBS = MAX_RECORDS
#: Most bytes of all metadata of a file, which are read and kept when a file is opened.
MAX_METADATA_BYTES = 1 << 22
#: Most bytes of a compressed opaque blob, which is read at once.
MAX_INFLATED_OPAQUE_BYTES = 1 << 26


def _name(info: bytes) -> str:
    try:
        return framing.parse_message(pb.BlobInfo, info, {}).name
    except ContainerError:
        return ""


def _check(header: RecordHeader) -> None:
    """Rejects a compressed record of a kind that must not be compressed."""
    if header.compression is Compression.NONE:
        return
    if header.kind is BlobType.METADATA:
        raise PopefError("metadata are never compressed")
    if header.kind is BlobType.OPAQUE and header.content_bytes > MAX_INFLATED_OPAQUE_BYTES:
        raise PopefError(
            f"{header.content_bytes} bytes of opaque content are compressed; above {MAX_INFLATED_OPAQUE_BYTES} they must not be"
        )


POPEF = Framing(
    # Like PNG's: the first byte is not text, and changed line ends show that a transfer converted them.
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


#: Most dimensions of a tensor; numpy can hold one more, for the axis of a feed's samples.
MAX_RANK = 32
MAX_ANCHORS = 1 << 16
MAX_OPTIONS = 1 << 12
#: Largest size of tensors and blobs: the maximum of a signed 64-bit integer.
MAX_BYTES = (1 << 63) - 1

#: Fields of metadata that are stored unchanged.
_COUNTS = ("replication_factor", "num_ipus", "num_processes", "device_iterations")
_PLAIN = ("executable", *_COUNTS, "ipu_version", "is_pod", "is_inference", "seed_handle")

_Message = TypeVar("_Message", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobInfo:
    """The name of a blob, and the executable that it belongs to.

    Attributes:
        name: Of the executable, tensor, feed or opaque blob; metadata have their executable's.
        executable: The executable it belongs to; empty for tensor and feed data of whichever executable has an anchor of that name.
        tensor_info: Of tensor data, and of one sample of feed data.
        samples: Of feed data: how many.
    """

    name: str
    executable: str = ""
    tensor_info: TensorInfo | None = None
    samples: int = 0

    def check_names(self, kind: BlobType) -> None:
        """Checks that a blob of that type has a valid name.

        Raises:
            PopefError: The name is invalid; the text names the reason.
        """
        if not self.name:
            raise PopefError(f"a blob of type {kind.name} needs a name")
        if kind in (BlobType.METADATA, BlobType.OPAQUE) and not self.executable:
            raise PopefError(f"a blob of type {kind.name} must name its executable")

    def check(self, kind: BlobType, content_bytes: int) -> None:
        """Checks that the info matches a blob of that type and size.

        Raises:
            PopefError: It does not match; the text names the reason.
        """
        self.check_names(kind)
        if kind is BlobType.DATA_TENSOR or kind is BlobType.DATA_FEED:
            if self.tensor_info is None:
                raise PopefError(f"a blob of type {kind.name} needs a shape and a data type")
            count = self.samples if kind is BlobType.DATA_FEED else 1
            check_tensor_info(self.tensor_info, self.name, count)
            expected = self.tensor_info.size_in_bytes * count
            if expected != content_bytes:
                raise PopefError(f"{count} x {describe(self.tensor_info)} take {expected} bytes, but there are {content_bytes}")

    def serialized(self) -> bytes:
        """Returns the info as bytes. Equal infos give equal bytes.

        Raises:
            PopefError: A name cannot be stored.
        """
        message = make_message(pb.BlobInfo, name=self.name, executable=self.executable, samples=self.samples)
        if self.tensor_info is not None:
            message.tensor_info.CopyFrom(_tensor_message(self.tensor_info))
        data = message.SerializeToString(deterministic=True)
        if len(data) > MAX_INFO_BYTES:
            raise PopefError(f"name and shape of a blob take {len(data)} bytes; at most {MAX_INFO_BYTES} are allowed")
        return data

    @classmethod
    def parse(cls, data: bytes) -> "BlobInfo":
        """Reads what `serialized` wrote.

        Raises:
            PopefError: The bytes are not such a message.
        """
        message = parse_message(pb.BlobInfo, data, {})
        info = _tensor_info(message.tensor_info, message.name) if message.HasField("tensor_info") else None
        return cls(name=message.name, executable=message.executable, tensor_info=info, samples=message.samples)


def check_tensor_info(info: TensorInfo, name: str, samples: int = 1) -> None:
    """Checks that numpy can hold that many tensors of this shape as one array.

    Raises:
        PopefError: It cannot; the text names the tensor.
    """
    # An empty axis means zero bytes, but the other axes must still be valid.
    extent = math.prod(max(1, size) for size in (*info.shape[:MAX_RANK], samples)) * info.data_type.numpy.itemsize
    if len(info.shape) > MAX_RANK or min(info.shape, default=0) < 0 or extent > MAX_BYTES:
        raise PopefError(f"tensor {name!r} has the impossible shape {list(info.shape[:MAX_RANK])}, {samples} times")


def check_metadata(metadata: Metadata) -> None:
    """Checks that metadata are complete: names are not empty, anchors have different names, counts are valid.

    Raises:
        PopefError: The metadata are incomplete; the text names the field or anchor.
    """
    if not metadata.executable:
        raise PopefError("metadata must name their executable")
    for name in _COUNTS:
        if getattr(metadata, name) < 1:
            raise PopefError(f"metadata of {metadata.executable!r}: {name} is {getattr(metadata, name)}; at least 1 is expected")
    for kind in ("engine_options", "device_options"):
        if not all(option.name for option in getattr(metadata, kind)):
            raise PopefError(f"metadata of {metadata.executable!r}: one of {kind} has no name")
    if len(metadata.anchors) > MAX_ANCHORS:
        raise PopefError(f"metadata of {metadata.executable!r}: {len(metadata.anchors)} anchors; at most {MAX_ANCHORS} are allowed")
    seen: set[str] = set()
    for anchor in metadata.anchors:
        if not anchor.name:
            raise PopefError(f"metadata of {metadata.executable!r}: an anchor has no name")
        if anchor.name in seen:
            raise PopefError(f"metadata of {metadata.executable!r}: two anchors are named {anchor.name!r}")
        seen.add(anchor.name)
        check_tensor_info(anchor.tensor_info, anchor.name)


def encode_metadata(metadata: Metadata) -> bytes:
    """Returns the metadata as bytes. Equal metadata give equal bytes.

    Raises:
        PopefError: They are not complete, or a value cannot be stored.
    """
    check_metadata(metadata)
    flow = metadata.program_flow
    message = make_message(
        pb.Metadata,
        **{name: getattr(metadata, name) for name in _PLAIN},
        engine_options=_option_messages(metadata.engine_options),
        device_options=_option_messages(metadata.device_options),
        anchors=[_anchor_message(anchor) for anchor in metadata.anchors],
        program_flow=make_message(pb.ProgramFlow, load=flow.load, main=flow.main, save=flow.save),
        programs_map=dict(metadata.programs_map),
    )
    data: bytes = message.SerializeToString(deterministic=True)
    if len(data) > MAX_METADATA_BYTES:
        raise PopefError(f"metadata of {metadata.executable!r} take {len(data)} bytes; at most {MAX_METADATA_BYTES} are allowed")
    return data


def decode_metadata(data: bytes) -> Metadata:
    """Reads what `encode_metadata` wrote.

    Raises:
        PopefError: The bytes are not such a message, or the metadata are incomplete.
    """
    message = parse_message(pb.Metadata, data, {8: MAX_OPTIONS, 9: MAX_OPTIONS, 12: MAX_ANCHORS, 14: MAX_OPTIONS})
    flow = message.program_flow
    metadata = Metadata(
        **{name: getattr(message, name) for name in _PLAIN},
        engine_options=tuple(Option(each.name, each.value) for each in message.engine_options),
        device_options=tuple(Option(each.name, each.value) for each in message.device_options),
        anchors=tuple(_anchor(each) for each in message.anchors),
        program_flow=ProgramFlow(tuple(flow.load), tuple(flow.main), tuple(flow.save)),
        programs_map=dict(sorted(message.programs_map.items())),
    )
    check_metadata(metadata)
    return metadata


def describe(info: TensorInfo) -> str:
    """Returns type and shape as text, such as `F32[2, 3]`."""
    return f"{info.data_type.name}{list(info.shape)}"


def parse_message(kind: Callable[[], _Message], data: bytes, limits: Mapping[int, int]) -> _Message:
    """Parses bytes as a message of that type, with at most `limits[field]` entries of a repeated field.

    Raises:
        PopefError: The bytes are not such a message, or have more entries.
    """
    return framing.parse_message(kind, data, limits, PopefError)


def make_message(kind: Callable[..., _Message], /, **fields: object) -> _Message:
    """Returns a message with these values.

    Raises:
        PopefError: A value does not fit its field: a negative count, text that is no Unicode.
    """
    try:
        return framing.make_message(kind, **fields)
    except ContainerError as error:
        raise PopefError(error.reason) from error


def _option_messages(options: Iterable[Option]) -> list[pb.Option]:
    return [make_message(pb.Option, name=each.name, value=each.value) for each in options]


def _tensor_message(info: TensorInfo) -> pb.TensorInfo:
    return make_message(pb.TensorInfo, shape=info.shape, data_type=int(info.data_type), size_in_bytes=info.size_in_bytes)


def _anchor_message(anchor: Anchor) -> pb.Anchor:
    return make_message(
        pb.Anchor,
        name=anchor.name,
        handle=anchor.handle,
        tensor_info=_tensor_message(anchor.tensor_info),
        is_per_replica=anchor.is_per_replica,
        type=int(anchor.type),
        programs=anchor.programs,
    )


def _tensor_info(message: pb.TensorInfo, name: str) -> TensorInfo:
    try:
        data_type = DataType(message.data_type)
    except ValueError as error:
        raise PopefError(f"tensor {name!r} has the unknown data type {message.data_type}") from error
    if len(message.shape) > MAX_RANK:
        raise PopefError(f"tensor {name!r} has {len(message.shape)} dimensions; at most {MAX_RANK} are allowed")
    info = TensorInfo(tuple(message.shape), data_type)
    check_tensor_info(info, name)
    if info.size_in_bytes != message.size_in_bytes:
        raise PopefError(f"tensor {name!r} says {message.size_in_bytes} bytes, but {describe(info)} takes {info.size_in_bytes}")
    return info


def _anchor(message: pb.Anchor) -> Anchor:
    try:
        direction = TensorType(message.type)
    except ValueError as error:
        raise PopefError(f"anchor {message.name!r} has the unknown type {message.type}") from error
    return Anchor(
        name=message.name,
        handle=message.handle,
        tensor_info=_tensor_info(message.tensor_info, message.name),
        type=direction,
        is_per_replica=message.is_per_replica,
        programs=tuple(message.programs),
    )
