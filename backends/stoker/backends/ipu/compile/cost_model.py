"""The cost of a node: its steps on the busiest tile, its temporary memory and its code.

Matrix work is planned by `tiling`. All other operators run on the vector units, spread evenly over the tiles. An operator makes a number of
passes over its elements (`constants.PASSES`), and reads and writes its tile's memory. Operands on other tiles are exchanged first. Views
(reshape, slice, split, squeeze) cost nothing: Poplar's tensors are expressions over regions of memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from stoker.backends.ipu.compile.constants import PASSES, VECTOR_BYTES, CostConstants
from stoker.backends.ipu.compile.tiling import CONTRACTIONS, Contraction, contraction_of, partition
from stoker.backends.ipu.hardware import IpuHardware
from stoker.backends.ipu.program import StepKind
from stoker.compiler.lowering.typed_graph import TensorFacts

#: Operators whose output is a view of their input.
VIEWS = frozenset(
    {
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Identity",
        "Split",
        "Slice",
        "Dropout",
        "Constant",
        "Shape",
        "Size",
        "Expand",
        "ConstantOfShape",
    }
)
#: Operators that move data without computing.
MOVES = frozenset({"Transpose", "Concat", "Gather", "GatherElements", "GatherND", "Pad", "Tile", "Scatter", "ScatterElements", "ScatterND",
                   "DepthToSpace", "SpaceToDepth", "Resize", "Upsample", "OneHot", "Trilu", "ReverseSequence", "Remap", "EyeLike",
                   "Range", "Compress"})  # fmt: skip
#: Passes over the input of operators that reduce it and then use the result.
NORMALISING: dict[str, float] = {
    "Softmax": 9, "LogSoftmax": 9, "LayerNormalization": 8, "GroupNormalization": 8, "InstanceNormalization": 8, "FastNorm": 6,
    "SimplifiedLayerNormalization": 6, "RMSNormalization": 6, "LpNormalization": 5, "Hardmax": 4, "CumSum": 4, "TopK": 24, "NonZero": 8,
}  # fmt: skip
POOLING = frozenset({"MaxPool", "AveragePool", "LpPool"})
_FLOAT_BYTES = 4
_REDUCTION_STEPS = 2  # within tiles, then between them


@dataclass(frozen=True, slots=True)
class CostStep:
    """One superstep of a node, on the busiest tile."""

    kind: StepKind
    cycles: int
    tiles: int
    flops: int = 0
    data_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCost:
    """The cost of one execution of a node.

    Attributes:
        steps: The steps in order.
        temporary_bytes: Temporary memory on the busiest tile, besides inputs and outputs.
        code_bytes: Vertex and control code on each tile.
        exchange_code_bytes: Exchange code on the busiest tile.
    """

    steps: tuple[CostStep, ...] = ()
    temporary_bytes: int = 0
    code_bytes: int = 0
    exchange_code_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The hardware that nodes are planned for.

    Attributes:
        hardware: The system.
        tiles: Number of tiles for computing.
        temporary_limit_bytes: Temporary memory of contractions per tile: available_memory_proportion of its memory.
        partials_type: `half` or `float`; empty means `half`.
        constants: Constants of the cost model.
    """

    hardware: IpuHardware
    tiles: int
    temporary_limit_bytes: int
    partials_type: str
    constants: CostConstants


def node_cost(
    node: ir.Node, inputs: Sequence[TensorFacts | None], outputs: Sequence[TensorFacts], machine: Machine, *, is_fp8: bool
) -> NodeCost:
    """Returns the cost of `node` on `machine`."""
    if node.op_type in VIEWS or not outputs:
        return NodeCost()
    if node.op_type in CONTRACTIONS:
        contraction = contraction_of(node, list(inputs), outputs[0], machine.hardware, is_fp8=is_fp8, partials_type=machine.partials_type)
        cost = _contraction_cost(contraction, machine)
        has_bias = len(inputs) > 2 and inputs[2] is not None
        return _joined(cost, _vector_cost(outputs[0], 1, machine, moved_bytes=0)) if has_bias else cost
    largest = max((each for each in (*inputs, *outputs) if each is not None), key=lambda each: each.elements)
    if node.op_type in MOVES:
        return move_cost(outputs[0], machine)
    if node.op_type in POOLING:
        taps = math.prod(node.attributes.get_ints("kernel_shape", ()))
        return _vector_cost(outputs[0], taps, machine, moved_bytes=outputs[0].byte_count)
    if node.op_type in NORMALISING or node.op_type.startswith(("Reduce", "Global", "Arg")):
        return _reduction_cost(largest, NORMALISING.get(node.op_type, 1), machine)
    passes = machine.constants.erf_passes if node.op_type == "Erf" else PASSES.get(node.op_type, 2)
    full = [each for each in inputs if each is not None and not each.is_constant and each.elements == outputs[0].elements]
    moved = full[1].byte_count if len(full) > 1 else 0
    return _vector_cost(largest, passes, machine, moved_bytes=moved)


def _contraction_cost(contraction: Contraction, machine: Machine) -> NodeCost:
    constants = machine.constants
    plan = partition(contraction, machine.hardware, machine.tiles, machine.temporary_limit_bytes, constants)
    flops = 2 * contraction.macs // plan.slices
    one = [
        _exchange(plan.receive_bytes, plan.tiles, machine),
        CostStep(StepKind.COMPUTE, _launched(plan.compute_cycles, machine), plan.tiles, flops),
    ]
    if plan.partials_bytes:
        one.append(_exchange(plan.partials_bytes, plan.tiles, machine))
    if plan.reduce_cycles:
        one.append(CostStep(StepKind.COMPUTE, _launched(plan.reduce_cycles, machine), plan.tiles))
    return _priced(one * plan.slices, machine, temporary_bytes=plan.temporary_bytes, distinct=len(one))


def _vector_cost(tensor: TensorFacts, passes: float, machine: Machine, *, moved_bytes: int) -> NodeCost:
    per_tile, tiles = _spread(tensor, machine)
    vectors = math.ceil(per_tile * tensor.element_bytes / VECTOR_BYTES)
    steps = [
        CostStep(
            StepKind.COMPUTE, _launched(vectors * passes * machine.constants.vector_cycles, machine), tiles, round(tensor.elements * passes)
        )
    ]
    temporary = 0
    if moved_bytes:
        temporary = math.ceil(moved_bytes / tiles)
        steps.insert(0, _exchange(temporary, tiles, machine))
    return _priced(steps, machine, temporary_bytes=temporary)


def _reduction_cost(tensor: TensorFacts, passes: float, machine: Machine) -> NodeCost:
    """Returns the cost of a reduction or normalisation. Both compute in fp32, whatever the tensor's type."""
    per_tile, tiles = _spread(tensor, machine)
    vectors = math.ceil(per_tile * max(tensor.element_bytes, _FLOAT_BYTES) / VECTOR_BYTES)
    cycles = vectors * passes * machine.constants.vector_cycles / _REDUCTION_STEPS
    step = CostStep(StepKind.COMPUTE, _launched(cycles, machine), tiles, round(tensor.elements * passes / _REDUCTION_STEPS))
    steps = [step, _exchange(VECTOR_BYTES * _REDUCTION_STEPS, tiles, machine)] * _REDUCTION_STEPS
    return _priced(steps, machine, temporary_bytes=math.ceil(per_tile * tensor.element_bytes))


def move_cost(tensor: TensorFacts, machine: Machine) -> NodeCost:
    """Returns the cost of moving `tensor` to other tiles or into another order."""
    per_tile, tiles = _spread(tensor, machine)
    moved = math.ceil(per_tile * tensor.element_bytes)
    copy = CostStep(StepKind.COMPUTE, _launched(per_tile * machine.constants.copy_cycles, machine), tiles)
    return _priced([_exchange(moved, tiles, machine), copy], machine, temporary_bytes=moved)


def _spread(tensor: TensorFacts, machine: Machine) -> tuple[int, int]:
    """Returns the elements on the fullest tile and the number of tiles used, for an even spread in whole vectors."""
    grain = max(1, round(VECTOR_BYTES / tensor.element_bytes))
    per_tile = math.ceil(math.ceil(tensor.elements / machine.tiles) / grain) * grain
    return per_tile, max(1, math.ceil(tensor.elements / max(per_tile, 1)))


def _launched(cycles: float, machine: Machine) -> int:
    return math.ceil(cycles + machine.constants.step_cycles)


def _exchange(tile_bytes: int, tiles: int, machine: Machine) -> CostStep:
    """Returns an exchange in which the busiest tile receives `tile_bytes`."""
    return CostStep(
        StepKind.EXCHANGE, _launched(tile_bytes / machine.hardware.exchange_bytes, machine), tiles, data_bytes=tile_bytes * tiles
    )


def _priced(steps: list[CostStep], machine: Machine, *, temporary_bytes: int, distinct: int | None = None) -> NodeCost:
    """Returns the cost of the steps, with a sync before each step, and of their code."""
    sync = CostStep(StepKind.SYNC, math.ceil(machine.constants.sync_cycles), machine.tiles)
    received = sum(step.data_bytes // max(step.tiles, 1) for step in steps if step.kind is StepKind.EXCHANGE)
    return NodeCost(
        steps=tuple(each for step in steps for each in (sync, step)),
        temporary_bytes=temporary_bytes,
        code_bytes=math.ceil((distinct or len(steps)) * machine.constants.step_code_bytes),
        exchange_code_bytes=math.ceil(received * machine.constants.exchange_code_share),
    )


def _joined(first: NodeCost, second: NodeCost) -> NodeCost:
    return NodeCost(
        steps=first.steps + second.steps,
        temporary_bytes=max(first.temporary_bytes, second.temporary_bytes),
        code_bytes=first.code_bytes + second.code_bytes,
        exchange_code_bytes=first.exchange_code_bytes + second.exchange_code_bytes,
    )
