"""The memory of an executable: the weights that the graphs of all batch sizes share, and the HBM that the largest batch needs.

Each shared weight is stored once, and the graphs refer to it as external data. Initialisers of equal type, shape and content are one
weight, whatever their names in the graphs. Small initialisers, such as shapes, and those that only some graphs have stay inside their
graph.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from stoker.backends.gcu.compile.cost_model import CODE_BYTES
from stoker.backends.gcu.compile.limits import GcuCompileError, VendorStatus
from stoker.backends.gcu.hardware import GcuHardware
from stoker.backends.gcu.program import GcuExecutable
from stoker.compiler.lowering.typed_graph import FreeNames, node_label, tensor_facts

#: Tensors smaller than this (in bytes) stay in their graph: the framing of a weight's section would take as much.
LEAST_BYTES = 256
#: The file name in the graphs' references to external data. ONNX requires one; no reader opens such a file.
_LOCATION = "weights"

_Content = tuple[str, tuple[int, ...], bytes]


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Weights by their name in the graphs.

    Attributes:
        arrays: Their values.
        digests: SHA-256 of their bytes.
    """

    arrays: Mapping[str, np.ndarray]
    digests: Mapping[str, bytes]


def share_weights(models: Sequence[ir.Model]) -> SharedWeights:
    """Moves the weights that all `models` have in common out of the models, in place, and returns them."""
    digests: dict[int, bytes] = {}
    contents = [_contents(model.graph, digests) for model in models]
    names = [FreeNames(model) for model in models]
    shared: dict[str, np.ndarray] = {}
    shared_digests: dict[str, bytes] = {}
    for content, first in contents[0].items():
        if not all(content in each for each in contents):
            continue
        name = _common_name(first[0].name or "weight", [each[content] for each in contents], names, shared)
        array = _array(first[0])
        shared[name], shared_digests[name] = array, content[2]
        for model, each in zip(models, contents, strict=True):
            _refer(model.graph, each[content], name, array)
    return SharedWeights(shared, shared_digests)


def _contents(graph: ir.Graph, digests: dict[int, bytes]) -> dict[_Content, list[ir.Value]]:
    """Returns the initialisers that are large enough to share, by content."""
    found: dict[_Content, list[ir.Value]] = {}
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < LEAST_BYTES or value.is_graph_output():
            continue
        if id(tensor) not in digests:
            digests[id(tensor)] = hashlib.sha256(tensor.tobytes()).digest()
        found.setdefault((tensor.dtype.name, tuple(tensor.shape.numpy()), digests[id(tensor)]), []).append(value)
    return found


def _common_name(wanted: str, values: Sequence[Sequence[ir.Value]], names: Sequence[FreeNames], taken: Mapping[str, object]) -> str:
    """Returns `wanted` if each graph has one of the values under this name and no other weight has it; else a name free in all graphs."""
    if wanted not in taken and all(any(value.name == wanted for value in each) for each in values):
        return wanted
    name, count = f"{wanted}.shared", 1
    while any(each.new(name) != name for each in names) or name in taken:
        name, count = f"{wanted}.shared.{count}", count + 1
    return name


def _refer(graph: ir.Graph, values: Sequence[ir.Value], name: str, array: np.ndarray) -> None:
    """Replaces `values`, which have equal content, by one initialiser `name` with external data."""
    first = values[0]
    assert first.const_value is not None
    dtype = first.const_value.dtype
    for value in values:
        graph.initializers.pop(value.name or "")
    outside = ir.ExternalTensor(_LOCATION, None, None, dtype, shape=ir.Shape(array.shape), name=name)
    weight = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(dtype), const_value=outside)
    graph.register_initializer(weight)
    for value in values:
        ir.convenience.replace_all_uses_with(value, weight)


def _array(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return np.ascontiguousarray(value.const_value.numpy())


_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"})


def workspace_bytes(model: ir.Model) -> int:
    """Returns the peak bytes of intermediate values during one run, if each value is freed after its last reader.

    Views share the memory of their input. Inputs and outputs are buffers of the caller and do not count.

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
    """Returns the bytes of HBM by use, for one instance that runs any compiled batch."""
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
        GcuCompileError: it does not fit; the text lists the bytes by use.
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
