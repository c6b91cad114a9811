"""`Executable`: a compiled model, read from PopEF and ready for a session.

Program and metadata are checked once, before memory is allocated, because files may be untrusted. Files that the compiler wrote always
pass. An invalid program would fail later at a request, or allocate more host memory than any IPU has.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from stoker.backends.ipu.hardware import SYSTEMS
from stoker.backends.ipu.popef.model import Model, ModelBuilder
from stoker.backends.ipu.popef.program_codec import check_package_hash as reject_other_builds
from stoker.backends.ipu.popef.reader import Reader
from stoker.backends.ipu.popef.schema import Anchor, DataType, Metadata, TensorType
from stoker.backends.ipu.program import StaticProgram
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError

#: Fields that program and metadata share, by the name in each.
_SHARED = (
    ("ipu_version", "ipu_version"),
    ("num_ipus", "num_ipus"),
    ("replication_factor", "replication_factor"),
    ("batches_per_step", "device_iterations"),
)


def reject_contradictions(program: StaticProgram, metadata: Metadata) -> None:
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


Path: TypeAlias = str | os.PathLike[str]
Source: TypeAlias = Model | Path | Sequence[Path] | BinaryIO


class Executable:
    """A model's program with its metadata. It is immutable; sessions may share it.

    Attributes:
        model: Metadata, blobs and tensor data.
        program: The program that the device runs.
    """

    def __init__(self, source: Source, *, name: str | None = None, check_package_hash: bool = True) -> None:
        """Reads `source`.

        Args:
            source: A PopEF file, several files with one model's blobs, an open binary stream, or a `Model`.
            name: Name of the executable, if there are several.
            check_package_hash: Whether to reject a program that another version compiled.

        Raises:
            PopefError: the files are damaged, or hold no model of that name; the text names file, blob and offset.
            PackageHashMismatch: another version compiled it; the text names both hashes.
            ApplicationRuntimeError: program and metadata contradict each other, or exceed any device.
        """
        self.model = source if isinstance(source, Model) else _model(source, name)
        self.program: StaticProgram = self.model.program()
        if check_package_hash:
            reject_other_builds(self.program.package_hash, self.model.path)
        self._anchors = {anchor.name: anchor for anchor in self.metadata.anchors}
        reject_contradictions(self.program, self.metadata)
        self.index_anchor = self._index_anchor()

    @classmethod
    def of(cls, source: "Executable | Source", *, check_package_hash: bool) -> "Executable":
        """Returns `source` itself if it is an `Executable`, else the executable read from it."""
        return source if isinstance(source, Executable) else cls(source, check_package_hash=check_package_hash)

    @property
    def name(self) -> str:
        """Name of the executable blob."""
        return self.metadata.executable

    @property
    def metadata(self) -> Metadata:
        """Anchors, programs, replication."""
        return self.model.metadata

    @property
    def num_ipus(self) -> int:
        """IPUs of all replicas together."""
        return self.program.num_ipus * self.program.replication_factor

    def anchor(self, name: str, kind: TensorType) -> Anchor:
        """The input or output `name`.

        Raises:
            ApplicationRuntimeError: there is none.
        """
        anchor = self._anchors.get(name)
        if anchor is None or anchor.type is not kind:
            known = ", ".join(sorted(each.name for each in self._anchors.values() if each.type is kind)) or "none"
            raise ApplicationRuntimeError(f"executable '{self.name}' has no {kind.name.lower()} '{name}'; it has {known}")
        return anchor

    def _index_anchor(self) -> Anchor | None:
        """Returns the input that selects the sub-graph of a fused program: the only input of the main program that feeds no sub-graph."""
        bound: set[str] = set()
        for graph in self.program.graphs:
            for binding in (*graph.inputs, *graph.weights):
                bound.add(self.anchor(binding.anchor, TensorType.INPUT).name)
            for binding in graph.outputs:
                self.anchor(binding.anchor, TensorType.OUTPUT)
        if len(self.program.graphs) < 2:
            return None
        main = frozenset(self.metadata.program_flow.main)
        free = [
            each for each in self.metadata.inputs if each.name not in bound and (not each.programs or not main.isdisjoint(each.programs))
        ]
        if len(free) != 1 or free[0].tensor_info.data_type.numpy.kind not in "iu":
            names = ", ".join(each.name for each in free) or "none"
            raise ApplicationRuntimeError(
                f"fused executable '{self.name}' has {len(self.program.graphs)} sub-graphs and needs one integer input that selects one; "
                f"inputs that belong to no sub-graph: {names}"
            )
        return free[0]


def _model(source: Path | Sequence[Path] | BinaryIO, name: str | None) -> Model:
    reader = Reader()
    given: object = source
    if isinstance(given, bytes | bytearray | memoryview):
        raise ApplicationRuntimeError("a PopEF file's content was given where its path is expected: put it into io.BytesIO")
    if isinstance(source, str | os.PathLike):
        reader.parse_file(source)
    elif isinstance(source, Sequence):
        for path in source:
            reader.parse_file(path)
    else:
        reader.parse_stream(source)
    return ModelBuilder(reader).create_model(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDesc:
    """One input or output.

    Attributes:
        name: The name for `execute`.
        size_in_bytes: Size of one compiled batch.
        shape: Shape of one compiled batch, with the rows of all replicas together. It is a new list, as in PopRT, because scripts change
            the number of rows in it.
        data_type: Element type.
        popef_contains_tensor_data: Whether the file holds data for it, so that `execute` may leave it out.
    """

    name: str
    size_in_bytes: int
    shape: list[int]
    data_type: DataType
    popef_contains_tensor_data: bool = False

    def numpy_data_type(self) -> "np.dtype[Any]":
        """The element type in numpy; 8-bit floats are their codes in uint8."""
        return self.data_type.numpy


def user_shape(anchor: Anchor) -> tuple[int, ...]:
    """Returns the shape of one compiled batch of `anchor`. A leading replica dimension is merged into the batch: [replicas, rows, ...]
    has replicas x rows rows.
    """
    shape = anchor.tensor_info.shape
    if anchor.is_per_replica and len(shape) > 1:
        return (shape[0] * shape[1], *shape[2:])
    return shape


def describe(anchor: Anchor, *, has_data: bool) -> DataDesc:
    """Returns the description of `anchor` for users."""
    info = anchor.tensor_info
    return DataDesc(
        name=anchor.name,
        size_in_bytes=info.size_in_bytes,
        shape=list(user_shape(anchor)),
        data_type=info.data_type,
        popef_contains_tensor_data=has_data,
    )
