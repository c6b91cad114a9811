"""The cost of a node: its steps on the busiest tile, its temporary memory and its code.

Matrix work is planned by `tiling`. All other operators run on the vector units, spread evenly over the tiles. An operator makes a number of
passes over its elements (`constants.PASSES`), and reads and writes its tile's memory. Operands on other tiles are exchanged first. Views
(reshape, slice, split, squeeze) cost nothing: Poplar's tensors are expressions over regions of memory.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from stoker.backends.ipu.compile.constants import PASSES, VECTOR_BYTES, CostConstants
from stoker.backends.ipu.compile.tiling import CONTRACTIONS, DEFAULT_RATES, Contraction, Rates, contraction_of, partition
from stoker.backends.ipu.hardware import IpuHardware
from stoker.backends.ipu.program import StepKind
from stoker.compiler.lowering.typed_graph import TensorFacts

#: Operators whose output is a view of their input. The reader of a view with another order of elements moves them, see `Layouts`.
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
        "Transpose",
    }
)
#: Operators that move data without computing.
MOVES = frozenset({"Concat", "Gather", "GatherElements", "GatherND", "Pad", "Tile", "Scatter", "ScatterElements", "ScatterND",
                   "DepthToSpace", "SpaceToDepth", "Resize", "Upsample", "OneHot", "Trilu", "ReverseSequence", "Remap", "EyeLike",
                   "Range", "Compress"})  # fmt: skip
#: Passes over the input of operators that reduce it and then use the result. A softmax finds and subtracts the maximum, takes the
#: exponential (three), sums, and multiplies; a normalisation sums values and squares, and subtracts and multiplies.
NORMALISING: dict[str, float] = {
    "Softmax": 7, "LogSoftmax": 7, "LayerNormalization": 4, "GroupNormalization": 4, "InstanceNormalization": 4, "FastNorm": 3,
    "SimplifiedLayerNormalization": 3, "RMSNormalization": 3, "LpNormalization": 3, "Hardmax": 4, "CumSum": 4, "TopK": 24, "NonZero": 8,
}  # fmt: skip
_SOFTMAX = frozenset({"Softmax", "LogSoftmax"})
_STABLE_PASSES = 2
"""Passes that finding and subtracting the maximum takes."""
POOLING = frozenset({"MaxPool", "AveragePool", "LpPool"})
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
        code_bytes: Control code and vertex state on each tile, for the distinct steps.
        exchange_code_bytes: Exchange code on the busiest tile.
        codelets: Names of the vertex code that the steps run: see `constants.CODELET_BYTES`. All nodes of a program share it.
    """

    steps: tuple[CostStep, ...] = ()
    temporary_bytes: int = 0
    code_bytes: int = 0
    exchange_code_bytes: int = 0
    codelets: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The hardware that nodes are planned for.

    Attributes:
        hardware: The system.
        tiles: Number of tiles for computing.
        temporary_limit_bytes: Temporary memory of contractions per tile: available_memory_proportion of its memory.
        partials_type: `half` or `float`; empty means `half`.
        constants: Constants of the cost model.
        rates: Rates of loading weights and of adding partial sums.
        is_softmax_stable: Whether a softmax subtracts the maximum first.
    """

    hardware: IpuHardware
    tiles: int
    temporary_limit_bytes: int
    partials_type: str
    constants: CostConstants
    rates: Rates = DEFAULT_RATES
    is_softmax_stable: bool = True


def node_cost(
    node: ir.Node,
    inputs: Sequence[TensorFacts | None],
    outputs: Sequence[TensorFacts],
    machine: Machine,
    *,
    is_fp8: bool,
    moved_bytes: int = 0,
) -> NodeCost:
    """Returns the cost of `node` on `machine`. `moved_bytes`: total of its element-wise operands that do not lie like the first one."""
    if node.op_type in VIEWS or not outputs:
        return NodeCost()
    if node.op_type in CONTRACTIONS:
        contraction = contraction_of(node, list(inputs), outputs[0], machine.hardware, is_fp8=is_fp8, partials_type=machine.partials_type)
        cost = _contraction_cost(contraction, machine)
        has_bias = len(inputs) > 2 and inputs[2] is not None
        return _joined(cost, _vector_cost(outputs[0], 1, machine, op_type="Add")) if has_bias else cost
    largest = max((each for each in (*inputs, *outputs) if each is not None), key=lambda each: each.elements)
    if node.op_type in MOVES:
        return move_cost(outputs[0], machine)
    if node.op_type in POOLING:
        taps = math.prod(node.attributes.get_ints("kernel_shape", ()))
        return _vector_cost(outputs[0], taps, machine, op_type=node.op_type, kind="pooling", moved_bytes=outputs[0].byte_count)
    if node.op_type in NORMALISING or node.op_type.startswith(("Reduce", "Global", "Arg")):
        return _reduction_cost(largest, node.op_type, machine)
    passes = machine.constants.erf_passes if node.op_type == "Erf" else PASSES.get(node.op_type, 2)
    return _vector_cost(largest, passes, machine, op_type=node.op_type, moved_bytes=moved_bytes)


def _normalising_passes(op_type: str, machine: Machine) -> float:
    passes = NORMALISING.get(op_type, 1)
    return passes if machine.is_softmax_stable or op_type not in _SOFTMAX else passes - _STABLE_PASSES


def _contraction_cost(contraction: Contraction, machine: Machine) -> NodeCost:
    constants = machine.constants
    plan = partition(contraction, machine.hardware, machine.tiles, machine.temporary_limit_bytes, constants, machine.rates)
    flops = 2 * contraction.macs // plan.slices
    one = [
        CostStep(StepKind.EXCHANGE, _launched(plan.receive_cycles, machine), plan.tiles, data_bytes=plan.receive_bytes * plan.tiles),
        CostStep(StepKind.COMPUTE, _launched(plan.compute_cycles, machine), plan.tiles, flops),
    ]
    if plan.partials_bytes:
        one.append(_exchange(plan.partials_bytes, plan.tiles, machine))
    if plan.reduce_cycles:
        one.append(CostStep(StepKind.COMPUTE, _launched(plan.reduce_cycles, machine), plan.tiles))
    codelets = {f"matrix {contraction.macs_per_cycle}"} | ({"reduction partials"} if plan.reduce_cycles else set())
    return _priced(one * plan.slices, machine, codelets=codelets, temporary_bytes=plan.temporary_bytes, distinct=len(one))


def _vector_cost(
    tensor: TensorFacts, passes: float, machine: Machine, *, op_type: str, kind: str = "element-wise", moved_bytes: int = 0
) -> NodeCost:
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
    return _priced(steps, machine, codelets={f"{kind} {op_type} {tensor.bits}"}, temporary_bytes=temporary)


def _reduction_cost(tensor: TensorFacts, op_type: str, machine: Machine) -> NodeCost:
    """Returns the cost of a reduction or normalisation. Both read the tensor in its own width, and accumulate in fp32."""
    passes = _normalising_passes(op_type, machine)
    per_tile, tiles = _spread(tensor, machine)
    vectors = math.ceil(per_tile * tensor.element_bytes / VECTOR_BYTES)
    cycles = vectors * passes * machine.constants.vector_cycles / _REDUCTION_STEPS
    step = CostStep(StepKind.COMPUTE, _launched(cycles, machine), tiles, round(tensor.elements * passes / _REDUCTION_STEPS))
    steps = [step, _exchange(VECTOR_BYTES * _REDUCTION_STEPS, tiles, machine)] * _REDUCTION_STEPS
    codelets = {f"reduction {op_type} {tensor.bits}"}
    return _priced(steps, machine, codelets=codelets, temporary_bytes=math.ceil(per_tile * tensor.element_bytes))


def move_cost(tensor: TensorFacts, machine: Machine) -> NodeCost:
    """Returns the cost of moving `tensor` to other tiles or into another order."""
    per_tile, tiles = _spread(tensor, machine)
    moved = math.ceil(per_tile * tensor.element_bytes)
    copy = CostStep(StepKind.COMPUTE, _launched(per_tile * machine.constants.copy_cycles, machine), tiles)
    return _priced([_exchange(moved, tiles, machine), copy], machine, codelets={"move"}, temporary_bytes=moved)


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


def _priced(
    steps: list[CostStep], machine: Machine, *, codelets: Iterable[str], temporary_bytes: int, distinct: int | None = None
) -> NodeCost:
    """Returns the cost of the steps, with a sync before each step, and of their code.

    Only the first `distinct` steps have code of their own: sequential slices are a loop.
    """
    sync = CostStep(StepKind.SYNC, math.ceil(machine.constants.sync_cycles), machine.tiles)
    received = sum(step.data_bytes // max(step.tiles, 1) for step in steps[:distinct] if step.kind is StepKind.EXCHANGE)
    return NodeCost(
        steps=tuple(each for step in steps for each in (sync, step)),
        temporary_bytes=temporary_bytes,
        code_bytes=math.ceil((distinct or len(steps)) * machine.constants.step_code_bytes),
        exchange_code_bytes=math.ceil(received * machine.constants.exchange_code_share),
        codelets=frozenset(codelets),
    )


def _joined(first: NodeCost, second: NodeCost) -> NodeCost:
    return NodeCost(
        steps=first.steps + second.steps,
        temporary_bytes=max(first.temporary_bytes, second.temporary_bytes),
        code_bytes=first.code_bytes + second.code_bytes,
        exchange_code_bytes=first.exchange_code_bytes + second.exchange_code_bytes,
        codelets=first.codelets | second.codelets,
    )
