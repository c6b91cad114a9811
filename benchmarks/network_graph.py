"""A network put together node by node, with the shapes of all values: structure is all that a cost model reads.

Without a seed weights are lazy tensors that fail when read; with one they are random, of a size that keeps values in range.
"""

import contextlib
import enum
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from stoker.compiler.precision.float8 import Float8Format
from stoker.compiler.precision.representation import FLOAT8_OP_TYPES, Float8Spec, cast_activation, use_float8_opset

_OPSET = 18
_F143 = Float8Spec(Float8Format.F143, 0)


class Precision(enum.Enum):
    """As the published tables name them; `FP8_STAR` keeps the first and last matrix operator in fp16."""

    FP32 = "fp32"
    FP16 = "fp16"
    FP8 = "fp8"
    FP8_STAR = "fp8*"

    @property
    def dtype(self) -> ir.DataType:
        return ir.DataType.FLOAT if self is Precision.FP32 else ir.DataType.FLOAT16


def dims(value: ir.Value) -> tuple[int, ...]:
    """The static shape of `value`."""
    if value.shape is None:
        raise ValueError(f"value '{value.name}' has no shape")
    return tuple(value.shape.numpy())


class NetworkGraph:
    """Collects nodes with the shapes of their outputs."""

    def __init__(self, name: str, precision: Precision, seed: int | None) -> None:
        self._precision = precision
        self._generator = None if seed is None else np.random.default_rng(seed)
        self._graph = ir.Graph([], [], nodes=[], opset_imports={"": _OPSET, "com.microsoft": 1}, name=name)
        self._made = 0
        self._shared: list[ir.Value] | None = None
        self._at = 0

    @property
    def dtype(self) -> ir.DataType:
        """The type of activations and weights."""
        return self._precision.dtype

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

    @contextlib.contextmanager
    def shared_weights(self) -> Iterator[Callable[[], None]]:
        """Within it all layers have the weights of the first one; the yielded function is called at the start of each layer."""

        def next_layer() -> None:
            self._at = 0

        self._shared = []
        yield next_layer
        self._shared = None

    def weight(self, shape: tuple[int, ...], dtype: ir.DataType | None = None, *, mean: float = 0.0) -> ir.Value:
        if self._shared is None:
            return self._new_weight(shape, dtype, mean=mean)
        if self._at == len(self._shared):
            self._shared.append(self._new_weight(shape, dtype, mean=mean))
        self._at += 1
        return self._shared[self._at - 1]

    def _new_weight(self, shape: tuple[int, ...], dtype: ir.DataType | None, *, mean: float) -> ir.Value:
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

    def scales(self, *numbers: float) -> ir.Value:
        return self._initializer(ir.Tensor(np.asarray(numbers, np.float32), name=self._name("scales")))

    def indices(self, *numbers: int) -> ir.Value:
        return self._initializer(ir.Tensor(np.asarray(numbers, np.int64), name=self._name("indices")))

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
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
        """A layer normalisation over the last dimension, as one node."""
        size = dims(value)[-1:]
        # A gain around 0 would let the biases drown what depends on the input, layer by layer.
        return self.op("LayerNormalization", [value, self.weight(size, mean=1.0), self.weight(size)], value.shape, axis=-1)

    def conv(self, value: ir.Value, outer: int, *, kernel: int = 1, stride: int = 1, pad: int | None = None) -> ir.Value:
        batch, inner, *field = dims(value)
        shape = (batch, outer, *(math.ceil(side / stride) for side in field))
        inputs = [value, self.weight((outer, inner, kernel, kernel)), self.weight((outer,))]
        pads = [kernel // 2 if pad is None else pad] * 4
        return self.op("Conv", inputs, shape, kernel_shape=[kernel, kernel], strides=[stride, stride], pads=pads)

    def patches(self, value: ir.Value, outer: int, side: int) -> ir.Value:
        """Tokens [batch, patches, outer] of an image [batch, channels, height, width]: a convolution over patches of `side` x `side`."""
        batch, inner, height, width = dims(value)
        shape, count = (batch, outer, height // side, width // side), (height // side) * (width // side)
        inputs = [value, self.weight((outer, inner, side, side)), self.weight((outer,))]
        field = self.op("Conv", inputs, shape, kernel_shape=[side, side], strides=[side, side], pads=[0, 0, 0, 0])
        flat = self.op("Reshape", [field, self.indices(batch, outer, count)], (batch, outer, count))
        return self.op("Transpose", [flat], (batch, count, outer), perm=[0, 2, 1])

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
