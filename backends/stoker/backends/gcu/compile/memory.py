"""The HBM that an executable needs: weights once, and for the largest batch its workspace, its buffers and its code."""

from collections.abc import Mapping

import onnx_ir as ir

from stoker.backends.gcu.compile.constants import CODE_BYTES
from stoker.backends.gcu.compile.limits import GcuCompileError, VendorStatus
from stoker.backends.gcu.hardware import GcuHardware
from stoker.backends.gcu.program import GcuExecutable
from stoker.compiler.lowering.tensor_facts import node_label, tensor_facts

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"})


def workspace_bytes(model: ir.Model) -> int:
    """The most that intermediate values take at any time of one run, if each is freed after its last reader.

    Views share the memory of what they look at. Inputs and outputs are the caller's buffers and do not count.

    Raises:
        CompileError: a tensor has no static shape.
    """
    nodes = list(model.graph)
    roots: dict[ir.Value, ir.Value] = {}
    last: dict[ir.Value, int] = {}
    for at, node in enumerate(nodes):
        for value in node.inputs:
            if value is not None:
                last[roots.get(value, value)] = at
        if node.op_type in _VIEWS and node.inputs[0] is not None:
            roots[node.outputs[0]] = roots.get(node.inputs[0], node.inputs[0])
    sizes: dict[ir.Value, int] = {}
    freed: dict[int, list[ir.Value]] = {}
    for value, at in last.items():
        freed.setdefault(at, []).append(value)
    held = peak = 0
    for at, node in enumerate(nodes):
        for value in node.outputs:
            if value in roots or value.is_graph_output() or not value.uses() or value.const_value is not None:
                continue
            sizes[value] = tensor_facts(value, f"node '{node_label(node)}' ({node.op_type})").byte_count
            held += sizes[value]
        peak = max(peak, held)
        held -= sum(sizes.get(value, 0) for value in freed.get(at, ()))
    return peak


def memory_account(executable: GcuExecutable) -> Mapping[str, int]:
    """Bytes of HBM by what takes them, for one instance that runs any compiled batch."""
    border = sum(each.sample_bytes for each in (*executable.inputs, *executable.outputs))
    return {
        "weights": executable.weight_bytes,
        "workspace": max(batch.workspace_bytes for batch in executable.batches),
        "buffers": border * executable.max_batch_size,
        "code": CODE_BYTES * len(executable.batches),
    }


def check_fit(executable: GcuExecutable, hardware: GcuHardware) -> None:
    """Checks that one instance fits the card's HBM.

    Raises:
        GcuCompileError: it does not; the text says what takes how much.
    """
    account = memory_account(executable)
    total = sum(account.values())
    if total > hardware.hbm_bytes:
        parts = ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in account.items())
        raise GcuCompileError(
            f"model '{executable.name}' needs {total / 2**30:.2f} GiB of HBM at batch {executable.max_batch_size} ({parts}); "
            f"{hardware.name} has {hardware.hbm_bytes / 2**30:.0f} GiB: compile smaller batch sizes, or with build_flag fp16",
            VendorStatus.OUT_OF_MEMORY,
        )
