"""`StaticProgram`: the content of the executable blob in Stoker's PopEF files. The compiler creates it, the runtime runs it.

For a real device this would be the machine code of every tile. Here it holds the arithmetic, as a lowered ONNX graph whose values are
rounded where the device would store them, and the schedule of the device: the cycles of each step and the memory of each tile. The classes
are plain data; `stoker.backends.ipu.popef.program_codec` writes and reads it.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Incremented by hand when the program's meaning or encoding changes. Part of the package hash, so that older files are rejected.
FORMAT_VERSION = 1
#: Attribute of a program that needs libraries of custom operators to run: name and hash of each, separated by commas.
CUSTOM_LIBRARIES = "custom_op_libraries"
#: Attribute of a program with nodes that the vendor's tools do not take: their operators, separated by commas.
LOWERED_OPERATORS = "lowered_operators"


class StepKind(enum.IntEnum):
    """The activity of the device in a step (bulk-synchronous: a step ends when its slowest tile does)."""

    COMPUTE = 1
    EXCHANGE = 2
    SYNC = 3
    HOST_READ = 4
    HOST_WRITE = 5
    LINK = 6  # between IPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the schedule of one micro-batch.

    Attributes:
        kind: Compute, exchange, sync, host read or write, IPU link.
        node: Name of the lowered node it belongs to; empty for syncs.
        op_type: That node's operator.
        cycles: Cycles of the slowest tile.
        tiles: Number of tiles that take part.
        flops: Floating-point operations done.
        data_bytes: Bytes moved.
        ipu: Which IPU of the replica.
        stage: Pipeline stage.
    """

    kind: StepKind
    cycles: int
    node: str = ""
    op_type: str = ""
    tiles: int = 0
    flops: int = 0
    data_bytes: int = 0
    ipu: int = 0
    stage: int = 0


@dataclass(frozen=True, slots=True)
class Binding:
    """An anchor and the value of the lowered graph that it feeds or shows."""

    anchor: str
    tensor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubGraph:
    """One model of the program; a fused program has several, selected by `index`.

    Attributes:
        index: The value of the index input that selects it.
        name: `graph0`... in a fused program; the model's name otherwise.
        onnx: The lowered graph, serialised: shapes of one micro-batch, FP32 with casts where the device stores less. Dimension 0 of the
            user streams is variable if the host may compute fewer rows.
        inputs, outputs: User streams; the dtypes are the anchors' (the lowered graph takes and gives exactly those).
        weights: Inputs that come from tensor data in the file (only where weights are not compiled in).
        steps: The schedule of one micro-batch.
    """

    index: int
    name: str
    onnx: bytes
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    weights: tuple[Binding, ...] = ()
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAccount:
    """Bytes of In-Processor-Memory on the fullest tile of one IPU, by category.

    Attributes:
        ipu: Which IPU of the replica.
        capacity_bytes: Of one tile.
        by_category: `weights`, `activations`, `code`, `exchange_code`, `temporary`, `io`, ... in bytes on the fullest tile.
        total_bytes: Over all tiles of this IPU.
        tile_bytes: Bytes of each tile (all categories).
    """

    ipu: int
    capacity_bytes: int
    by_category: Mapping[str, int]
    total_bytes: int
    tile_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticProgram:
    """Everything a simulated IPU needs to run a compiled model.

    Attributes:
        package_hash: Hash of the compiler version; see `package_hash()`.
        system: `M2000`, `C600` or `Bow`: what the timing was computed for (`stoker.backends.ipu.hardware`).
        ipu_version: 2 or 21.
        tiles_per_ipu, num_io_tiles: Tiles in all, and those set apart for host IO (overlapped when > 0).
        num_ipus: IPUs of one replica.
        replication_factor: Replicas.
        batches_per_step: Device iterations: micro-batches per call of the main program.
        micro_batch_size: Rows of one micro-batch; 0 where the model has no batch dimension.
        batch_axis: Dimension of the inputs that is the batch; -1 where there is none.
        graphs: One, or several of a fused model.
        memory: One account per IPU.
        pipeline_stages: 1 where the program is not pipelined.
        code_bytes, weight_bytes: Bytes that loading moves over the host link.
        attributes: Further facts for people (precision, relevant options).
    """

    package_hash: str
    system: str
    ipu_version: int
    tiles_per_ipu: int
    graphs: tuple[SubGraph, ...]
    num_io_tiles: int = 0
    num_ipus: int = 1
    replication_factor: int = 1
    batches_per_step: int = 1
    micro_batch_size: int = 1
    batch_axis: int = 0
    memory: tuple[MemoryAccount, ...] = ()
    pipeline_stages: int = 1
    code_bytes: int = 0
    weight_bytes: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)
