import numpy as np
import pytest

from stoker.compiler.passes import PassManager
from tests.fakes.graphs import Constants, assert_same_results, op_types, parse, random_feeds


def cleaned(name: str, text: str, initializers: Constants | None = None, *, changes: bool = True) -> list[str]:
    """Operators left after pass `name`; the results must be the same bit by bit, and a second run must change nothing."""
    model = parse(text, initializers)
    manager = PassManager([name], verify_each=True)
    after = manager.run(model)
    for seed in range(2):
        assert_same_results(model, after, random_feeds(model, seed), rtol=0, atol=0)
    assert op_types(manager.run(after)) == op_types(after)
    assert (op_types(after) != op_types(model)) == changes
    return op_types(after)


F2 = {"c": np.array([1, 1], np.float32)}


def test_identity_is_removed_and_outputs_keep_their_names() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] z) { a = Identity(x) b = Relu(a) y = Identity(b) z = Identity(b) }"
    assert cleaned("eliminate_identity", text) == ["Relu", "Identity"]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2] x) => (float[2] y) { y = Identity(x) }",
        "g (float[2] x) => (float[2] y, float[2] c) { y = Relu(x) c = Identity(w) }",
    ],
)
def test_identity_that_names_an_output_is_kept(text: str) -> None:
    cleaned("eliminate_identity", text, {"w": np.array([1, 2], np.float32)}, changes=False)


def test_identity_of_an_outer_value_is_kept_in_a_branch() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) { r = Relu(x)
        y = If(c) <then_branch = t () => (float[2] a) { a = Identity(r) }, else_branch = e () => (float[2] b) { b = Neg(r) }> }"""
    cleaned("eliminate_identity", text, changes=False)


def test_value_read_in_a_branch_is_replaced_there_too() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) { r = Relu(x) i = Identity(r)
        y = If(c) <then_branch = t () => (float[2] a) { a = Abs(i) }, else_branch = e () => (float[2] b) { b = Neg(i) }> }"""
    assert cleaned("eliminate_identity", text) == ["Relu", "If", "Abs", "Neg"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("g (float[2] x) => (float[2] y) { a = Cast<to = 1>(x) y = Relu(a) }", ["Relu"]),
        ("g (float[2] x, float[1] t) => (float[2] y) { a = CastLike(x, t) y = Relu(a) }", ["Relu"]),
        ("g (float[2] x) => (float16[2] y) { y = Cast<to = 10>(x) }", None),
        ("g (float[2] x, float16[1] t) => (float16[2] y) { y = CastLike(x, t) }", None),
    ],
)
def test_nop_cast_is_removed(text: str, left: list[str] | None) -> None:
    found = cleaned("eliminate_nop_cast", text, changes=left is not None)
    assert left is None or found == left


@pytest.mark.parametrize(
    ("op", "constant", "goes"),
    [
        ("Mul(x, c)", np.float32(1), True),
        ("Mul(c, x)", np.array([[1, 1]], np.float32), True),
        ("Div(x, c)", np.array([1], np.float32), True),
        ("Sub(x, c)", np.array([0, 0], np.float32), True),
        ("Add(x, c)", np.array([0, 0], np.float32), True),
        ("Add(c, x)", np.float32(-0.0), True),
        ("Pow(x, c)", np.int64(1), True),
        ("Div(c, x)", np.float32(1), False),
        ("Sub(c, x)", np.float32(0), False),
        ("Pow(c, x)", np.float32(1), False),
        ("Mul(x, c)", np.array([1, 2], np.float32), False),
        ("Mul(x, c)", np.float32(0), False),
        ("Mul(x, c)", np.ones((1, 1, 1), np.float32), False),
        ("Mul(x, c)", np.ones((5, 2), np.float32), False),
    ],
)
def test_nop_arithmetic_is_removed(op: str, constant: np.ndarray, goes: bool) -> None:
    rank = 3 if constant.ndim == 3 else 2
    shape = "1,1,2" if rank == 3 else "5,2" if constant.shape == (5, 2) else "1,2"
    text = f"g (float[1,2] x) => (float[{shape}] y) {{ a = {op} y = Relu(a) }}"
    cleaned("eliminate_nop_arithmetic", text, {"c": constant}, changes=goes)


def test_nop_arithmetic_keeps_an_addition_that_a_division_sees() -> None:
    text = "g (float[2] x) => (float[2] y) { n = Mul(x, zero) a = Add(n, c) y = Div(x, a) }"
    initializers = {"c": np.float32(0), "zero": np.float32(-0.0)}
    cleaned("eliminate_nop_arithmetic", text, initializers, changes=False)


def test_nop_arithmetic_of_integers_and_booleans_is_removed() -> None:
    text = """g (int32[2] x, bool[2] b) => (int32[2] y, bool[2] z) {
        a = Add(x, zero) y = Abs(a)
        d = And(b, true_) e = Or(false_, d) z = Not(e)
    }"""
    initializers = {"zero": np.int32(0), "true_": np.array(True), "false_": np.array([False])}
    assert cleaned("eliminate_nop_arithmetic", text, initializers) == ["Abs", "Not"]


def test_nop_arithmetic_keeps_overridable_constants() -> None:
    text = "g (float[2] x, float[2] c) => (float[2] y) { a = Mul(x, c) y = Relu(a) }"
    cleaned("eliminate_nop_arithmetic", text, F2, changes=False)


@pytest.mark.parametrize(
    ("inputs", "out", "target", "goes"),
    [
        ("float[2,3] x", "2,3", [2, 3], True),
        ("float[2,3] x", "2,3", [1, 1], True),
        ("float[n,3] x", "n,3", [1], True),
        ("float[n,3] x", "n,3", [1, 3], True),
        ("float[2,3] x", "1,2,3", [1, 2, 3], False),
        ("float[1,3] x", "2,3", [2, 3], False),
    ],
)
def test_nop_expand_is_removed(inputs: str, out: str, target: list[int], goes: bool) -> None:
    cleaned(
        "eliminate_nop_expand",
        f"g ({inputs}) => (float[{out}] y) {{ a = Expand(x, s) y = Relu(a) }}",
        {"s": np.array(target)},
        changes=goes,
    )


@pytest.mark.parametrize(
    ("inputs", "out", "axis", "goes"),
    [("2,3", "2,3", 1, True), ("n,3", "n,3", -1, True), ("1,3", "1,3", 0, True), ("2,3", "1,6", 0, False), ("2,3,1", "2,3", 1, False)],
)
def test_nop_flatten_is_removed(inputs: str, out: str, axis: int, goes: bool) -> None:
    cleaned(
        "eliminate_nop_flatten", f"g (float[{inputs}] x) => (float[{out}] y) {{ a = Flatten<axis = {axis}>(x) y = Relu(a) }}", changes=goes
    )


@pytest.mark.parametrize(("pads", "goes"), [([0, 0, 0, 0], True), ([0, 1, 0, 0], False)])
def test_nop_pad_is_removed(pads: list[int], goes: bool) -> None:
    size = 3 + sum(pads)
    cleaned(
        "eliminate_nop_pad", f"g (float[2,3] x) => (float[2,{size}] y) {{ a = Pad(x, p) y = Relu(a) }}", {"p": np.array(pads)}, changes=goes
    )


@pytest.mark.parametrize(
    ("inputs", "out", "target", "goes"),
    [
        ("2,3", "2,3", [2, 3], True),
        ("2,3", "2,3", [-1, 3], True),
        ("n,3", "n,3", [0, 3], True),
        ("n,3", "n,3", [-1, 3], True),
        ("n,3,m", "n,3,m", [0, 3, -1], True),
        ("2,3", "3,2", [3, 2], False),
        ("n,3", "3,k", [3, -1], False),
        ("n,3", "k,1,3", [-1, 1, 3], False),
    ],
)
def test_nop_reshape_is_removed(inputs: str, out: str, target: list[int], goes: bool) -> None:
    text = f"g (float[{inputs}] x) => (float[{out}] y) {{ a = Reshape(x, s) y = Relu(a) }}"
    cleaned("eliminate_nop_reshape", text, {"s": np.array(target)}, changes=goes)


@pytest.mark.parametrize(
    ("shape", "out", "perm", "goes"),
    [("2,3", "2,3", "<perm = [0, 1]>", True), ("3", "3", "", True), ("2,3", "3,2", "", False), ("2,3", "3,2", "<perm = [1, 0]>", False)],
)
def test_nop_transpose_is_removed(shape: str, out: str, perm: str, goes: bool) -> None:
    cleaned("eliminate_nop_transpose", f"g (float[{shape}] x) => (float[{out}] y) {{ a = Transpose{perm}(x) y = Relu(a) }}", changes=goes)


IF = """g (float[2] x) => (float[2] y) {
    a = Neg(x)
    b = If(c) <then_branch = t () => (float[2] r) <float[2] w = {1.0, 2.0}> { a1 = Add(a, w) r = Relu(a1) },
               else_branch = e () => (float[2] r) { a1 = Abs(a) r = Identity(a1) }>
    d = Add(b, x)
    y = Relu(d)
}"""


@pytest.mark.parametrize(
    ("condition", "left"), [(True, ["Neg", "Add", "Relu", "Add", "Relu"]), (False, ["Neg", "Abs", "Identity", "Add", "Relu"])]
)
def test_if_with_a_constant_condition_becomes_its_branch(condition: bool, left: list[str]) -> None:
    assert cleaned("eliminate_nop_if", IF, {"c": np.array(condition)}) == left


def test_if_that_is_the_output_keeps_its_name() -> None:
    text = """g (float[2] x) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] r) { r = Identity(x) }, else_branch = e () => (float[2] q) { q = Neg(x) }> }"""
    assert cleaned("eliminate_nop_if", text, {"c": np.array([True])}) == ["Identity"]


def test_if_that_depends_on_an_input_is_kept() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] r) { r = Relu(x) }, else_branch = e () => (float[2] q) { q = Neg(x) }> }"""
    cleaned("eliminate_nop_if", text, changes=False)
