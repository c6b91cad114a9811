"""`float_to_int8`: tensors in eight-bit integers by scale and offset."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from stoker.compiler.errors import OptionError
from stoker.compiler.passes.edit import constant_of, input_at, new_constant, remove_if_unused, unused_name
from stoker.compiler.passes.infer import infer_shapes
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.precision.representation import FLOAT8_OP_TYPES, use_float8_opset

log = logging.getLogger(__name__)


@register("float_to_int8", against=("float_to_fp8",))
class FloatToInt8(Pass):
    """Stores constant weights of Conv, MatMul and Gemm as INT8 with a DequantizeLinear; computes as before.

    `value = (code - offset) x scale`, by one scale and offset a tensor: those given, else the symmetric ones that reach its largest value.
    Each weight changes by at most half a scale, if it is in reach.
    """

    def __init__(self, *, tensors: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """Takes `{tensor name: {"scale": s, "offset": o}}`; where it is given, only these tensors are converted.

        Raises:
            OptionError: a scale that is not finite and above 0, an offset that INT8 does not hold, or another key.
        """
        self.tensors = None if tensors is None else {name: _checked(name, each) for name, each in tensors.items()}

    def run(self, model: ir.Model) -> bool:
        infer_shapes(model)
        changed, met = False, set()
        for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
            if node.op_type not in FLOAT8_OP_TYPES or node.domain not in ("", "ai.onnx"):
                continue
            weight = input_at(node, 1)
            array = constant_of(weight)
            if weight is None or array is None or weight.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
                continue
            name = str(weight.name)
            if self.tensors is not None and name not in self.tensors:
                continue
            met.add(name)
            scale, offset = _symmetric(array) if self.tensors is None else self.tensors[name]
            _store(node, weight, array, scale, offset)
            changed = True
            if weight.dtype == ir.DataType.FLOAT16:
                use_float8_opset(model)  # the first whose DequantizeLinear gives FLOAT16
        for name in sorted((self.tensors or {}).keys() - met):
            log.warning("float_to_int8: there is no constant weight '%s' of a Conv, MatMul or Gemm", name)
        return changed


def _store(node: ir.Node, weight: ir.Value, array: np.ndarray[Any, Any], scale: float, offset: int) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    # By the scale as it is held, so that the codes are those of what is decoded.
    held_scale = np.asarray(scale, array.dtype)
    if held_scale == 0 or not np.isfinite(held_scale):
        raise OptionError(f"weight '{weight.name}' of node '{node.name}': a scale of {scale:g} is not held by {array.dtype}")
    codes = np.clip(np.rint(array.astype(np.float64) / float(held_scale)) + offset, -128, 127).astype(np.int8)
    inputs = [
        new_constant(node, each, role) for each, role in ((codes, "int8"), (held_scale, "scale"), (np.asarray(offset, np.int8), "offset"))
    ]
    decoder = ir.node("DequantizeLinear", inputs, name=f"{node.name}/1/from_int8")
    decoded = decoder.outputs[0]
    decoded.name = unused_name(graph, f"{node.outputs[0].name}_decoded")
    decoded.type, decoded.shape = weight.type, weight.shape
    graph.insert_before(node, decoder)
    node.replace_input_with(1, decoded)
    if weight.producer() is not None:
        remove_if_unused(weight.producer())
    elif weight.graph is not None and not weight.uses() and not weight.is_graph_output():
        weight.graph.initializers.pop(str(weight.name), None)


def _symmetric(array: np.ndarray[Any, Any]) -> tuple[float, int]:
    largest = float(np.max(np.abs(array), initial=0.0))
    return (largest / 127 if largest else 1.0), 0


def _checked(name: str, given: Mapping[str, float]) -> tuple[float, int]:
    if unknown := sorted(given.keys() - {"scale", "offset"}):
        raise OptionError(f"float_to_int8: tensor '{name}' has {', '.join(unknown)}; expected scale and offset")
    scale, offset = given.get("scale", 0), given.get("offset", 0)
    if not np.isfinite(scale) or scale <= 0:
        raise OptionError(f"float_to_int8: the scale of tensor '{name}' is {scale}; expected a number above 0")
    if int(offset) != offset or not -128 <= offset <= 127:
        raise OptionError(f"float_to_int8: the offset of tensor '{name}' is {offset}; expected an integer in [-128, 127]")
    return float(scale), int(offset)
