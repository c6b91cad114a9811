"""Finds initialisers that hold the same bytes."""

import hashlib

import onnx_ir as ir

Known = dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value]
"""Initialisers that may be read, by element type, shape and digest of their bytes."""


def merge_equal(graph: ir.Graph, known: Known) -> bool:
    """Replaces initialisers of `graph` that equal one of `known` or an earlier one of their own; adds the others to `known`.

    Bytes decide, so that -0.0 and 0.0, and NaNs of different kinds, stay apart. SHA-256 stands for the bytes: a model holds fewer tensors
    than would ever collide.
    """
    changed = False
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or value.is_graph_output() or tensor.dtype == ir.DataType.STRING:
            continue
        key = (tensor.dtype, tuple(int(size) for size in tensor.shape.numpy()), hashlib.sha256(tensor.tobytes()).digest())
        earlier = known.setdefault(key, value)
        if earlier is not value:
            value.replace_all_uses_with(earlier)
            del graph.initializers[name]
            changed = True
    return changed
