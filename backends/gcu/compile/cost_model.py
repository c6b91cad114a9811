"""How long a run takes: a roofline over the operators of one sample, and samples shared out over clusters.

Every cluster computes whole samples, one after the other: the published tables show 5.7 to 5.9 times the throughput of one sample at 120 on
six clusters, so nothing that a larger batch could share (launches, weights) is seen to be shared within a cluster, and the model does not
promise it. A run of `batch` samples on `c` clusters takes as long as the busiest cluster, `ceil(batch / c)` samples.

A kernel takes its launch and the longer of two times: its floating-point operations at the cluster's part of the peak rate of the type it
computes in, and its bytes at the cluster's part of the HBM bandwidth. What is fused into the kernel before it (`_fused`) launches nothing
and moves only what it reads beside that kernel's result. Views (reshape, squeeze) cost nothing.
"""

import math
from dataclasses import dataclass

import onnx_ir as ir

from backends.gcu.compile.constants import CostConstants
from backends.gcu.hardware import GcuHardware
from compiler.lowering.moving import words
from compiler.lowering.tensor_facts import TensorFacts, node_label, tensor_facts

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul", "Einsum"})
#: Operators that only look at a tensor in another way, or are gone when the graph is compiled.
_VIEWS = words("Reshape Squeeze Unsqueeze Flatten Identity Dropout Constant Shape Size")
#: Element by element; such an operator is part of the kernel that makes its input, where nothing else reads that.
_ELEMENTWISE = words(
    """Abs Add And BatchNormalization BiasGelu Cast Ceil Clip Cos Div Elu Equal Erf Exp FastGelu Floor Gelu Greater GreaterOrEqual
    HardSigmoid HardSwish LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow QuickGelu Reciprocal Relu Round
    Selu Sigmoid Sign Sin Softplus Softsign Sqrt Sub Sum Tan Tanh Where Xor"""
)
#: Operations for each element, where it is not one. Counted as the arithmetic they are made of; a transcendental counts eight.
_OPERATIONS = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), 12),
    **dict.fromkeys(("LayerNormalization", "GroupNormalization", "InstanceNormalization", "SkipLayerNormalization"), 8),
    **dict.fromkeys(("Erf", "Exp", "Gelu", "FastGelu", "BiasGelu", "Log", "Mish", "Sigmoid", "Softplus", "Tanh", "Pow", "Sin", "Cos"), 8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What one node costs for one sample of the batch.

    Attributes:
        node, op_type: Whose it is.
        flops: Floating-point operations.
        hbm_bytes: Bytes read and written.
        is_launched: Whether it is a kernel of its own, not part of the one before.
        seconds: On one cluster, launch included.
    """

    node: str
    op_type: str
    flops: int
    hbm_bytes: int
    is_launched: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCost:
    """What one run of a graph costs.

    Attributes:
        kernels: Of one sample, in order; views have none.
        batch_size: Samples of the run.
        run_s: Modelled seconds by number of clusters, from 1 on.
    """

    kernels: tuple[Kernel, ...]
    batch_size: int
    run_s: tuple[float, ...]

    @property
    def flops(self) -> int:
        """Of the whole run."""
        return self.batch_size * sum(each.flops for each in self.kernels)

    @property
    def hbm_bytes(self) -> int:
        """Of the whole run."""
        return self.batch_size * sum(each.hbm_bytes for each in self.kernels)


def graph_cost(model: ir.Model, *, batch_size: int, hardware: GcuHardware, constants: CostConstants) -> GraphCost:
    """The cost of one run of `model`, whose shapes must be known and have `batch_size` samples.

    Raises:
        CompileError: a tensor has no static shape.
    """
    survey = _Survey(batch_size, hardware, constants)
    for node in model.graph:
        survey.add(node)
    sample_s = sum(kernel.seconds for kernel in survey.kernels)
    run_s = tuple(constants.run_overhead_s + math.ceil(batch_size / clusters) * sample_s for clusters in range(1, hardware.clusters + 1))
    return GraphCost(kernels=tuple(survey.kernels), batch_size=batch_size, run_s=run_s)


class _Survey:
    """Walks a graph once."""

    def __init__(self, batch_size: int, hardware: GcuHardware, constants: CostConstants) -> None:
        self.kernels: list[Kernel] = []
        self._batch = batch_size
        self._hardware = hardware
        self._constants = constants
        self._facts: dict[ir.Value, TensorFacts] = {}
        self._fusable: set[ir.Value] = set()

    def add(self, node: ir.Node) -> None:
        where = f"node '{node_label(node)}' ({node.op_type})"
        inputs = [None if value is None else self._fact(value, where) for value in node.inputs]
        outputs = [self._fact(value, where) for value in node.outputs if value.uses() or value.is_graph_output()]
        if not outputs or all(each.is_constant for each in outputs) or node.op_type in _VIEWS:
            return
        fused = self._fused(node)
        flops = self._per_sample(_flops(node, inputs, outputs[0]))
        moved = self._moved(node, inputs, outputs, fused)
        seconds = self._seconds(node, flops, moved, inputs, outputs[0]) + (0.0 if fused else self._constants.launch_s)
        self.kernels.append(
            Kernel(node=node_label(node), op_type=node.op_type, flops=flops, hbm_bytes=moved, is_launched=fused is None, seconds=seconds)
        )
        if fused is not None or node.op_type in _CONVOLUTIONS | _PRODUCTS | _ELEMENTWISE:
            self._fusable.update(node.outputs[:1])

    def _fused(self, node: ir.Node) -> ir.Value | None:
        """The value whose kernel this node is part of: computed just before, read by nobody else; None where it is its own kernel."""
        if node.op_type not in _ELEMENTWISE:
            return None
        for value in node.inputs:
            if value is not None and value in self._fusable and not value.is_graph_output() and self._is_read_here_only(value, node):
                return value
        return None

    def _is_read_here_only(self, value: ir.Value, node: ir.Node) -> bool:
        """Whether all that reads `value` ends in `node`: x * sigmoid(x) reads x twice, and is one kernel with what gives x."""
        for use in value.uses():
            if use.node is node:
                continue
            between = use.node.outputs
            if use.node.op_type not in _ELEMENTWISE or len(between) != 1 or any(each.node is not node for each in between[0].uses()):
                return False
        return True

    def _moved(self, node: ir.Node, inputs: list[TensorFacts | None], outputs: list[TensorFacts], fused: ir.Value | None) -> int:
        """Bytes between HBM and the cores for one sample; weights are read whole for each."""
        total = 0
        for value, facts in zip(node.inputs, inputs, strict=True):
            if facts is None or value is fused:
                continue
            if node.op_type in ("Gather", "Slice", "Split", "Pad") or value is None:
                continue  # as many as are written
            total += facts.byte_count if facts.is_constant else self._per_sample(facts.byte_count)
        written = sum(self._per_sample(each.byte_count) for each in outputs)
        if node.op_type in ("Gather", "Slice", "Split", "Pad"):
            total += written
        # The kernel before would have written what is now written once, by this node.
        return total + (0 if fused else written)

    def _seconds(self, node: ir.Node, flops: int, moved: int, inputs: list[TensorFacts | None], output: TensorFacts) -> float:
        hardware, constants = self._hardware, self._constants
        is_half = (inputs[0].bits if inputs and inputs[0] is not None else output.bits) <= 16
        peak = (hardware.fp16_flops_per_s if is_half else hardware.fp32_flops_per_s) / hardware.clusters
        bandwidth = hardware.hbm_bytes_per_s / hardware.clusters * constants.hbm_efficiency
        efficiency = 1.0
        if node.op_type in _CONVOLUTIONS:
            efficiency = constants.convolution_efficiency
        elif node.op_type in _PRODUCTS:
            efficiency = constants.product_efficiency
        return max(flops / (peak * efficiency), moved / bandwidth)

    def _per_sample(self, amount: int) -> int:
        return math.ceil(amount / self._batch)

    def _fact(self, value: ir.Value, where: str) -> TensorFacts:
        if value not in self._facts:
            self._facts[value] = tensor_facts(value, where)
        return self._facts[value]


def _flops(node: ir.Node, inputs: list[TensorFacts | None], output: TensorFacts) -> int:
    """Floating-point operations of `node`, the whole batch."""
    left = inputs[0] if inputs else None
    right = inputs[1] if len(inputs) > 1 else None
    if node.op_type == "Conv" and right is not None:
        return 2 * output.elements * math.prod(right.shape[1:])
    if node.op_type == "ConvTranspose" and left is not None and right is not None:
        return 2 * left.elements * math.prod(right.shape[1:])
    if node.op_type in _PRODUCTS and left is not None and left.shape:
        transposed = node.attributes.get_int("transA", 0) if node.op_type == "Gemm" else 0
        return 2 * output.elements * left.shape[0 if transposed else -1]
    if node.op_type in ("MaxPool", "AveragePool"):
        return output.elements * math.prod(node.attributes.get_ints("kernel_shape", ()))
    if node.op_type in ("LSTM", "GRU") and left is not None:
        weights = sum(each.elements for each in inputs[1:3] if each is not None)
        return 2 * math.prod(left.shape[:2]) * weights
    largest = max((each.elements for each in (*inputs, output) if each is not None), default=0)
    return largest * _OPERATIONS.get(node.op_type, 1 if node.op_type in _ELEMENTWISE or node.op_type.startswith("Reduce") else 0)
