"""A model: metadata, executable and data that belong together, from one or several files."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from stoker.backends.ipu.popef.program_codec import read_program
from stoker.backends.ipu.popef.reader import BlobReader, ExecutableReader, FeedReader, OpaqueReader, Reader, TensorReader
from stoker.backends.ipu.popef.schema import Metadata, PopefError
from stoker.backends.ipu.popef.writer import Writer
from stoker.backends.ipu.program import StaticProgram

_Blob = TypeVar("_Blob", bound=BlobReader)


@dataclass(frozen=True, slots=True)
class Model:
    """The parts of a file that a runtime loads.

    Attributes:
        metadata: Metadata of the executable.
        executable: Its blob; `program()` reads it.
        tensors: Tensor data by anchor or weight, read when asked for.
        feeds: Feed data by anchor, read when asked for.
        opaques: Contents of opaque blobs by name; read and checked at access.
    """

    metadata: Metadata
    executable: ExecutableReader
    tensors: Mapping[str, TensorReader] = field(default_factory=dict)
    feeds: Mapping[str, FeedReader] = field(default_factory=dict)
    opaques: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The file with the executable, or its name in error texts."""
        return self.executable.blob.source.path

    def program(self) -> StaticProgram:
        """The executable's program.

        Raises:
            PopefError: The program is damaged, or not for a simulated IPU; the text names blob and offset.
        """
        return load_program(self.executable)


class ModelBuilder:
    """Groups the blobs of a reader into models. Blobs of one model share the name of its executable."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def create_model(self, executable: str | None = None) -> Model:
        """Returns one of the models.

        Args:
            executable: Name of its executable; may be omitted if there is only one.

        Raises:
            PopefError: There is no such model, several to choose from, or its executable is missing.
        """
        metadata = self._metadata(executable)
        found = [each for each in self._reader.executables() if each.name == metadata.executable]
        if not found:
            raise PopefError(f"there are metadata of executable {metadata.executable!r}, but no such executable blob", path=self._paths())
        return Model(
            metadata=metadata,
            executable=found[0],
            tensors=_by_name(self._reader.tensors(), metadata),
            feeds=_by_name(self._reader.feeds(), metadata),
            opaques=_Contents({each.name: each for each in self._reader.opaque_blobs() if each.executable == metadata.executable}),
        )

    def _metadata(self, executable: str | None) -> Metadata:
        every = self._reader.metadata()
        chosen = [each for each in every if executable is None or each.executable == executable]
        if len(chosen) == 1:
            return chosen[0]
        names = ", ".join(repr(each.executable) for each in every)
        if executable is not None:
            raise PopefError(f"no metadata of executable {executable!r}; there are: {names or 'none'}", path=self._paths())
        reason = f"several models: name one of the executables {names}" if every else "no metadata, so no model"
        raise PopefError(reason, path=self._paths())

    def _paths(self) -> str:
        return ", ".join(dict.fromkeys(blob.source.path for blob in self._reader.blobs()))


class _Contents(Mapping[str, bytes]):
    """Contents of opaque blobs, which may be large. Each is read at every access."""

    def __init__(self, blobs: Mapping[str, OpaqueReader]) -> None:
        self._blobs = blobs

    def __getitem__(self, name: str) -> bytes:
        return self._blobs[name].data()

    def __iter__(self) -> Iterator[str]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)


def write_model(model: Model, writer: Writer) -> None:
    """Writes a model's blobs, those of this model only: executable and data as they are stored, metadata and opaque blobs as they are now.

    Raises:
        PopefError: A blob is damaged, or the writer already has a blob of its name.
    """
    writer.copy(model.executable.blob)
    writer.write(model.metadata)
    for data in (*model.tensors.values(), *model.feeds.values()):
        writer.copy(data.blob)
    for name, content in model.opaques.items():
        with writer.create_opaque_blob(name, model.metadata.executable) as blob:
            blob.write(content)


def load_program(executable: ExecutableReader) -> StaticProgram:
    """Reads the program in an executable blob, with a single copy of its graphs in memory.

    Raises:
        PopefError: The blob is damaged, or holds no program of a simulated IPU; names blob and offset.
    """
    executable.blob.verify()
    with executable.get_standalone_executable_stream() as stream:
        try:
            return read_program(stream, executable.size_in_bytes)
        except PopefError as error:
            raise executable.blob.error(error.reason) from error


def _by_name(blobs: Iterable[_Blob], metadata: Metadata) -> dict[str, _Blob]:
    """Returns the blobs of this model: those that name its executable, else those that name no executable but one of its anchors."""
    anchors = {anchor.name for anchor in metadata.anchors}
    shared: dict[str, _Blob] = {}
    own: dict[str, _Blob] = {}
    for blob in blobs:
        if blob.executable == metadata.executable:
            own[blob.name] = blob
        elif not blob.executable and blob.name in anchors:
            shared[blob.name] = blob
    return shared | own
