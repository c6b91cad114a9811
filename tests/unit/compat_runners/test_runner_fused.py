"""Fused executables: the sub-graph of a request, and the outcome of a request with the streams of another."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from poprt.runtime import ModelFusionRunner, ModelFusionRunnerConfig, Runner

from stoker.backends.ipu.opaques import MODEL_FUSION, FusedAnchor, FusedGraph, FusionMap
from stoker.backends.ipu.runtime import ApplicationRuntimeError, InputQueue, ModelRunner, RequestTimeout, RuntimeConfig, SessionStopped
from stoker.backends.ipu.runtime.loaded_program import Computation
from tests.fakes.ipu_programs import adding, doubling, write_popef
from tests.fakes.ipu_runners import Bench, assert_nothing_is_left, rows
from tests.fakes.ipu_sessions import PATIENCE_S, Signal

MAP = FusionMap(
    graphs=(
        FusedGraph(
            index=0,
            name="graph0",
            model="adding",
            inputs=(
                FusedAnchor(anchor="graph0/a", tensor="X", aliases=("graph0/X",)),
                FusedAnchor(anchor="graph0/b", tensor="Y", aliases=("graph0/Y",)),
            ),
            outputs=(FusedAnchor(anchor="graph0/total", tensor="total"),),
        ),
        FusedGraph(
            index=1,
            name="graph1",
            model="doubling",
            inputs=(FusedAnchor(anchor="graph1/x", tensor="x"),),
            outputs=(FusedAnchor(anchor="graph1/y", tensor="y"),),
        ),
    )
).to_bytes()
A, B, X = rows(2), rows(2, begin=10), rows(2, 3)
FIRST, SECOND = np.array([0], np.uint8), np.array([1], np.uint8)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    assert_nothing_is_left(bench)


def fused(bench: Bench, config: RuntimeConfig | None = None, *, kind: type[ModelRunner] = ModelRunner, **popef: object) -> ModelRunner:
    parts = (adding(), doubling((2, 3)))
    config = config or RuntimeConfig(validate_io_params=False)
    return bench.runner(*parts, config=config, kind=kind, opaques={MODEL_FUSION: MAP}, **popef)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.int64])
def test_index_selects_the_sub_graph(bench: Bench, dtype: type[np.generic]) -> None:
    with fused(bench) as runner:
        total, y = np.zeros(2, np.float32), np.zeros((2, 3), np.float32)
        runner.execute({"index": np.array([0], dtype), "graph0/a": A, "graph0/b": B}, {"graph0/total": total})
        runner.execute({"index": np.array([1], dtype), "graph1/x": X}, {"graph1/y": y})

        assert total.tolist() == [11, 13]
        np.testing.assert_array_equal(y, 2 * X)


def test_aliases_and_a_missing_index_are_understood_by_the_names(bench: Bench) -> None:
    with fused(bench) as runner:
        assert runner.execute({"graph0/X": A, "graph0/Y": B})["graph0/total"].tolist() == [11, 13]
        np.testing.assert_array_equal(runner.execute({"graph1/x": X})["graph1/y"], 2 * X)


def test_several_compiled_batches_go_to_one_sub_graph(bench: Bench) -> None:
    with fused(bench) as runner:
        np.testing.assert_array_equal(runner.execute({"index": SECOND, "graph1/x": rows(6, 3)})["graph1/y"], 2 * rows(6, 3))


def test_validation_requires_all_inputs_of_all_sub_graphs(bench: Bench) -> None:
    with fused(bench, RuntimeConfig()) as runner, pytest.raises(ApplicationRuntimeError) as caught:
        runner.execute({"index": FIRST, "graph0/a": A}, {"graph0/total": np.zeros(2, np.float32)})

    assert "lacks input 'graph0/b', input 'graph1/x', output 'graph1/y'" in str(caught.value)
    assert "validate_io_params to False" in str(caught.value)


def test_inputs_of_another_sub_graph_time_out_with_the_missing_names(bench: Bench) -> None:
    total = np.full(2, 7, np.float32)
    with fused(bench) as runner:
        future = runner.execute_async({"index": SECOND, "graph0/a": A, "graph0/b": B}, {"graph0/total": total})
        with (
            bench.passing_time(),
            pytest.raises(RequestTimeout, match=r"timeout after 0\.01 s: sub-graph 'graph1'.*'graph1/x', 'graph1/y'"),
        ):
            future.result(PATIENCE_S)

        assert total.tolist() == [7, 7]
        assert runner.execute({"index": FIRST, "graph0/a": A, "graph0/b": B})["graph0/total"].tolist() == [11, 13]
        np.testing.assert_array_equal(runner.execute({"graph1/x": X})["graph1/y"], 2 * X)


def test_partial_request_times_out_with_the_missing_input(bench: Bench) -> None:
    with fused(bench) as runner:
        future = runner.execute_async({"index": FIRST, "graph0/a": A})
        with bench.passing_time(), pytest.raises(RequestTimeout, match="waits for 'graph0/b', which the request does not have"):
            future.result(PATIENCE_S)


def test_requests_after_a_timeout_are_served(bench: Bench) -> None:
    with fused(bench, RuntimeConfig(validate_io_params=False, batching_dim=0, timeout_ns=10_000_000)) as runner:
        bad = runner.execute_async({"index": SECOND, "graph0/a": A, "graph0/b": B})
        with bench.passing_time():
            good = runner.execute_async({"graph0/a": A, "graph0/b": B})
        assert good.result(PATIENCE_S)["graph0/total"].tolist() == [11, 13]
        with pytest.raises(RequestTimeout, match="'graph1/x'"):
            bad.result(PATIENCE_S)


def test_batches_of_each_sub_graph_fill_independently(bench: Bench) -> None:
    with fused(bench, RuntimeConfig(validate_io_params=False, batching_dim=0)) as runner:
        first = runner.execute_async({"graph0/a": A[:1], "graph0/b": B[:1]})
        second = runner.execute_async({"graph1/x": X[:1]})
        bench.pass_timeout()

        assert first.result(PATIENCE_S)["graph0/total"].tolist() == [11]
        np.testing.assert_array_equal(second.result(PATIENCE_S)["graph1/y"], 2 * X[:1])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"index": np.array([2], np.uint8), "graph0/a": A}, "selects sub-graph 2; the executable has 0, 1"),
        ({"index": np.array([0.0], np.float32), "graph0/a": A}, r"float32\[1\]; expected one integer"),
        ({"graph0/a": A, "graph1/x": X}, "they belong to graph0, graph1"),
        ({}, "they belong to none"),
        ({"graph0/q": A}, "no input 'graph0/q'; its inputs are 'index', 'graph0/a', 'graph0/b', 'graph1/x'"),
        ({"graph0/a": A, "graph0/X": A, "graph0/b": B}, "'graph0/a' and 'graph0/X' are the same stream"),
    ],
)
def test_request_that_selects_no_sub_graph_is_refused(bench: Bench, inputs: dict[str, np.ndarray], message: str) -> None:
    with fused(bench) as runner, pytest.raises(ApplicationRuntimeError, match=message):
        runner.execute(inputs)


def test_fusion_runner_refuses_requests_without_a_stream_at_once(bench: Bench) -> None:
    with fused(bench, ModelFusionRunnerConfig(), kind=ModelFusionRunner) as runner:
        assert runner.execute({"graph0/X": A, "graph0/b": B})["graph0/total"].tolist() == [11, 13]
        with pytest.raises(ApplicationRuntimeError, match="sub-graph 'graph0' lacks graph0/b"):
            runner.execute({"graph0/a": A})


@pytest.mark.parametrize("config", [None, ModelFusionRunnerConfig()])
def test_runner_takes_fused_requests_without_an_index(bench: Bench, config: RuntimeConfig | None) -> None:
    path = write_popef(bench.folder / "fused.popef", adding(), doubling((2, 3)))
    with Runner(path, config, device_manager=bench.manager) as runner:
        assert isinstance(runner.runner, ModelFusionRunner)
        np.testing.assert_array_equal(runner.execute({"graph1/x": X})["graph1/y"], 2 * X)
        future = runner.executeAsync({"index": FIRST, "graph0/a": A, "graph0/b": B})
        assert future.result(PATIENCE_S)["graph0/total"].tolist() == [11, 13]
        assert [desc.name for desc in runner.get_execute_inputs()] == ["graph0/a", "graph0/b", "graph1/x", "index"]
        assert [desc.name for desc in runner.get_model_outputs()] == ["graph0/total", "graph1/y"]


def test_partial_call_is_filled_with_the_named_dummy_data(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    came = Signal()
    compute = Computation.run

    def watched(self: Computation, inputs: dict[str, np.ndarray], weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        came(tuple(inputs))
        return compute(self, inputs, weights)

    monkeypatch.setattr(Computation, "run", watched)
    dummies = {"graph1/x": np.zeros((2, 3), np.float32), "graph1/y": np.zeros((2, 3), np.float32)}
    config = RuntimeConfig(validate_io_params=False, flush_by_name=dummies)
    with fused(bench, config, batches_per_step=3) as runner, bench.passing_time():
        runner.execute({"graph0/a": A, "graph0/b": B})
        for _ in range(3):
            came.next()
        runner.execute({"graph0/a": A, "graph0/b": B})

    assert came.calls[:4] == [("index", "graph0/a", "graph0/b"), *[("index", "graph1/x")] * 2, ("index", "graph0/a", "graph0/b")]


def test_unqueueable_request_delays_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SessionStopped("just now")

    with fused(bench) as runner:
        monkeypatch.setattr(InputQueue, "enqueue", refuse)
        with pytest.raises(SessionStopped, match="just now"):
            runner.execute({"index": SECOND, "graph0/a": A})
        monkeypatch.undo()

        assert runner.execute({"graph0/a": A, "graph0/b": B})["graph0/total"].tolist() == [11, 13]
