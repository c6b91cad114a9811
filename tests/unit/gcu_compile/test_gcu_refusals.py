"""Models that the GCU cannot run are rejected: all reasons at once, by name, with the vendor's status."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from stoker.backends.gcu.compile.compiler import compile_source
from stoker.backends.gcu.compile.limits import GcuCompileError, GcuUnsupportedOperators, VendorStatus, status_of, with_status
from stoker.backends.gcu.compile.target import GcuTarget, build
from stoker.backends.gcu.status import Status
from stoker.compiler.errors import CompileError, OptionError, ShapeError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel
from tests.fakes.graphs import parse

DOUBLED = "g (float[n,2] x) => (float[n,2] y) { y = Add(x, x) }"


def of_domains(model: onnx.ModelProto) -> onnx.ModelProto:
    model.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in ("com.microsoft", "nowhere"))
    return model


def compiled(text: str, **weights: np.ndarray) -> None:
    """Compiles a model as it is, without conversion."""
    compile_source(SourceModel(model=of_domains(parse(text, weights)), name="m"), CompilerOptions())


def test_all_missing_operators_are_listed_at_once() -> None:
    with pytest.raises(GcuUnsupportedOperators) as caught:
        compiled(
            """g (float[4] x) => (float[4] a, int64[1,n] b, float[4] c, float[4] d) {
            [noise] a = RandomNormalLike(x) [places] b = NonZero(x) [own] c = nowhere.Magic(x) d = Relu(c) }"""
        )
    assert str(caught.value).splitlines() == [
        "3 node(s) cannot be compiled for the GCU (i20):",
        "  RandomNormalLike (node 'noise'): the device has no such operator",
        "  NonZero (node 'places'): the size of its output depends on values; shapes are static",
        "  nowhere::Magic (node 'own'): operators of domain 'nowhere' are not known",
    ]
    assert status_of(caught.value).value is Status.TIF_UN_SUPPORTED_OPERATOR


def test_int8_is_refused() -> None:
    with pytest.raises(GcuUnsupportedOperators, match=r"QuantizeLinear.*no int8 arithmetic") as caught:
        compiled(
            "g (float[4] x) => (float[4] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }",
            s=np.array(0.1, np.float32),
            z=np.array(0, np.int8),
        )
    assert len(caught.value.operators) == 2
    with pytest.raises(GcuUnsupportedOperators, match=r"Max \(node 'a'\): it reads 'x' in INT8: the i20 has no int8 arithmetic"):
        compiled("g (int8[4] x) => (int8[4] y) { a = Max(x, x) y = Max(a, a) }")


def test_control_flow_training_and_doubles_are_refused() -> None:
    with pytest.raises(GcuUnsupportedOperators, match=r"If .*control flow that depends on values is not compiled"):
        compiled(
            """g (bool[1] c, float[1,2] x) => (float[1,2] y) {
            y = If(c)<then_branch = t () => (float[1,2] p) { p = Neg(x) }, else_branch = e () => (float[1,2] q) { q = Relu(x) }> }"""
        )
    with pytest.raises(GcuUnsupportedOperators, match="DOUBLE, which the device does not have"):
        compiled("g (float[4] x) => (float[4] y) { a = Cast<to = 11>(x) b = Exp(a) y = Cast<to = 1>(b) }")


def test_more_than_eight_dimensions_are_refused() -> None:
    with pytest.raises(GcuUnsupportedOperators, match="gives 'a' with 9 dimensions; the device has at most 8"):
        compiled(
            "g (float[1,2] x) => (float[1,2] y) { a = Reshape(x, nine) b = Relu(a) y = Reshape(b, two) }",
            nine=np.array([1, 2, 1, 1, 1, 1, 1, 1, 1]),
            two=np.array([1, 2]),
        )
    with pytest.raises(GcuCompileError, match="input 'x' has 9 dimensions; the device has at most 8"):
        compiled(f"g (float[{','.join('1' * 9)}] x) => (float[1] y) {{ y = Reshape(x, one) }}", one=np.array([1]))


def test_unsupported_input_and_output_types_are_named() -> None:
    with pytest.raises(GcuCompileError, match="input 'x' is DOUBLE; output 'y' is DOUBLE; the device has BOOL, FLOAT") as caught:
        compiled("g (double[4] x) => (double[4] y) { y = Identity(x) }")
    assert caught.value.status is VendorStatus.UNSUPPORTED_TYPE


def test_variable_dimensions_are_refused() -> None:
    with pytest.raises(ShapeError, match="input 'x' dimension 0"):
        build(parse(DOUBLED))
    fixed = parse("g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }", {"w": np.ones((2, 3), np.float32)})
    with pytest.raises(ShapeError, match="the model is made for batch 2 and does not run with 4"):
        build(fixed, batch_sizes=[8])


def test_every_input_and_output_needs_the_batch() -> None:
    with pytest.raises(ShapeError, match="'x' has 4, 's' is a scalar, 'y' has 4"):
        compiled("g (float[4] x, float s) => (float[4] y) { y = Mul(x, s) }")


def test_model_beyond_the_cards_memory_is_refused_with_its_memory_use() -> None:
    with pytest.raises(GcuCompileError) as caught:
        build(parse(DOUBLED), name="wide", batch_sizes=[1, 2_000_000_000])
    text = str(caught.value)
    assert text.startswith("model 'wide' needs 29.8")
    assert "at batch 2000000000 (weights 0 MiB, workspace 0 MiB, buffers 30,518 MiB, code 8 MiB); i20 has 16 GiB" in text
    assert caught.value.status.value is Status.TIF_ALLOCATE_FAILED


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"batch_sizes": [2, 2]}, r"batch_sizes are \[2, 2\]; expected different sizes of 1 or more"),
        ({"batch_sizes": [0]}, r"batch_sizes are \[0\]"),
        ({"batch_sizes": [1], "build_flag": "fp17"}, "there is no 'fp17'; did you mean fp16"),
        ({"batch_sizes": [1], "resource_mode": "7c"}, "resource_mode is '7c': expected a number of clusters from 1 to 6"),
        ({"batch_sizes": [1], "resource_mode": "fast"}, "resource_mode is 'fast'"),
        ({"batch_sizes": [1], "outputs": ["z"]}, "no output 'z'"),
    ],
)
def test_invalid_options_are_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        build(parse(DOUBLED), **settings)  # type: ignore[arg-type]


def test_graphs_of_equal_batch_size_or_other_dims_are_not_combined() -> None:
    one, two = (parse(DOUBLED.replace("n", size)) for size in "12")
    wide = parse("g (float[4,3] x) => (float[4,3] y) { y = Add(x, x) }")
    for batches, reason in (([one, one], "batch size 1 is given twice"), ([two, wide], "the inputs differ between batch sizes")):
        with pytest.raises(CompileError, match=reason):
            compile_source(SourceModel(model=batches[0], name="m", batches=batches), CompilerOptions())


def test_custom_operators_are_refused() -> None:
    with pytest.raises(OptionError, match="the GCU has no custom operators"):
        compile_source(SourceModel(model=parse(DOUBLED.replace("n", "1")), name="m", custom_libraries=["x.so"]), CompilerOptions())


def test_target_puts_the_vendors_status_behind_its_own_text(tmp_path: Path) -> None:
    source = SourceModel(model=parse(DOUBLED.replace("n", "1")), name="m")
    target, path = GcuTarget(), tmp_path / "model.exec"
    with pytest.raises(OptionError, match=r"side by side \[TopsInference: TIF_INVALID_PARAM\]$"):
        target.export([source, source], CompilerOptions(), path)
    with pytest.raises(OptionError, match=r"\[TopsInference: TIF_INVALID_PARAM\]$"):
        target.check_options(CompilerOptions(build_flag="fp9"), ["fp32"])
    with pytest.raises(OptionError, match="precision fp8: the i20 has fp32 and fp16"):
        target.check_options(CompilerOptions(), ["fp8"])
    target.check_options(CompilerOptions(), ["fp32", "fp16"])
    scalar = SourceModel(model=parse("g (float x) => (float y) { y = Neg(x) }"), name="m")
    with pytest.raises(ShapeError, match=r"\[TopsInference: TIF_MIS_MATCHED_SHAPE_OR_DIM\]$"):
        target.export([scalar], CompilerOptions(), path)
    assert not path.exists()


def test_error_keeps_its_type_when_the_status_is_added() -> None:
    with pytest.raises(CompileError, match=r"^broken \[TopsInference: TIF_OPTIMIZER_BUILD_FAILED\]$"), with_status():
        raise CompileError("broken")
