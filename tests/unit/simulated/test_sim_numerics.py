"""GraphRunner rounds exactly where the lowered graph requires it, compared bit by bit with a run of one node at a time."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from stoker.backends.simulated.numerics import GraphRunner, GraphValue, NumericsError

FP16, FP8, FP8_WIDE = TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2FNUZ
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


class Lowered:
    """Builds a lowered graph with one input `x`: `stored` is a value as the device stores it."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = list(shape)
        self.random = np.random.default_rng(7)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        output = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], **attributes))
        return output

    def stored(self, value: str, kind: int = FP16) -> str:
        return self.op("Cast", self.op("Cast", value, to=kind), to=TensorProto.FLOAT)

    def constant(self, array: object, *, kind: int | None = None) -> str:
        name = f"c_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return self.stored(name, kind) if kind else name

    def weight(self, *shape: int, kind: int = FP16) -> str:
        return self.constant(self.random.standard_normal(shape).astype(np.float32), kind=kind)

    def quarters(self, *shape: int, kind: int = FP16) -> str:
        """Weights whose products sum exactly in FP32, in any order of a kernel."""
        return self.constant(self.random.integers(-4, 5, shape).astype(np.float32) / 4, kind=kind)

    def model(self, *outputs: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.initializers,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
        model.ir_version = 10
        return model


def layer_norm() -> onnx.ModelProto:
    g = Lowered((4, 16))
    s, axes = g.stored, g.constant(np.array([-1], np.int64))
    x = s("x")
    centred = s(g.op("Sub", x, s(g.op("ReduceMean", x, axes))))
    variance = s(g.op("ReduceMean", s(g.op("Pow", centred, g.constant(np.float32(2)))), axes))
    y = s(g.op("Div", centred, s(g.op("Sqrt", s(g.op("Add", variance, g.constant(np.float32(1e-3))))))))
    return g.model(s(g.op("Add", s(g.op("Mul", y, g.weight(16))), g.weight(16))))


def gelu() -> onnx.ModelProto:
    g = Lowered((4, 16))
    s = g.stored
    x = s(g.op("Add", s("x"), g.weight(16)))
    half = s(g.op("Erf", s(g.op("Div", x, g.constant(np.float32(2**0.5))))))
    y = s(g.op("Mul", x, s(g.op("Add", half, g.constant(np.float32(1))))))
    return g.model(s(g.op("Mul", y, g.constant(np.float32(0.5)))))


def chains_of_casts() -> onnx.ModelProto:
    g = Lowered((4, 16))
    s = g.stored
    narrow = g.op("Cast", g.op("Cast", "x", to=FP16), to=FP8)
    wide = g.op("Cast", g.op("Cast", g.op("Cast", "x", to=FP16), to=FP8_WIDE), to=FP16)
    return g.model(
        s(s(s("x"), FP8)),
        g.op("Cast", narrow, to=TensorProto.FLOAT),
        g.op("Cast", wide, to=TensorProto.FLOAT),
        s("x", TensorProto.BFLOAT16),
    )


def convolutions(kind: int) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        g = Lowered((1, 16, 8, 8))
        s = g.stored
        x = s("x", kind)
        for _ in range(2):
            y = s(g.op("Conv", s(x, kind), g.quarters(16, 16, 3, 3, kind=kind), pads=[1, 1, 1, 1]))
            y = s(g.op("BatchNormalization", y, *(g.weight(16) for _ in range(3)), s(g.op("Abs", g.weight(16)))))
            x = s(g.op("Relu", s(g.op("Add", y, x))))
        return g.model(s(g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])))

    return build


def attention() -> onnx.ModelProto:
    g = Lowered((1, 4, 16))
    s, x = g.stored, g.stored("x")
    heads = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        part = s(g.op("Add", s(g.op("MatMul", x, g.quarters(16, 16))), g.quarters(16)))
        part = g.op("Reshape", part, g.constant(np.array([1, 4, 2, 8], np.int64)))
        heads.append(s(g.op("Transpose", part, perm=order)))
    scores = s(g.op("Div", s(g.op("MatMul", heads[0], heads[1])), g.constant(np.float32(8))))
    y = s(g.op("MatMul", s(g.op("Softmax", scores, axis=-1)), heads[2]))
    y = g.op("Reshape", s(g.op("Transpose", y, perm=[0, 2, 1, 3])), g.constant(np.array([1, 4, 16], np.int64)))
    return g.model(s(g.op("Add", s(g.op("MatMul", y, g.quarters(16, 16))), x)))


def folding() -> onnx.ModelProto:
    g = Lowered((4, 16))
    s = g.stored
    x = s(g.op("Mul", s("x"), g.constant(np.float32(1 / 3))))
    x = s(g.op("Mul", x, g.constant(np.float32(7))))
    x = s(g.op("Gemm", x, g.weight(16, 16), g.weight(16)))
    x = s(g.op("Clip", x, g.constant(np.float32(0)), g.constant(np.float32(6))))
    x = s(g.op("Transpose", s(g.op("Transpose", x, perm=[1, 0])), perm=[1, 0]))
    return g.model(s(g.op("Mul", s(g.op("Sigmoid", x)), x)), s(g.op("Add", s(g.op("Mul", x, g.constant(np.float32(1)))), x)))


def quantized_to_eight_bit_floats() -> onnx.ModelProto:
    g = Lowered((4, 16))
    scale = g.constant(np.float32(0.25))
    zero = "zero"
    g.initializers.append(helper.make_tensor(zero, FP8, [], b"\0", raw=True))

    def quantized(value: str) -> str:
        return g.op("DequantizeLinear", g.op("QuantizeLinear", value, scale, zero), scale, zero)

    weight = quantized(g.constant(g.random.integers(-4, 5, (16, 16)).astype(np.float32)))
    return g.model(g.stored(g.op("Relu", quantized(g.stored(g.op("MatMul", quantized(g.stored("x")), weight))))))


CASES = {
    "layer_norm": layer_norm,
    "gelu": gelu,
    "chains_of_casts": chains_of_casts,
    "fp16_convolutions": convolutions(FP16),
    "fp8_convolutions": convolutions(FP8),
    "attention": attention,
    "folding": folding,
    "quantized_to_eight_bit_floats": quantized_to_eight_bit_floats,
}


def session(model: onnx.ModelProto, level: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if level != "ORT_DISABLE_ALL":
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def one_node_at_a_time(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    """Nothing can be fused, removed or moved where a session has one node."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in [*inferred.input, *inferred.value_info, *inferred.output]}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    values = {"x": ort.OrtValue.ortvalue_from_numpy(x)}
    for node in model.graph.node:
        fed = [name for name in dict.fromkeys(node.input) if name not in constants]
        graph = helper.make_graph(
            [node],
            "node",
            [helper.make_tensor_value_info(name, types[name], list(values[name].shape())) for name in fed],
            [helper.make_tensor_value_info(name, types[name], None) for name in node.output],
            [constants[name] for name in dict.fromkeys(node.input) if name in constants],
        )
        alone = helper.make_model(graph, opset_imports=model.opset_import)
        alone.ir_version = 10
        made = session(alone, "ORT_DISABLE_ALL").run_with_ort_values(list(node.output), {name: values[name] for name in fed})
        values |= dict(zip(node.output, made, strict=True))
    return [values[output.name].numpy() for output in model.graph.output]


def data_for(model: onnx.ModelProto) -> np.ndarray:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return (np.random.default_rng(1).integers(-37, 38, shape) / 16).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_values_are_rounded_as_the_graph_requires_at_every_optimisation_level(case: str) -> None:
    model = CASES[case]()
    x = data_for(model)
    names = [output.name for output in model.graph.output]
    expected = one_node_at_a_time(model, x)

    ran = GraphRunner(model.SerializeToString()).run({"x": x}, names)
    by_level = {level: session(model, level).run(names, {"x": x}) for level in LEVELS}

    for place, name in enumerate(names):
        assert ran[name].tobytes() == expected[place].tobytes()
        assert all(values[place].tobytes() == expected[place].tobytes() for values in by_level.values())


def test_comparison_detects_a_missing_rounding() -> None:
    def products(*, is_stored: bool) -> bytes:
        g = Lowered((4, 16))
        third = g.op("Mul", "x", g.constant(np.float32(1 / 3)))
        product = g.op("Mul", g.stored(third) if is_stored else third, g.constant(np.float32(7)))
        g.nodes.append(helper.make_node("Identity", [product], ["y"]))
        return g.model("y").SerializeToString()

    x = data_for(folding())
    rounded, unrounded = (GraphRunner(products(is_stored=stored)).run({"x": x}, ["y"])["y"] for stored in (True, False))

    assert not np.array_equal(rounded, unrounded)


def test_rounding_equals_that_of_numpy_half() -> None:
    g = Lowered((6,))
    g.nodes.append(helper.make_node("Identity", [g.stored("x")], ["y"]))
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519, 65520, 2**-25, 6e-8], np.float32)

    y = GraphRunner(g.model("y").SerializeToString()).run({"x": x}, ["y"])["y"]

    with np.errstate(over="ignore"):
        assert y.tobytes() == x.astype(np.float16).astype(np.float32).tobytes()


def test_invalid_graph_is_refused() -> None:
    with pytest.raises(NumericsError, match="cannot be prepared"):
        GraphRunner(b"no model")


def test_missing_input_is_named_without_the_runtimes_status_code() -> None:
    runner = GraphRunner(gelu().SerializeToString())

    with pytest.raises(NumericsError, match="failed") as caught:
        runner.run({}, list(runner.outputs))

    assert "x" in str(caught.value)
    assert "[ONNXRuntimeError]" not in str(caught.value)


def test_missing_custom_operator_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(NumericsError, match="no_such_library"):
        GraphRunner(gelu().SerializeToString(), custom_op_libraries=[tmp_path / "no_such_library.so"])


def test_values_of_a_graph_are_listed_by_shape_and_type() -> None:
    runner = GraphRunner(layer_norm().SerializeToString())
    (value,) = runner.inputs.values()

    assert str(value) == "float32[4, 16]"
    assert value.fits([4, 16], np.dtype(np.float32))
    assert not value.fits([4, 16, 1], np.dtype(np.float32))
    assert not value.fits([4, 16], np.dtype(np.float16))


def test_unknown_type_or_shape_matches_everything() -> None:
    half = np.dtype(np.float16)
    assert GraphValue((None, 3), half).fits([7, 3], half)
    assert not GraphValue((None, 3), half).fits([7, 4], half)
    assert GraphValue((), half).fits([2], half)
    assert GraphValue((2,), None).fits([2], half)
    assert str(GraphValue((None, 3), half)) == "float16[?, 3]"


def test_graph_with_a_name_that_is_not_text_is_refused_without_output_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    damaged = gelu().SerializeToString().replace(b"Erf", b"E\xffrf"[:3])

    with pytest.raises(NumericsError, match="cannot be prepared"):
        GraphRunner(damaged)
    assert capfd.readouterr().out == ""


def test_empty_outputs_return_no_values() -> None:
    assert GraphRunner(gelu().SerializeToString()).run({}, []) == {}
