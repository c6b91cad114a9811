"""Which nodes run as one kernel, and what a kernel reads and writes.

An element-wise node joins the latest kernel that it reads from, if its result has as many elements as that kernel's: so biases, activations
and residual additions ride on the convolution or product before them. Views (reshape, squeeze) and casts between widths of floats are their
input. What is passed on inside a kernel stays on the cores; what anybody else reads is written to HBM, once.
"""

from dataclasses import dataclass, field

import onnx_ir as ir

from stoker.compiler.lowering.tensor_facts import TensorFacts, node_label, tensor_facts, words

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul", "Einsum"})
#: Operators that only look at a tensor in another way, or are gone when the graph is compiled.
_VIEWS = words("Reshape Squeeze Unsqueeze Flatten Identity Dropout Constant Shape Size")
ELEMENTWISE = words(
    """Abs Add And BatchNormalization BiasGelu Cast Ceil Clip Cos Div Elu Equal Erf Exp FastGelu Floor Gelu Greater GreaterOrEqual
    HardSigmoid HardSwish LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow QuickGelu Reciprocal Relu Round
    Selu Sigmoid Sign Sin Softplus Softsign Sqrt Sub Sum Tan Tanh Where Xor"""
)
#: Operators that read as much of their input as they give.
_PARTIAL_READERS = words("Gather GatherElements GatherND Slice Split")


def _is_width_cast(node: ir.Node) -> bool:
    """Whether `node` only makes floats wider or narrower, which whoever stores or loads them does on the way."""
    types = {ir.DataType.FLOAT, ir.DataType.FLOAT16}
    value = node.inputs[0] if node.op_type == "Cast" else None
    return value is not None and {value.dtype, node.outputs[0].dtype} <= types


@dataclass(slots=True)
class Kernel:
    """Nodes that run as one, the first of which gives it its name.

    Attributes:
        nodes: In order.
        read, written: Values that cross between HBM and the cores, with their bytes for the whole batch.
        weights: Bytes of the constants it reads.
    """

    nodes: list[ir.Node]
    read: dict[ir.Value, int] = field(default_factory=dict)
    written: dict[ir.Value, int] = field(default_factory=dict)
    weights: dict[ir.Value, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The first node's."""
        return node_label(self.nodes[0])


class KernelGraph:
    """The kernels of a graph, in the order in which they are launched.

    Attributes:
        kernels: Each with its nodes and its traffic.
    """

    def __init__(self, graph: ir.Graph) -> None:
        """Shares the nodes out.

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
        """Shape and width of a value of the graph."""
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
        """The kernel that `node` joins; whatever else it reads was made before that one is launched."""
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
