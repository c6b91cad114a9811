"""`RunnerIo`: the inputs and outputs of an executable as requests name them.

A fused executable has several sub-graphs with streams of their own, and one input that selects. The program itself says which stream
belongs to which sub-graph; its fusion map (an opaque blob) adds further names for them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.opaques import MODEL_FUSION, FusionMap, OpaqueError
from stoker.backends.ipu.popef.schema import Anchor, TensorType
from stoker.backends.ipu.runtime.data_desc import DataDesc, describe
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError
from stoker.backends.ipu.runtime.executable import Executable

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class GraphIo:
    """The streams of one sub-graph, in its order; without the input that selects it."""

    index: int
    name: str
    inputs: tuple[Anchor, ...]
    outputs: tuple[Anchor, ...]


class RunnerIo:
    """Which inputs and outputs there are. Nothing in it changes.

    Attributes:
        executable: Whose they are.
        graphs: By index.
        index_anchor: The input that selects one of several sub-graphs; None where there is one.
        inputs, outputs: Of all sub-graphs, by name; the index input is not among them.
        defaults: Data of inputs that a request may leave out: tensor data of the file, or frozen inputs in their place.
    """

    def __init__(self, executable: Executable, frozen_inputs: Mapping[str, Array]) -> None:
        """Reads what `executable` says.

        Raises:
            ApplicationRuntimeError: a frozen input does not exist or does not fit, or the fusion map is damaged.
            PopefError: tensor data of the file is damaged.
        """
        self.executable = executable
        self.index_anchor = executable.index_anchor
        self.graphs: Mapping[int, GraphIo] = {
            graph.index: GraphIo(
                graph.index,
                graph.name,
                tuple(executable.anchor(binding.anchor, TensorType.INPUT) for binding in graph.inputs),
                tuple(executable.anchor(binding.anchor, TensorType.OUTPUT) for binding in graph.outputs),
            )
            for graph in executable.program.graphs
        }
        self.inputs: Mapping[str, Anchor] = _by_name(anchor for graph in self.graphs.values() for anchor in graph.inputs)
        self.outputs: Mapping[str, Anchor] = _by_name(anchor for graph in self.graphs.values() for anchor in graph.outputs)
        self._aliases = _aliases(executable)
        tensors = executable.model.tensors
        self._file_data = frozenset(name for name in self.inputs if name in tensors)
        self.defaults: dict[str, Array] = {name: tensors[name].array() for name in self._file_data}
        self.frozen_weights: dict[str, Array] = {}
        for given, data in frozen_inputs.items():
            name = self.canonical(given)
            into = self.defaults if name in self.inputs else self.frozen_weights
            into[name] = fitted(executable.anchor(name, TensorType.INPUT), data, f"frozen input '{given}'")

    def canonical(self, name: str) -> str:
        """The stream's name for `name`, which may be an alias."""
        return self._aliases.get(name, name)

    def describe_inputs(self) -> list[DataDesc]:
        """Inputs in the order of the metadata, the index input included."""
        index = self.index_anchor
        return [
            describe(anchor, has_data=anchor.name in self._file_data)
            for anchor in self.executable.metadata.inputs
            if anchor.name in self.inputs or (index is not None and anchor.name == index.name)
        ]

    def describe_all_inputs(self) -> list[DataDesc]:
        """Inputs in the order of the metadata, those of load programs included."""
        tensors = self.executable.model.tensors
        return [describe(anchor, has_data=anchor.name in tensors) for anchor in self.executable.metadata.inputs]

    def describe_outputs(self) -> list[DataDesc]:
        """Outputs in the order of the metadata."""
        return [describe(anchor, has_data=False) for anchor in self.executable.metadata.outputs if anchor.name in self.outputs]

    def refuse_unknown(self, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Checks that all names exist, given by canonical name.

        Raises:
            ApplicationRuntimeError: some do not; names them and what there is.
        """
        index = () if self.index_anchor is None else (self.index_anchor.name,)
        for kind, given, known in (("input", inputs, (*index, *self.inputs)), ("output", outputs, tuple(self.outputs))):
            unknown = [name for name in given if name not in known]
            if unknown:
                raise ApplicationRuntimeError(
                    f"executable '{self.executable.name}' has no {kind} {_listed(unknown)}; its {kind}s are {_listed(known)}"
                )


def fitted(anchor: Anchor, data: Array, what: str) -> Array:
    """One micro-batch of `anchor`, contiguous and in its shape.

    Raises:
        ApplicationRuntimeError: shape or dtype are others; says which were expected.
    """
    info = anchor.tensor_info
    array = np.asarray(data)
    if array.dtype != info.data_type.numpy or array.size * array.itemsize != info.size_in_bytes:
        raise ApplicationRuntimeError(
            f"{what}: {array.dtype}{list(array.shape)} given, "
            f"expected {info.data_type.numpy}{list(info.shape)} ({info.size_in_bytes} bytes)"
        )
    return np.ascontiguousarray(array).reshape(info.shape)


def _by_name(anchors: Iterable[Anchor]) -> dict[str, Anchor]:
    return {anchor.name: anchor for anchor in anchors}


def _aliases(executable: Executable) -> dict[str, str]:
    blob = executable.model.opaques.get(MODEL_FUSION)
    if blob is None:
        return {}
    try:
        fusion = FusionMap.from_bytes(blob)
    except OpaqueError as error:
        raise ApplicationRuntimeError(f"executable '{executable.name}': {error}") from error
    return {alias: anchor.anchor for graph in fusion.graphs for anchor in (*graph.inputs, *graph.outputs) for alias in anchor.aliases}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
