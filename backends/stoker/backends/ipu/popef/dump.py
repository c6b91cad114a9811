"""`popef_dump FILE...`: prints what PopEF files hold, for people or as JSON.

A damaged or missing file is one line on stderr and exit code 1.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stoker.backends.containers.framing import CLOSING_BYTES, Compression
from stoker.backends.ipu.popef.messages import CONTAINER_VERSION
from stoker.backends.ipu.popef.program_codec import MAGIC, MAX_DESCRIPTION_BYTES, package_hash, read_description
from stoker.backends.ipu.popef.reader import BlobReader, ExecutableReader, OpaqueReader, Reader, TensorReader
from stoker.backends.ipu.popef.schema import Anchor, Metadata, PopefError, TensorInfo
from stoker.backends.ipu.program import MemoryAccount, StaticProgram, SubGraph

Report = dict[str, Any]

#: Most bytes to read of all blobs of a kind together: a small file may hold many large compressed blobs.
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
    """Returns the content as JSON, if it is an object or a list that can be serialised again."""
    try:
        content = json.loads(data)
        json.dumps(content, allow_nan=False)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, NaN, or nested too deeply
        return None
    return content if isinstance(content, dict | list) else None


_COMMON = ("ipu_version", "num_ipus", "replication_factor", "device_iterations", "is_pod", "num_processes", "is_inference", "seed_handle")
_JSON_WIDTH = 100
#: Deeper levels stay on one line, so that malicious nesting is cheap.
_JSON_DEPTH = 8
_COLUMNS = ("Name", "Direction", "Type", "Shape", "dtype", "Bytes", "Handle", "Programs")


def text_of(report: Report) -> str:
    """Returns all sections of one file as text; empty sections are marked."""
    return "\n".join(_printable(line) for line in _lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    size, version = report["size_in_bytes"], report["container_version"]
    yield f"{report['file']}: PopEF, {size:,} bytes, blobs: {report['blobs']}, container version {version}, complete and undamaged"
    yield from _section("Executables", (line for each in report["executables"] for line in _executable(each)))
    yield from _section("Devices", (line for each in report["metadata"] for line in _device(each)))
    yield from _section("Programs", (line for each in report["metadata"] for line in _programs(each)))
    yield from _section("Anchors", (line for each in report["metadata"] for line in _anchors(each)))
    yield from _section("Tensors", (_tensor_text(each) for each in report["tensors"]))
    yield from _section("Feeds", (f"{_tensor_text(each)}, samples: {each['samples']}" for each in report["feeds"]))
    yield from _section("Opaques", (line for each in report["opaques"] for line in _opaque(each)))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield ""
    yield f"{title}:"
    empty = True
    for line in lines:
        empty = False
        yield f"  {line}"
    if empty:
        yield "  (none)"


def _size(report: Report) -> str:
    stored = f" ({report['compression'].lower()}: {report['stored_bytes']:,} stored)" if "compression" in report else ""
    return f"{report['size_in_bytes']:,} bytes{stored} at offset {report['offset']}"


def _executable(report: Report) -> Iterator[str]:
    yield f"{report['name']}: {_size(report)}"
    program = report["static_program"]
    if program is None:
        yield "  not a program of a simulated IPU: only its bytes are known"
        return
    build = "this build's" if program["package_hash"] == program["package_hash_of_this_build"] else "another build's: compile again"
    yield f"  package hash {program['package_hash']} ({build})"
    io_tiles = f", {program['num_io_tiles']} of them for IO" if program["num_io_tiles"] else ""
    yield f"  simulated {program['system']} (ipu{program['ipu_version']}), {program['tiles_per_ipu']} tiles an IPU{io_tiles}"
    yield f"  IPUs of a replica: {program['num_ipus']}, replicas: {program['replication_factor']}"
    yield f"  pipeline stages: {program['pipeline_stages']}"
    rows = program["micro_batch_size"]
    batch = f"micro batch {rows} on axis {program['batch_axis']}" if rows else "no batch dimension"
    yield f"  {batch}, batches per step: {program['batches_per_step']}"
    yield f"  to load: {program['code_bytes']:,} bytes of code, {program['weight_bytes']:,} of weights"
    for name, value in program["attributes"].items():
        yield f"  {name}: {value}"
    for graph in program["graphs"]:
        yield from (f"  {line}" for line in _graph_text(graph))
    for account in program["memory"]:
        yield from (f"  {line}" for line in _memory_text(account))


def _graph_text(report: Report) -> Iterator[str]:
    cycles = ", ".join(f"{kind.lower()} {count:,}" for kind, count in report["cycles"].items())
    total = sum(report["cycles"].values())
    yield f"graph {report['index']} {report['name']}, steps: {report['steps']}, ONNX of {report['onnx_bytes']:,} bytes"
    if total:
        yield f"  a micro batch takes {total:,} cycles ({cycles})"
    for kind in ("inputs", "weights", "outputs"):
        if report[kind]:
            pairs = ", ".join(anchor if anchor == tensor else f"{anchor} = {tensor}" for anchor, tensor in report[kind].items())
            yield f"  {kind}: {pairs}"


def _memory_text(report: Report) -> Iterator[str]:
    capacity, used = report["capacity_bytes"], report["fullest_tile_bytes"]
    share = f" ({used / capacity:.0%})" if capacity else ""
    yield f"memory of IPU {report['ipu']}: fullest tile {used:,} of {capacity:,} bytes{share}, all tiles {report['total_bytes']:,} bytes"
    if report["by_category"]:
        yield "  on the fullest tile: " + ", ".join(f"{name} {count:,}" for name, count in report["by_category"].items())


def _device(report: Report) -> Iterator[str]:
    yield f"{report['executable']}:"
    for name in _COMMON:
        yield f"  {name}: {'(none)' if report[name] == '' else report[name]}"
    for kind in ("engine_options", "device_options"):
        for name, value in report[kind]:
            yield f"  {kind[:-1]} {name}: {value}"


def _programs(report: Report) -> Iterator[str]:
    yield f"{report['executable']}: " + ", ".join(f"{part} {indices}" for part, indices in report["program_flow"].items())
    for index, name in report["programs_map"].items():
        yield f"  {index}: {name}"


def _anchors(report: Report) -> Iterator[str]:
    yield f"{report['executable']}:"
    rows = [
        (
            *(each["name"], each["direction"], each["data_type"], str(each["shape"]), each["dtype"], f"{each['tensor_bytes']:,}"),
            *(each["handle"], str(each["programs"]) + (" per replica" if each["is_per_replica"] else "")),
        )
        for each in report["anchors"]
    ]
    yield from _table([_COLUMNS, *rows])


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    rows = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _tensor_text(report: Report) -> str:
    owner = f" of {report['executable']}" if report["executable"] else ""
    return f"{report['name']}{owner}: {report['data_type']} {report['shape']} ({report['dtype']}), {_size(report)}"


def _opaque(report: Report) -> Iterator[str]:
    yield f"{report['name']} of {report['executable']}: {_size(report)}"
    if "json" in report:
        yield from (f"  {line}" for line in _json_text(report["json"]))
    else:
        more = " ..." if report["size_in_bytes"] > len(report["hex_head"].split()) else ""
        yield f"  {report['hex_head']}{more}"


def _json_text(value: Any, depth: int = 0) -> Iterator[str]:
    """Returns JSON in which every value that fits into one line takes one line."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _JSON_WIDTH or depth == _JSON_DEPTH or not isinstance(value, dict | list):
        yield text
        return
    entries = [(f"{json.dumps(key, ensure_ascii=False)}: ", each) for key, each in value.items()] if isinstance(value, dict) else []
    entries = entries or [("", each) for each in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    yield opening
    for number, (key, each) in enumerate(entries, start=1):
        lines = list(_json_text(each, depth + 1))
        lines[0] = key + lines[0]
        lines[-1] += "," if number < len(entries) else ""
        yield from (f"  {line}" for line in lines)
    yield closing


def _printable(text: str) -> str:
    """Escapes control characters: names in a file are untrusted and could move a terminal's cursor."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: Arguments without the command's name; None: those of the process.

    Returns:
        0; 1 where a file is missing or damaged (nothing is printed to stdout then) or stdout cannot be written; 130 where interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="popef_dump",
        description="Prints what PopEF files hold: executables and their static programs, devices, programs, anchors, tensor and feed "
        "data, opaque blobs. Every byte is checked on the way.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a PopEF file")
    parser.add_argument("--json", action="store_true", help='print {"files": [...]}, one entry a file, instead of text')
    arguments = parser.parse_args(argv)
    try:
        reports = [report_file(path) for path in arguments.files]
    except PopefError as error:
        sys.stderr.write(f"popef_dump: {' '.join(str(error).splitlines())}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    text = json.dumps({"files": reports}, indent=2) + "\n" if arguments.json else "\n".join(text_of(report) for report in reports)
    return _print(text)


def _print(text: str) -> int:
    """Prints to stdout in its encoding; a reader such as `| head` may close it early."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Discard the rest of the buffer; otherwise the interpreter prints an error at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"popef_dump: stdout cannot be written: {error.strerror}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
