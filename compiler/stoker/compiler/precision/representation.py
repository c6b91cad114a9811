"""How a converted model says that it stores and computes in eight bits. Lowering and planning read it by the functions here.

The structure says it, so that it survives every tool that keeps the graph's meaning; there are no private attributes:

* A **weight** held in fp8 is an initialiser of type FLOAT8E4M3FNUZ (F143) or FLOAT8E5M2FNUZ (F152) that goes through a `DequantizeLinear`
  whose scale is a power of two: `value = code x 2^scale`, the sign of Poplar (`float8.py`).
* An **activation** cast to fp8 goes through `QuantizeLinear` and `DequantizeLinear` with one power-of-two scale and a zero point of 0 in
  that type.
* A `Conv`, `MatMul` or `Gemm` whose first two inputs both come from such a `DequantizeLinear` **computes in fp8**; the device has no
  `DequantizeLinear` there. Its third input and its output are FLOAT16 (FLOAT, if the model is). With only the second from one, it computes
  in its own type and its **weight is stored in fp8** (`fp8_weight`).

ONNX has these types from opset 19 on, so that `use_float8_opset` restamps the model. That is all it takes: from 18 to 19 every operator
only gained types and optional attributes. ONNX Runtime's CPU kernels run the result as it is, rounding as `float8.py` does for every finite
float16; one difference is left: an infinity that reaches a saturating `QuantizeLinear` becomes the largest value there and NaN on the
device.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.compiler.errors import CompileError
from stoker.compiler.precision.float8 import Float8Format, check_scale, encode

#: The first opset of ONNX whose QuantizeLinear and DequantizeLinear take eight-bit floats.
FLOAT8_OPSET = 19
#: Operators that the device computes in eight bits; input 0 is the activation, input 1 the weight (or a second activation).
FLOAT8_OP_TYPES = frozenset({"Conv", "MatMul", "Gemm"})

_DATA_TYPES = {Float8Format.F143: ir.DataType.FLOAT8E4M3FNUZ, Float8Format.F152: ir.DataType.FLOAT8E5M2FNUZ}
_FORMATS = {data_type: float8_format for float8_format, data_type in _DATA_TYPES.items()}
#: Exponents of two that a float16 holds: its smallest subnormal is 2^-24, its largest power of two 2^15.
FLOAT16_EXPONENTS = range(-24, 16)


@dataclass(frozen=True, slots=True)
class Float8Spec:
    """Format and scale of one tensor: `value = code x 2^scale`."""

    float8_format: Float8Format
    scale: int

    @property
    def data_type(self) -> ir.DataType:
        """ONNX's type of the codes."""
        return _DATA_TYPES[self.float8_format]

    def __str__(self) -> str:
        return f"{self.float8_format.value} x 2^{self.scale}"


@dataclass(frozen=True, slots=True)
class Float8Use:
    """The parts of a node that are in eight bits.

    Attributes:
        activation: Of input 0, or None where the node computes in a wider type.
        weight: Of input 1.
        saturates: Whether an activation beyond the largest value becomes that, instead of NaN.
    """

    activation: Float8Spec | None
    weight: Float8Spec
    saturates: bool = True

    @property
    def computes(self) -> bool:
        """Whether the node's arithmetic is done in fp8, not only its weight stored so."""
        return self.activation is not None


def float8_use(node: ir.Node) -> Float8Use | None:
    """The parts of `node` that are in eight bits; None where nothing is, or for operators that never are."""
    if node.op_type not in FLOAT8_OP_TYPES or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
        return None
    weight = float8_spec(node.inputs[1])
    if weight is None:
        return None
    activation = float8_spec(node.inputs[0])
    return Float8Use(activation, weight, activation is None or _saturates(node.inputs[0]))


def float8_nodes(model: ir.Model) -> Iterator[tuple[ir.Node, Float8Use]]:
    """The nodes of `model`, sub-graphs included, of which something is in eight bits."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        use = float8_use(node)
        if use is not None:
            yield node, use


def float8_spec(value: ir.Value | None) -> Float8Spec | None:
    """Format and scale of what `value` was decoded from; None where it was not in eight bits, or not with a power of two."""
    decoder = None if value is None else value.producer()
    if decoder is None or decoder.op_type != "DequantizeLinear" or len(decoder.inputs) < 2:
        return None
    codes, scale = decoder.inputs[0], decoder.inputs[1]
    data_type = None if codes is None else _data_type_of_codes(codes)
    exponent = None if scale is None else _exponent(scale)
    if data_type is None or data_type not in _FORMATS or exponent is None:
        return None
    return Float8Spec(_FORMATS[data_type], exponent)


def is_float8_cast(node: ir.Node) -> bool:
    """Whether `node` is a `DequantizeLinear` of fp8 codes, all of whose readers compute in fp8: it takes no step on the device."""
    if node.op_type != "DequantizeLinear" or float8_spec(node.outputs[0]) is None:
        return False
    readers = [use.node for use in node.outputs[0].uses()]
    return bool(readers) and all((use := float8_use(reader)) is not None and use.computes for reader in readers)


def use_float8_opset(model: ir.Model) -> None:
    """Stamps `model` with an opset that has the eight-bit types, if its own is older."""
    if model.opset_imports.get("", 0) < FLOAT8_OPSET:
        model.opset_imports[""] = FLOAT8_OPSET
    model.ir_version = max(model.ir_version, 9)  # the first IR with the eight-bit types


def cast_activation(node: ir.Node, index: int, spec: Float8Spec, *, saturates: bool = True) -> None:
    """Passes input `index` of `node` through `spec`, sharing the cast with other nodes of the same graph that read it in the same way.

    Raises:
        CompileError: the tensor's type is neither FLOAT16 nor FLOAT, or cannot hold the scale.
    """
    source, graph = node.inputs[index], node.graph
    assert source is not None
    assert graph is not None
    for use in source.uses():
        encoder = use.node
        if encoder.op_type != "QuantizeLinear" or encoder.graph is not graph or _saturates_here(encoder) != saturates:
            continue
        decoders = [each.node for each in encoder.outputs[0].uses() if each.node.op_type == "DequantizeLinear"]
        if decoders and float8_spec(decoders[0].outputs[0]) == spec:
            if not _is_before(graph, decoders[0], node):
                continue
            node.replace_input_with(index, decoders[0].outputs[0])
            return
    scale, zero_point = _scale_and_zero_point(graph, source, spec, node, index)
    attributes = {} if saturates else {"saturate": 0}
    name = _name_of_input(node, index)
    encoder = ir.node("QuantizeLinear", [source, scale, zero_point], attributes, name=f"{node.name}/{index}/to_fp8")
    decoder = ir.node("DequantizeLinear", [encoder.outputs[0], scale, zero_point], name=f"{node.name}/{index}/from_fp8")
    encoder.outputs[0].name, decoder.outputs[0].name = f"{name}/fp8", f"{name}/decoded"
    encoder.outputs[0].type, decoder.outputs[0].type = ir.TensorType(spec.data_type), source.type
    encoder.outputs[0].shape, decoder.outputs[0].shape = source.shape, source.shape
    graph.insert_before(node, [encoder, decoder])
    node.replace_input_with(index, decoder.outputs[0])


def store_weight(
    node: ir.Node, index: int, spec: Float8Spec, *, codes: NDArray[np.uint8] | None = None, nan_on_overflow: bool = False
) -> None:
    """Replaces the constant input `index` of `node` by its codes and a `DequantizeLinear`.

    Args:
        node: Its input stays as it is for other readers.
        index: Of the input; its value must be known.
        spec: Format and scale.
        codes: Where they were chosen otherwise than by rounding each value by itself.
        nan_on_overflow: As for `encode`.

    Raises:
        CompileError: as `cast_activation`.
    """
    source, graph = node.inputs[index], node.graph
    assert source is not None
    assert graph is not None
    constant = ir.convenience.get_const_tensor(source)
    assert constant is not None
    if codes is None:
        codes = encode(constant.numpy(), spec.float8_format, spec.scale, nan_on_overflow=nan_on_overflow)
    scale, zero_point = _scale_and_zero_point(graph, source, spec, node, index)
    name = _name_of_input(node, index)
    held = _initializer(graph, f"{name}/fp8", codes.view(spec.float8_format.dtype), spec.data_type)
    decoder = ir.node("DequantizeLinear", [held, scale, zero_point], name=f"{node.name}/{index}/from_fp8")
    decoder.outputs[0].name, decoder.outputs[0].type, decoder.outputs[0].shape = f"{name}/decoded", source.type, held.shape
    graph.insert_before(node, decoder)
    node.replace_input_with(index, decoder.outputs[0])
    if (
        source.is_initializer()
        and not source.uses()
        and not source.is_graph_output()
        and source.graph is not None
        and source.name is not None
    ):
        source.graph.initializers.pop(source.name, None)


def _scale_and_zero_point(
    graph: ir.Graph | ir.Function, source: ir.Value, spec: Float8Spec, node: ir.Node, index: int
) -> tuple[ir.Value, ir.Value]:
    check_scale(spec.scale)
    where = f"node '{node.name}' ({node.op_type}): tensor '{source.name}'"
    if source.dtype not in (ir.DataType.FLOAT16, ir.DataType.FLOAT):
        raise CompileError(f"{where} is {source.dtype}; only FLOAT16 and FLOAT are cast to fp8")
    if source.dtype == ir.DataType.FLOAT16 and spec.scale not in FLOAT16_EXPONENTS:
        raise CompileError(f"{where} is FLOAT16, which holds no scale of 2^{spec.scale}; the scale must be in [-24, 16)")
    power = np.asarray(2.0**spec.scale, source.dtype.numpy())
    scale = _initializer(graph, f"{_name_of_input(node, index)}/scale", power, source.dtype)
    zero = np.zeros((), spec.float8_format.dtype)
    return scale, _initializer(graph, f"{_name_of_input(node, index)}/zero", zero, spec.data_type)


def _name_of_input(node: ir.Node, index: int) -> str:
    """A prefix that no other tensor's name has: that of the output, which is unique, and which input this is."""
    return f"{node.outputs[0].name}/{index}"


def _initializer(graph: ir.Graph | ir.Function, name: str, array: NDArray[Any], data_type: ir.DataType) -> ir.Value:
    if isinstance(graph, ir.Function):
        raise CompileError(f"function '{graph.name}' has nodes to be cast to fp8; functions must be inlined first")
    tensor = ir.Tensor(array, dtype=data_type, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(data_type), const_value=tensor)
    graph.register_initializer(value)
    return value


def _is_before(graph: ir.Graph | ir.Function, first: ir.Node, second: ir.Node) -> bool:
    for node in graph:
        if node is first:
            return True
        if node is second:
            return False
    return False


def _data_type_of_codes(codes: ir.Value) -> ir.DataType | None:
    if codes.dtype is not None:
        return codes.dtype
    encoder = codes.producer()  # value infos may be missing; the zero point has the type too
    zero_point = encoder.inputs[2] if encoder is not None and encoder.op_type == "QuantizeLinear" and len(encoder.inputs) > 2 else None
    return None if zero_point is None else zero_point.dtype


def _exponent(scale: ir.Value) -> int | None:
    constant = ir.convenience.get_const_tensor(scale)
    if constant is None or constant.size != 1:
        return None
    mantissa, exponent = math.frexp(float(constant.numpy().reshape(()).astype(np.float64)))
    return exponent - 1 if mantissa == 0.5 else None


def _saturates(decoded: ir.Value | None) -> bool:
    decoder = None if decoded is None else decoded.producer()
    codes = None if decoder is None else decoder.inputs[0]
    encoder = None if codes is None else codes.producer()
    return encoder is None or _saturates_here(encoder)


def _saturates_here(encoder: ir.Node) -> bool:
    attribute = encoder.attributes.get("saturate")
    return attribute is None or attribute.as_int() != 0
