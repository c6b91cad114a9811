"""Requests compiled by the GCU's own compiler: the engine, and the errors for the device's limits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_compiler import compile_model

import stoker.compiler.target
from stoker.backends.gcu.executable import read_executable
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.target import SimulatedGcuTarget
from tests.fakes.fake_target import installed
from tests.fakes.graphs import parse


@pytest.fixture(autouse=True)
def _gcu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stoker.compiler.target, "entry_points", installed(SimulatedGcuTarget()))


def engine(result: dict[str, str], folder: Path) -> GcuExecutable:
    assert result["status"] == "success", result
    return read_executable(folder / "models" / "net" / "1" / "model.exec")


def test_engine_has_a_graph_for_each_batch_and_its_weights_once(request_of: Any, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    model = parse("g (float[n,64] x) => (float[n,32] y) { p = MatMul(x, w)  y = Relu(p) }", {"w": weights})
    made = engine(compile_model(request_of(input_model=model, batch_sizes=[1, 4, 8], build_flag="TopsInference.KFP16")), tmp_path)
    assert [batch.batch_size for batch in made.batches] == [1, 4, 8]
    assert (made.name, made.precision) == ("net", "fp16")
    assert [(each.name, each.dtype.config_name, each.dims) for each in (*made.inputs, *made.outputs)] == [
        ("x", "TYPE_FP32", (64,)),
        ("y", "TYPE_FP32", (32,)),
    ]
    assert made.weight_bytes == weights.nbytes // 2


def test_integers_keep_their_width_and_inputs_their_order(request_of: Any, tmp_path: Path) -> None:
    model = parse("g (int64[n,4] z, float[n,4] a) => (int64[n,4] j, float[n,4] y) { j = Add(z, z)  y = Mul(a, a) }")
    made = engine(compile_model(request_of(input_model=model)), tmp_path)
    assert [(each.name, each.dtype.config_name) for each in made.inputs] == [("z", "TYPE_INT64"), ("a", "TYPE_FP32")]
    text = (tmp_path / "models/net/config.pbtxt").read_text()
    assert text.index("DT_INT64") < text.index("DT_FLOAT")


def test_every_unsupported_operator_is_named_at_once(failure: Any, tmp_path: Path) -> None:
    model = parse("g (float[n,4] x) => (float[n,4] y, int64[2,k] a, float[m] u) { a = NonZero(x)  u = Unique(x)  y = Relu(x) }")
    text = failure(input_model=model)
    assert "NonZero" in text
    assert "Unique" in text
    assert not (tmp_path / "models").exists()


def test_unknown_resource_mode_is_refused(failure: Any) -> None:
    assert "expected a number of clusters from 1 to 6" in failure(resource_mode="7c")


def test_model_that_cannot_be_made_static_has_the_vendors_status(failure: Any) -> None:
    text = failure(input_model=parse("g (float[n,h] x) => (float[n,h] y) { y = Relu(x) }"))
    assert text.endswith("give input_shapes, which fix input 'x' dimension 1 [TopsInference: TIF_MIS_MATCHED_SHAPE_OR_DIM]")
    cut = failure(input_model=parse("g (float[4,3] x) => (float[4,3] y) { y = Relu(x) }"), max_batch_size=2)
    assert cut.endswith("[TopsInference: TIF_MIS_MATCHED_SHAPE_OR_DIM]")
