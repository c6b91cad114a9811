"""Converts a `StaticProgram` to the bytes of an executable blob and back.

    4 bytes   `IPUP`
    4 bytes   length of the description, little-endian
    ...       the description: protobuf `stoker.ipu.Program`
    ...       the graphs' ONNX bytes, one after the other

The graphs are separate so that the description can be read without them, and so that no message approaches protobuf's limit of 2 GiB.

The package hash identifies the compiler of an executable. Poplar rejects executables of another build of itself. Here the hash covers the
versions of the program's format and of the container, which are incremented by hand. So the same sources always give the same bytes.
"""

import dataclasses
import hashlib
import io
import struct
from collections import Counter
from collections.abc import Sequence
from typing import BinaryIO

from stoker.backends.ipu.popef.messages import CONTAINER_VERSION, make_message, parse_message
from stoker.backends.ipu.popef.pb import ipu_program_pb2 as pb
from stoker.backends.ipu.popef.schema import PackageHashMismatch, PopefError
from stoker.backends.ipu.program import FORMAT_VERSION, Binding, MemoryAccount, StaticProgram, Step, StepKind, SubGraph

MAGIC = b"IPUP"
#: Far more than a plan of many IPUs takes: about three bytes per tile and twenty per step, and ten times as much in memory.
MAX_DESCRIPTION_BYTES = 1 << 23
MAX_STEPS = 1 << 18
MAX_GRAPHS = 1 << 12
MAX_IPUS = 1 << 12
#: Most tiles of an IPU, and of all IPUs together.
MAX_TILES, MAX_ALL_TILES = 1 << 16, 1 << 21
#: Most batches per step: loading a program creates rings of that many entries.
MAX_BATCHES_PER_STEP = 1 << 16

_HEAD = struct.Struct("<4sI")
_COUNTS = {
    "ipu_version": 1 << 16,
    "tiles_per_ipu": MAX_TILES,
    "num_ipus": MAX_IPUS,
    "replication_factor": MAX_IPUS,
    "batches_per_step": MAX_BATCHES_PER_STEP,
    "pipeline_stages": MAX_IPUS,
}
_PLAIN = (
    *("package_hash", "system", *_COUNTS),
    *("num_io_tiles", "micro_batch_size", "batch_axis", "code_bytes", "weight_bytes"),
)
_STEP_COLUMNS = ("kind", "cycles", "tiles", "flops", "data_bytes", "ipu", "stage")


def encode_program(program: StaticProgram) -> bytes:
    """Returns the program as an executable blob's content. Equal programs give equal bytes.

    Raises:
        PopefError: The program contradicts itself, or a value cannot be stored.
    """
    return b"".join((encode_description(program), *(graph.onnx for graph in program.graphs)))


def encode_description(program: StaticProgram) -> bytes:
    """Returns the header before the graphs' ONNX bytes; `encode_program` returns both.

    Raises:
        PopefError: The program contradicts itself, or a value cannot be stored.
    """
    message = make_message(
        pb.Program,
        **{name: getattr(program, name) for name in _PLAIN},
        graphs=[_graph_message(graph) for graph in program.graphs],
        memory=[_memory_message(account) for account in program.memory],
        attribute_names=sorted(program.attributes),
        attribute_values=[program.attributes[name] for name in sorted(program.attributes)],
    )
    _check(message)
    description = message.SerializeToString(deterministic=True)
    if len(description) > MAX_DESCRIPTION_BYTES:
        raise PopefError(f"the program's description takes {len(description)} bytes; at most {MAX_DESCRIPTION_BYTES} are allowed")
    return _HEAD.pack(MAGIC, len(description)) + description


def decode_program(data: bytes) -> StaticProgram:
    """Reads what `encode_program` wrote.

    Raises:
        PopefError: The data is not a program, or contradicts itself; offsets are from the start of `data`.
    """
    return read_program(io.BytesIO(data), len(data))


def read_program(stream: BinaryIO, size_in_bytes: int) -> StaticProgram:
    """Reads what `encode_program` wrote from a stream, of which `size_in_bytes` are left.

    Raises:
        PopefError: The data is not a program, or contradicts itself.
    """
    program, sizes = read_description(stream, size_in_bytes)
    graphs = tuple(
        dataclasses.replace(graph, onnx=_exactly(stream, size, f"graph {graph.name!r}"))
        for graph, size in zip(program.graphs, sizes, strict=True)
    )
    if stream.read(1):
        raise PopefError("something follows the last graph")
    return dataclasses.replace(program, graphs=graphs)


def read_description(
    stream: BinaryIO, size_in_bytes: int, most_bytes: int = MAX_DESCRIPTION_BYTES
) -> tuple[StaticProgram, tuple[int, ...]]:
    """Reads all but the graphs' ONNX bytes, which stand next in the stream.

    Args:
        stream: Positioned at the start of the program.
        size_in_bytes: Size of the whole program.
        most_bytes: Longest description to read into memory.

    Returns:
        The program, its graphs without ONNX, and the length of each graph's ONNX.

    Raises:
        PopefError: The data is not a program, or contradicts itself.
    """
    if size_in_bytes < _HEAD.size:
        raise PopefError(f"{size_in_bytes} bytes are no program: its head alone has {_HEAD.size}", offset=0)
    magic, length = _HEAD.unpack(_exactly(stream, _HEAD.size, "the head"))
    if magic != MAGIC:
        raise PopefError(f"no program of a simulated IPU: it begins with {magic.hex(' ')}, not {MAGIC.hex(' ')}", offset=0)
    if length > size_in_bytes - _HEAD.size:
        raise PopefError(f"the description should have {length} bytes; {size_in_bytes - _HEAD.size} follow", offset=4)
    if length > most_bytes:
        raise PopefError(f"the description has {length} bytes; at most {most_bytes} are allowed here", offset=4)
    limits = {_number("graphs"): MAX_GRAPHS, _number("memory"): MAX_IPUS}
    message = parse_message(pb.Program, _exactly(stream, length, "the description"), limits)
    _check(message)
    sizes = tuple(graph.onnx_bytes for graph in message.graphs)
    expected = _HEAD.size + length + sum(sizes)
    if expected != size_in_bytes:
        raise PopefError(f"the graphs end at {expected}, the program at {size_in_bytes}", offset=_HEAD.size + length)
    program = StaticProgram(
        **{name: getattr(message, name) for name in _PLAIN},
        graphs=tuple(_graph(each) for each in message.graphs),
        memory=tuple(_memory(each) for each in message.memory),
        attributes=dict(zip(message.attribute_names, message.attribute_values, strict=True)),
    )
    return program, sizes


def _number(field: str) -> int:
    return pb.Program.DESCRIPTOR.fields_by_name[field].number


def _exactly(stream: BinaryIO, length: int, what: str) -> bytes:
    data = stream.read(length)
    if len(data) != length:
        raise PopefError(f"{what} should have {length} bytes; {len(data)} are there")
    return data


def _check(message: pb.Program) -> None:
    """Checks a program before writing and after reading: columns of equal length, valid indices, counts that are not negative."""
    for name, most in _COUNTS.items():
        if not 1 <= getattr(message, name) <= most:
            raise PopefError(f"a program's {name} is {getattr(message, name)}; 1 to {most} are allowed")
    if not message.graphs:
        raise PopefError("a program needs at least one graph")
    _check_columns("attributes", message.attribute_names, message.attribute_values)
    _check_unique("attribute", message.attribute_names)
    _check_unique("graph", [graph.name for graph in message.graphs])
    _check_unique("graph index", [graph.index for graph in message.graphs])
    if sum(len(graph.steps.kind) for graph in message.graphs) > MAX_STEPS:
        raise PopefError(f"a program has more than {MAX_STEPS} steps")
    for graph in message.graphs:
        where = f"graph {graph.name!r}"
        for bindings in (graph.inputs, graph.outputs, graph.weights):
            _check_columns(f"{where}: bindings", bindings.anchors, bindings.tensors)
        steps = graph.steps
        _check_columns(f"{where}: steps", steps.node, steps.op_type, *(getattr(steps, name) for name in _STEP_COLUMNS))
        if max((*steps.node, *steps.op_type), default=-1) >= len(steps.names):
            raise PopefError(f"{where}: a step names a string beyond the {len(steps.names)} there are")
        for kind in set(steps.kind) - set(StepKind):
            raise PopefError(f"{where}: a step is of the unknown kind {kind}")
    if sum(len(account.tile_bytes) for account in message.memory) > MAX_ALL_TILES:
        raise PopefError(f"a program's memory accounts name more than {MAX_ALL_TILES} tiles")
    for account in message.memory:
        _check_columns(f"memory of IPU {account.ipu}", account.categories, account.category_bytes)
        _check_unique(f"memory of IPU {account.ipu}: category", account.categories)
        if len(account.tile_bytes) > MAX_TILES:
            raise PopefError(f"memory of IPU {account.ipu}: {len(account.tile_bytes)} tiles; at most {MAX_TILES} are allowed")


def _check_columns(what: str, *columns: Sequence[object]) -> None:
    if len({len(column) for column in columns}) > 1:
        raise PopefError(f"{what}: columns of {', '.join(str(len(column)) for column in columns)} elements belong together")


def _check_unique(what: str, names: Sequence[object]) -> None:
    if len(set(names)) != len(names):
        ((twice, _),) = Counter(names).most_common(1)
        raise PopefError(f"two of a program's are {what} {twice!r}")


def _graph_message(graph: SubGraph) -> pb.SubGraph:
    return make_message(
        pb.SubGraph,
        index=graph.index,
        name=graph.name,
        onnx_bytes=len(graph.onnx),
        inputs=_bindings_message(graph.inputs),
        outputs=_bindings_message(graph.outputs),
        weights=_bindings_message(graph.weights),
        steps=_schedule_message(graph.steps),
    )


def _graph(message: pb.SubGraph) -> SubGraph:
    return SubGraph(
        index=message.index,
        name=message.name,
        onnx=b"",
        inputs=_bindings(message.inputs),
        outputs=_bindings(message.outputs),
        weights=_bindings(message.weights),
        steps=_schedule(message.steps),
    )


def _bindings_message(bindings: Sequence[Binding]) -> pb.Bindings:
    return make_message(pb.Bindings, anchors=[each.anchor for each in bindings], tensors=[each.tensor for each in bindings])


def _bindings(message: pb.Bindings) -> tuple[Binding, ...]:
    return tuple(map(Binding, message.anchors, message.tensors))


def _schedule_message(steps: Sequence[Step]) -> pb.Schedule:
    names: dict[str, int] = {}
    node = [names.setdefault(step.node, len(names)) for step in steps]
    op_type = [names.setdefault(step.op_type, len(names)) for step in steps]
    columns = {name: [getattr(step, name) for step in steps] for name in _STEP_COLUMNS}
    return make_message(pb.Schedule, names=list(names), node=node, op_type=op_type, **columns)


def _schedule(message: pb.Schedule) -> tuple[Step, ...]:
    names = list(message.names)
    columns = [getattr(message, name) for name in _STEP_COLUMNS]
    return tuple(
        Step(
            kind=StepKind(kind),
            cycles=cycles,
            node=names[node],
            op_type=names[op_type],
            tiles=tiles,
            flops=flops,
            data_bytes=data_bytes,
            ipu=ipu,
            stage=stage,
        )
        for node, op_type, kind, cycles, tiles, flops, data_bytes, ipu, stage in zip(message.node, message.op_type, *columns, strict=True)
    )


def _memory_message(account: MemoryAccount) -> pb.MemoryAccount:
    return make_message(
        pb.MemoryAccount,
        ipu=account.ipu,
        capacity_bytes=account.capacity_bytes,
        categories=list(account.by_category),
        category_bytes=list(account.by_category.values()),
        total_bytes=account.total_bytes,
        tile_bytes=account.tile_bytes,
    )


def _memory(message: pb.MemoryAccount) -> MemoryAccount:
    return MemoryAccount(
        ipu=message.ipu,
        capacity_bytes=message.capacity_bytes,
        by_category=dict(zip(message.categories, message.category_bytes, strict=True)),
        total_bytes=message.total_bytes,
        tile_bytes=tuple(message.tile_bytes),
    )


def package_hash() -> str:
    """Returns the package hash of this build: 32 hexadecimal digits."""
    return hashlib.sha256(f"stoker ipu: program {FORMAT_VERSION}, container {CONTAINER_VERSION}".encode()).hexdigest()[:32]


def check_package_hash(found: str, path: str = "") -> None:
    """Checks that this build compiled an executable.

    Args:
        found: The hash in the executable.
        path: Its file, for the error text.

    Raises:
        PackageHashMismatch: Another build compiled it; the text names both hashes.
    """
    if found != package_hash():
        raise PackageHashMismatch(
            f"the executable's package hash is {found or 'missing'}, this runtime's is {package_hash()}: compile the model again, "
            "or set check_package_hash to false to try it all the same",
            path=path,
        )
