"""Reading and writing `model.exec` files."""

import contextlib
import os
import secrets
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from stoker.backends.containers.framing import Compression, ContainerError, RecordHeader
from stoker.backends.containers.record import ByteSource, Record, RecordRow, walk
from stoker.backends.gcu.executable_layout import (
    FRAMING,
    MAX_DESCRIPTION_BYTES,
    ExecutableError,
    Section,
    batch_label,
    pack_description,
    pack_name,
    section_name,
    unpack_description,
)
from stoker.backends.gcu.program import GcuExecutable, GcuTensor

__all__ = ["ExecutableError", "read_executable", "read_header", "verify_executable", "write_executable"]


def read_executable(path: str | os.PathLike[str]) -> GcuExecutable:
    """Reads a file and checks every byte of it. The weights are read-only arrays.

    Raises:
        ExecutableError: it cannot be opened, or is not a complete `model.exec` file; the text names path, section and offset.
    """
    executable, sections, weights = _survey(path)
    graphs = sections[1 : 1 + len(executable.batches)]
    batches = tuple(replace(batch, onnx=graph.data()) for batch, graph in zip(executable.batches, graphs, strict=True))
    held = zip(weights, sections[1 + len(graphs) :], strict=True)
    return replace(executable, batches=batches, weights={tensor.name: _array(tensor, section) for tensor, section in held})


def read_header(path: str | os.PathLike[str]) -> GcuExecutable:
    """Like `read_executable`, but without graphs and weights: `onnx` and `weights` are empty. Also checks that the file is complete.

    Raises:
        ExecutableError: as `read_executable`, except for damage inside a graph or a weight.
    """
    return _survey(path)[0]


def verify_executable(path: str | os.PathLike[str]) -> tuple[GcuExecutable, tuple[Record, ...]]:
    """Like `read_header`, but also reads every section to check it, without keeping it.

    Returns:
        The executable without graphs and weights, and its sections.

    Raises:
        ExecutableError: as `read_executable`.
    """
    executable, sections, _ = _survey(path)
    for section in sections:
        section.verify()
    return executable, sections


def write_executable(path: str | os.PathLike[str], executable: GcuExecutable) -> None:
    """Writes a file atomically: it appears under its name only when it is complete. Equal executables give equal bytes.

    Raises:
        ExecutableError: the executable contradicts itself, or the file cannot be written.
    """
    try:
        described = pack_description(executable)
        with _new_file(Path(path)) as stream:
            row = RecordRow(stream, FRAMING, str(path))
            _put(row, Section.DESCRIPTION, executable.name, described)
            for batch in executable.batches:
                _put(row, Section.GRAPH, batch_label(batch.batch_size), batch.onnx)
            for name, array in executable.weights.items():
                _put(row, Section.WEIGHT, name, np.ascontiguousarray(array).data if array.size else b"")
            row.close()
    except ContainerError as error:
        raise ExecutableError(error.reason, path=str(path), location=error.location, offset=error.offset) from error
    except OSError as error:
        raise ExecutableError(f"cannot be written: {error.strerror or error}", path=str(path)) from error


def _survey(path: str | os.PathLike[str]) -> tuple[GcuExecutable, tuple[Record, ...], tuple[GcuTensor, ...]]:
    """Returns the description, all sections, and the name, type and shape of each weight. Checks that they agree with each other."""
    source = ByteSource.of_file(path, ExecutableError)
    sections = tuple(walk(source, FRAMING))
    if not sections or sections[0].header.kind is not Section.DESCRIPTION:
        raise ExecutableError("the first section must be the description", path=source.path, location="section 0", offset=0)
    first = sections[0]
    if first.header.stored_bytes > MAX_DESCRIPTION_BYTES:
        raise first.error(f"the description has {first.header.stored_bytes} bytes; at most {MAX_DESCRIPTION_BYTES} are allowed")
    try:
        executable, weights, graph_bytes = unpack_description(first.data())
    except ContainerError as error:
        raise error if error.location else first.error(error.reason) from error
    _check_sections(sections, _expected(executable, weights, graph_bytes), source)
    return executable, sections, weights


def _expected(
    executable: GcuExecutable, weights: Iterable[GcuTensor], graph_bytes: Iterable[int]
) -> Iterator[tuple[Section, str, int | None]]:
    yield Section.DESCRIPTION, executable.name, None
    for batch, size in zip(executable.batches, graph_bytes, strict=True):
        yield Section.GRAPH, batch_label(batch.batch_size), size
    for tensor in weights:
        yield Section.WEIGHT, tensor.name, tensor.sample_bytes


def _check_sections(sections: tuple[Record, ...], expected: Iterable[tuple[Section, str, int | None]], source: ByteSource) -> None:
    wanted = tuple(expected)
    for section, (kind, name, size) in zip(sections, wanted, strict=False):
        if section.header.kind is not kind or section_name(section.info) != name:
            raise section.error(f"the description says that {kind.name} {name!r} stands here", section.offset)
        if size is not None and section.header.content_bytes != size:
            raise section.error(f"{section.header.content_bytes} bytes of content, the description says {size}", section.offset)
    if len(sections) != len(wanted):
        raise ExecutableError(f"there are {len(sections)} sections, the description says {len(wanted)}", path=source.path)


def _array(tensor: GcuTensor, section: Record) -> np.ndarray:
    return np.frombuffer(section.data(), tensor.dtype.numpy).reshape(tensor.dims)


def _put(row: RecordRow, kind: Section, name: str, content: "bytes | memoryview") -> None:
    info = pack_name(name)
    data = memoryview(content).cast("B") if len(content) else memoryview(b"")
    header = RecordHeader(
        kind=kind,
        compression=Compression.NONE,
        info_bytes=len(info),
        stored_bytes=len(data),
        content_bytes=len(data),
        info_crc=zlib.crc32(info),
        content_crc=zlib.crc32(data),
    )
    header.check(FRAMING)
    row.put(row.content_start, info)
    row.put(row.content_start + len(info), data)
    row.complete(header)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file beside `path`. It is renamed to `path` if the block succeeds, and deleted if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as stream:
            yield cast("BinaryIO", stream)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
