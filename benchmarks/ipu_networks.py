"""ResNet-50 v1 and BERT-base as the converter leaves them, in each precision; structure is all that a cost model reads.

Without a seed weights are lazy tensors that fail when read; with one they are random, of a size that keeps values in range. Normalisations
of ResNet-50 are folded into its convolutions; BERT's layer normalisations are one node each, and its GELU is either one node or the five
(Div, Erf, Add, Mul, Mul) that exporters write.
"""

import enum
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from compiler.precision.float8 import Float8Format
from compiler.precision.representation import FLOAT8_OP_TYPES, Float8Spec, cast_activation, use_float8_opset

_OPSET = 18
_F143 = Float8Spec(Float8Format.F143, 0)
#: Blocks, inner width and stride of the first, of ResNet-50's four stages.
_STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
_LAYERS, _HIDDEN, _HEADS, _INNER, _VOCABULARY, _POSITIONS = 12, 768, 12, 3072, 30522, 512


class Precision(enum.Enum):
    """As the published tables name them; `FP8_STAR` keeps the first and last matrix operator in fp16."""

    FP32 = "fp32"
    FP16 = "fp16"
    FP8 = "fp8"
    FP8_STAR = "fp8*"

    @property
    def dtype(self) -> ir.DataType:
        return ir.DataType.FLOAT if self is Precision.FP32 else ir.DataType.FLOAT16


def resnet50(batch: int, precision: Precision, *, seed: int | None = None) -> ir.Model:
    """ResNet-50 v1, stride in the first 1x1 of a block; input [batch, 3, 224, 224], output [batch, 1000]."""
    net = _Network("resnet50", precision, seed)
    value = net.relu(net.conv(net.input("data", (batch, 3, 224, 224)), 64, kernel=7, stride=2))
    value = net.pool(value, kernel=3, stride=2)
    for blocks, width, first_stride in _STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            inner = net.relu(net.conv(value, width, stride=stride))
            inner = net.relu(net.conv(inner, width, kernel=3))
            inner = net.conv(inner, 4 * width)
            shortcut = net.conv(value, 4 * width, stride=stride) if block == 0 else value
            value = net.relu(net.binary("Add", inner, shortcut))
    channels = 4 * width
    value = net.op("GlobalAveragePool", [value], (batch, channels, 1, 1))
    value = net.op("Flatten", [value], (batch, channels))
    net.output(net.linear(value, 1000, op_type="Gemm"))
    return net.model()


def bert_base(batch: int, precision: Precision, *, sequence: int = 256, is_gelu_fused: bool = False, seed: int | None = None) -> ir.Model:
    """BERT-base for question answering: inputs [batch, sequence] of int32, outputs start and end logits [batch, sequence]."""
    net = _Network("bert_base", precision, seed)
    ids = [net.input(name, (batch, sequence), ir.DataType.INT32) for name in ("input_ids", "token_type_ids", "attention_mask")]
    hidden = (batch, sequence, _HIDDEN)
    value = net.op("Gather", [net.weight((_VOCABULARY, _HIDDEN)), ids[0]], hidden)
    value = net.binary("Add", value, net.op("Gather", [net.weight((2, _HIDDEN)), ids[1]], hidden))
    value = net.norm(net.binary("Add", value, net.weight((1, sequence, _HIDDEN))))
    mask = net.op("Unsqueeze", [ids[2], net.indices(1, 2)], (batch, 1, 1, sequence))
    mask.type = ir.TensorType(ir.DataType.INT32)
    mask = net.op("Cast", [mask], mask.shape, to=int(precision.dtype))
    mask = net.binary("Mul", net.binary("Sub", net.constant(1.0), mask), net.constant(-10000.0))
    for _ in range(_LAYERS):
        value = net.norm(net.binary("Add", net.biased(_attention(net, value, mask), _HIDDEN), value))
        inner = _gelu(net, net.biased(value, _INNER), is_fused=is_gelu_fused)
        value = net.norm(net.binary("Add", net.biased(inner, _HIDDEN), value))
    logits = net.biased(value, 2)
    for column, name in enumerate(("start_logits", "end_logits")):
        half = net.op("Slice", [logits, net.indices(column), net.indices(column + 1), net.indices(2)], (batch, sequence, 1))
        net.output(net.op("Squeeze", [half, net.indices(2)], (batch, sequence)), name)
    return net.model()


def _attention(net: "_Network", value: ir.Value, mask: ir.Value) -> ir.Value:
    batch, sequence, _ = dims(value)
    size = _HIDDEN // _HEADS
    split, swapped = (batch, sequence, _HEADS, size), (batch, _HEADS, sequence, size)

    def heads(order: Sequence[int], shape: tuple[int, ...]) -> ir.Value:
        reshaped = net.op("Reshape", [net.biased(value, _HIDDEN), net.indices(*split)], split)
        return net.op("Transpose", [reshaped], shape, perm=list(order))

    query, key = heads((0, 2, 1, 3), swapped), heads((0, 2, 3, 1), (batch, _HEADS, size, sequence))
    scores = net.op("MatMul", [query, key], (batch, _HEADS, sequence, sequence))
    scores = net.binary("Add", net.binary("Mul", scores, net.constant(1 / math.sqrt(size))), mask)
    weights = net.op("Softmax", [scores], scores.shape, axis=-1)
    mixed = net.op("MatMul", [weights, heads((0, 2, 1, 3), swapped)], swapped)
    mixed = net.op("Transpose", [mixed], split, perm=[0, 2, 1, 3])
    return net.op("Reshape", [mixed, net.indices(batch, sequence, _HIDDEN)], (batch, sequence, _HIDDEN))


def _gelu(net: "_Network", value: ir.Value, *, is_fused: bool) -> ir.Value:
    if is_fused:
        return net.op("Gelu", [value], value.shape, domain="com.microsoft")
    erf = net.op("Erf", [net.binary("Div", value, net.constant(math.sqrt(2)))], value.shape)
    return net.binary("Mul", net.binary("Mul", value, net.binary("Add", erf, net.constant(1.0))), net.constant(0.5))


def dims(value: ir.Value) -> tuple[int, ...]:
    """The static shape of `value`."""
    if value.shape is None:
        raise ValueError(f"value '{value.name}' has no shape")
    return tuple(value.shape.numpy())


class _Network:
    """Collects nodes with the shapes of their outputs."""

    def __init__(self, name: str, precision: Precision, seed: int | None) -> None:
        self._precision = precision
        self._generator = None if seed is None else np.random.default_rng(seed)
        self._graph = ir.Graph([], [], nodes=[], opset_imports={"": _OPSET, "com.microsoft": 1}, name=name)
        self._made = 0

    def model(self) -> ir.Model:
        """The finished model; in the fp8 precisions with its activations cast."""
        model = ir.Model(self._graph, ir_version=9)
        if self._precision in (Precision.FP8, Precision.FP8_STAR):
            use_float8_opset(model)
            nodes = [node for node in self._graph if node.op_type in FLOAT8_OP_TYPES]
            kept = (nodes[0], nodes[-1]) if self._precision is Precision.FP8_STAR else ()
            for node in nodes:
                if node not in kept:
                    self._to_fp8(node)
        return model

    def input(self, name: str, shape: tuple[int, ...], dtype: ir.DataType | None = None) -> ir.Value:
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype or self._precision.dtype))
        self._graph.inputs.append(value)
        return value

    def output(self, value: ir.Value, name: str | None = None) -> None:
        value.name = name or value.name
        self._graph.outputs.append(value)

    def weight(self, shape: tuple[int, ...], dtype: ir.DataType | None = None, *, mean: float = 0.0) -> ir.Value:
        dtype, name = dtype or self._precision.dtype, self._name("weight")
        if self._generator is not None:
            # Weights of a matrix are scaled by what is added up; a bias, which adds nothing up, by a hundredth.
            scale = 1 / math.sqrt(math.prod(shape[1:])) if len(shape) > 2 else 1 / math.sqrt(shape[0]) if len(shape) == 2 else 0.01
            values = self._generator.standard_normal(shape, dtype=np.float32) * np.float32(scale) + np.float32(mean)
            return self._initializer(ir.Tensor(values.astype(dtype.numpy()), name=name))

        def read() -> ir.TensorProtocol:
            raise RuntimeError(f"'{name}' has a shape only; nothing may read its values")

        tensor = ir.LazyTensor(read, dtype, ir.Shape(shape), name=name)
        return self._initializer(tensor)

    def constant(self, number: float) -> ir.Value:
        return self._initializer(ir.Tensor(np.asarray(number, self._precision.dtype.numpy()), name=self._name("constant")))

    def indices(self, *numbers: int) -> ir.Value:
        return self._initializer(ir.Tensor(np.asarray(numbers, np.int64), name=self._name("indices")))

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        shape: Sequence[int] | ir.Shape | None,
        domain: str = "",
        **attributes: int | list[int],
    ) -> ir.Value:
        name = self._name(op_type)
        node = ir.node(op_type, inputs, attributes, domain=domain, name=name)
        output = node.outputs[0]
        output.name, output.type = name, ir.TensorType(self._precision.dtype)
        output.shape = ir.Shape(shape or ())
        self._graph.append(node)
        return output

    def binary(self, op_type: str, left: ir.Value, right: ir.Value) -> ir.Value:
        return self.op(op_type, [left, right], np.broadcast_shapes(dims(left), dims(right)))

    def relu(self, value: ir.Value) -> ir.Value:
        return self.op("Relu", [value], value.shape)

    def norm(self, value: ir.Value) -> ir.Value:
        # A gain around 0 would let the biases drown what depends on the input, layer by layer.
        return self.op("LayerNormalization", [value, self.weight((_HIDDEN,), mean=1.0), self.weight((_HIDDEN,))], value.shape, axis=-1)

    def conv(self, value: ir.Value, outer: int, *, kernel: int = 1, stride: int = 1) -> ir.Value:
        batch, inner, *field = dims(value)
        shape = (batch, outer, *(math.ceil(side / stride) for side in field))
        inputs = [value, self.weight((outer, inner, kernel, kernel)), self.weight((outer,))]
        pads = [kernel // 2] * 4
        return self.op("Conv", inputs, shape, kernel_shape=[kernel, kernel], strides=[stride, stride], pads=pads)

    def pool(self, value: ir.Value, *, kernel: int, stride: int) -> ir.Value:
        batch, channels, *field = dims(value)
        shape = (batch, channels, *(math.ceil(side / stride) for side in field))
        return self.op("MaxPool", [value], shape, kernel_shape=[kernel, kernel], strides=[stride, stride], pads=[kernel // 2] * 4)

    def linear(self, value: ir.Value, outer: int, op_type: str) -> ir.Value:
        batch, inner = dims(value)
        return self.op(op_type, [value, self.weight((inner, outer)), self.weight((outer,))], (batch, outer))

    def biased(self, value: ir.Value, outer: int) -> ir.Value:
        """A `MatMul` by a weight, and its bias."""
        shape = (*dims(value)[:-1], outer)
        product = self.op("MatMul", [value, self.weight((dims(value)[-1], outer))], shape)
        return self.binary("Add", product, self.weight((outer,)))

    def _to_fp8(self, node: ir.Node) -> None:
        cast_activation(node, 0, _F143)
        weight = node.inputs[1]
        if weight is None or weight.const_value is None:
            if weight is not None:
                cast_activation(node, 1, _F143)
            return
        codes = self.weight(dims(weight), ir.DataType.FLOAT8E4M3FNUZ)
        scale, zero = self.constant(1.0), self._initializer(ir.Tensor(np.zeros((), _F143.float8_format.dtype), name=self._name("zero")))
        decoder = ir.node("DequantizeLinear", [codes, scale, zero], name=self._name("from_fp8"))
        decoder.outputs[0].name, decoder.outputs[0].shape, decoder.outputs[0].type = decoder.name, weight.shape, weight.type
        self._graph.insert_before(node, decoder)
        node.replace_input_with(1, decoder.outputs[0])
        if weight.name and not weight.uses():
            self._graph.initializers.pop(weight.name)

    def _initializer(self, tensor: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(name=tensor.name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def _name(self, kind: str) -> str:
        self._made += 1
        return f"{kind}_{self._made}"
