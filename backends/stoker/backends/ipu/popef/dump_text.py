"""The report of a PopEF file as text for people."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stoker.backends.ipu.popef.dump_report import Report

_COMMON = ("ipu_version", "num_ipus", "replication_factor", "device_iterations", "is_pod", "num_processes", "is_inference", "seed_handle")
_JSON_WIDTH = 100
#: What lies deeper stays on one line, so that made-up nesting costs nothing.
_JSON_DEPTH = 8
_COLUMNS = ("Name", "Direction", "Type", "Shape", "dtype", "Bytes", "Handle", "Programs")


def text_of(report: Report) -> str:
    """All sections of one file; a section with nothing in it says so."""
    return "\n".join(_printable(line) for line in _lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    size, version = report["size_in_bytes"], report["container_version"]
    yield f"{report['file']}: PopEF, {size:,} bytes, blobs: {report['blobs']}, container version {version}, complete and undamaged"
    yield from _section("Executables", (line for each in report["executables"] for line in _executable(each)))
    yield from _section("Devices", (line for each in report["metadata"] for line in _device(each)))
    yield from _section("Programs", (line for each in report["metadata"] for line in _programs(each)))
    yield from _section("Anchors", (line for each in report["metadata"] for line in _anchors(each)))
    yield from _section("Tensors", (_tensor(each) for each in report["tensors"]))
    yield from _section("Feeds", (f"{_tensor(each)}, samples: {each['samples']}" for each in report["feeds"]))
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
        yield from (f"  {line}" for line in _graph(graph))
    for account in program["memory"]:
        yield from (f"  {line}" for line in _memory(account))


def _graph(report: Report) -> Iterator[str]:
    cycles = ", ".join(f"{kind.lower()} {count:,}" for kind, count in report["cycles"].items())
    total = sum(report["cycles"].values())
    yield f"graph {report['index']} {report['name']}, steps: {report['steps']}, ONNX of {report['onnx_bytes']:,} bytes"
    if total:
        yield f"  a micro batch takes {total:,} cycles ({cycles})"
    for kind in ("inputs", "weights", "outputs"):
        if report[kind]:
            pairs = ", ".join(anchor if anchor == tensor else f"{anchor} = {tensor}" for anchor, tensor in report[kind].items())
            yield f"  {kind}: {pairs}"


def _memory(report: Report) -> Iterator[str]:
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


def _tensor(report: Report) -> str:
    owner = f" of {report['executable']}" if report["executable"] else ""
    return f"{report['name']}{owner}: {report['data_type']} {report['shape']} ({report['dtype']}), {_size(report)}"


def _opaque(report: Report) -> Iterator[str]:
    yield f"{report['name']} of {report['executable']}: {_size(report)}"
    if "json" in report:
        yield from (f"  {line}" for line in _json(report["json"]))
    else:
        more = " ..." if report["size_in_bytes"] > len(report["hex_head"].split()) else ""
        yield f"  {report['hex_head']}{more}"


def _json(value: Any, depth: int = 0) -> Iterator[str]:
    """JSON with one line for whatever fits into one."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _JSON_WIDTH or depth == _JSON_DEPTH or not isinstance(value, dict | list):
        yield text
        return
    entries = [(f"{json.dumps(key, ensure_ascii=False)}: ", each) for key, each in value.items()] if isinstance(value, dict) else []
    entries = entries or [("", each) for each in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    yield opening
    for number, (key, each) in enumerate(entries, start=1):
        lines = list(_json(each, depth + 1))
        lines[0] = key + lines[0]
        lines[-1] += "," if number < len(entries) else ""
        yield from (f"  {line}" for line in lines)
    yield closing


def _printable(text: str) -> str:
    """Text that cannot move a terminal's cursor: names in a file may hold anything."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
