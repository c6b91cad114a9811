"""Half partials: sums of products that the device keeps in FLOAT16 while it accumulates them (`partials_type=half`).

The matrix unit multiplies a block of input channels exactly and adds the block to a partial sum. With half partials, the unit reads that
sum from memory and writes it back as FLOAT16, so each block rounds once more than the result. Long sums lose bits, and a sum above 65504
becomes infinite even if the result would not be.

What is modelled: one rounding, to nearest even, for each block of 16 input channels (32 for FP8) and, in a convolution, for each position
of its kernel. These are the sizes of the matrix unit (`stoker.backends.ipu.compile.constants`). The order of the blocks is that of the
channels, then of the kernel's positions. A card may cut a long sum into parts on several tiles; no public source gives that order. The sums
of a block are exact to FLOAT. A ConvTranspose rounds once for each block of channels, and not if it has groups.

In the lowered graph, the first block is a product of its own, and a Scan adds the others. This costs the host time: see docs/ipu.md.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from stoker.backends.ipu.compile.tiling import CONTRACTIONS
from stoker.compiler.lowering.typed_graph import FreeNames, static_shape
from stoker.compiler.precision.representation import float8_nodes

#: Input channels that the matrix unit multiplies at once, in FP16 and in FP8. Structural: 64 and 128 MAC a cycle, 16 outputs, 4 cycles.
BLOCK_CHANNELS: Final = 16
FLOAT8_BLOCK_CHANNELS: Final = 32

_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16


@dataclass(frozen=True, slots=True)
class HalfContraction:
    """A contraction of FLOAT16 values, as it is before lowering.

    Attributes:
        node: The contraction. Lowering changes its inputs and outputs, and keeps the node.
        shapes: Static shapes of its first two inputs.
        block: Input channels that it adds at once.
    """

    node: ir.Node
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    block: int


def half_contractions(model: ir.Model) -> list[HalfContraction]:
    """Returns the contractions of `model` whose partial sums the device may keep in FLOAT16. `model` is typed and not lowered."""
    eight_bits = {node for node, use in float8_nodes(model) if use.computes}
    found = []
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type not in CONTRACTIONS or len(node.inputs) < 2:
            continue
        left, right = node.inputs[:2]
        if left is None or right is None or left.dtype != _HALF:
            continue
        block = FLOAT8_BLOCK_CHANNELS if node in eight_bits else BLOCK_CHANNELS
        found.append(HalfContraction(node, (static_shape(left), static_shape(right)), block))
    return found


def round_partial_sums(model: ir.Model, contractions: Collection[HalfContraction]) -> None:
    """Makes each of `contractions` round its partial sums to FLOAT16, in place.

    Args:
        model: Lowered: FLOAT between explicit casts. The partial sums become FLOAT values that FLOAT16 represents.
        contractions: What `half_contractions` returned before lowering.
    """
    names = FreeNames(model)
    for each in contractions:
        _BlockedSum(each, names).insert()


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A sum cut into blocks.

    Attributes:
        count: How many blocks there are.
        sequences: Values with one entry for each block, and the axis of that dimension.
        product: Appends the nodes that compute a block from its entries, with the added function, and returns the sum.
    """

    count: int
    sequences: Sequence[tuple[ir.Value, int]]
    product: Callable[["_Nodes", Sequence[ir.Value]], ir.Value]


class _Nodes:
    """New nodes of one graph, in order."""

    def __init__(self, names: FreeNames, prefix: str) -> None:
        self.nodes: list[ir.Node] = []
        self._names = names
        self._prefix = prefix

    def add(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Any = (), *, dtype: Any = _FLOAT, domain: str = ""
    ) -> ir.Value:
        """Appends a node with one output, and returns the output. `attributes`: a mapping, or `ir.Attr` objects."""
        if isinstance(attributes, dict):
            attributes = ir.convenience.convert_attributes(attributes)
        node = ir.Node(domain, op_type, list(inputs), list(attributes), num_outputs=1, name=self._names.new(f"{self._prefix}/{op_type}"))
        self.nodes.append(node)
        output = node.outputs[0]
        output.name, output.dtype = self._names.new(f"{self._prefix}/{op_type}/value"), dtype
        return output

    def constant(self, array: npt.NDArray[Any]) -> ir.Value:
        """Appends a constant."""
        tensor = ir.tensor(array)
        return self.add("Constant", [], {"value": tensor}, dtype=tensor.dtype)

    def value(self, name: str, dtype: ir.DataType = _FLOAT) -> ir.Value:
        """Returns a new input of a sub-graph."""
        return ir.Value(name=self._names.new(f"{self._prefix}/{name}"), type=ir.TensorType(dtype))

    def rounded(self, value: ir.Value) -> ir.Value:
        """Appends the rounding of `value` to FLOAT16 and back."""
        half = self.add("Cast", [value], {"to": _HALF.value}, dtype=_HALF)
        return self.add("Cast", [half], {"to": _FLOAT.value})


class _BlockedSum:
    """Replaces one contraction by the sum of its blocks."""

    def __init__(self, contraction: HalfContraction, names: FreeNames) -> None:
        self._node = contraction.node
        self._shapes = contraction.shapes
        self._block = contraction.block
        self._names = names
        self._nodes = _Nodes(names, f"{contraction.node.outputs[0].name}/partials")

    def insert(self) -> None:
        """Inserts the blocks before the contraction and removes it; a sum of one block stays as it is."""
        blocks = self._convolution_blocks() if self._node.op_type == "Conv" else self._product_blocks()
        if blocks is None:
            return
        node, graph = self._node, self._node.graph
        assert graph is not None
        total = self._biased(self._scanned(blocks))
        graph.insert_before(node, self._nodes.nodes)
        old, name = node.outputs[0], node.outputs[0].name
        total.shape = old.shape
        ir.convenience.replace_all_uses_with(old, total, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        total.name = name

    def _scanned(self, blocks: _Blocks) -> ir.Value:
        """Returns the sum of all blocks, rounded after each."""
        nodes = self._nodes
        zero, one, end = (nodes.constant(np.array(value, np.int64)) for value in (0, [1], [np.iinfo(np.int64).max]))
        first = [nodes.add("Gather", [value, zero], {"axis": axis}, dtype=value.dtype) for value, axis in blocks.sequences]
        partial = nodes.rounded(blocks.product(nodes, first))
        if blocks.count == 1:
            return partial
        others = [
            nodes.add("Slice", [value, one, end, nodes.constant(np.array([axis], np.int64))], dtype=value.dtype)
            for value, axis in blocks.sequences
        ]
        body = _Nodes(self._names, f"{self._node.outputs[0].name}/block")
        before = body.value("before")
        entries = [body.value(f"entry{at}", value.dtype or _FLOAT) for at, (value, _) in enumerate(blocks.sequences)]
        after = body.rounded(body.add("Add", [before, blocks.product(body, entries)]))
        graph = ir.Graph([before, *entries], [after], nodes=body.nodes, name=self._names.new(f"{self._node.outputs[0].name}/block"))
        attributes = [
            ir.AttrGraph("body", graph),
            ir.AttrInt64("num_scan_inputs", len(others)),
            ir.AttrInt64s("scan_input_axes", [axis for _, axis in blocks.sequences]),
        ]
        return nodes.add("Scan", [partial, *others], attributes)

    def _biased(self, total: ir.Value) -> ir.Value:
        """Returns `total` scaled and with the third input of the contraction added, in FLOAT: lowering rounds the result."""
        node, nodes = self._node, self._nodes
        alpha, beta = (node.attributes.get_float(name, 1.0) if node.op_type == "Gemm" else 1.0 for name in ("alpha", "beta"))
        if alpha != 1.0:
            total = nodes.add("Mul", [total, nodes.constant(np.array(alpha, np.float32))])
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is None:
            return total
        if beta != 1.0:
            bias = nodes.add("Mul", [bias, nodes.constant(np.array(beta, np.float32))])
        if node.op_type in ("Conv", "ConvTranspose"):
            bias = nodes.add("Reshape", [bias, nodes.constant(np.array([1, -1, *(1 for _ in self._shapes[1][2:])], np.int64))])
        return nodes.add("Add", [total, bias])

    def _product_blocks(self) -> _Blocks | None:
        """Blocks of a product, or of the channels of a ConvTranspose: each block is the same operator on a part of both inputs."""
        node, (left, right) = self._node, self._shapes
        if node.op_type == "ConvTranspose":
            if node.attributes.get_int("group", 1) != 1:
                return None
            axes = (1, 0)
        elif node.op_type in ("Gemm", "FusedMatMul"):
            left_is_transposed, right_is_transposed = (node.attributes.get_int(name, 0) != 0 for name in ("transA", "transB"))
            axes = (
                len(left) - (2 if left_is_transposed and len(left) > 1 else 1),
                max(len(right) - (1 if right_is_transposed else 2), 0),
            )
        else:
            axes = (len(left) - 1, max(len(right) - 2, 0))
        count = math.ceil(left[axes[0]] / self._block)
        if count <= 1:
            return None
        sequences = [(self._cut(value, shape, axis), axis) for value, shape, axis in zip(node.inputs[:2], self._shapes, axes, strict=True)]
        kept = [attribute for name, attribute in node.attributes.items() if node.op_type != "Gemm" or name not in ("alpha", "beta")]

        def product(nodes: _Nodes, entries: Sequence[ir.Value]) -> ir.Value:
            return nodes.add(node.op_type, entries, kept, domain=node.domain)

        return _Blocks(count, sequences, product)

    def _cut(self, value: ir.Value | None, shape: tuple[int, ...], axis: int) -> ir.Value:
        """Returns `value` with `axis` cut into [blocks, channels of a block]; zeros complete the last block."""
        assert value is not None
        value = self._padded(value, len(shape), axis, -shape[axis] % self._block)
        sizes = [0 if at == 0 else size for at, size in enumerate(shape)]  # 0 copies the size: the rows may become variable
        blocks = math.ceil(shape[axis] / self._block)
        target = [*sizes[:axis], blocks, self._block, *sizes[axis + 1 :]]
        return self._nodes.add("Reshape", [value, self._nodes.constant(np.array(target, np.int64))])

    def _padded(self, value: ir.Value, rank: int, axis: int, size: int) -> ir.Value:
        if not size:
            return value
        pads = np.zeros(2 * rank, np.int64)
        pads[rank + axis] = size
        return self._nodes.add("Pad", [value, self._nodes.constant(pads)])

    def _convolution_blocks(self) -> _Blocks | None:
        """Blocks of a convolution: one for each position of the kernel and each block of channels, as a convolution with a kernel of 1.

        The images are padded first. A block reads the channels and positions that its slice selects.
        """
        node, nodes, ((_, channels, *sizes), (outputs, inner, *kernel)) = self._node, self._nodes, self._shapes
        dims, groups = len(kernel), node.attributes.get_int("group", 1)
        count, taps = math.ceil(inner / self._block), math.prod(kernel)
        if count * taps == 1:
            return None
        strides = list(node.attributes.get_ints("strides", ()) or (1,) * dims)
        dilations = list(node.attributes.get_ints("dilations", ()) or (1,) * dims)
        begins, ends = _pads(node, sizes, kernel, strides, dilations)
        images, weights = node.inputs[:2]
        assert images is not None
        assert weights is not None
        if any((*begins, *ends)):
            images = nodes.add("Pad", [images, nodes.constant(np.array([0, 0, *begins, 0, 0, *ends], np.int64))])
        sizes = [size + begin + end for size, begin, end in zip(sizes, begins, ends, strict=True)]
        reached = [
            (size - (length - 1) * dilation - 1) // stride + 1
            for size, length, dilation, stride in zip(sizes, kernel, dilations, strides, strict=True)
        ]
        grouped = nodes.add("Reshape", [images, nodes.constant(np.array([0, groups, channels // groups, *sizes], np.int64))])
        grouped = self._padded(grouped, 3 + dims, 2, -inner % self._block if count > 1 else 0)
        block = self._block if count > 1 else inner
        weights = self._padded(weights, 2 + dims, 1, count * block - inner)
        cut = nodes.add("Reshape", [weights, nodes.constant(np.array([outputs, count, block, taps], np.int64))])
        cut = nodes.add("Transpose", [cut], {"perm": [1, 3, 0, 2]})
        entries = nodes.add("Reshape", [cut, nodes.constant(np.array([count * taps, outputs, block, *(1 for _ in kernel)], np.int64))])

        positions = np.stack(np.unravel_index(np.arange(taps), kernel), axis=1) * np.array(dilations)
        starts = np.array([[at * block, *position] for at in range(count) for position in positions], np.int64)
        lengths = np.array([block, *((size - 1) * stride + 1 for size, stride in zip(reached, strides, strict=True))], np.int64)
        axes, steps = np.arange(2, 3 + dims, dtype=np.int64), np.array([1, *strides], np.int64)
        shape = np.array([0, groups * block, *reached], np.int64)

        def product(nodes: _Nodes, entries: Sequence[ir.Value]) -> ir.Value:
            start, end, weight = entries
            chosen = nodes.add("Slice", [grouped, start, end, nodes.constant(axes), nodes.constant(steps)])
            flat = nodes.add("Reshape", [chosen, nodes.constant(shape)])
            return nodes.add("Conv", [flat, weight], {"group": groups, "kernel_shape": [1] * dims})

        return _Blocks(count * taps, [(nodes.constant(starts), 0), (nodes.constant(starts + lengths), 0), (entries, 0)], product)


def _pads(
    node: ir.Node, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Returns the rows of zeros before and after each dimension of the images, by `pads` or `auto_pad`."""
    automatic = node.attributes.get_string("auto_pad", "NOTSET")
    if automatic in ("NOTSET", ""):
        pads = list(node.attributes.get_ints("pads", ()) or (0,) * (2 * len(kernel)))
        return pads[: len(kernel)], pads[len(kernel) :]
    if automatic == "VALID":
        return [0] * len(kernel), [0] * len(kernel)
    totals = [
        max((math.ceil(size / stride) - 1) * stride + (length - 1) * dilation + 1 - size, 0)
        for size, length, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (small, large) if automatic == "SAME_UPPER" else (large, small)
