"""`stoker sweep` prints a table of precisions and batch sizes for any model."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.fakes.graphs import parse

MODEL = parse("g (float[b,t,4] x) => (float[b,t,3] y) { y = MatMul(x, w) }", {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)})


@pytest.mark.parametrize(("target", "precisions"), [("ipu", "fp32,fp16,fp8"), ("gcu", "fp32,fp16")])
def test_every_precision_and_batch_has_a_row(stoker, target: str, precisions: str, tmp_path: Path) -> None:
    onnx.save(MODEL, tmp_path / "m.onnx")
    words = ["sweep", str(tmp_path / "m.onnx"), "--target", target, "--precisions", precisions, "--batch-sizes", "1,4"]
    ran = stoker(*words, "--input-shape", "x=5,4", "--json")
    assert ran.code == 0, ran.err
    rows = json.loads(ran.out)
    assert [(row["precision"], row["batch"]) for row in rows] == [(name, size) for name in precisions.split(",") for size in (1, 4)]
    for row in rows:
        assert row["note"] is None
        assert row["rows/s"] == pytest.approx(row["batch"] / row["latency ms"] * 1e3, rel=1e-3)
        assert 0 < row["memory"] < 1
    ratios = {row["precision"]: float(row["SNR dB"]) for row in rows}
    assert ratios["fp32"] > 100 > ratios["fp16"] > 40


def test_way_that_does_not_compile_has_the_reason_in_its_row(stoker, tmp_path: Path) -> None:
    onnx.save(MODEL, tmp_path / "m.onnx")
    ran = stoker("sweep", str(tmp_path / "m.onnx"), "--target", "gcu", "--precisions", "fp8", "--batch-sizes", "1")
    assert ran.code == 0
    assert "the i20 has fp32 and fp16" in " ".join(ran.out.split())


def test_target_without_modelled_times_is_a_usage_error(stoker, tmp_path: Path) -> None:
    ran = stoker("sweep", str(tmp_path / "m.onnx"), "--target", "cpu")
    assert (ran.code, ran.out) == (2, "")
    assert "--target: expected ipu or gcu, got 'cpu'" in ran.err
