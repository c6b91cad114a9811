"""The host computes rows of zeros at the end of a micro-batch once; outputs and modelled time stay those of the whole micro-batch."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.ipu.compile.compiler import compile_and_export
from stoker.backends.ipu.runtime import Session
from stoker.backends.ipu.runtime.executable import Executable
from stoker.backends.ipu.runtime.loaded_program import Computation, LoadedProgram
from stoker.backends.simulated.numerics import GraphRunner
from stoker.compiler.options import CompilerOptions
from tests.fakes.graphs import parse
from tests.fakes.ipu_programs import compute, doubling, write_popef


class CountingRunner(GraphRunner):
    rows = 0

    def run(self, inputs, outputs):
        self.rows = len(inputs["x"])
        return super().run(inputs, outputs)


def computation(folder: Path, *, has_variable_rows: bool) -> tuple[Computation, CountingRunner]:
    part = dataclasses.replace(doubling((8, 3), steps=[compute(2)]), has_variable_rows=has_variable_rows)
    executable = Executable.of(write_popef(folder / f"{has_variable_rows}.popef", part), check_package_hash=True)
    [graph] = executable.program.graphs
    runner = CountingRunner(graph.onnx)
    return Computation(executable, graph, runner), runner


@pytest.mark.parametrize(("data", "computed"), [(0, 2), (1, 2), (2, 3), (5, 6), (7, 8), (8, 8)])
def test_rows_of_zeros_at_the_end_are_computed_once(tmp_path: Path, data: int, computed: int) -> None:
    x = np.zeros((8, 3), np.float32)
    x[:data] = np.random.default_rng(0).standard_normal((data, 3))
    x[: max(data - 1, 0) : 2] = 0  # zeros before the last row with data are rows as any other
    few, runner = computation(tmp_path, has_variable_rows=True)
    whole, padded = computation(tmp_path, has_variable_rows=False)
    assert few.run({"x": x}, {})["y"].tobytes() == whole.run({"x": x}, {})["y"].tobytes()
    assert (runner.rows, padded.rows) == (computed, 8)
    assert few.period_ns == whole.period_ns > 0
    assert few.latency_ns == whole.latency_ns


def test_negative_zeros_are_data(tmp_path: Path) -> None:
    x = np.zeros((8, 3), np.float32)
    x[6, 1] = -0.0
    few, runner = computation(tmp_path, has_variable_rows=True)
    y = few.run({"x": x}, {})["y"]
    assert np.signbit(y).nonzero() == (np.array([6]), np.array([1]))
    assert runner.rows == 8


def compiled(path: Path, text: str, weights: dict[str, np.ndarray], **options: Any) -> Path:
    compile_and_export(parse(text, weights), (), path, CompilerOptions(**options))
    return path


@pytest.mark.parametrize("constant_weights", [True, False])
def test_compiled_graphs_take_fewer_rows_with_the_bits_of_the_micro_batch(tmp_path: Path, constant_weights: bool) -> None:
    w = np.random.default_rng(1).standard_normal((6, 4), np.float32)
    text = "g (float[8,6] x) => (float[8,2,2] y) { h = MatMul(x, w) s = Softmax<axis = 1>(h) y = Reshape(s, t) }"
    path = compiled(tmp_path / "m.popef", text, {"w": w, "t": np.array([8, 2, 2])}, constant_weights=constant_weights)
    program = Executable.of(path, check_package_hash=True).program
    assert "padded_on_host" not in program.attributes
    runner = GraphRunner(program.graphs[0].onnx)
    assert runner.has_variable_rows(["x"])
    x = np.random.default_rng(0).standard_normal((8, 6), np.float32)
    x[5:] = 0
    streamed = {binding.tensor: w for binding in program.graphs[0].weights}
    few, whole = (runner.run({"x": rows, **streamed}, ["y"])["y"] for rows in (x[:5], x))
    assert few.tobytes() == whole[:5].tobytes()


def test_log_says_why_the_host_pads_micro_batches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", LoadedProgram.__module__)
    text = "g (float[8,6] x) => (float[8,6] y) { y = Add(x, table) }"
    variable = compiled(tmp_path / "variable.popef", text, {"table": np.ones((1, 6), np.float32)})
    static = compiled(tmp_path / "static.popef", text, {"table": np.ones((8, 6), np.float32)})
    with Session(variable):
        assert caplog.messages == []
    with Session(static):
        [message] = caplog.messages
    assert "does not run with fewer rows" in message
