"""How long a run takes: a roofline over the kernels of one sample, and samples shared out over clusters.

Every cluster computes whole samples, one after the other: the published tables show 5.7 to 5.9 times the throughput of one sample at 120 on
six clusters, so nothing that a larger batch could share (launches, weights) is seen to be shared within a cluster, and the model does not
promise it. A run of `batch` samples on `c` clusters takes as long as the busiest cluster, `ceil(batch / c)` samples.

A kernel (`kernels.py`) takes its launch and the longer of two times: its floating-point operations at the cluster's part of the peak rate
of the type it computes in, and its bytes at the cluster's part of the HBM bandwidth.
"""

import math
from dataclasses import dataclass

import onnx_ir as ir

from stoker.backends.gcu.compile.constants import CostConstants
from stoker.backends.gcu.compile.kernels import CONVOLUTIONS, ELEMENTWISE, PRODUCTS, Kernel, KernelGraph
from stoker.backends.gcu.hardware import GcuHardware
from stoker.compiler.lowering.tensor_facts import TensorFacts

_HALF_BITS = 16
#: Operations for each element, where it is not one. Counted as the arithmetic they are made of; a transcendental counts eight.
_OPERATIONS = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), 12),
    **dict.fromkeys(("LayerNormalization", "GroupNormalization", "InstanceNormalization", "SkipLayerNormalization"), 8),
    **dict.fromkeys(("Erf", "Exp", "Gelu", "FastGelu", "BiasGelu", "Log", "Mish", "Sigmoid", "Softplus", "Tanh", "Pow", "Sin", "Cos"), 8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """What one kernel costs for one sample of the batch.

    Attributes:
        node, op_type: Of its first node.
        fused: Operators that ride on it.
        flops: Floating-point operations.
        hbm_bytes: Bytes read and written; weights are read whole for every sample.
        seconds: On one cluster, launch included.
    """

    node: str
    op_type: str
    fused: tuple[str, ...]
    flops: int
    hbm_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCost:
    """What one run of a graph costs.

    Attributes:
        kernels: Of one sample, in order.
        batch_size: Samples of the run.
        run_s: Modelled seconds by number of clusters, from 1 on.
    """

    kernels: tuple[KernelCost, ...]
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
    graph = KernelGraph(model.graph)
    kernels = tuple(_kernel_cost(kernel, graph, batch_size, hardware, constants) for kernel in graph.kernels)
    return GraphCost(kernels=kernels, batch_size=batch_size, run_s=run_times(kernels, batch_size, hardware, constants))


def run_times(kernels: tuple[KernelCost, ...], batch_size: int, hardware: GcuHardware, constants: CostConstants) -> tuple[float, ...]:
    """Modelled seconds of a run by number of clusters, from 1 on."""
    sample_s = sum(kernel.seconds for kernel in kernels)
    return tuple(constants.run_overhead_s + math.ceil(batch_size / clusters) * sample_s for clusters in range(1, hardware.clusters + 1))


def _kernel_cost(kernel: Kernel, graph: KernelGraph, batch_size: int, hardware: GcuHardware, constants: CostConstants) -> KernelCost:
    flops, compute_s = 0, 0.0
    for node in kernel.nodes:
        inputs = [None if value is None else graph.facts(value) for value in node.inputs]
        output = graph.facts(next(value for value in node.outputs if value.uses() or value.is_graph_output()))
        own = math.ceil(_flops(node, inputs, output) / batch_size)
        flops += own
        compute_s += own / _rate(node, inputs, output, hardware, constants)
    moved = math.ceil((sum(kernel.read.values()) + sum(kernel.written.values())) / batch_size) + sum(kernel.weights.values())
    bandwidth = hardware.hbm_bytes_per_s / hardware.clusters * constants.hbm_efficiency
    first = kernel.nodes[0]
    return KernelCost(
        node=kernel.name,
        op_type=first.op_type,
        fused=tuple(node.op_type for node in kernel.nodes[1:]),
        flops=flops,
        hbm_bytes=moved,
        seconds=constants.launch_s + max(compute_s, moved / bandwidth),
    )


def _rate(node: ir.Node, inputs: list[TensorFacts | None], output: TensorFacts, hardware: GcuHardware, constants: CostConstants) -> float:
    """Operations a second that a cluster reaches on `node`."""
    read = inputs[0] if inputs and inputs[0] is not None else output
    peak = (hardware.fp16_flops_per_s if read.bits <= _HALF_BITS else hardware.fp32_flops_per_s) / hardware.clusters
    if node.op_type in CONVOLUTIONS:
        return peak * constants.convolution_efficiency
    return peak * constants.product_efficiency if node.op_type in PRODUCTS else peak


def _flops(node: ir.Node, inputs: list[TensorFacts | None], output: TensorFacts) -> int:
    """Floating-point operations of `node`, the whole batch."""
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
