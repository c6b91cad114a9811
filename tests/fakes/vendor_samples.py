"""Samples of the conformance checks for the runtimes of vendors: engine files of the fakes."""

import zlib
from collections.abc import Mapping

from onnx import TensorProto, helper

from stoker.backends.api.tensor import DataType
from stoker.backends.testing.samples import BackendSamples, Sample, same_in_and_out, signature
from tests.fakes import fake_ipu_runtime, fake_tops_inference, gcu_served, ipu_served, onnx_models

PAIR = signature(dict.fromkeys(("a", "b"), (DataType.FP32, (2,))), dict.fromkeys(("p", "q"), (DataType.FP32, (2,))))


def exec_file(graph: bytes) -> bytes:
    """A file of the fake `TopsInference`."""
    return fake_tops_inference.MAGIC + zlib.crc32(graph).to_bytes(4, "little") + graph


def popef_file(graph: bytes) -> bytes:
    """A file of the fake IPU runtime."""
    return fake_ipu_runtime.MAGIC + graph


def graph_of(nodes: Mapping[str, tuple[str, list[str]]], kind: int, shape: tuple[int, ...], *, initializers=()) -> bytes:
    """A graph whose outputs are the keys of `nodes`, each an operator and its inputs; all tensors are of `kind` and `shape`."""
    known = {each.name for each in initializers}
    inputs = list(dict.fromkeys(name for _, names in nodes.values() for name in names if name not in known))
    made = [helper.make_node(operator, names, [output]) for output, (operator, names) in nodes.items()]
    values = [[onnx_models.value(name, shape, kind) for name in side] for side in (inputs, list(nodes))]
    content: bytes = onnx_models.model(made, values[0], values[1], list(initializers)).SerializeToString()
    return content


def picking(shape: tuple[int, ...]) -> bytes:
    """INT64 `y` = `x`, gathered from a row of 0 to 12, so that 13 is out of bounds."""
    row = helper.make_tensor("row", TensorProto.INT64, [13], list(range(13)))
    return graph_of({"y": ("Gather", ["row", "x"])}, TensorProto.INT64, shape, initializers=[row])


_ECHOES = {"p": ("Identity", ["a"]), "q": ("Identity", ["b"])}


def _exec_echo(datatype: DataType, dims: tuple[int, ...], max_batch_size: int) -> Sample | None:
    if datatype not in gcu_served.ONNX_TYPES or any(size < 1 for size in dims) or (not max_batch_size and not dims):
        return None
    shape = (4, *dims) if max_batch_size else (1, *dims[1:])  # compiled for another batch than the served one
    graph = graph_of({"y": ("Identity", ["x"])}, gcu_served.ONNX_TYPES[datatype], shape)
    return Sample({"model.exec": exec_file(graph)}, "model.exec", same_in_and_out(datatype, dims, max_batch_size))


def _popef_echo(datatype: DataType, dims: tuple[int, ...], max_batch_size: int) -> Sample | None:
    if datatype not in ipu_served.DATATYPES or any(size < 1 for size in dims):
        return None
    shape = (max_batch_size, *dims) if max_batch_size else dims
    graph = graph_of({"y": ("Identity", ["x"])}, gcu_served.ONNX_TYPES[datatype], shape)
    return Sample({"executable.popef": popef_file(graph)}, "executable.popef", same_in_and_out(datatype, dims, max_batch_size))


EXEC_SAMPLES = BackendSamples(
    model=_exec_echo,
    datatypes=frozenset(gcu_served.ONNX_TYPES),
    whole=Sample({"model.exec": exec_file(graph_of(_ECHOES, TensorProto.FLOAT, (1, 2)))}, "model.exec", PAIR),
    failing=Sample({"model.exec": exec_file(picking((1, 2)))}, "model.exec", same_in_and_out(DataType.INT64)),
    unreadable={
        "no file": {"other.txt": b"text"},
        "empty": {"model.exec": b""},
        "compiled by Stoker": {"model.exec": gcu_served.file_of(gcu_served.echo())},
    },
)

POPEF_SAMPLES = BackendSamples(
    model=_popef_echo,
    datatypes=frozenset(ipu_served.DATATYPES),
    whole=Sample({"executable.popef": popef_file(graph_of(_ECHOES, TensorProto.FLOAT, (8, 2)))}, "executable.popef", PAIR),
    failing=Sample({"executable.popef": popef_file(picking((8, 2)))}, "executable.popef", same_in_and_out(DataType.INT64)),
    unreadable={
        "no file": {"other.txt": b"text"},
        "empty": {"executable.popef": b""},
        "compiled by Stoker": {"executable.popef": ipu_served.popef(ipu_served.echo((8, 2)))},
    },
)
