"""Constants of the cost model, each with its source.

Three kinds. *Published*: the hardware's own figures stand in `stoker.backends.ipu.hardware`. *Structural*: counts that follow from how the
matrix unit and the vector units work, or from counting what an operator does to each element. *Fitted*: a handful of overheads that
that are not published, adjusted together against the published ResNet-50 and BERT-base tables by `python -m benchmarks.ipu_model --fit`.
No constant belongs to a model, a batch size or a row of a table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

OUTPUT_CHANNELS: Final = 16
"""Output channels that the matrix unit makes at once. Structural (Poplibs' open planner: conv units of a tile)."""

CYCLES_PER_POSITION: Final = 4
"""Cycles in which the matrix unit multiplies one row by a block of weights. Structural: 16 outputs x 16 fp16 inputs / 64 MAC a cycle."""

WEIGHT_LOAD_BYTES: Final = 8
"""Bytes a cycle at which a block of weights enters the matrix unit. Structural (64-bit loads)."""

VECTOR_BYTES: Final = 8
"""Width of the vector units: four halves, two floats. Structural."""


LINK_EFFICIENCY: Final = 0.85
"""Share of an IPU-Link's peak that is reached. Published (Poplibs' open cost model)."""

HOST_LATENCY_S: Final = 3e-6
"""Seconds from asking the host for a stream to its first byte. Assumed: a round trip over PCIe and the host's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostConstants:
    """The fitted constants.

    Attributes:
        step_cycles: Of any compute or exchange step beyond its data: leaving and entering a superstep, starting six workers.
        sync_cycles: A synchronisation of all tiles of an IPU.
        block_cycles: Of the matrix unit for each block of weights, beyond loading it: pointers, pipeline fill and drain.
        vector_cycles: Of a tile for each vector of a simple element-wise operator: loads, the operation, store, loop.
        copy_cycles: Of a tile for each element that it rearranges in its own memory; narrow elements are moved no faster than wide ones.
        plan_tolerance: By what share a partition may be slower than the quickest, if it needs less temporary memory.
        erf_passes: What `Erf` costs, in simple element-wise operators on floats.
        step_code_bytes: Control code of one distinct step on a tile.
        fixed_code_bytes: Runtime support, stacks and vertex code that every program has on each tile.
        exchange_code_share: Exchange code on a tile, in bytes for each byte received.
    """

    step_cycles: float = 466.0
    sync_cycles: float = 150.0
    block_cycles: float = 62.6
    vector_cycles: float = 3.77
    copy_cycles: float = 1.37
    plan_tolerance: float = 0.02
    erf_passes: float = 18.0
    step_code_bytes: float = 1000.0
    fixed_code_bytes: float = 14_000.0
    exchange_code_share: float = 0.03


FITTED: Final = CostConstants()

PASSES: Final[Mapping[str, float]] = {
    "Abs": 1, "Add": 1, "And": 1, "BitShift": 1, "Cast": 1, "Ceil": 1, "Clip": 1, "Equal": 1, "Floor": 1, "Greater": 1, "GreaterOrEqual": 1,
    "IsInf": 1, "IsNaN": 1, "LeakyRelu": 2, "Less": 1, "LessOrEqual": 1, "Max": 1, "Min": 1, "Mul": 1, "Neg": 1, "Not": 1, "Or": 1,
    "Relu": 1, "Sign": 1, "Sub": 1, "ThresholdedRelu": 2, "Xor": 1, "Where": 2, "Round": 1,
    "Div": 3, "Mod": 4, "Reciprocal": 3, "Sqrt": 3, "Pow": 4, "Exp": 3, "Log": 3, "Sigmoid": 3, "Tanh": 3, "Softplus": 5, "Softsign": 4,
    "Sin": 6, "Cos": 6, "Tan": 8, "Elu": 4, "Celu": 4, "Selu": 4, "Mish": 8, "HardSigmoid": 2, "HardSwish": 3, "Gelu": 4, "PRelu": 2,
    "QuantizeLinear": 2, "DequantizeLinear": 2, "BatchNormalization": 2,
}  # fmt: skip
"""Passes of the vector units over each element. Structural: one an arithmetic instruction; a transcendental or a division takes three."""
