"""What each backend brings to the conformance tests: one `BackendSamples` in `SAMPLES`, under the backend's name.

A new backend adds its entry here (a test says so as long as it is missing); the tests themselves know no backend.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from backends.api.backend import LoadRequest
from backends.api.model import ModelSignature
from backends.api.tensor import DataType
from tests.fakes import onnx_models
from tests.fakes.onnx_models import same_in_and_out, signature, version_files


@dataclass(frozen=True, slots=True)
class Sample:
    """One version folder and what is served from it. Every model here returns inputs as outputs, pairwise in order."""

    files: Mapping[str, bytes]
    filename: str
    signature: ModelSignature
    parameters: Mapping[str, str] = field(default_factory=dict)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSamples:
    """What a backend can do, by example.

    Attributes:
        echo: A model of one input `x` and one output `y` of a datatype and dims (-1: variable), with max_batch_size.
        datatypes: Those the backend serves.
        pair: `a`, `b` FP32 [2] in, `p`, `q` out.
        failing: Like `echo` of INT64 [2], but `execute` fails where a row holds 13.
        unreadable: Version folders that must be refused, by what is wrong with them.
    """

    echo: Callable[[DataType, tuple[int, ...], int], Sample]
    datatypes: frozenset[DataType]
    pair: Sample
    failing: Sample
    unreadable: Mapping[str, Mapping[str, bytes]]


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


SAMPLES: dict[str, BackendSamples] = {
    "onnxruntime": BackendSamples(
        echo=_onnx_echo,
        datatypes=frozenset(DataType),
        pair=_onnx_pair(),
        failing=_onnx_failing(),
        unreadable=_onnx_unreadable(),
    ),
    "identity": BackendSamples(
        echo=lambda datatype, dims, max_batch_size: _identity(same_in_and_out(datatype, dims, max_batch_size)),
        datatypes=frozenset(DataType),
        pair=_identity(PAIR),
        failing=_identity(same_in_and_out(DataType.INT64), fail_on="13"),
        unreadable={"no file": {"other.txt": b"text"}},
    ),
}


def values(datatype: DataType, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """An array of `shape` with values that tell elements apart."""
    rng = np.random.default_rng(seed)
    if datatype.is_bytes:
        array = np.empty(shape, dtype=np.object_)
        for place in range(array.size):
            array.flat[place] = f"text {rng.integers(1000)} é".encode()
        return array
    numbers = rng.integers(0, 2 if datatype is DataType.BOOL else 100, size=shape)
    return np.asarray(numbers).astype(datatype.numpy)
