"""The program of a `model.exec` file: one graph for each compiled batch size, and the weights that they share.

The batch is the first dimension of every input and output, and is not part of `dims`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stoker.backends.api.tensor import DataType, element_count


@dataclass(frozen=True, slots=True)
class GcuTensor:
    """An input or output of the engine.

    Attributes:
        name: The name in the source model.
        dtype: The element type on the device and of the transferred data.
        dims: Without the batch dimension.
    """

    name: str
    dtype: DataType
    dims: tuple[int, ...]

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return element_count(self.dims) * self.dtype.item_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledBatch:
    """The engine for one batch size.

    Attributes:
        batch_size: Samples of one run.
        onnx: The lowered graph (inputs and outputs as `GcuExecutable` names them). Dimension 0 is `batch_size`, or variable if the host
            may compute fewer samples. Its weights are external data, by name in `GcuExecutable.weights`.
        workspace_bytes: HBM that a run takes for its intermediate values, besides weights and the caller's buffers.
        flops: Floating-point operations of one run.
        hbm_traffic_bytes: Bytes that one run moves between HBM and the cores.
        run_s: Modelled seconds of one run by number of clusters, from 1 on.
    """

    batch_size: int
    onnx: bytes
    workspace_bytes: int
    flops: int
    hbm_traffic_bytes: int
    run_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GcuExecutable:
    """A compiled model.

    Attributes:
        name: Name of the model.
        card: Name of the hardware it was compiled for.
        precision: `fp32`, `fp16` or `mixed`: the build flag it was compiled with.
        inputs, outputs: Tensors in the order of the source model.
        batches: The compiled batches, at least one, in ascending order of batch size.
        weights: Weights by the name that the graphs refer to them with.
        attributes: Further facts for people: compiler version, options, hash of the source.
    """

    name: str
    card: str
    precision: str
    inputs: tuple[GcuTensor, ...]
    outputs: tuple[GcuTensor, ...]
    batches: tuple[CompiledBatch, ...]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int:
        """HBM that the weights take."""
        return sum(array.nbytes for array in self.weights.values())

    @property
    def max_batch_size(self) -> int:
        """The largest compiled batch."""
        return self.batches[-1].batch_size

    def batch_for(self, samples: int) -> CompiledBatch:
        """Returns the smallest compiled batch for at least `samples` samples, or the largest one if none is large enough."""
        return next((batch for batch in self.batches if batch.batch_size >= samples), self.batches[-1])
