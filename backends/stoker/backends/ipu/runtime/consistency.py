"""Whether a program and its metadata describe something that a device can run: asked once, before memory is taken for it.

Files come from anywhere. What the compiler writes always passes; what does not would fail later, at some request, or ask this host for
memory that no IPU has.
"""

from stoker.backends.ipu.hardware import SYSTEMS
from stoker.backends.ipu.popef.schema import Metadata
from stoker.backends.ipu.program import StaticProgram
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError

#: The same fact in program and metadata, by the name in each.
_SHARED = (
    ("ipu_version", "ipu_version"),
    ("num_ipus", "num_ipus"),
    ("replication_factor", "replication_factor"),
    ("batches_per_step", "device_iterations"),
)


def refuse_contradictions(program: StaticProgram, metadata: Metadata) -> None:
    """Checks `program` against its metadata and against the system it was compiled for.

    Raises:
        ApplicationRuntimeError: they contradict each other; the text names the field, anchor or tile.
    """
    where = f"executable '{metadata.executable}'"
    system = SYSTEMS.get(program.system)
    if system is None:
        raise ApplicationRuntimeError(f"{where} was compiled for system '{program.system}'; known are {', '.join(sorted(SYSTEMS))}")
    for ours, theirs in _SHARED:
        if getattr(program, ours) != getattr(metadata, theirs):
            raise ApplicationRuntimeError(
                f"{where}: the program's {ours} is {getattr(program, ours)}, the metadata's {theirs} {getattr(metadata, theirs)}"
            )
    for account in program.memory:
        for tile, used in enumerate(account.tile_bytes):
            if used > account.capacity_bytes:
                raise ApplicationRuntimeError(
                    f"{where}: Out of memory on tile {account.ipu * program.tiles_per_ipu + tile}: {used} bytes; "
                    f"a tile has {account.capacity_bytes}"
                )
    ipus = program.num_ipus * program.replication_factor
    most = ipus * program.tiles_per_ipu * system.tile_memory_bytes
    for anchor in metadata.anchors:
        info = anchor.tensor_info
        if info.size_in_bytes > most:
            raise ApplicationRuntimeError(
                f"{where}: anchor '{anchor.name}' of shape {list(info.shape)} takes {info.size_in_bytes} bytes; "
                f"its {ipus} IPU(s) have {most}"
            )
