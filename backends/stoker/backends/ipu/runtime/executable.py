"""`Executable`: a compiled model, read from PopEF and ready for a session."""

import os
from collections.abc import Sequence
from typing import BinaryIO, TypeAlias

from stoker.backends.ipu.popef.model import Model, ModelBuilder
from stoker.backends.ipu.popef.package_hash import check_package_hash as refuse_other_builds
from stoker.backends.ipu.popef.reader import Reader
from stoker.backends.ipu.popef.schema import Anchor, Metadata, TensorType
from stoker.backends.ipu.program import StaticProgram
from stoker.backends.ipu.runtime.consistency import refuse_contradictions
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError

Path: TypeAlias = str | os.PathLike[str]
Source: TypeAlias = Model | Path | Sequence[Path] | BinaryIO


class Executable:
    """A model's program beside its metadata. Nothing in it changes; sessions may share one.

    Attributes:
        model: Metadata, blobs and tensor data.
        program: What the device runs.
    """

    def __init__(self, source: Source, *, name: str | None = None, check_package_hash: bool = True) -> None:
        """Reads `source`.

        Args:
            source: One PopEF file, several that hold one model's blobs, an open binary stream, or a model read already.
            name: Which executable, where there are several.
            check_package_hash: Whether to refuse a program that another version compiled.

        Raises:
            PopefError: the files are damaged, or hold no model of that name; names file, blob and offset.
            PackageHashMismatch: another version compiled it; the text names both hashes.
            ApplicationRuntimeError: program and metadata contradict each other, or no device can hold what they say.
        """
        self.model = source if isinstance(source, Model) else _model(source, name)
        self.program: StaticProgram = self.model.program()
        if check_package_hash:
            refuse_other_builds(self.program.package_hash, self.model.path)
        self._anchors = {anchor.name: anchor for anchor in self.metadata.anchors}
        refuse_contradictions(self.program, self.metadata)
        self.index_anchor = self._index_anchor()

    @property
    def name(self) -> str:
        """Of the executable blob."""
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
        """The input that selects the sub-graph of a fused program: the only one of the main program that feeds none of them."""
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
