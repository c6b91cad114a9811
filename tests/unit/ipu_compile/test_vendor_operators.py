"""The porting check for the IPU, and `--operators`: nodes that PopRT and PopART take, and nodes that only this compiler lowers."""

import numpy as np
import onnx
import pytest

from stoker.backends.ipu.compile.compiler import compile_model
from stoker.backends.ipu.compile.popart_operators import POPART, REWRITTEN, REWRITTEN_IN_PART, VENDOR_OPSET
from stoker.compiler.cli import main as compile_command
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.opset_versions import schema_of
from stoker.compiler.errors import OptionError, UnsupportedOperators
from stoker.compiler.options import CompilerOptions
from stoker.compiler.porting import Support, Verdict
from stoker.compiler.target import find_target
from tests.fakes.graphs import parse

VENDOR = CompilerOptions(operators="vendor")
NORMALISED = parse("g (float[2,8] x) => (float[2,8] y) { a = Exp(x) [norm] y = LayerNormalization(a, s) }", {"s": np.ones(8, np.float32)})


def verdict(text: str, weights: dict[str, object] | None = None, *, opset: int = 18) -> Verdict:
    [fact] = find_target("ipu").porting(parse(text, weights, opset=opset), CompilerOptions())
    return fact.verdict


@pytest.mark.parametrize("name", POPART)
def test_listed_versions_are_versions_that_onnx_defines(name: str) -> None:
    versions, source = POPART[name]
    assert source
    for version in versions:
        schema = schema_of(name, version)
        assert schema is not None
        assert schema.since_version == version <= VENDOR_OPSET


def test_rewritten_operators_are_not_popart_s() -> None:
    assert not REWRITTEN.keys() & POPART.keys()
    assert REWRITTEN_IN_PART.keys() <= REWRITTEN.keys()


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 22])
def test_operator_that_popart_has_ports_at_every_opset_that_poprt_converts(opset: int) -> None:
    found = verdict("g (float[2,8] x) => (float[2,8] y) { y = Softmax(x) }", opset=opset)
    assert found.support is Support.VENDOR
    assert "PopART has Softmax" in found.reason
    assert found.source


def test_node_that_the_converted_opset_cannot_express_does_not_port() -> None:
    text = 'g (float[1,1,4,4] x) => (float[1,1,2,2] y) { y = Resize<mode="linear", antialias=1>(x, , s) }'
    found = verdict(text, {"s": np.array([1, 1, 0.5, 0.5], np.float32)})
    assert found.support is Support.LOWERED
    assert found.reason == "PopART has Resize of version 10, 11, not 18: attribute 'antialias' is new in opset 18"


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        ("g (float[1,1,3,3] x, float[1,1,2,2] w, float[1,8,2,2] o) => (float[1,1,2,2] y) { y = DeformConv(x, w, o) }", 19),
        ("g (float[1,8,1] x) => (float[1,8,2] y) { y = DFT(x) }", 17),
        ("g (float[1,1,4,4] x, float[1,2,2,2] g) => (float[1,1,2,2] y) { y = GridSample(x, g) }", 16),
    ],
)
def test_operator_that_popart_never_had_can_be_lowered(text: str, opset: int) -> None:
    found = verdict(text, opset=opset)
    assert found.support is Support.LOWERED
    assert "PopART has no" in found.reason


def test_operator_that_a_pass_of_poprt_rewrites_ports() -> None:
    found = verdict("g (float[4] x) => (float[4] y) { y = HardSwish(x) }")
    assert (found.support, found.reason) == (Support.VENDOR, "PopRT's pass replace_hardswish rewrites it")


def test_random_operator_ports_and_is_not_simulated() -> None:
    found = verdict("g (float[4] x) => (float[4] y) { y = RandomNormalLike(x) }")
    assert (found.support, found.not_simulated) == (Support.VENDOR, "random numbers are not simulated")


def test_model_that_the_vendor_does_not_take_is_rejected_with_node_operator_and_opset() -> None:
    with pytest.raises(UnsupportedOperators) as caught:
        compile_model(NORMALISED, (), VENDOR)
    assert str(caught.value).splitlines() == [
        "1 node(s) cannot be compiled for ipu2 (M2000) by PopRT and PopART:",
        "  LayerNormalization-17 of opset 18 (node 'norm'): PopART has no LayerNormalization, which is new since opset 11; an export at an "
        "older opset may consist of operators that it has; --operators lowered compiles it from other operators",
    ]


def test_lowered_model_is_marked_in_the_program_and_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert compile_model(NORMALISED).program.attributes["lowered_operators"] == "LayerNormalization-17"
    assert "PopRT and PopART do not take LayerNormalization-17" in caplog.text
    caplog.clear()
    plain = parse("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    assert "lowered_operators" not in compile_model(plain).program.attributes
    assert not caplog.records


def test_converted_model_is_judged_by_the_operators_of_its_source() -> None:
    converted = Converter().convert(NORMALISED)
    assert "LayerNormalization" not in {node.op_type for node in converted.graph.node}
    with pytest.raises(UnsupportedOperators, match=r"LayerNormalization-17 of opset 18 \(node 'norm'\)"):
        compile_model(converted, (), VENDOR)


@pytest.mark.parametrize("precision", ["fp16", "fp8"])
def test_operators_that_the_conversion_makes_are_no_reason_to_reject(precision: str) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 16)).astype(np.float32), "h": np.float32(0.5), "r": np.float32(2**0.5), "o": np.float32(1)}
    gelu = parse(
        """g (float[4,16] x) => (float[4,16] y) {
        a = MatMul(x, w) d = Div(a, r) e = Erf(d) p = Add(e, o) m = Mul(a, p) y = Mul(m, h) }""",
        weights,
    )
    converted = Converter(precision=precision).convert(gelu)
    assert "lowered_operators" not in compile_model(converted, (), CompilerOptions(ipu_version="ipu21")).program.attributes


def test_einsum_that_is_no_matrix_product_is_rejected_after_the_passes() -> None:
    text = 'g (float[4,4] x) => (float[4] y) { y = Einsum<equation="ii->i">(x) }'
    with pytest.raises(UnsupportedOperators, match="rewrites it, but only equations that are a matrix product; this is another form"):
        compile_model(Converter().convert_internal(parse(text)), (), VENDOR)
    product = parse('g (float[4,4] x, float[4,4] z) => (float[4,4] y) { y = Einsum<equation="ij,jk->ik">(x, z) }')
    compile_model(Converter().convert_internal(product), (), VENDOR)


def test_unknown_mode_is_named() -> None:
    with pytest.raises(OptionError, match="operators is 'all', expected one of lowered, vendor"):
        compile_model(NORMALISED, (), CompilerOptions(operators="all"))


def test_command_marks_the_result_of_lowering(tmp_path, capsys) -> None:
    onnx.save(NORMALISED, tmp_path / "m.onnx")
    words = ["--target", "ipu", "-i", str(tmp_path / "m.onnx"), "--export_popef", "--output_dir", str(tmp_path)]
    assert compile_command([*words, "--operators", "vendor"]) == 1
    assert "--operators lowered compiles it" in capsys.readouterr().err
    assert compile_command(words) == 0
    assert "operators: lowered, the vendor's tools do not take: LayerNormalization-17" in capsys.readouterr().out
    assert b"LayerNormalization-17" in (tmp_path / "executable.popef").read_bytes()
