"""PopEF's logical schema: the records of a file, with the field names of Graphcore's open writers (PopART, TensorFlow, PopTorch).

The vendor's bytes are not public, so the container of these records is Stoker's own (docs/popef.md).
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stoker.backends.containers.framing import ContainerError


class PopefError(ContainerError):
    """A PopEF file cannot be read or written. `blob` is another name of `location`."""

    def __init__(self, reason: str, *, path: str = "", blob: str = "", location: str = "", offset: int | None = None) -> None:
        """Accepts the location under either name.

        Args:
            reason: The error and the expected value.
            path: The file; empty if there is none.
            blob: The blob, such as `blob 2 (DATA_TENSOR 'weights')`; empty if the error concerns no blob.
            location: Same as `blob`.
            offset: Byte offset of the error in the file; None if it has none.
        """
        super().__init__(reason, path=path, location=blob or location, offset=offset)

    @property
    def blob(self) -> str:
        """The blob; empty if the error concerns no blob."""
        return self.location


class PackageHashMismatch(PopefError):
    """The executable was compiled by another version of the compiler than this runtime belongs to."""


class BlobType(enum.IntEnum):
    """The kind of a blob."""

    POPLAR_EXECUTABLE = 1
    METADATA = 2
    DATA_TENSOR = 3
    DATA_FEED = 4
    OPAQUE = 5


class TensorType(enum.IntEnum):
    """The direction of an anchor's data."""

    UNKNOWN = 0
    INPUT = 1
    OUTPUT = 2


class DataType(enum.IntEnum):
    """Element types of PopEF tensors. F8143 and F8152 are Graphcore's 8-bit floats; F8 is one of unstated format."""

    BOOL = 1
    F8 = 2
    F16 = 3
    F32 = 4
    F64 = 5
    S8 = 6
    U8 = 7
    S16 = 8
    U16 = 9
    S32 = 10
    U32 = 11
    S64 = 12
    U64 = 13
    F8143 = 14
    F8152 = 15

    @property
    def numpy(self) -> "np.dtype[np.generic]":
        """The numpy dtype of an element; 8-bit floats are stored as their codes in uint8."""
        return _NUMPY[self]

    @classmethod
    def of(cls, dtype: "np.dtype[np.generic]") -> "DataType":
        """Returns the type for a numpy dtype.

        Raises:
            KeyError: PopEF has no such type.
        """
        return _OF_NUMPY[np.dtype(dtype)]


_NUMPY: Mapping[DataType, "np.dtype[np.generic]"] = {
    DataType.BOOL: np.dtype(np.bool_),
    DataType.F8: np.dtype(np.uint8),
    DataType.F16: np.dtype(np.float16),
    DataType.F32: np.dtype(np.float32),
    DataType.F64: np.dtype(np.float64),
    DataType.S8: np.dtype(np.int8),
    DataType.U8: np.dtype(np.uint8),
    DataType.S16: np.dtype(np.int16),
    DataType.U16: np.dtype(np.uint16),
    DataType.S32: np.dtype(np.int32),
    DataType.U32: np.dtype(np.uint32),
    DataType.S64: np.dtype(np.int64),
    DataType.U64: np.dtype(np.uint64),
    DataType.F8143: np.dtype(np.uint8),
    DataType.F8152: np.dtype(np.uint8),
}
_OF_NUMPY = {dtype: kind for kind, dtype in _NUMPY.items() if kind not in (DataType.F8, DataType.F8143, DataType.F8152)}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape and element type; a scalar has shape ()."""

    shape: tuple[int, ...]
    data_type: DataType

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the whole tensor."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.data_type.numpy.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """One stream between host and device.

    Attributes:
        name: The name for users.
        handle: The name in the executable (PopART: `h2d_<id>`, `anchor_d2h_<id>`).
        tensor_info: Of one micro-batch; with `is_per_replica` the shape has a leading replica dimension.
        is_per_replica: Whether every replica gets data of its own.
        type: Input or output.
        programs: Indices of the programs that use the anchor.
    """

    name: str
    handle: str
    tensor_info: TensorInfo
    type: TensorType
    is_per_replica: bool = False
    programs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """One engine or device option."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ProgramFlow:
    """The programs to run once at the start, in a loop, and at the end."""

    load: tuple[int, ...] = ()
    main: tuple[int, ...] = ()
    save: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The description of an executable for a runtime.

    Attributes:
        executable: Name of the executable blob this belongs to.
        replication_factor: Copies of the model that run side by side.
        num_ipus: IPUs of one replica.
        ipu_version: 1, 2 or 21.
        is_pod, num_processes: Of systems with several hosts.
        is_inference: Whether it only infers.
        engine_options, device_options: As given to the compiler.
        seed_handle: Stream of the random seed; empty if none.
        device_iterations: Batches per step: micro-batches one call of the main program takes.
        anchors: Streams, inputs and outputs.
        program_flow: Programs to load, loop and save.
        programs_map: Program index to name.
    """

    executable: str
    anchors: tuple[Anchor, ...]
    replication_factor: int = 1
    num_ipus: int = 1
    ipu_version: int = 2
    is_pod: bool = False
    num_processes: int = 1
    is_inference: bool = True
    engine_options: tuple[Option, ...] = ()
    device_options: tuple[Option, ...] = ()
    seed_handle: str = ""
    device_iterations: int = 1
    program_flow: ProgramFlow = ProgramFlow()
    programs_map: Mapping[int, str] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[Anchor, ...]:
        """The input anchors."""
        return tuple(anchor for anchor in self.anchors if anchor.type is TensorType.INPUT)

    @property
    def outputs(self) -> tuple[Anchor, ...]:
        """The output anchors."""
        return tuple(anchor for anchor in self.anchors if anchor.type is TensorType.OUTPUT)


@dataclass(frozen=True, slots=True)
class TensorDataInfo:
    """Name, shape and type of the data in a tensor or feed blob."""

    name: str
    tensor_info: TensorInfo


def distinct_names(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names, with a numeric suffix for repeated ones, like TensorFlow's writer.

    The first occurrence keeps its name; the next are `name_1`, `name_2`, ..., skipping names that occur elsewhere in the list. Metadata
    with two anchors of one name are rejected by the writer, so a compiler whose source may repeat names calls this first.
    """
    listed = tuple(names)
    taken = set(listed)
    seen: set[str] = set()
    counts: dict[str, int] = {}
    distinct: list[str] = []
    for name in listed:
        unique = name
        while unique in seen or (unique != name and unique in taken):
            counts[name] = counts.get(name, 0) + 1
            unique = f"{name}_{counts[name]}"
        seen.add(unique)
        distinct.append(unique)
    return tuple(distinct)
