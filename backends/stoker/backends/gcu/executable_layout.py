"""The layout of a `model.exec` file: its framing, its sections, and the description that comes first.

    section 0      DESCRIPTION  a protobuf `Executable`: everything but graphs and weights
    sections 1..b  GRAPH        one compiled batch each, ascending: the lowered graph
    the rest       WEIGHT       one weight each, in the description's order: its elements, little-endian

The layout is Stoker's own, because the vendor's is not public. `stoker.backends.containers` describes the framing of each section and the
closing record.
"""

import enum
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.backends.api.tensor import BY_WIRE_NAME, DataType
from stoker.backends.containers.framing import Compression, ContainerError, Framing, make_message, parse_message
from stoker.backends.gcu.pb import gcu_executable_pb2 as pb
from stoker.backends.gcu.program import CompiledBatch, GcuExecutable, GcuTensor

#: Incremented by hand when the meaning of the description or of the graphs changes. Files of another version are rejected.
FORMAT_VERSION = 1
CONTAINER_VERSION = 1
MAGIC = b"\x89GEXEC\r\n"
CLOSING_MAGIC = b"\x89GEXEND\n"

#: Far more than compilers write. A parsed message takes about ten times its size in memory.
MAX_DESCRIPTION_BYTES = 1 << 22
MAX_TENSORS = 1 << 15
MAX_BATCHES = 1 << 8
#: Largest size of a tensor and of a graph: the maximum of a signed 64-bit integer.
MAX_BYTES = (1 << 63) - 1
#: Largest float in the description, such as a time in seconds: clocks can wait that long.
MAX_RUN_S = 1e6
#: Fields of a compiled batch that are stored unchanged.
_BATCH_COUNTS = ("batch_size", "workspace_bytes", "flops", "hbm_traffic_bytes")
PRECISIONS = ("fp32", "fp16", "mixed")


class Section(enum.IntEnum):
    """The kind of a section."""

    DESCRIPTION = 1
    GRAPH = 2
    WEIGHT = 3


class ExecutableError(ContainerError):
    """A `model.exec` file that cannot be read or written: the text names path, section and offset."""


def section_name(info: bytes) -> str:
    """Returns the name in a section's info; empty if it is not a valid name."""
    try:
        return parse_message(pb.SectionInfo, info, {}).name
    except ContainerError:
        return ""


FRAMING = Framing(
    magic=MAGIC,
    closing_magic=CLOSING_MAGIC,
    version=CONTAINER_VERSION,
    kinds=Section,
    compressions=(Compression.NONE,),  # graphs are small compared to weights, and weights do not compress well
    failure=ExecutableError,
    name_of=section_name,
)


def pack_name(name: str) -> bytes:
    """Returns the info of the section called `name`.

    Raises:
        ContainerError: the name cannot be stored as text.
    """
    return make_message(pb.SectionInfo, name=name).SerializeToString(deterministic=True)


def batch_label(batch_size: int) -> str:
    """Returns the name of the section with a batch's graph."""
    return f"batch {batch_size}"


def pack_description(executable: GcuExecutable) -> bytes:
    """Returns the bytes of the description, which holds everything but graphs and weights. Equal executables give equal bytes.

    Raises:
        ContainerError: it contradicts itself, or a value cannot be stored.
    """
    message = make_message(
        pb.Executable,
        format_version=FORMAT_VERSION,
        name=executable.name,
        card=executable.card,
        precision=executable.precision,
        inputs=[_tensor_message(each) for each in executable.inputs],
        outputs=[_tensor_message(each) for each in executable.outputs],
        batches=[_batch_message(each) for each in executable.batches],
        weights=[_tensor_message(weight_tensor(name, array)) for name, array in executable.weights.items()],
        attribute_names=sorted(executable.attributes),
        attribute_values=[executable.attributes[name] for name in sorted(executable.attributes)],
    )
    _check(message)
    packed: bytes = message.SerializeToString(deterministic=True)
    if len(packed) > MAX_DESCRIPTION_BYTES:
        raise ContainerError(f"the description takes {len(packed)} bytes; at most {MAX_DESCRIPTION_BYTES} are allowed")
    return packed


def unpack_description(data: bytes) -> tuple[GcuExecutable, tuple[GcuTensor, ...], tuple[int, ...]]:
    """Reads what `pack_description` wrote.

    Returns:
        The executable without graphs and weights; name, type and shape of each weight; and the bytes of each graph.

    Raises:
        ContainerError: the data is not a description of this version, or contradicts itself.
    """
    numbers = {name: pb.Executable.DESCRIPTOR.fields_by_name[name].number for name in ("inputs", "outputs", "weights", "batches")}
    limits = {number: MAX_BATCHES if name == "batches" else MAX_TENSORS for name, number in numbers.items()}
    message = parse_message(pb.Executable, data, limits)
    _check(message)
    executable = GcuExecutable(
        name=message.name,
        card=message.card,
        precision=message.precision,
        inputs=tuple(_tensor(each) for each in message.inputs),
        outputs=tuple(_tensor(each) for each in message.outputs),
        batches=tuple(_batch(each) for each in message.batches),
        attributes=dict(zip(message.attribute_names, message.attribute_values, strict=True)),
    )
    return executable, tuple(_tensor(each) for each in message.weights), tuple(each.onnx_bytes for each in message.batches)


def weight_tensor(name: str, array: "np.ndarray[Any, np.dtype[Any]]") -> GcuTensor:
    """Returns name, type and shape of a weight as a message.

    Raises:
        ContainerError: the format cannot store its type.
    """
    for dtype in DataType:
        if not dtype.is_bytes and dtype is not DataType.BF16 and dtype.numpy == array.dtype:
            return GcuTensor(name, dtype, array.shape)
    raise ContainerError(f"weight {name!r} is {array.dtype}, which no executable can hold")


def _check(message: pb.Executable) -> None:
    """Checks a description, both before writing and after reading."""
    if message.format_version != FORMAT_VERSION:
        raise ContainerError(
            f"the executable's format is version {message.format_version}; this build reads {FORMAT_VERSION}: compile the model again"
        )
    if message.precision not in PRECISIONS:
        raise ContainerError(f"precision {message.precision!r} is none of {', '.join(PRECISIONS)}")
    if len(message.attribute_names) != len(message.attribute_values):
        raise ContainerError(f"{len(message.attribute_names)} attributes have {len(message.attribute_values)} values")
    _check_unique("attribute", message.attribute_names)
    _check_unique("weight", [each.name for each in message.weights])
    _check_unique("input", [each.name for each in message.inputs])
    _check_unique("output", [each.name for each in message.outputs])
    for role in ("inputs", "outputs", "weights"):
        for tensor in getattr(message, role):
            _check_tensor(role, tensor)
    if not message.outputs:
        raise ContainerError("an executable needs at least one output")
    _check_batches(message)


def _check_tensor(role: str, tensor: pb.Tensor) -> None:
    if not tensor.name:
        raise ContainerError(f"one of the {role} has no name")
    dtype = BY_WIRE_NAME.get(tensor.dtype)
    if dtype is None or dtype.is_bytes:
        raise ContainerError(f"{role} {tensor.name!r}: there is no element type {tensor.dtype!r} on the device")
    if len(tensor.dims) > 64 or math.prod(max(size, 1) for size in tensor.dims) * dtype.item_bytes > MAX_BYTES:
        raise ContainerError(f"{role} {tensor.name!r} has the impossible shape {list(tensor.dims[:8])}")


def _check_batches(message: pb.Executable) -> None:
    sizes = [each.batch_size for each in message.batches]
    if not sizes or sizes[0] < 1 or sizes != sorted(set(sizes)):
        raise ContainerError(f"the compiled batch sizes are {sizes}; expected at least one, from 1 on, each larger than the one before")
    for each in message.batches:
        if not each.run_s or not all(0 <= seconds <= MAX_RUN_S for seconds in each.run_s):
            raise ContainerError(f"batch {each.batch_size}: the modelled seconds are {list(each.run_s)}; expected one for each cluster")


def _check_unique(what: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        ((twice, _),) = Counter(names).most_common(1)
        raise ContainerError(f"there are two of {what} {twice!r}")


def _tensor_message(tensor: GcuTensor) -> pb.Tensor:
    return make_message(pb.Tensor, name=tensor.name, dtype=tensor.dtype.value, dims=tensor.dims)


def _tensor(message: pb.Tensor) -> GcuTensor:
    return GcuTensor(message.name, BY_WIRE_NAME[message.dtype], tuple(message.dims))


def _batch_message(batch: CompiledBatch) -> pb.Batch:
    return make_message(
        pb.Batch,
        **{name: getattr(batch, name) for name in _BATCH_COUNTS},
        onnx_bytes=len(batch.onnx),
        run_s=batch.run_s,
    )


def _batch(message: pb.Batch) -> CompiledBatch:
    return CompiledBatch(
        **{name: getattr(message, name) for name in _BATCH_COUNTS},
        onnx=b"",
        run_s=tuple(message.run_s),
    )
