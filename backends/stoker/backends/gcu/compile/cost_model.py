"""The modelled time of a run: a roofline over the kernels of one sample, with the samples distributed over the clusters.

Every cluster computes whole samples, one after the other: the published tables show 5.7 to 5.9 times the throughput of one sample at 120 on
six clusters, so a larger batch does not seem to save launches or weight reads within a cluster, and the model assumes no such saving. A run
of `batch` samples on `c` clusters takes as long as the busiest cluster, `ceil(batch / c)` samples.

A kernel (`Kernel`) takes its launch time plus the longer of two times: its floating-point operations at the cluster's share of the peak
rate for its data type, and its bytes at the cluster's share of the HBM bandwidth.

Convolutions and matrix products share one model of their bytes. A cluster computes the result in blocks that fit its on-chip memory, and
loads both operands again for each block. With `rows` x `columns` results, each a sum over `depth`, and blocks of `block_rows` x
`block_columns`, it loads `rows * columns * depth / block_rows` elements of the right operand (the weights) and `rows * columns * depth /
(reuse * block_columns)` of the left. `reuse` is the number of results of a convolution that read the same input element at one place of
the window: kernel size over strides. It is 1 for products, so a product loads more for each operation than a convolution with a window. The
blocks have the shape with the least traffic, `block_rows / block_columns = reuse`, cut to the size of the result. With such blocks the
traffic reaches its known lower bound (Chen et al., "Communication Lower Bound in Convolution Accelerators", HPCA 2020).

Constants of the cost model, each with its source. *Published* figures of the card stand in `stoker.backends.gcu.hardware`. *Fitted* ones
are adjusted together against the published latency and throughput tables by `python -m benchmarks.gcu_model --fit`; none belongs to a
model, a batch size or a row. *Assumed* ones are marked.

Fusion: an element-wise node joins the latest kernel that it reads from, if its result has as many elements as that kernel's. So biases,
activations and residual additions are fused into the convolution or product before them. Views (reshape, squeeze) and casts between float
widths count as their input. Values that only their own kernel reads stay on the cores; values that other kernels read are written to HBM
once.
"""

import math
from dataclasses import dataclass, field
from typing import Final

import onnx_ir as ir

from stoker.backends.gcu.compile.products import CONVOLUTIONS, PRODUCTS, Product, product_of
from stoker.backends.gcu.hardware import GcuHardware
from stoker.backends.simulated.model_error import ModelError
from stoker.compiler.lowering.typed_graph import TensorFacts, node_label, tensor_facts, words


@dataclass(frozen=True, slots=True, kw_only=True)
class CostConstants:
    """The parameters of an operator's time, beside the card's published figures.

    All published latencies are for fp32. The same constants are assumed for fp16; no published figure confirms this.

    Attributes:
        launch_s: Fitted. Seconds that each launched kernel takes beyond its data: fetching its descriptor, filling and draining the cores.
        block_bytes: Fitted. On-chip memory of a cluster that holds a block of results.
        hbm_efficiency: Assumed. Share of its part of the HBM bandwidth that a cluster reaches. The tables cannot distinguish it from
            `block_bytes`.
        run_overhead_s: Assumed. Seconds of a run beyond its kernels: the host's command and the completion it waits for.
    """

    launch_s: float = 22.25e-6
    block_bytes: float = 11_040.0
    hbm_efficiency: float = 0.8
    run_overhead_s: float = 50e-6


FITTED: Final = CostConstants()

TIMING_ERROR: Final = ModelError(median=0.33, worst=0.52, rows=8, source="docs/gcu.md: each network left out of the fit in turn")
"""Of latency on an i20, over networks that are not in the fit."""

CODE_BYTES: Final = 4 << 20
"""HBM that the executable's code takes for each compiled batch. Assumed: kernels of a network are a few megabytes."""


#: Operators whose output is a view of their input, or that compilation removes.
_VIEWS = words("Reshape Squeeze Unsqueeze Flatten Identity Dropout Constant Shape Size")
ELEMENTWISE = words(
    """Abs Add And BatchNormalization BiasGelu Cast Ceil Clip Cos Div Elu Equal Erf Exp FastGelu Floor Gelu Greater GreaterOrEqual
    HardSigmoid HardSwish LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow QuickGelu Reciprocal Relu Round
    Selu Sigmoid Sign Sin Softplus Softsign Sqrt Sub Sum Tan Tanh Where Xor"""
)
#: Operators that read only as many input elements as they output.
_PARTIAL_READERS = words("Gather GatherElements GatherND Slice Split")


def _is_width_cast(node: ir.Node) -> bool:
    """Whether `node` only changes the width of floats. The kernels that store or load them do this without extra time."""
    types = {ir.DataType.FLOAT, ir.DataType.FLOAT16}
    value = node.inputs[0] if node.op_type == "Cast" else None
    return value is not None and {value.dtype, node.outputs[0].dtype} <= types


@dataclass(slots=True)
class Kernel:
    """Nodes that run as one kernel, which is named after the first of them.

    Attributes:
        nodes: The nodes in order.
        read, written: Values transferred between HBM and the cores, with their bytes for the whole batch.
        weights: Bytes of the constants that the kernel reads.
    """

    nodes: list[ir.Node]
    read: dict[ir.Value, int] = field(default_factory=dict)
    written: dict[ir.Value, int] = field(default_factory=dict)
    weights: dict[ir.Value, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the first node."""
        return node_label(self.nodes[0])


class KernelGraph:
    """The kernels of a graph in launch order.

    Attributes:
        kernels: The kernels with their nodes and HBM traffic.
    """

    def __init__(self, graph: ir.Graph) -> None:
        """Assigns the nodes of the graph to kernels.

        Raises:
            CompileError: a tensor has no static shape.
        """
        self.kernels: list[Kernel] = []
        self._facts: dict[ir.Value, TensorFacts] = {}
        self._roots: dict[ir.Value, ir.Value] = {}
        self._made_by: dict[ir.Value, int] = {}
        for node in graph:
            self._place(node)
        for at, kernel in enumerate(self.kernels):
            for node in kernel.nodes:
                self._count_reads(at, node)
        for value in graph.outputs:
            self._write(self._root(value))

    def facts(self, value: ir.Value) -> TensorFacts:
        """Returns shape and element width of a value of the graph."""
        if value not in self._facts:
            producer = value.producer()
            where = "the graph's inputs" if producer is None else f"node '{node_label(producer)}' ({producer.op_type})"
            self._facts[value] = tensor_facts(value, where)
        return self._facts[value]

    def _root(self, value: ir.Value) -> ir.Value:
        return self._roots.get(value, value)

    def _place(self, node: ir.Node) -> None:
        given = [value for value in node.outputs if value.uses() or value.is_graph_output()]
        if not given or all(self.facts(value).is_constant for value in given):
            return
        first = node.inputs[0] if node.inputs else None
        if node.op_type in _VIEWS or _is_width_cast(node):
            if first is not None:
                self._roots[node.outputs[0]] = self._root(first)
            return
        at = self._fusing(node) if node.op_type in ELEMENTWISE else None
        if at is None:
            at = len(self.kernels)
            self.kernels.append(Kernel([]))
        self.kernels[at].nodes.append(node)
        self._made_by.update(dict.fromkeys(given, at))

    def _fusing(self, node: ir.Node) -> int | None:
        """Returns the kernel that `node` joins. All other inputs of `node` are complete before this kernel is launched."""
        made = [self._made_by[root] for value in node.inputs if value is not None and (root := self._root(value)) in self._made_by]
        if not made:
            return None
        leader = self.kernels[max(made)].nodes[0]
        fuses = leader.op_type in ELEMENTWISE | CONVOLUTIONS | PRODUCTS
        is_as_large = self.facts(leader.outputs[0]).elements == self.facts(node.outputs[0]).elements
        return max(made) if fuses and is_as_large else None

    def _count_reads(self, at: int, node: ir.Node) -> None:
        kernel = self.kernels[at]
        for value in node.inputs:
            if value is None:
                continue
            root, facts = self._root(value), self.facts(value)
            if facts.is_constant:
                partial = node.op_type in _PARTIAL_READERS
                kernel.weights[value] = 0 if partial else facts.byte_count
                if partial and value is node.inputs[0]:
                    kernel.read[value] = self.facts(node.outputs[0]).byte_count
            elif self._made_by.get(root) != at:
                size = stored = self.facts(root).byte_count
                if node.op_type in _PARTIAL_READERS:
                    size = sum(self.facts(each).byte_count for each in node.outputs)
                kernel.read[root] = max(kernel.read.get(root, 0), min(size, stored))
                self._write(root)

    def _write(self, root: ir.Value) -> None:
        at = self._made_by.get(root)
        if at is not None:
            self.kernels[at].written[root] = self.facts(root).byte_count


_HALF_BITS = 16
#: Operations per element of operators that take more than one: the arithmetic operations they consist of; a transcendental counts eight.
_OPERATIONS = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), 12),
    **dict.fromkeys(("LayerNormalization", "GroupNormalization", "InstanceNormalization", "SkipLayerNormalization"), 8),
    **dict.fromkeys(("Erf", "Exp", "Gelu", "FastGelu", "BiasGelu", "Log", "Mish", "Sigmoid", "Softplus", "Tanh", "Pow", "Sin", "Cos"), 8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """The cost of one kernel for one sample of the batch.

    Attributes:
        node, op_type: Name and operator of its first node.
        fused: Operators fused into it.
        flops: Floating-point operations.
        hbm_bytes: Bytes read and written, operands once for each block. All weights are read again for every sample.
        seconds: Time on one cluster, including the launch.
    """

    node: str
    op_type: str
    fused: tuple[str, ...]
    flops: int
    hbm_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCost:
    """The cost of one run of a graph.

    Attributes:
        kernels: The kernels of one sample, in order.
        batch_size: Samples of the run.
        run_s: Modelled seconds by number of clusters, from 1 on.
    """

    kernels: tuple[KernelCost, ...]
    batch_size: int
    run_s: tuple[float, ...]

    @property
    def flops(self) -> int:
        """Floating-point operations of the whole run."""
        return self.batch_size * sum(each.flops for each in self.kernels)

    @property
    def hbm_bytes(self) -> int:
        """Bytes that the whole run moves to and from HBM."""
        return self.batch_size * sum(each.hbm_bytes for each in self.kernels)


def graph_cost(model: ir.Model, *, batch_size: int, hardware: GcuHardware, constants: CostConstants) -> GraphCost:
    """The cost of one run of `model`, whose shapes must be known and have `batch_size` samples.

    Raises:
        CompileError: a tensor has no static shape.
    """
    kernels = tuple(work.cost(hardware, constants) for work in graph_work(model, batch_size))
    return GraphCost(kernels=kernels, batch_size=batch_size, run_s=run_times(kernels, batch_size, hardware, constants))


def run_times(kernels: tuple[KernelCost, ...], batch_size: int, hardware: GcuHardware, constants: CostConstants) -> tuple[float, ...]:
    """Returns the modelled seconds of a run, by number of clusters from 1 on."""
    sample_s = sum(kernel.seconds for kernel in kernels)
    return tuple(constants.run_overhead_s + math.ceil(batch_size / clusters) * sample_s for clusters in range(1, hardware.clusters + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWork:
    """What one kernel computes and moves for one sample of the batch, whatever the constants of the cost model.

    Attributes:
        node, op_type, fused: As in `KernelCost`.
        flops: Floating-point operations in FLOAT and in FLOAT16.
        moved_bytes: Bytes of its inputs, outputs and weights, each once.
        products: The convolutions and matrix products among its nodes.
    """

    node: str
    op_type: str
    fused: tuple[str, ...]
    flops: tuple[int, int]
    moved_bytes: int
    products: tuple[Product, ...]

    def cost(self, hardware: GcuHardware, constants: CostConstants) -> KernelCost:
        """Returns the cost on one cluster of `hardware`."""
        peaks = (hardware.fp32_flops_per_s, hardware.fp16_flops_per_s)
        compute_s = sum(count * hardware.clusters / peak for count, peak in zip(self.flops, peaks, strict=True))
        moved = max(self.moved_bytes, math.ceil(sum(each.operand_bytes(constants.block_bytes) for each in self.products)))
        bandwidth = hardware.hbm_bytes_per_s / hardware.clusters * constants.hbm_efficiency
        return KernelCost(
            node=self.node,
            op_type=self.op_type,
            fused=self.fused,
            flops=sum(self.flops),
            hbm_bytes=moved,
            seconds=constants.launch_s + max(compute_s, moved / bandwidth),
        )


def graph_work(model: ir.Model, batch_size: int) -> tuple[KernelWork, ...]:
    """Returns the kernels of one sample of `model`, whose shapes must be known and have `batch_size` samples.

    Raises:
        CompileError: a tensor has no static shape.
    """
    graph = KernelGraph(model.graph)
    return tuple(_kernel_work(kernel, graph, batch_size) for kernel in graph.kernels)


def _kernel_work(kernel: Kernel, graph: KernelGraph, batch_size: int) -> KernelWork:
    flops, products = [0, 0], []
    for node in kernel.nodes:
        inputs = [None if value is None else graph.facts(value) for value in node.inputs]
        output = graph.facts(next(value for value in node.outputs if value.uses() or value.is_graph_output()))
        read = inputs[0] if inputs and inputs[0] is not None else output
        flops[read.bits <= _HALF_BITS] += math.ceil(_flops(node, inputs, output) / batch_size)
        product = product_of(node, inputs, output, batch_size)
        if product is not None:
            products.append(product)
    moved = math.ceil((sum(kernel.read.values()) + sum(kernel.written.values())) / batch_size) + sum(kernel.weights.values())
    return KernelWork(
        node=kernel.name,
        op_type=kernel.nodes[0].op_type,
        fused=tuple(node.op_type for node in kernel.nodes[1:]),
        flops=(flops[0], flops[1]),
        moved_bytes=moved,
        products=tuple(products),
    )


def _flops(node: ir.Node, inputs: list[TensorFacts | None], output: TensorFacts) -> int:
    """Returns the floating-point operations of `node` for the whole batch."""
    left = inputs[0] if inputs else None
    right = inputs[1] if len(inputs) > 1 else None
    if node.op_type == "Conv" and right is not None:
        return 2 * output.elements * math.prod(right.shape[1:])
    if node.op_type == "ConvTranspose" and left is not None and right is not None:
        return 2 * left.elements * math.prod(right.shape[1:])
    if node.op_type in PRODUCTS and left is not None and left.shape:
        transposed = node.attributes.get_int("transA", 0) if node.op_type == "Gemm" else 0
        return 2 * output.elements * left.shape[0 if transposed else -1]
    if node.op_type in ("MaxPool", "AveragePool"):
        return output.elements * math.prod(node.attributes.get_ints("kernel_shape", ()))
    if node.op_type in ("LSTM", "GRU") and left is not None:
        return 2 * math.prod(left.shape[:2]) * sum(each.elements for each in inputs[1:3] if each is not None)
    largest = max((each.elements for each in (*inputs, output) if each is not None and not each.is_constant), default=0)
    computes = node.op_type in ELEMENTWISE or node.op_type.startswith(("Reduce", "Global"))
    return largest * _OPERATIONS.get(node.op_type, int(computes))
