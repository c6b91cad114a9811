"""`fuse_bn_into_conv`: a normalisation by constants is part of the weights before it."""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.passes.edit import constant_of, input_at, is_op, new_constant, only_use, producer_of, remove_if_unused, substitute
from stoker.compiler.passes.node_pass import NodePass
from stoker.compiler.passes.registry import register


@register("fuse_bn_into_conv")
class FuseBnIntoConv(NodePass):
    """Folds a BatchNormalization into the weights and bias of the Conv or ConvTranspose that it alone reads.

    The new weights are computed in double and rounded once to the type of the old; weights that other nodes read stay for them. Nothing
    is folded where a new weight would not be finite in that type.
    """

    def visit(self, node: ir.Node) -> bool:
        conv = producer_of(node.inputs[0], "Conv", "ConvTranspose") if is_op(node, "BatchNormalization") else None
        if conv is None or only_use(conv.outputs[0]) is not node or node.attributes.get_int("training_mode", 0) != 0:
            return False
        statistics = [constant_of(value) for value in node.inputs[1:5]]
        weights, bias = constant_of(conv.inputs[1]), constant_of(input_at(conv, 2))
        if weights is None or (bias is None and input_at(conv, 2) is not None) or any(each is None for each in statistics):
            return False
        scale, shift, mean, variance = (np.asarray(each, np.float64) for each in statistics)
        with np.errstate(all="ignore"):
            factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
            start = 0.0 if bias is None else bias.astype(np.float64)
            new_weights = (weights * _along_outputs(factor, weights, conv)).astype(weights.dtype)
            new_bias = ((start - mean) * factor + shift).astype(weights.dtype)
        if not (np.isfinite(new_weights.astype(np.float64)).all() and np.isfinite(new_bias.astype(np.float64)).all()):
            return False
        conv.resize_inputs(3)
        old = conv.inputs[1:3]
        conv.replace_input_with(1, new_constant(conv, new_weights, "weights"))
        conv.replace_input_with(2, new_constant(conv, new_bias, "bias"))
        for value in old:
            _drop(value)
        substitute(node.outputs[0], conv.outputs[0])
        read = list(node.inputs)
        remove_if_unused(node)
        for value in read:
            _drop(value)
        return True


def _along_outputs(factor: NDArray[Any], weights: NDArray[Any], conv: ir.Node) -> NDArray[Any]:
    """`factor`, one per output channel, in a shape that multiplies `weights`."""
    spatial = (1,) * (weights.ndim - 2)
    if conv.op_type == "Conv":  # [outputs, inputs / group, ...]
        return factor.reshape(-1, 1, *spatial)
    # ConvTranspose: [inputs, outputs / group, ...], the inputs of a group in a row
    group = conv.attributes.get_int("group", 1)
    per_group = factor.reshape(group, 1, -1)
    rows = np.broadcast_to(per_group, (group, weights.shape[0] // group, weights.shape[1]))
    return rows.reshape(weights.shape[0], weights.shape[1], *spatial)


def _drop(value: ir.Value | None) -> None:
    """Removes an initialiser that nothing reads any more, so that the weights are not held twice."""
    if value is not None and value.is_initializer() and not value.uses() and not value.is_graph_output() and not value.is_graph_input():
        graph = value.graph
        assert graph is not None, "an initialiser belongs to a graph"
        del graph.initializers[str(value.name)]
