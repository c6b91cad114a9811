"""`stack_branches`: sub-graphs of equal structure, computed as one with a new leading dimension.

Each branch goes from inputs of its own to one output. Where branches have constants of their own these are stacked, so that E products
[M, K] x [K, N] become one product [E, M, K] x [E, K, N]. Only operators that treat the leading dimensions one by one are understood.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from stoker.compiler.errors import PassError
from stoker.compiler.passes.edit import constant_of, describe, static_shape
from stoker.compiler.passes.matching.edges import split_constant
from stoker.compiler.passes.matching.editing import GraphEditor

#: Operators that act on each element, or on the last two dimensions of each matrix, and broadcast what they are given.
STACKABLE = frozenset(
    {
        "MatMul", "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "Greater", "Less", "Equal", "Not",
        "Relu", "LeakyRelu", "Elu", "Tanh", "Sigmoid", "HardSigmoid", "HardSwish", "Softplus", "Erf", "Gelu", "FastGelu",
        "Exp", "Log", "Sqrt", "Reciprocal", "Neg", "Abs", "Clip", "Cast", "Identity",
    }
)  # fmt: skip


class BranchStacker:
    """Builds the stacked form of corresponding values of several branches, in front of one node.

    Args:
        editor: Of the model.
        before: The node that the new ones go in front of.
        option: What the user asked for, for errors.
        entries: Values where the branches begin: stacked as they are, not looked behind.
    """

    def __init__(self, editor: GraphEditor, before: ir.Node, *, option: str, entries: Sequence[tuple[ir.Value, ...]]) -> None:
        self._editor, self._before, self._option = editor, before, option
        self._entries = set(entries)
        self._done: dict[tuple[ir.Value, ...], ir.Value] = {}
        self._is_distinct = False

    def finish(self, outputs: Sequence[ir.Value]) -> None:
        """Builds everything that makes `outputs`, one of each branch, and lets the entries of the stacked result replace them.

        Raises:
            PassError: as `stack`; also where nothing differs between the branches, so that there is nothing to stack.
        """
        shapes = [static_shape(output) for output in outputs]
        whole = self.stack(tuple(outputs), len(shapes[0] or ()))
        if not self._is_distinct:
            raise PassError(f"{self._option}: the branches compute the same from the same; eliminate_duplicate_nodes merges them")
        split = [None if shape is None else [1, *shape] for shape in shapes]
        label = self._before.name or self._before.op_type
        rows = self._editor.insert_split(self._before, whole, [1] * len(outputs), 0, name=f"{label}/branches", shapes=split)
        axes = self._editor.constant(self._before, np.array([0]), f"{label}/branch_axis")
        for output, row in zip(outputs, rows, strict=True):
            self._editor.replace(output, self._editor.insert(self._before, "Squeeze", [row, axes], like=output))

    def stack(self, values: tuple[ir.Value, ...], rank: int) -> ir.Value:
        """The values of all branches as one, with the branch as first dimension; `rank` is that of the values they are combined with.

        Raises:
            PassError: the branches differ, or hold an operator that cannot be stacked; the text names the nodes.
        """
        if values not in self._done:
            self._done[values] = self._build(values, rank)
        return self._done[values]

    def _build(self, values: tuple[ir.Value, ...], rank: int) -> ir.Value:
        if values in self._entries:
            return self._stack_inputs(values)
        arrays = [constant_of(value) for value in values]
        if all(array is not None for array in arrays):
            return self._stack_constants(values, rank)
        nodes = [value.producer() for value in values]
        if any(node is None for node in nodes) or any(array is not None for array in arrays):
            names = ", ".join(f"'{value.name}'" for value in values)
            raise PassError(f"{self._option}: {names} correspond to each other, but not all of them are made by nodes of their branches")
        return self._stack_nodes([node for node in nodes if node is not None])

    def _stack_inputs(self, values: tuple[ir.Value, ...]) -> ir.Value:
        shapes = {static_shape(value) for value in values}
        if len(shapes) != 1 or None in shapes:
            names = ", ".join(f"'{value.name}' {value.shape}" for value in values)
            raise PassError(f"{self._option}: the branches' inputs must have one known shape; they are {names}")
        (shape,) = shapes
        assert shape is not None
        axes = self._editor.constant(self._before, np.array([0]), f"{self._before.name}/branch_axis")
        rows = [self._editor.insert(self._before, "Unsqueeze", [value, axes], dtype=value.dtype, shape=[1, *shape]) for value in values]
        if len(set(values)) == 1:
            return rows[0]  # one input for all branches: broadcast
        self._is_distinct = True
        return self._editor.insert(self._before, "Concat", rows, attributes={"axis": 0}, dtype=values[0].dtype, shape=[len(values), *shape])

    def _stack_constants(self, values: tuple[ir.Value, ...], rank: int) -> ir.Value:
        arrays = [array for value in values if (array := constant_of(value)) is not None]
        if len({(array.shape, array.dtype) for array in arrays}) != 1:
            names = ", ".join(f"'{value.name}' {array.dtype}{list(array.shape)}" for value, array in zip(values, arrays, strict=True))
            raise PassError(f"{self._option}: constants that correspond to each other must have one shape and type; they are {names}")
        if arrays[0].size == 1 and arrays[0].ndim <= 1 and all(array.tobytes() == arrays[0].tobytes() for array in arrays):
            return values[0]
        self._is_distinct = True
        whole = np.stack(arrays)
        whole = whole.reshape(len(arrays), *(1,) * (rank - arrays[0].ndim), *arrays[0].shape)
        return self._editor.constant(self._before, whole, f"{values[0].name}/stacked")

    def _stack_nodes(self, nodes: list[ir.Node]) -> ir.Value:
        first = nodes[0]
        for node in nodes:
            if node.op_type not in STACKABLE or len(node.outputs) != 1:
                raise PassError(f"{self._option}: {describe(node)} cannot be computed for several branches at once")
            if _signature(node) != _signature(first):
                raise PassError(f"{self._option}: {describe(node)} and {describe(first)} correspond to each other and differ")
        output = first.outputs[0]
        shape = static_shape(output)
        ranks = {len(known) for value in first.inputs if constant_of(value) is None and (known := static_shape(value)) is not None}
        if shape is None or ranks - {len(shape)} or (first.op_type == "MatMul" and len(shape) < 2):
            raise PassError(f"{self._option}: {describe(first)} must have known shapes, and operands of the same number of dimensions")
        inputs: list[ir.Value | None] = []
        for position in zip(*(_operands(node) for node in nodes), strict=True):
            present = tuple(value for value in position if value is not None)
            if present and len(present) != len(nodes):
                raise PassError(f"{self._option}: {describe(first)} has an input that its counterparts lack")
            inputs.append(self.stack(present, len(shape)) if present else None)
        return self._editor.insert(
            self._before,
            first.op_type,
            inputs,
            attributes={name: attribute.value for name, attribute in first.attributes.items()},
            domain=first.domain,
            name=f"{first.name or first.op_type}/merged",
            dtype=output.dtype,
            shape=[len(nodes), *shape],
            metadata=first.metadata_props,
        )


def _operands(node: ir.Node) -> Sequence[ir.Value | None]:
    """Inputs; where their order does not matter and one is constant, that one last."""
    parts = split_constant(node) if node.op_type in ("Add", "Mul", "Max", "Min") else None
    return parts if parts is not None else node.inputs


def _signature(node: ir.Node) -> tuple[str, str, int, Mapping[str, object]]:
    return node.domain, node.op_type, len(node.inputs), {name: attribute.value for name, attribute in node.attributes.items()}
