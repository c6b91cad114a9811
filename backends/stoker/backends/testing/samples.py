"""`Sample` and `BackendSamples`: what a backend can do, by example. The conformance checks run on them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stoker.backends.api.backend import Arrays, LoadRequest
from stoker.backends.api.batch import Array
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType


def version_files(folder: Path, files: Mapping[str, bytes]) -> ModelFiles:
    """Writes `files`, content by name, below `folder`, as a version's private copy."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return ModelFiles(folder, {name: len(content) for name, content in files.items()})


def signature(
    inputs: Mapping[str, tuple[DataType, tuple[int, ...]]],
    outputs: Mapping[str, tuple[DataType, tuple[int, ...]]],
    max_batch_size: int = 8,
) -> ModelSignature:
    """A signature of tensors given as datatype and dims by name."""

    def specs(tensors: Mapping[str, tuple[DataType, tuple[int, ...]]]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, datatype, dims) for name, (datatype, dims) in tensors.items())

    return ModelSignature(specs(inputs), specs(outputs), max_batch_size)


def same_in_and_out(datatype: DataType = DataType.FP32, dims: tuple[int, ...] = (2,), max_batch_size: int = 8) -> ModelSignature:
    """One input `x` and one output `y` of the same datatype and dims (-1: variable)."""
    return signature({"x": (datatype, dims)}, {"y": (datatype, dims)}, max_batch_size)


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
            spec.name: values(spec.datatype, (*batch, *shape[spec.name]), seed + index) for index, spec in enumerate(self.signature.inputs)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSamples:
    """The abilities of a backend, by example.

    Attributes:
        model: A model of one input `x` and one output `y` of a datatype and dims (-1: variable), with max_batch_size; None where this
            backend has no such model, and then the tests that need it are skipped.
        datatypes: Those the backend serves. A model of any other must be rejected, where there is one.
        whole: Any model, best with several inputs and outputs.
        further: Models in the backend's further file formats, likewise.
        failing: A model of `x` and `y` INT64 [2] whose `execute` fails where a row holds 13; None where no model of this backend can fail.
        unreadable: Version folders that must be rejected, by what is wrong with them.
        package: The extra's package that the backend needs; where it is not installed, all its tests are skipped.
    """

    model: Callable[[DataType, tuple[int, ...], int], Sample | None]
    datatypes: frozenset[DataType]
    whole: Sample
    unreadable: Mapping[str, Mapping[str, bytes]]
    failing: Sample | None = None
    further: tuple[Sample, ...] = ()
    package: str = ""

    @property
    def every_format(self) -> tuple[Sample, ...]:
        """`whole` and `further`."""
        return (self.whole, *self.further)


def values(datatype: DataType, shape: tuple[int, ...], seed: int) -> Array:
    """An array of `shape` with values that tell elements apart."""
    rng = np.random.default_rng(seed)
    if datatype.is_bytes:
        array = np.empty(shape, dtype=np.object_)
        for index in range(array.size):
            array.flat[index] = f"text {rng.integers(1000)} é".encode()
        return array
    numbers = rng.integers(0, 2 if datatype is DataType.BOOL else 100, size=shape)
    return np.asarray(numbers).astype(datatype.numpy)
