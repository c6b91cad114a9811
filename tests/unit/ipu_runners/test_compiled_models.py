"""Runners on compiled models: the same results as the source model on ONNX Runtime."""

from pathlib import Path

import numpy as np
import pytest
from poprt.runtime import HostConcatRunner, HostConcatRunnerConfig, LightRunner

from stoker.backends.ipu.compile.assemble import write_popef
from stoker.backends.ipu.compile.compiler import compile_model
from stoker.backends.ipu.runtime import DeviceManager, ModelRunner, RuntimeConfig, SimulatedSystem
from stoker.backends.simulated.pacing import VirtualClock
from stoker.compiler.options import CompilerOptions
from stoker.compiler.passes.layout.host_io import ApplyHostConcatSplit
from tests.fakes.graphs import parse, random_feeds, run_onnx
from tests.fakes.ipu_runners import rows
from tests.fakes.ipu_sessions import PATIENCE_S

DENSE = "g (float[4,8] x) => (float[4,3] y) { h = MatMul(x, w) y = Tanh(h) }"
WIDE = """
g (float[4,1] a, float[4,1] b, float[4,1] c, float[4,2] d) => (float[4,5] y) { y = Concat<axis = 1>(a, b, c, d) }
"""


def weights(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((8, 3)).astype(np.float32)


def manager() -> DeviceManager:
    return DeviceManager(SimulatedSystem(1, clock=VirtualClock()))


def test_weights_excluded_from_the_executable_can_be_changed(tmp_path: Path) -> None:
    write_popef(compile_model(parse(DENSE, {"w": weights(0)}), (), CompilerOptions(constant_weights=False)), tmp_path / "m.popef")
    x = rows(4, 8) / 32
    runner = LightRunner(tmp_path / "m.popef", device_manager=manager())
    with runner:
        (weight,) = [desc for desc in runner.get_model_inputs() if desc.popef_contains_tensor_data]
        np.testing.assert_allclose(runner.execute({"x": x})["y"], np.tanh(x @ weights(0)), rtol=1e-5)
        runner.set_input_anchor(weight.name, weights(1))
        runner.update_weights()

        np.testing.assert_allclose(runner.execute({"x": x})["y"], np.tanh(x @ weights(1)), rtol=1e-5)


@pytest.mark.parametrize("batches", [1, 3])
def test_inputs_joined_by_a_pass_are_given_by_their_own_names(tmp_path: Path, batches: int) -> None:
    source = parse(WIDE)
    joined = ApplyHostConcatSplit(["fp32,[4,1],3"])(parse(WIDE))
    write_popef(compile_model(joined), tmp_path / "m.popef")
    feeds = [random_feeds(source, seed) for seed in range(batches)]
    whole = {name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]}
    with HostConcatRunner(tmp_path / "m.popef", HostConcatRunnerConfig(), device_manager=manager()) as runner:
        assert [desc.name for desc in runner.get_execute_inputs()] == ["a", "b", "c", "d"]
        y = runner.execute(whole)["y"]

    np.testing.assert_array_equal(y, np.concatenate([run_onnx(source, each)["y"] for each in feeds]))


def test_merged_batches_equal_each_request_run_alone(tmp_path: Path) -> None:
    model = parse(DENSE, {"w": weights(0)})
    write_popef(compile_model(model), tmp_path / "m.popef")
    requests = [rows(size, 8, begin=size) / 64 for size in (1, 4, 7)]
    with ModelRunner(tmp_path / "m.popef", RuntimeConfig(batching_dim=0), device_manager=manager()) as runner:
        futures = [runner.execute_async({"x": x}) for x in requests]

        for x, future in zip(requests, futures, strict=True):
            np.testing.assert_allclose(future.result(PATIENCE_S)["y"], np.tanh(x @ weights(0)), rtol=1e-5)
