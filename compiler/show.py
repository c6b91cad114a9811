"""What `stoker compile` prints for people: tables of a model's inputs, outputs and operators, of error figures and of measurements."""

import collections
import sys
from collections.abc import Sequence
from typing import TextIO

import onnx
from onnx import helper

from compiler.target import Measurement


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO | None = None) -> None:
    """Prints aligned columns."""
    out = stream or sys.stdout
    widths = [max([len(heading), *(len(row[at]) for row in rows)]) for at, heading in enumerate(headings)]
    for row in (headings, *rows):
        out.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def show_model(title: str, model: onnx.ModelProto, stream: TextIO | None = None) -> None:
    """Prints inputs, outputs, operators with how many nodes each has, and the size of the weights."""
    out = stream or sys.stdout
    opsets = ", ".join(f"{each.domain or 'ai.onnx'} {each.version}" for each in model.opset_import)
    nodes = all_nodes(model.graph)
    weights = sum(_initializer_bytes(each) for each in model.graph.initializer)
    out.write(f"{title}: opset {opsets}; {len(nodes)} nodes, {len(model.graph.initializer)} weights of {weights:,} bytes\n")
    print_table(("", "name", "type", "shape"), [["input", *row] for row in _values(model, model.graph.input)], out)
    print_table(("", "name", "type", "shape"), [["output", *row] for row in _values(model, model.graph.output)], out)
    counts = collections.Counter(node.op_type if not node.domain else f"{node.domain}.{node.op_type}" for node in nodes)
    print_table(
        ("operator", "nodes"), [[name, str(count)] for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))], out
    )


def show_io_statistics(title: str, model: onnx.ModelProto, stream: TextIO | None = None) -> None:
    """Prints how many bytes go to the device and back in one call: what host IO costs, and what IO tiles must hold."""
    out = stream or sys.stdout
    rows, totals = [], {}
    for kind, values in (("input", model.graph.input), ("output", model.graph.output)):
        total = 0
        for name, type_name, shape in _values(model, values):
            size = _value_bytes(next(each for each in values if each.name == name))
            total += size
            rows.append([kind, name, type_name, shape, f"{size:,}"])
        totals[kind] = total
    print_table((title, "name", "type", "shape", "bytes"), rows, out)
    out.write(f"{totals['input']:,} bytes in, {totals['output']:,} bytes out\n")


def show_measurement(measured: Measurement, stream: TextIO | None = None) -> None:
    """Prints batch size, latency and throughput on lines of their own, in PopRT's words, which scripts look for."""
    out = stream or sys.stdout
    note = f" ({measured.note})" if measured.note else ""
    out.write(f"Bs: {measured.batch_size}\n")
    out.write(f"Latency: {measured.latency_s * 1e3:.2f}ms{note}\n")
    out.write(f"Tput: {measured.throughput:.0f}\n")


def all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a graph and of the graphs inside them."""
    found = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                found += all_nodes(inner)
    return found


def _values(model: onnx.ModelProto, values: Sequence[onnx.ValueInfoProto]) -> list[tuple[str, str, str]]:
    given = {each.name for each in model.graph.initializer}
    rows = []
    for value in values:
        if value.name not in given:
            kind = value.type.tensor_type
            sizes = ", ".join(str(size.dim_value) if size.HasField("dim_value") else size.dim_param or "?" for size in kind.shape.dim)
            rows.append((value.name, onnx.TensorProto.DataType.Name(kind.elem_type), f"[{sizes}]"))
    return rows


def _value_bytes(value: onnx.ValueInfoProto) -> int:
    kind = value.type.tensor_type
    count = 1
    for size in kind.shape.dim:
        count *= size.dim_value
    return count * helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize


def _initializer_bytes(tensor: onnx.TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return int(count * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
