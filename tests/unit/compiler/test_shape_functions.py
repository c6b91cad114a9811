"""Shapes of custom operators, by functions of the user's that ONNX's own inference calls."""

from collections.abc import Iterator

import onnx
import pytest
from onnx import TensorProto, defs, helper

from stoker.compiler.convert import shape_functions
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.shape_functions import known_shapes, load_shape_functions, register_shape_func
from stoker.compiler.errors import ShapeError
from tests.fakes.graphs import model_of, tensor

DOMAIN = "test.shapes"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with shape_functions.temporary_shape_functions():
        yield


@pytest.fixture
def model() -> onnx.ModelProto:
    nodes = [helper.make_node("Halve", ["x"], ["h"], domain=DOMAIN, axis=1), helper.make_node("Relu", ["h"], ["y"])]
    return model_of(nodes, [tensor("x", ["n", 6])], [tensor("y", None)], domains=[DOMAIN])


def halve(node: onnx.NodeProto, types: list[onnx.TypeProto | None]) -> list[tuple[int, list[int]]]:
    assert types[0] is not None
    kind = types[0].tensor_type
    shape = [size.dim_value for size in kind.shape.dim]
    shape[node.attribute[0].i] //= 2
    return [(kind.elem_type, shape)]


def test_shapes_behind_a_custom_operator_are_inferred(model: onnx.ModelProto) -> None:
    register_shape_func(["Halve"], domain=DOMAIN)(halve)
    converted = Converter(input_shape={"x": [4, 6]}).convert_internal(model)
    kind = converted.graph.output[0].type.tensor_type
    assert (kind.elem_type, [size.dim_value for size in kind.shape.dim]) == (TensorProto.FLOAT, [4, 3])


def test_function_applies_to_any_domain_unless_it_names_one(model: onnx.ModelProto) -> None:
    register_shape_func("Halve", domain="another")(halve)
    with known_shapes(model):
        assert not defs.has("Halve", 1, DOMAIN)
    register_shape_func("Halve")(halve)
    with known_shapes(model):
        assert defs.has("Halve", 1, DOMAIN)
    assert not defs.has("Halve", 1, DOMAIN)


def test_function_is_not_called_while_a_dimension_is_open(model: onnx.ModelProto) -> None:
    register_shape_func("Halve")(lambda _node, _types: pytest.fail("the batch is not known yet"))
    with known_shapes(model):
        assert not onnx.shape_inference.infer_shapes(model).graph.value_info


def test_onnx_operators_keep_their_inference(model: onnx.ModelProto) -> None:
    register_shape_func("Relu")(lambda _node, _types: pytest.fail("called for ONNX's own Relu"))
    with known_shapes(model):
        onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda _node, _types: 1 / 0, "the shape function of test.shapes.Halve failed: ZeroDivisionError"),
        (lambda _node, types: [types[0], types[0]], "gave 2 types for 1 outputs"),
    ],
)
def test_function_that_fails_is_named(model: onnx.ModelProto, function: shape_functions.ShapeFunction, reason: str) -> None:
    register_shape_func("Halve")(function)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    with known_shapes(model), pytest.raises(ShapeError, match=reason):
        onnx.shape_inference.infer_shapes(model, strict_mode=True)


def test_file_registers_functions(tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "shapes.py"
    path.write_text(
        "from stoker.compiler.convert.shape_functions import register_shape_func\n"
        "@register_shape_func(['Loaded'])\n"
        "def loaded(node, types):\n"
        "    return [types[0]]\n"
    )
    load_shape_functions(path)
    assert ("Loaded", None) in shape_functions._functions
    path.write_text("# nothing\n")
    load_shape_functions(path)
    assert "registers no new shape function" in caplog.text
