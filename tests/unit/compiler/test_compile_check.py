"""`--check`'s figures, phases on a terminal, and which targets there are."""

import io

import numpy as np
import pytest
from onnx import numpy_helper

import stoker.compiler.target
from stoker.compiler import marks
from stoker.compiler.check import compare_models, output_error, random_feeds
from stoker.compiler.convert.converter import Converter
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.passes import get_pass
from stoker.compiler.reports import Progress
from stoker.compiler.target import find_target, target_names
from tests.fakes.fake_target import FakeEntryPoint, FakeTarget
from tests.fakes.graphs import parse


def test_figures_equal_their_definitions() -> None:
    found = output_error("y", np.array([1.0, -4.0, 0.0]), np.array([1.0, -2.0, 1.0]))
    assert (found.max_error, found.mean_error, found.mean_square_error, found.max_relative_error) == (2.0, 1.0, 5 / 3, 0.5)
    assert found.cosine == pytest.approx(9 / np.sqrt(17 * 6))


def test_same_infinities_and_nans_agree() -> None:
    values = np.array([np.inf, -np.inf, np.nan, 1.0])
    found = output_error("y", values, values.copy())
    assert (found.max_error, found.cosine) == (0.0, 1.0)
    assert output_error("y", values, np.array([np.inf, np.inf, np.nan, 1.0])).max_error == np.inf


def test_figures_of_very_large_numbers_are_finite() -> None:
    values = np.array([1e300, -2e300, 1e-300])
    found = output_error("y", values, values * 0.5)
    assert (found.max_error, found.max_relative_error, found.mean_square_error) == (1e300, 0.5, np.inf)
    assert found.cosine == pytest.approx(1)


def test_models_are_compared_across_changed_types() -> None:
    source = parse("g (double[n,2] x, int64[n] i) => (double[n,2] y) { y = Mul(x, x) }")
    converted = parse("g (float16[3,2] x, int32[3] i) => (float16[3,2] y) { y = Mul(x, x) }")
    (found,) = compare_models(source, converted)
    assert found.shape == (3, 2)
    assert 0 < found.max_error < 0.01


def test_pixels_are_compared_with_their_normalised_values() -> None:
    source = parse("g (float[2,3,4,4] x) => (float[2,3,4,4] y) { y = Relu(x) }")
    converted = get_pass("eight_bits_io")(source)
    assert random_feeds(converted)["x"].max() > 200
    (found,) = compare_models(source, converted)
    assert found.max_relative_error < 1e-5


def test_packed_model_is_not_compared_because_its_mask_numbers_sequences() -> None:
    source = parse("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    converted = parse("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    converted.metadata_props.add(key=marks.PACKING, value="{}")
    with pytest.raises(CompileError, match="packed the model"):
        compare_models(source, converted)


def test_attention_in_eight_bits_is_compared() -> None:
    """ONNX Runtime would move the transposition between the two casts of eight bits, and then refuse its own result."""
    source = parse("""
        g (float[1,8,16] x) => (float[1,4,8,8] scores)
        <float[16,16] query_weight, float[16,16] key_weight, int64[4] split = {1, 8, 4, 4}>
        {
            query = MatMul(x, query_weight)
            key = MatMul(x, key_weight)
            query_heads = Reshape(query, split)
            key_heads = Reshape(key, split)
            rows = Transpose<perm = [0, 2, 1, 3]>(query_heads)
            columns = Transpose<perm = [0, 2, 3, 1]>(key_heads)
            scores = MatMul(rows, columns)
        }
    """)
    generator = np.random.default_rng(0)
    for name in ("query_weight", "key_weight"):
        weight = generator.standard_normal((16, 16), dtype=np.float32) / 4
        source.graph.initializer.append(numpy_helper.from_array(weight, name))
    converted = Converter(precision="fp8", fp8_params="F143,F143,-4,-4").convert(source)
    (found,) = compare_models(source, converted)
    assert 0 < found.max_relative_error < 0.2
    assert found.cosine > 0.99


def test_joined_inputs_are_compared_one_by_one() -> None:
    source = parse("g (float[2,3] a, float[4] other, float[2,3] b) => (float[2,3] y) { y = Sub(a, b) }")
    converted = get_pass("apply_host_concat_split", groups=["fp32,[2,3]"])(source)
    assert len(converted.graph.input) == 2
    (found,) = compare_models(source, converted)
    assert (found.shape, found.max_error) == ((2, 3), 0.0)


def test_data_is_the_same_for_the_same_seed() -> None:
    model = parse("g (float[2,2] x, bool[4] b) => (float[2,2] y) { y = Relu(x) }")
    first, again, other = random_feeds(model), random_feeds(model), random_feeds(model, seed=1)
    np.testing.assert_array_equal(first["x"], again["x"])
    assert not np.array_equal(first["x"], other["x"])
    assert first["b"].dtype == np.bool_


@pytest.mark.parametrize(
    ("converted", "reason"),
    [
        ("g (float[2] z) => (float[2] y) { y = Relu(z) }", "the conversion changed the inputs"),
        ("g (float[2] x) => (float[2] other) { other = Relu(x) }", "none of the source's outputs"),
        ("g (float[2] x) => (float[4] y) { y = Concat<axis = 0>(x, x) }", "output 'y' is [4] after conversion and [2] before"),
        ("g (float[2] x) => (float[2] y) { y = NoSuchOperator(x) }", "cannot load the converted model"),
    ],
)
def test_output_that_cannot_be_compared_is_reported(converted: str, reason: str) -> None:
    source = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(CompileError) as caught:
        compare_models(source, parse(converted))
    assert reason in str(caught.value)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_a_bar_with_steps() -> None:
    stream = Terminal()
    with Progress(stream=stream).phase("converting") as report:
        report(1, 3, "float_to_half")
        report(3, 3, "")
    assert "converting" in stream.getvalue()
    assert "3/3" in stream.getvalue()


def test_progress_elsewhere_is_one_line_a_phase() -> None:
    stream, times = io.StringIO(), iter([10.0, 12.5])
    with Progress(stream=stream, now_s=lambda: next(times)).phase("converting") as report:
        report(1, 3, "float_to_half")
    assert stream.getvalue() == "converting: 2.5 s\n"


def test_failed_phase_prints_no_line() -> None:
    stream = io.StringIO()
    with pytest.raises(CompileError), Progress(stream=stream).phase("converting"):
        raise CompileError("no")
    assert stream.getvalue() == ""


def broken() -> type:
    raise ImportError("no module named sdk")


def test_target_that_fails_to_import_is_reported_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [FakeEntryPoint("broken", broken), FakeEntryPoint("fake", lambda: FakeTarget), FakeEntryPoint("odd", lambda: dict)]
    monkeypatch.setattr(stoker.compiler.target, "entry_points", lambda **_group: points)
    assert target_names() == ["broken", "fake", "odd"]
    assert isinstance(find_target("pretend"), FakeTarget)
    with pytest.raises(CompileError, match="target 'broken' is installed but cannot be imported: no module named sdk"):
        find_target("broken")
    with pytest.raises(CompileError, match=r"entry point 'odd' .* is no stoker.compiler.target.Target but dict"):
        find_target("odd")
    with pytest.raises(OptionError, match="there is no target 'gcu'; installed: broken, fake, odd"):
        find_target("gcu")
