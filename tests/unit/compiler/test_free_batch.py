"""Models exported for one batch size are made to accept others, if they compute the same."""

import numpy as np
import onnx
import pytest

from stoker.compiler.convert.free_batch import with_free_batch
from stoker.compiler.errors import ShapeError
from tests.fakes import networks
from tests.fakes.graphs import parse, run_onnx
from tests.fakes.transformers import small_bert


def batch_of(model: onnx.ModelProto) -> list[object]:
    values = (*model.graph.input, *model.graph.output)
    return [value.type.tensor_type.shape.dim[0].dim_param or value.type.tensor_type.shape.dim[0].dim_value for value in values]


@pytest.mark.parametrize("model", [networks.convolutional().model, networks.transformer().model, small_bert(2, 6), small_bert(1, 6)])
def test_batch_becomes_variable(model: onnx.ModelProto) -> None:
    before = model.SerializeToString(deterministic=True)
    freed = with_free_batch(model, [1, 8])
    assert set(batch_of(freed)) == {"batch"}
    assert model.SerializeToString(deterministic=True) == before


def test_reshapes_with_the_batch_size_follow_it() -> None:
    model = parse(
        "g (float[2,6] x) => (float[2,3,2] y, float[2,6] z) { y = Reshape(x, split) n = Neg(y) z = Reshape(n, flat) }",
        {"split": np.array([2, 3, 2]), "flat": np.array([2, -1])},
    )
    freed = with_free_batch(model, [5])
    feeds = {"x": np.arange(30, dtype=np.float32).reshape(5, 6)}
    found = run_onnx(freed, feeds)
    assert np.array_equal(found["y"], feeds["x"].reshape(5, 3, 2))
    assert np.array_equal(found["z"], -feeds["x"])


def test_model_with_a_variable_batch_is_unchanged() -> None:
    fixed, free = (parse(f"g (float[{size},2] x) => (float[{size},2] y) {{ y = Neg(x) }}") for size in ("3", "n"))
    assert with_free_batch(fixed, [3]) is fixed
    assert with_free_batch(fixed, []) is fixed
    assert with_free_batch(free, [1, 8]) is free


@pytest.mark.parametrize(
    ("body", "weights", "reason"),
    [
        ("y = Add(x, w)", {"w": np.ones((2, 3), np.float32)}, "is made for batch 2 and does not run with 4"),
        ("m = ReduceMean<keepdims = 1>(x, first) y = Sub(x, m)", {"first": np.array([0])}, "with 4, output 'y' is another"),
        (
            "f = Reshape(x, flat) s = Slice(f, from, to) y = Reshape(s, rows)",
            {"flat": np.array([-1]), "from": np.array([0]), "to": np.array([6]), "rows": np.array([2, 3])},
            "output 'y' is another",
        ),
    ],
)
def test_built_in_batch_is_refused(body: str, weights: dict[str, np.ndarray], reason: str) -> None:
    model = parse(f"g (float[2,3] x) => (float[2,3] y) {{ {body} }}", weights)
    with pytest.raises(ShapeError, match=reason) as caught:
        with_free_batch(model, [8])
    assert str(caught.value).endswith("export it with a variable batch, or compile it for that size only")


@pytest.mark.parametrize("extra", [0.0, -np.inf, np.nan, np.finfo(np.float32).min])
def test_built_in_batch_is_refused_beside_infinities(extra: float) -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { s = Softmax<axis = 0>(x) y = Add(s, c) }"
    with pytest.raises(ShapeError, match="with 4, output 'y' is another"):
        with_free_batch(parse(text, {"c": np.array([0, 0, 0, extra], np.float32)}), [3])


def test_slightly_different_whole_numbers_are_refused() -> None:
    text = """g (float[2,5000] x) => (int64[2,5000] y) {
        m = ReduceMax<keepdims = 1>(x, first) e = Equal(x, m) t = And(e, one_column) y = Cast<to = 7>(t) }"""
    mask = np.zeros((1, 5000), bool)
    mask[0, 0] = True
    with pytest.raises(ShapeError, match="output 'y' is another"):
        with_free_batch(parse(text, {"first": np.array([0]), "one_column": mask}), [3])
