"""`--check` ends with exit code 3 where outputs are too far from the source's, and calls nothing good that it cannot compare."""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest

from stoker.compiler import check
from stoker.compiler.check import compare_models, error_table, failure_of_check, failure_of_drift, output_error
from stoker.compiler.cli import CHECK_FAILED
from stoker.compiler.cli import main as compile_command
from stoker.compiler.precision.drift import drift_between
from stoker.compiler.target import find_target, target_names
from tests.fakes.graphs import parse

#: Beyond FLOAT16's range: the converted model gives infinities.
LARGE = "g (float[n,4] x) => (float[n,4] y) { z = Mul(x, w) y = Mul(z, w) }"
WEIGHT = {"w": np.array([1e4, 1e4, 1e4, 1e4], np.float32)}


def words(tmp_path: Path, model: onnx.ModelProto, target: str, precision: str = "fp32", *more: str) -> list[str]:
    onnx.save(model, tmp_path / "m.onnx")
    batch = ["--batch_sizes", "1,4"] if target == "gcu" else ["--batch_size", "4", "--batch_axis", "0"]
    written = ["--model_repository", str(tmp_path / "repo"), "--model_name", "m", "--output_dir", str(tmp_path)]
    return ["--target", target, "-i", str(tmp_path / "m.onnx"), "--precision", precision, "--check", *batch, *written, *more]


@pytest.mark.parametrize("target", ["gcu", "ipu"])
def test_failed_check_exits_with_its_own_code_and_writes_nothing(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_command(words(tmp_path, parse(LARGE, WEIGHT), target, "fp16", "--allow_drift")) == CHECK_FAILED == 3
    said = capsys.readouterr()
    assert "output 'y' has a signal to noise of -inf dB; fp16 needs 30 dB" in said.err
    assert "SNR dB" in said.out  # the table stands before the refusal
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize("target", ["gcu", "ipu", "cpu"])
def test_passed_check_exits_with_zero(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_command(words(tmp_path, parse(LARGE, WEIGHT), target)) == 0, capsys.readouterr().err
    assert (tmp_path / "repo/m/1").is_dir()


def test_failed_comparison_of_the_target_exits_with_its_own_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(check.LEAST_SNR_DB, "int8", 200.0)
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "s.npz", x=generator.standard_normal((8, 4), dtype=np.float32))
    weights = {"w": generator.standard_normal((4, 4), dtype=np.float32)}
    model = parse("g (float[n,4] x) => (float[n,4] y) { y = MatMul(x, w) }", weights)
    line = words(tmp_path, model, "cpu", "int8", "--data_preprocess", str(tmp_path / "s.npz"))
    assert compile_command(line) == CHECK_FAILED
    assert "output 'y' has a signal to noise of" in capsys.readouterr().err
    assert not (tmp_path / "repo").exists()
    line.remove("--check")
    assert compile_command(line) == CHECK_FAILED
    assert compile_command([*line, "--allow_drift"]) == 0


def test_random_numbers_are_not_comparable_and_strings_are_equal() -> None:
    model = parse(
        """g (float[2,3] x, string[2] s) => (float[2,3] r, float[2,3] y, string[2] t) {
            n = RandomNormalLike(x) r = Add(x, n) y = Relu(x) t = Identity(s) }"""
    )
    found = {each.name: each for each in compare_models(model, model)}
    assert {name: each.not_comparable for name, each in found.items()} == {"r": "random numbers", "y": "", "t": ""}
    assert math.isnan(found["r"].cosine)
    rows = {row[0]: list(row) for row in error_table(list(found.values()))[1]}
    assert rows["r"][2:4] == ["not comparable:", "random numbers"]
    assert rows["t"][2] == "100.00% equal"
    assert [failure_of_check(each, "fp32") for each in found.values()] == ["", "", ""]


def test_random_numbers_are_found_within_branches() -> None:
    model = parse(
        """g (bool c, float[2] x) => (float[2] y, float[2] z) {
            y = If(c) <then_branch = t () => (float[2] a) { a = RandomNormalLike(x) }, else_branch = e () => (float[2] b) { b = Neg(x) }>
            z = Relu(x) }"""
    )
    assert [each.not_comparable for each in compare_models(model, model)] == ["random numbers", ""]


@pytest.mark.parametrize(
    ("wanted", "got", "precision", "failure"),
    [
        ([1.0, 2.0], [1.0, 2.0], "fp32", ""),
        ([1.0, 2.0], [1.0, 2.0005], "fp32", ""),
        ([1.0, 2.0], [1.0, 2.02], "fp32", "needs 60 dB"),
        ([1.0, 2.0], [1.0, 2.02], "fp16", ""),
        ([1.0, 2.0], [1.0, np.inf], "fp8", "of -inf dB"),
        ([1.0, 2.0], [1.0, np.nan], "fp8", "of -inf dB"),
        ([1.0, np.nan], [1.0, 1.0], "fp8", "of -inf dB"),
        ([np.inf, 1.0], [np.inf, 5.0], "fp8", "needs 10 dB"),
        ([0.0, 0.0], [0.0, 1e-9], "fp32", ""),
        ([0.0, 0.0], [0.0, 1e-3], "fp32", "of -inf dB"),
        ([1e300, 1e300], [1e300, -1e300], "fp8", "needs 10 dB"),
        ([1, 2, 3], [1, 2, 3], "fp32", ""),
        ([1, 2, 3], [1, 2, 4], "fp32", "differs in 1 of 3 elements; fp32 may in 0"),
        ([1, 2, 3], [1, 2, 4], "fp16", ""),
        ([1, 2, 3], [0, 0, 0], "fp16", "differs in 3 of 3 elements; fp16 may in 1"),
        ([], [], "fp32", ""),
    ],
)
def test_errors_above_the_limits_of_the_precision_fail_the_check(
    wanted: list[float], got: list[float], precision: str, failure: str
) -> None:
    found = failure_of_check(output_error("y", np.array(wanted), np.array(got)), precision)
    assert failure in found
    assert bool(found) == bool(failure)


def test_strings_are_compared_for_equality() -> None:
    found = output_error("t", np.array([["cat", "dog"]], object), np.array([["cat", "cow"]], object))
    assert (found.different, found.not_comparable) == (0.5, "")
    assert failure_of_check(found, "fp32") == "output 't' differs in 1 of 2 elements; fp32 may in 0"


def test_strings_compared_by_a_target_have_the_limits_of_integers() -> None:
    wanted = [{"label": np.array(["cat", "dog"], object)}]
    (same,) = drift_between(["label"], wanted, wanted).outputs
    (other,) = drift_between(["label"], wanted, [{"label": np.array(["cat", "cow"], object)}]).outputs
    assert failure_of_drift(same, "fp32") == ""
    assert failure_of_drift(other, "fp32") == "output 'label' has 50.00% of its strings in common with the source's"
    assert failure_of_drift(other, "int8") == ""


def test_every_precision_has_limits() -> None:
    precisions = {precision for name in target_names() for precision in find_target(name).precisions}
    assert precisions <= check.LEAST_SNR_DB.keys()
    assert check.LEAST_SNR_DB.keys() == check.MOST_DIFFERENT.keys()


def test_given_signal_to_noise_limit_overrides_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(check.LEAST_SNR_DB, "int8_dynamic", 200.0)
    weights = {"w": np.random.default_rng(0).standard_normal((16, 16), dtype=np.float32)}
    model = parse("g (float[n,16] x) => (float[n,16] y) { y = MatMul(x, w) }", weights)
    line = words(tmp_path, model, "cpu", "int8_dynamic")
    assert compile_command(line) == CHECK_FAILED
    assert compile_command([*line, "--min_snr", "10"]) == 0, capsys.readouterr().err
