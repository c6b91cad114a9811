"""Reports of `stoker compile` on accuracy: each layer's distance, the outputs' drift; and the samples that it reads."""

import io
import json
import logging
from pathlib import Path

import numpy as np
import pytest

from stoker.compiler.convert.converter import Converter
from stoker.compiler.reports import Progress, check
from tests.fakes.graphs import parse


def test_each_layers_distance_is_printed_and_logged(stoker_compile, folder: Path) -> None:
    ran = stoker_compile(
        "-i", "model.onnx", "--input_shape", "x=4,3", "--precision", "fp8", "--precision_compare", "--output_dir", "deep/er"
    )
    assert ran.code == 0
    row = next(line for line in ran.out.splitlines() if "MatMul" in line)
    _, op_type, tensor, computed, distance = [cell.strip() for cell in row.strip("│ ").split("│")]
    assert (op_type, tensor) == ("MatMul", "product")
    assert computed.startswith("fp8 F143 x 2^-1")
    assert 0 < float(distance) < 0.1
    assert "product" in (folder / "deep" / "er" / "precision_compare.log").read_text()
    assert "node " in (folder / "deep" / "er" / "quantize.log").read_text()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8"])
def test_drift_is_reported_over_samples_that_were_given(stoker_compile, folder: Path, precision: str) -> None:
    np.savez(folder / "samples.npz", x=np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32))
    words = ("--precision", precision, "--data_preprocess", "samples.npz", "--output_dir", "out")
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=4,3", *words)
    assert ran.code == 0
    assert f"accuracy drift of model.onnx: converted ({precision}) against source" in ran.out
    (drift,) = json.loads((folder / "out" / "accuracy_drift.json").read_text())["outputs"]
    assert drift["output"] == "y"
    assert (drift["max_abs"] == 0) == (precision == "fp32")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--precision", "fp8", "--calibration_with_data"), "8 samples, none of them calibrated with"),
        (("--precision", "fp8_weight", "--calibration_loss_type", "gptq"), "8 samples, none of them calibrated with"),
        (("--precision", "fp8"), "32 samples"),
    ],
)
def test_drift_excludes_the_samples_of_calibration(stoker_compile, folder: Path, words: tuple[str, ...], text: str) -> None:
    np.savez(folder / "samples.npz", x=np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32))
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=4,3", "--data_preprocess", "samples.npz", *words)
    assert ran.code == 0, ran.err
    assert f"against source, data of samples.npz: {text}\n" in ran.out


def test_samples_that_match_no_input_are_refused(stoker_compile, folder: Path) -> None:
    np.savez(folder / "samples.npz", z=np.zeros((4, 3), np.float32))
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=4,3", "--data_preprocess", "samples.npz")
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "stoker compile: error: calibration data has nothing for input(s) x")


def test_pickled_program_is_not_run(stoker_compile, folder: Path) -> None:
    (folder / "samples.pickle").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=4,3", "--data_preprocess", "samples.pickle")
    assert ran.code == 2
    assert "only numpy arrays are read" in ran.err
    assert not (folder / "ran").exists()


def checked(text: str, opset: int, caplog: pytest.LogCaptureFixture) -> str:
    """The output of `--check` for a converted model; log lines stay in `caplog`."""
    model, out = parse(text, opset=opset), io.StringIO()
    converter = Converter()
    with caplog.at_level(logging.WARNING):
        check("m", model, converter.convert_internal(model), converter.options, Progress(is_shown=False), out)
    return out.getvalue()


def test_newer_source_is_compared_unchanged_if_onnx_runtime_runs_it(caplog: pytest.LogCaptureFixture) -> None:
    text = "g (float[1,2,4,8] q, float[1,2,4,8] k) => (float[1,2,4,8] y) { y = Attention<is_causal = 1>(q, k, k) }"
    assert "│ y" in checked(text, 23, caplog)
    assert caplog.text == ""


def test_source_that_onnx_runtime_does_not_run_is_compared_in_another_form_with_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.compiler.reports.is_runnable", lambda model: False)
    assert "│ y" in checked("g (float[2,4] x) => (float[2,4] y) { y = Swish(x) }", 24, caplog)
    assert "ONNX Runtime does not run opset 24; it is compared in the form that passes start from" in caplog.text
