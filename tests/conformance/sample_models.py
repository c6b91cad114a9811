"""What each backend brings to the conformance tests: one `BackendSamples` in `SAMPLES`, under the backend's name.

A new backend adds its entry here (a test says so as long as it is missing); the tests themselves know no backend.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stoker.backends.api.backend import Arrays, LoadRequest
from stoker.backends.api.batch import Array
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.tensor import DataType
from tests.fakes import gcu_served, ipu_served, onnx_models
from tests.fakes.onnx_models import same_in_and_out, signature, version_files


@dataclass(frozen=True, slots=True)
class Sample:
    """One version folder, what is served from it, and what it computes.

    Attributes:
        files: The version folder.
        filename: The file to load.
        signature: What is served.
        parameters: config.pbtxt `parameters`.
        reference: Inputs by name, each `[rows, *dims]`, to the outputs expected, likewise. None: outputs are the inputs in their order.
        tolerance: Difference from `reference` that is allowed, relative to the expected value; 0: none at all.
    """

    files: Mapping[str, bytes]
    filename: str
    signature: ModelSignature
    parameters: Mapping[str, str] = field(default_factory=dict)
    reference: Callable[[Arrays], Mapping[str, Array]] | None = None
    tolerance: float = 0.0

    def request(self, folder: Path) -> LoadRequest:
        """Writes the files below `folder`."""
        return LoadRequest(
            model_name="sample",
            version=1,
            files=version_files(folder, self.files),
            model_filename=self.filename,
            signature=self.signature,
            parameters=self.parameters,
        )

    def expected(self, inputs: Arrays) -> Mapping[str, Array]:
        """The outputs that `inputs` must give."""
        if self.reference is not None:
            return self.reference(inputs)
        pairs = zip(self.signature.inputs, self.signature.outputs, strict=True)
        return {output.name: inputs[source.name] for source, output in pairs}

    def inputs(self, rows: int, seed: int) -> dict[str, Array]:
        """Values for every input, `rows` of them; sizes that vary are 2."""
        shape = {spec.name: tuple(2 if size < 0 else size for size in spec.dims) for spec in self.signature.inputs}
        batch = (rows,) if self.signature.is_batched else ()
        return {
            spec.name: values(spec.datatype, (*batch, *shape[spec.name]), seed + place) for place, spec in enumerate(self.signature.inputs)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSamples:
    """What a backend can do, by example.

    Attributes:
        model: A model of one input `x` and one output `y` of a datatype and dims (-1: variable), with max_batch_size; None where this
            backend has no such model, and then the tests that need it are skipped.
        datatypes: Those the backend serves. A model of any other must be refused, where there is one.
        whole: Any model, best with several inputs and outputs.
        failing: A model of `x` and `y` INT64 [2] whose `execute` fails where a row holds 13; None where no model of this backend can fail.
        unreadable: Version folders that must be refused, by what is wrong with them.
        package: The extra's package that the backend needs; where it is not installed, all its tests are skipped.
    """

    model: Callable[[DataType, tuple[int, ...], int], Sample | None]
    datatypes: frozenset[DataType]
    whole: Sample
    unreadable: Mapping[str, Mapping[str, bytes]]
    failing: Sample | None = None
    package: str = ""


def _onnx_shape(dims: tuple[int, ...], max_batch_size: int) -> list[int | str]:
    named: list[int | str] = [size if size >= 0 else f"d{place}" for place, size in enumerate(dims)]
    return ["n", *named] if max_batch_size else named


def _onnx_echo(datatype: DataType, dims: tuple[int, ...], max_batch_size: int) -> Sample:
    proto = onnx_models.identity(datatype, _onnx_shape(dims, max_batch_size))
    return Sample({"model.onnx": proto.SerializeToString()}, "model.onnx", same_in_and_out(datatype, dims, max_batch_size))


PAIR = signature(dict.fromkeys(("a", "b"), (DataType.FP32, (2,))), dict.fromkeys(("p", "q"), (DataType.FP32, (2,))))


def _onnx_pair() -> Sample:
    nodes = [onnx_models.helper.make_node("Identity", [source], [output]) for source, output in (("a", "p"), ("b", "q"))]
    shape = ("n", 2)
    proto = onnx_models.model(
        nodes, [onnx_models.value(name, shape) for name in ("a", "b")], [onnx_models.value(name, shape) for name in ("p", "q")]
    )
    return Sample({"model.onnx": proto.SerializeToString()}, "model.onnx", PAIR)


def _onnx_failing() -> Sample:
    """Gathers from a row of 0 to 12, so that 13 is out of bounds."""
    kind = onnx_models.TensorProto.INT64
    row = onnx_models.helper.make_tensor("row", kind, [13], list(range(13)))
    node = onnx_models.helper.make_node("Gather", ["row", "x"], ["y"])
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
    kind = onnx_models.TensorProto.INT64
    make, tensor = onnx_models.helper.make_node, onnx_models.helper.make_tensor
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
    """As for ONNX Runtime, but for too new a file: OpenVINO goes by its operators alone."""
    return {wrong: files for wrong, files in _onnx_unreadable().items() if wrong != "too new"}


#: Backends whose requests are answered by streams of responses: what is asked here is about batches, one answer each.
DECOUPLED_ONLY = frozenset({"repeat"})

SAMPLES: dict[str, BackendSamples] = {
    "openvino": BackendSamples(
        model=_onnx_echo,
        datatypes=frozenset(DataType) - {DataType.BYTES},
        whole=_onnx_pair(),
        failing=_openvino_failing(),
        unreadable=_openvino_unreadable(),
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
    "identity": BackendSamples(
        model=lambda datatype, dims, max_batch_size: _identity(same_in_and_out(datatype, dims, max_batch_size)),
        datatypes=frozenset(DataType),
        whole=_identity(PAIR),
        failing=_identity(same_in_and_out(DataType.INT64), fail_on="13"),
        unreadable={},  # it reads no file
    ),
}


def values(datatype: DataType, shape: tuple[int, ...], seed: int) -> Array:
    """An array of `shape` with values that tell elements apart."""
    rng = np.random.default_rng(seed)
    if datatype.is_bytes:
        array = np.empty(shape, dtype=np.object_)
        for place in range(array.size):
            array.flat[place] = f"text {rng.integers(1000)} é".encode()
        return array
    numbers = rng.integers(0, 2 if datatype is DataType.BOOL else 100, size=shape)
    return np.asarray(numbers).astype(datatype.numpy)
