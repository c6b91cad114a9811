"""The contents of a PopEF file as plain data: `popef_dump --json` prints it, and the text is made from it."""

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

from stoker.backends.containers.framing import CLOSING_BYTES, Compression
from stoker.backends.ipu.popef.errors import PopefError
from stoker.backends.ipu.popef.layout import CONTAINER_VERSION
from stoker.backends.ipu.popef.package_hash import package_hash
from stoker.backends.ipu.popef.program_codec import MAGIC, MAX_DESCRIPTION_BYTES, read_description
from stoker.backends.ipu.popef.reader import BlobReader, ExecutableReader, OpaqueReader, Reader, TensorReader
from stoker.backends.ipu.popef.schema import Anchor, Metadata, TensorInfo
from stoker.backends.ipu.program import MemoryAccount, StaticProgram, SubGraph

Report = dict[str, Any]

#: What is looked into, all blobs of a kind together: a small file may hold many large ones, compressed.
MAX_JSON_BYTES = 1 << 20
HEX_BYTES = 32


def report_file(path: str | os.PathLike[str]) -> Report:
    """Reads a whole file, every content included.

    Raises:
        PopefError: It cannot be read or is damaged; names blob and offset.
    """
    reader = Reader()
    reader.parse_file(path)
    reader.verify()
    return {
        "file": os.fspath(path),
        "size_in_bytes": sum(blob.header.total_bytes for blob in reader.blobs()) + CLOSING_BYTES,
        "container_version": CONTAINER_VERSION,
        "blobs": len(reader.blobs()),
        "executables": _executables(reader.executables()),
        "metadata": [_metadata(each) for each in reader.metadata()],
        "tensors": [_tensor(each) for each in reader.tensors()],
        "feeds": [_tensor(each) | {"samples": len(each)} for each in reader.feeds()],
        "opaques": _opaques(reader.opaque_blobs()),
    }


def _blob(reader: BlobReader) -> Report:
    header = reader.blob.header
    report: Report = {"name": reader.name, "offset": reader.blob.offset, "size_in_bytes": header.content_bytes}
    if header.compression is not Compression.NONE:
        report |= {"compression": header.compression.name, "stored_bytes": header.stored_bytes}
    return report


def _executables(readers: Iterable[ExecutableReader]) -> list[Report]:
    reports = []
    budget = MAX_DESCRIPTION_BYTES
    for reader in readers:
        report = _blob(reader)
        with reader.get_standalone_executable_stream() as stream:
            is_ours = stream.read(len(MAGIC)) == MAGIC
        if not is_ours:
            reports.append(report | {"static_program": None})
            continue
        with reader.get_standalone_executable_stream() as stream:
            try:
                program, onnx_bytes = read_description(stream, reader.size_in_bytes, budget)
            except PopefError as error:
                raise reader.blob.error(error.reason) from error
        budget -= reader.size_in_bytes - sum(onnx_bytes)
        reports.append(report | {"static_program": _program(program, onnx_bytes)})
    return reports


def _program(program: StaticProgram, onnx_bytes: tuple[int, ...]) -> Report:
    plain = {each.name: getattr(program, each.name) for each in dataclasses.fields(program)}
    return plain | {
        "simulated": True,
        "package_hash_of_this_build": package_hash(),
        "attributes": dict(program.attributes),
        "graphs": [_graph(graph, size) for graph, size in zip(program.graphs, onnx_bytes, strict=True)],
        "memory": [_memory(account) for account in program.memory],
    }


def _graph(graph: SubGraph, onnx_bytes: int) -> Report:
    cycles: Counter[str] = Counter()
    for step in graph.steps:
        cycles[step.kind.name] += step.cycles
    return {
        "index": graph.index,
        "name": graph.name,
        "onnx_bytes": onnx_bytes,
        "inputs": {each.anchor: each.tensor for each in graph.inputs},
        "outputs": {each.anchor: each.tensor for each in graph.outputs},
        "weights": {each.anchor: each.tensor for each in graph.weights},
        "steps": len(graph.steps),
        "cycles": dict(cycles),
        "flops": sum(step.flops for step in graph.steps),
    }


def _memory(account: MemoryAccount) -> Report:
    return {
        "ipu": account.ipu,
        "capacity_bytes": account.capacity_bytes,
        "fullest_tile_bytes": max(account.tile_bytes, default=sum(account.by_category.values())),
        "by_category": dict(account.by_category),
        "total_bytes": account.total_bytes,
        "tile_bytes": list(account.tile_bytes),
    }


def _metadata(metadata: Metadata) -> Report:
    plain = {each.name: getattr(metadata, each.name) for each in dataclasses.fields(metadata)}
    return plain | {
        "engine_options": [[each.name, each.value] for each in metadata.engine_options],
        "device_options": [[each.name, each.value] for each in metadata.device_options],
        "anchors": [_anchor(each) for each in metadata.anchors],
        "program_flow": {name: list(getattr(metadata.program_flow, name)) for name in ("load", "main", "save")},
        "programs_map": {str(index): name for index, name in metadata.programs_map.items()},
    }


def _anchor(anchor: Anchor) -> Report:
    return {
        "name": anchor.name,
        "direction": anchor.type.name,
        **_tensor_info(anchor.tensor_info),
        "handle": anchor.handle,
        "is_per_replica": anchor.is_per_replica,
        "programs": list(anchor.programs),
    }


def _tensor_info(info: TensorInfo) -> Report:
    return {
        "data_type": info.data_type.name,
        "shape": list(info.shape),
        "dtype": info.data_type.numpy.name,
        "tensor_bytes": info.size_in_bytes,
    }


def _tensor(reader: TensorReader) -> Report:
    return _blob(reader) | {"executable": reader.executable, **_tensor_info(reader.info.tensor_info)}


def _opaques(readers: Iterable[OpaqueReader]) -> list[Report]:
    reports = []
    budget = MAX_JSON_BYTES
    for reader in readers:
        report = _blob(reader) | {"executable": reader.executable}
        content = None
        if reader.size_in_bytes <= budget:
            content = _json(reader.data())
        if content is None:
            with reader.get_standalone_data_stream() as stream:
                reports.append(report | {"hex_head": stream.read(HEX_BYTES).hex(" ")})
        else:
            budget -= reader.size_in_bytes
            reports.append(report | {"json": content})
    return reports


def _json(data: bytes) -> dict[str, Any] | list[Any] | None:
    """The content as JSON, where it is an object or a list that can be written again."""
    try:
        content = json.loads(data)
        json.dumps(content, allow_nan=False)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, NaN, or nested beyond any use
        return None
    return content if isinstance(content, dict | list) else None
