"""Constants of the cost model, each with its source.

There are three kinds. *Published*: figures of the hardware, in `stoker.backends.ipu.hardware`. *Structural*: counts that follow from how
the matrix unit and the vector units work, or from the operations of an operator per element. *Fitted*: a few overheads that are not
published, adjusted together against the published ResNet-50 and BERT-base tables and the development rows by `python -m
benchmarks.ipu_model --fit`. No constant belongs to a model, a batch size or a row of a table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stoker.backends.simulated.model_error import ModelError

OUTPUT_CHANNELS: Final = 16
"""Output channels that the matrix unit computes at once. Structural (Poplibs' open planner: conv units of a tile)."""

CYCLES_PER_POSITION: Final = 4
"""Cycles of the matrix unit to multiply one row by a block of weights. Structural: 16 outputs x 16 fp16 inputs / 64 MAC a cycle."""

WEIGHT_LOAD_BYTES: Final = 8
"""Bytes per cycle of loading a block of weights into the matrix unit. Structural (64-bit loads)."""

WIDE_LOAD_BYTES: Final = 16
"""The same with `use_128bit_conv_unit_load`. Structural (128-bit loads)."""

SHARED_BUS_TILES: Final = 2
"""Neighbouring tiles on one bus of the exchange: data for both arrive once. Published (Poplibs' open planner)."""

VECTOR_BYTES: Final = 8
"""Width of the vector units: four halves, two floats. Structural."""


LINK_EFFICIENCY: Final = 0.85
"""Share of the peak bandwidth that an IPU-Link reaches. Published (Poplibs' open cost model)."""

HOST_LATENCY_S: Final = 3e-6
"""Seconds from the request of a stream to its first byte from the host. Assumed: a round trip over PCIe and the host's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostConstants:
    """The fitted constants.

    Attributes:
        step_cycles: Fixed cycles of a compute or exchange step: leaving and entering a superstep, starting six workers.
        sync_cycles: Cycles of a synchronisation of all tiles of an IPU.
        block_cycles: Fixed cycles of the matrix unit per block of weights, besides loading it: pointers, pipeline fill and drain.
        vector_cycles: Cycles of a tile per vector of a simple element-wise operator: loads, the operation, store, loop. Adding a vector of
            partial sums takes as long.
        copy_cycles: Cycles of a tile per element that it rearranges in its own memory, whatever the element's width.
        plan_tolerance: Share by which a partition may be slower than the fastest one, if it needs less temporary memory.
        erf_passes: Cost of `Erf`, in simple element-wise operators on floats.
        step_code_bytes: Bytes of one distinct step on a tile: its control code, and the state of the vertices of six workers.
        fixed_code_bytes: Bytes of runtime support and stacks on each tile, the same for every program.
        exchange_code_share: Exchange code on a tile, in bytes for each byte that a distinct step receives.
    """

    step_cycles: float = 585.0
    sync_cycles: float = 150.0
    block_cycles: float = 28.0
    vector_cycles: float = 3.86
    copy_cycles: float = 0.83
    plan_tolerance: float = 0.02
    erf_passes: float = 46.5
    step_code_bytes: float = 300.0
    fixed_code_bytes: float = 44_000.0
    exchange_code_share: float = 0.04


FITTED: Final = CostConstants()

TIMING_ERROR: Final = ModelError(median=0.129, worst=0.494, rows=18, source="docs/ipu.md: the test rows, evaluated once")
"""Of throughput on a C600, over rows that were held back until the model was final."""

CODELET_BYTES: Final[Mapping[str, int]] = {"matrix": 6000, "reduction": 2000, "pooling": 2000, "element-wise": 500, "move": 2000}
"""Bytes of vertex code by class of operator. Each tile holds it once for each operator and width, however many nodes run it.

Assumed: no figure is published. The order is that of the source text of Poplibs' open vertices.
"""

PASSES: Final[Mapping[str, float]] = {
    "Abs": 1, "Add": 1, "And": 1, "BitShift": 1, "Cast": 1, "Ceil": 1, "Clip": 1, "Equal": 1, "Floor": 1, "Greater": 1, "GreaterOrEqual": 1,
    "IsInf": 1, "IsNaN": 1, "LeakyRelu": 2, "Less": 1, "LessOrEqual": 1, "Max": 1, "Min": 1, "Mul": 1, "Neg": 1, "Not": 1, "Or": 1,
    "Relu": 1, "Sign": 1, "Sub": 1, "ThresholdedRelu": 2, "Xor": 1, "Where": 2, "Round": 1,
    "Div": 3, "Mod": 4, "Reciprocal": 3, "Sqrt": 3, "Pow": 4, "Exp": 3, "Log": 3, "Sigmoid": 3, "Tanh": 3, "Softplus": 5, "Softsign": 4,
    "Sin": 6, "Cos": 6, "Tan": 8, "Elu": 4, "Celu": 4, "Selu": 4, "Mish": 8, "HardSigmoid": 2, "HardSwish": 3, "Gelu": 4, "PRelu": 2,
    "QuantizeLinear": 2, "DequantizeLinear": 2, "BatchNormalization": 2,
}  # fmt: skip
"""Passes of the vector units over each element. Structural: one per arithmetic instruction; a transcendental or a division takes three."""
