"""Reports the contents of a `model.exec` file as plain data and as text, for `stoker dump`."""

import os
from collections.abc import Iterator
from typing import Any

from stoker.backends.containers.framing import CLOSING_BYTES
from stoker.backends.gcu.executable import verify_executable
from stoker.backends.gcu.executable_layout import CONTAINER_VERSION, FORMAT_VERSION, Section, section_name, unpack_description
from stoker.backends.gcu.program import CompiledBatch, GcuTensor

Report = dict[str, Any]


def report_executable(path: str | os.PathLike[str]) -> Report:
    """Reads all sections of a file, without keeping graphs and weights in memory.

    Raises:
        ExecutableError: the file cannot be read or is damaged. The text names path, section and offset.
    """
    executable, sections = verify_executable(path)
    _, weights, _ = unpack_description(sections[0].data())
    graphs = [section for section in sections if section.header.kind is Section.GRAPH]
    return {
        "file": os.fspath(path),
        "format": "model.exec",
        "size_in_bytes": sum(section.header.total_bytes for section in sections) + CLOSING_BYTES,
        "container_version": CONTAINER_VERSION,
        "format_version": FORMAT_VERSION,
        "name": executable.name,
        "card": executable.card,
        "precision": executable.precision,
        "inputs": [_tensor(each) for each in executable.inputs],
        "outputs": [_tensor(each) for each in executable.outputs],
        "batches": [
            _batch(batch) | {"onnx_bytes": graph.header.content_bytes} for batch, graph in zip(executable.batches, graphs, strict=True)
        ],
        "weights": [_tensor(each) | {"size_in_bytes": each.sample_bytes} for each in weights],
        "weight_bytes": sum(each.sample_bytes for each in weights),
        "attributes": dict(executable.attributes),
        "sections": [
            {
                "kind": section.header.kind.name,
                "name": section_name(section.info),
                "offset": section.offset,
                "size_in_bytes": section.header.content_bytes,
                "crc32": f"{section.header.content_crc:08x}",
            }
            for section in sections
        ],
    }


def executable_text(report: Report) -> Iterator[str]:
    """Returns the report as text."""
    yield (
        f"{report['file']}: model.exec, {report['size_in_bytes']:,} bytes, sections: {len(report['sections'])}, "
        f"container version {report['container_version']}, complete and undamaged"
    )
    yield ""
    yield f"Model '{report['name']}' for a simulated {report['card']}, build flag {report['precision']}"
    yield from (f"  {name}: {value}" for name, value in sorted(report["attributes"].items()) if value)
    for title, role in (("Inputs", "inputs"), ("Outputs", "outputs")):
        yield ""
        yield f"{title} (one sample):"
        yield from (f"  {_tensor_text(each)}" for each in report[role])
    yield ""
    yield "Compiled batch sizes (modelled times of a simulated card):"
    yield from (f"  {_batch_text(each)}" for each in report["batches"])
    yield ""
    yield f"Weights, shared by all batch sizes: {len(report['weights'])}, {report['weight_bytes']:,} bytes"
    yield from (f"  {_tensor_text(each)}: {each['size_in_bytes']:,} bytes" for each in report["weights"])


def _tensor(tensor: GcuTensor) -> Report:
    return {"name": tensor.name, "dtype": tensor.dtype.value, "dims": list(tensor.dims)}


def _batch(batch: CompiledBatch) -> Report:
    return {
        "batch_size": batch.batch_size,
        "workspace_bytes": batch.workspace_bytes,
        "flops": batch.flops,
        "hbm_traffic_bytes": batch.hbm_traffic_bytes,
        "modelled_run_s": list(batch.run_s),
    }


def _tensor_text(report: Report) -> str:
    return f"{report['name']}: {report['dtype']}[{', '.join(map(str, report['dims']))}]"


def _batch_text(report: Report) -> str:
    times = report["modelled_run_s"]
    return (
        f"{report['batch_size']}: {report['flops'] / 1e9:,.3f} GFLOP, {report['hbm_traffic_bytes'] / 1e6:,.1f} MB of HBM traffic, "
        f"workspace {report['workspace_bytes']:,} bytes, {1e3 * times[0]:.3f} ms on one cluster, {1e3 * times[-1]:.3f} ms on {len(times)}, "
        f"graph {report['onnx_bytes']:,} bytes"
    )
