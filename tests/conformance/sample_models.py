"""The samples of each backend for the conformance tests: one `BackendSamples` in `SAMPLES`, under the backend's name.

A new backend adds its entry here (a test says so as long as it is missing); the tests themselves know no backend.
"""

import functools
from collections.abc import Mapping

from onnx import TensorProto, helper

from stoker.backends.api.model import ModelSignature
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.samples import BackendSamples, Sample, same_in_and_out, signature
from tests.fakes import framework_models, gcu_served, ipu_served, onnx_models


def _onnx_shape(dims: tuple[int, ...], max_batch_size: int) -> list[int | str]:
    named: list[int | str] = [size if size >= 0 else f"d{place}" for place, size in enumerate(dims)]
    return ["n", *named] if max_batch_size else named


def _onnx_echo(datatype: DataType, dims: tuple[int, ...], max_batch_size: int) -> Sample:
    proto = onnx_models.identity(datatype, _onnx_shape(dims, max_batch_size))
    return Sample({"model.onnx": proto.SerializeToString()}, "model.onnx", same_in_and_out(datatype, dims, max_batch_size))


PAIR = signature(dict.fromkeys(("a", "b"), (DataType.FP32, (2,))), dict.fromkeys(("p", "q"), (DataType.FP32, (2,))))


def _onnx_pair() -> Sample:
    nodes = [helper.make_node("Identity", [source], [output]) for source, output in (("a", "p"), ("b", "q"))]
    shape = ("n", 2)
    proto = onnx_models.model(
        nodes, [onnx_models.value(name, shape) for name in ("a", "b")], [onnx_models.value(name, shape) for name in ("p", "q")]
    )
    return Sample({"model.onnx": proto.SerializeToString()}, "model.onnx", PAIR)


def _onnx_failing() -> Sample:
    """Gathers from a row of 0 to 12, so that 13 is out of bounds."""
    kind = TensorProto.INT64
    row = helper.make_tensor("row", kind, [13], list(range(13)))
    node = helper.make_node("Gather", ["row", "x"], ["y"])
    proto = onnx_models.model([node], [onnx_models.value("x", ("n", 2), kind)], [onnx_models.value("y", ("n", 2), kind)], [row])
    return Sample({"model.onnx": proto.SerializeToString()}, "model.onnx", same_in_and_out(DataType.INT64))


def _onnx_unreadable() -> dict[str, Mapping[str, bytes]]:
    whole = onnx_models.identity().SerializeToString()
    return {
        "no file": {"other.txt": b"text"},
        "empty": {"model.onnx": b""},
        "text": {"model.onnx": b"this is no model\n" * 20},
        "cut off": {"model.onnx": whole[: len(whole) // 2]},
        "too new": {"model.onnx": onnx_models.identity(ir_version=99).SerializeToString()},
    }


def _identity(served: ModelSignature, **parameters: str) -> Sample:
    return Sample({"model.identity": b""}, "model.identity", served, parameters)


def _popef(popef: bytes, served: ModelSignature) -> Sample:
    return Sample({"executable.popef": popef}, "executable.popef", served)


def _popef_echo(datatype: DataType, dims: tuple[int, ...], max_batch_size: int) -> Sample | None:
    """All sizes are fixed on an IPU, and none is 0."""
    if datatype not in ipu_served.DATATYPES or any(size < 1 for size in dims):
        return None
    shape = (max_batch_size, *dims) if max_batch_size else dims
    return _popef(ipu_served.popef(ipu_served.echo(shape, datatype)), same_in_and_out(datatype, dims, max_batch_size))


def _popef_unreadable() -> dict[str, Mapping[str, bytes]]:
    whole = ipu_served.popef(ipu_served.echo((8, 2)))
    return {
        "no file": {"other.txt": b"text"},
        "empty": {"executable.popef": b""},
        "text": {"executable.popef": b"this is no model\n" * 20},
        "cut off": {"executable.popef": whole[: len(whole) // 2]},
        "changed": {"executable.popef": whole[:300] + bytes([whole[300] ^ 1]) + whole[301:]},
        "names of nothing": {"executable.popef": whole, "name_map.json": b'{"absent": "x"}'},
    }


def _exec(content: bytes, served: ModelSignature) -> Sample:
    return Sample({"model.exec": content}, "model.exec", served)


def _exec_echo(datatype: DataType, dims: tuple[int, ...], max_batch_size: int) -> Sample | None:
    """All sizes are fixed on a GCU; without max_batch_size, the first of the dims is the number of samples."""
    if datatype not in gcu_served.ONNX_TYPES or any(size < 0 for size in dims) or (not max_batch_size and not dims):
        return None
    engine = gcu_served.echo(datatype, dims if max_batch_size else dims[1:])
    return _exec(gcu_served.file_of(engine), same_in_and_out(datatype, dims, max_batch_size))


def _exec_unreadable() -> dict[str, Mapping[str, bytes]]:
    whole = gcu_served.file_of(gcu_served.echo())
    return {
        "no file": {"other.txt": b"text"},
        "empty": {"model.exec": b""},
        "text": {"model.exec": b"this is no model\n" * 20},
        "cut off": {"model.exec": whole[: len(whole) // 2]},
        "changed": {"model.exec": whole[:300] + bytes([whole[300] ^ 1]) + whole[301:]},
    }


def _openvino_failing() -> Sample:
    """Adds a sum of zeros, laid out in 13 rows where an element is 13, else in one: 6 zeros are no 13 rows."""
    kind = TensorProto.INT64
    make, tensor = helper.make_node, helper.make_tensor
    constants = [
        tensor(name, kind, [len(values)], values)
        for name, values in (("thirteen", [13]), ("twelve", [12]), ("one", [1]), ("open", [-1]), ("zeros", [0] * 6))
    ]
    nodes = [
        make("Equal", ["x", "thirteen"], ["are_thirteen"]),
        make("Cast", ["are_thirteen"], ["counted"], to=kind),
        make("ReduceMax", ["counted"], ["is_thirteen"], keepdims=0),
        make("Mul", ["is_thirteen", "twelve"], ["twelve_or_none"]),
        make("Add", ["twelve_or_none", "one"], ["rows"]),
        make("Concat", ["rows", "open"], ["shape"], axis=0),
        make("Reshape", ["zeros", "shape"], ["laid_out"]),
        make("ReduceSum", ["laid_out"], ["zero"], keepdims=0),
        make("Add", ["x", "zero"], ["y"]),
    ]
    proto = onnx_models.model(nodes, [onnx_models.value("x", ("n", 2), kind)], [onnx_models.value("y", ("n", 2), kind)], constants)
    return Sample({"model.onnx": proto.SerializeToString()}, "model.onnx", same_in_and_out(DataType.INT64))


def _openvino_unreadable() -> dict[str, Mapping[str, bytes]]:
    """As for ONNX Runtime except for too new files: OpenVINO checks operators only."""
    return {wrong: files for wrong, files in _onnx_unreadable().items() if wrong != "too new"}


def _openvino_further() -> tuple[Sample, ...]:
    """One model as TensorFlow, TensorFlow Lite and PaddlePaddle write it."""
    found = []
    for version in framework_models.VERSION_FOLDERS.values():
        inputs = dict(zip(version.inputs, ((DataType.FP32, (4,)), (DataType.FP32, (1,))), strict=True))
        served = signature(inputs, dict.fromkeys(version.outputs, (DataType.FP32, (2,))))
        reference = functools.partial(framework_models.reference, version)
        found.append(Sample(version.files, version.filename, served, reference=reference, tolerance=1e-5))
    return tuple(found)


def _python(source: str, served: ModelSignature) -> Sample:
    return Sample({"model.py": f"from stoker.models import *\n{source}".encode()}, "model.py", served)


def _python_echo(datatype: DataType, dims: tuple[int, ...], max_batch_size: int) -> Sample | None:
    """A typed function; an array has a dim at least, and none is 0."""
    if 0 in dims or not (dims or max_batch_size):
        return None
    element = {DataType.BYTES: "bytes", DataType.BOOL: "bool", DataType.BF16: "bfloat16"}.get(
        datatype, datatype.value.lower().replace("fp", "float")
    )
    named = ", ".join(f'"d{place}"' if size < 0 else str(size) for place, size in enumerate(dims))
    lead = '"n"' if max_batch_size else ""
    tensor = f"Array[{', '.join(part for part in (lead, named, element) if part)}]"
    batched = f"@batched(max={max_batch_size})\n" if max_batch_size else ""
    source = f'{batched}def predict(x: {tensor}) -> {{"y": {tensor}}}:\n    return {{"y": x}}\n'
    return _python(source, same_in_and_out(datatype, dims, max_batch_size))


def _python_failing() -> Sample:
    tensor = 'Array["n", 2, int64]'
    lines = ("    if (x == 13).any():", '        raise ValueError("13")', '    return {"y": x}')
    source = f'@batched(max=8)\ndef predict(x: {tensor}) -> {{"y": {tensor}}}:\n' + "\n".join(lines)
    return _python(source, same_in_and_out(DataType.INT64))


def _python_pair() -> Sample:
    tensor = 'Array["n", 2, float32]'
    source = f'@batched(max=8)\ndef predict(a: {tensor}, b: {tensor}) -> {{"p": {tensor}, "q": {tensor}}}:\n    return {{"p": a, "q": b}}\n'
    return _python(source, PAIR)


#: Backends whose requests are answered by streams of responses: what is asked here is about batches, one answer each.
DECOUPLED_ONLY = frozenset({"repeat"})

SAMPLES: dict[str, BackendSamples] = {
    "openvino": BackendSamples(
        model=_onnx_echo,
        datatypes=frozenset(DataType) - {DataType.BYTES},
        whole=_onnx_pair(),
        failing=_openvino_failing(),
        unreadable=_openvino_unreadable(),
        further=_openvino_further(),
        package="openvino",
    ),
    "topsinference": BackendSamples(
        model=_exec_echo,
        datatypes=frozenset(gcu_served.ONNX_TYPES),
        whole=_exec(gcu_served.file_of(gcu_served.pair()), PAIR),
        failing=_exec(gcu_served.file_of(gcu_served.picking()), same_in_and_out(DataType.INT64)),
        unreadable=_exec_unreadable(),
    ),
    "poplar": BackendSamples(
        model=_popef_echo,
        datatypes=ipu_served.DATATYPES,
        whole=_popef(ipu_served.popef(ipu_served.pair((8, 2))), PAIR),
        failing=_popef(ipu_served.popef(ipu_served.picking((8, 2))), same_in_and_out(DataType.INT64)),
        unreadable=_popef_unreadable(),
    ),
    "onnxruntime": BackendSamples(
        model=_onnx_echo,
        datatypes=frozenset(DataType),
        whole=_onnx_pair(),
        failing=_onnx_failing(),
        unreadable=_onnx_unreadable(),
    ),
    "python": BackendSamples(
        model=_python_echo,
        datatypes=frozenset(DataType),
        whole=_python_pair(),
        failing=_python_failing(),
        # Another file is read again by the model's own interpreter, which may be newer.
        unreadable={"no file": {"other.txt": b"text"}},
    ),
    "identity": BackendSamples(
        model=lambda datatype, dims, max_batch_size: _identity(same_in_and_out(datatype, dims, max_batch_size)),
        datatypes=frozenset(DataType),
        whole=_identity(PAIR),
        failing=_identity(same_in_and_out(DataType.INT64), fail_on="13"),
        unreadable={},  # it reads no file
    ),
}
