"""The batch sizes that a runner accepts: multiples of the compiled batch, or any in `batching_dim`."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.ipu.runtime import ApplicationRuntimeError, InferenceFuture, ModelRunner, RuntimeConfig, SessionStopped
from stoker.backends.ipu.runtime.loaded_program import Computation
from tests.fakes.ipu_programs import adding, doubling, weighted
from tests.fakes.ipu_runners import Bench, assert_nothing_is_left, rows
from tests.fakes.ipu_sessions import PATIENCE_S


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    assert_nothing_is_left(bench)


def batching(dim: int = 0, **settings: object) -> RuntimeConfig:
    return RuntimeConfig(batching_dim=dim, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_multiples_of_the_compiled_batch_are_accepted(bench: Bench, count: int) -> None:
    with bench.runner(doubling((3, 4, 2))) as runner:
        x = rows(3 * count, 4, 2)
        y = np.zeros_like(x)

        assert runner.execute({"x": x}, {"y": y})["y"] is y
        np.testing.assert_array_equal(y, 2 * x)
        np.testing.assert_array_equal(runner.execute({"x": x})["y"], 2 * x)


@pytest.mark.parametrize("shape", [(1, 4, 2), (4, 4, 2), (3, 3, 2), (3, 4, 4), (3, 8), (0, 4, 2), (24,)])
def test_other_shapes_are_refused_with_the_expected_one(bench: Bench, shape: tuple[int, ...]) -> None:
    with bench.runner(doubling((3, 4, 2))) as runner, pytest.raises(ApplicationRuntimeError, match=r"'x' has shape .*\[3 x N, 4, 2\]"):
        runner.execute({"x": np.zeros(shape, np.float32)})


def test_inputs_and_outputs_of_different_multiples_are_refused(bench: Bench) -> None:
    with bench.runner(doubling((2, 1))) as runner, pytest.raises(ApplicationRuntimeError, match="'x' 2, 'y' 1"):
        runner.execute({"x": rows(4, 1)}, {"y": np.zeros((2, 1), np.float32)})


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_any_size_is_accepted_in_dimension_0(bench: Bench, size: int) -> None:
    with bench.runner(doubling((3, 4, 2)), config=batching(0)) as runner:
        future = runner.execute_async({"x": rows(size, 4, 2)})
        if size % 3:
            bench.pass_timeout()

        np.testing.assert_array_equal(future.result(PATIENCE_S)["y"], 2 * rows(size, 4, 2))


@pytest.mark.parametrize("size", [1, 4, 6])
def test_any_size_is_accepted_in_dimension_1_and_the_others_are_fixed(bench: Bench, size: int) -> None:
    with bench.runner(doubling((3, 4, 2)), config=batching(1)) as runner:
        x = rows(3, size, 2)
        y = np.zeros_like(x)
        future = runner.execute_async({"x": x}, {"y": y})
        if size % 4:
            bench.pass_timeout()
        future.wait(PATIENCE_S)
        np.testing.assert_array_equal(y, 2 * x)

        with pytest.raises(ApplicationRuntimeError, match=r"'x' has shape \[4, 4, 2\], expected \[3, N, 2\]"):
            runner.execute({"x": rows(4, 4, 2)})


def test_requests_of_1_4_and_7_rows_share_three_batches_of_4(bench: Bench) -> None:
    with bench.runner(doubling((4, 2)), config=batching()) as runner:
        one = runner.execute_async({"x": rows(1, 2, begin=100)})
        four = runner.execute_async({"x": rows(4, 2, begin=200)})
        np.testing.assert_array_equal(four.result(PATIENCE_S)["y"], 2 * rows(4, 2, begin=200))
        assert not one.done()
        seven = runner.execute_async({"x": rows(7, 2, begin=300)})

        np.testing.assert_array_equal(seven.result(PATIENCE_S)["y"], 2 * rows(7, 2, begin=300))
        np.testing.assert_array_equal(one.result(PATIENCE_S)["y"], 2 * rows(1, 2, begin=100))
        assert runner.devices[0].metrics.micro_batches == 3


def test_incomplete_batch_waits_for_the_timeout_and_is_padded_with_zeros(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch_inputs(monkeypatch)
    with bench.runner(doubling((4, 2)), config=batching(timeout_ns=5_000_000)) as runner:
        future = runner.execute_async({"x": rows(1, 2)})
        bench.pass_timeout(0.004)
        assert not future.done()
        bench.pass_timeout(0.001)

        np.testing.assert_array_equal(future.result(PATIENCE_S)["y"], [[2, 4]])
        np.testing.assert_array_equal(seen[0]["x"], [[1, 2], [0, 0], [0, 0], [0, 0]])


def test_separate_batch_timeout_applies_once_it_is_enabled(bench: Bench) -> None:
    config = batching(is_batch_size_timeout_enabled=True, batch_size_timeout_ns=50_000_000)
    with bench.runner(doubling((4, 2)), config=config) as runner:
        future = runner.execute_async({"x": rows(1, 2)})
        bench.pass_timeout(0.049)
        assert not future.done()
        bench.pass_timeout(0.001)
        future.wait(PATIENCE_S)


def test_only_later_requests_fill_a_batch_without_a_timeout(bench: Bench) -> None:
    with bench.runner(doubling((2, 2)), config=batching(timeout_ns=0)) as runner:
        first = runner.execute_async({"x": rows(1, 2)})
        bench.clock.advance(3600)
        assert not first.done()
        second = runner.execute_async({"x": rows(1, 2)})
        np.testing.assert_array_equal(first.result(PATIENCE_S)["y"], second.result(PATIENCE_S)["y"])


def test_complete_batches_of_one_request_are_used_without_a_copy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch_inputs(monkeypatch)
    x = rows(6, 2)
    for config in (None, batching()):
        seen.clear()
        with bench.runner(doubling((3, 2)), config=config) as runner:
            runner.execute({"x": x})
        assert [inputs["x"].ctypes.data for inputs in seen] == [x.ctypes.data, x[3:].ctypes.data]


def test_memory_with_gaps_is_read_and_written(bench: Bench) -> None:
    x, y = rows(6, 4)[::2, ::2], np.zeros((6, 4), np.float32)[::2, ::2]
    for config in (None, batching()):
        y[...] = 0
        with bench.runner(doubling((3, 2)), config=config) as runner:
            runner.execute({"x": x}, {"y": y})
        np.testing.assert_array_equal(y, 2 * x)


def test_many_threads_share_batches_and_each_gets_its_own_rows(bench: Bench) -> None:
    responses: dict[int, bool] = {}

    def ask(runner: ModelRunner, number: int) -> None:
        x = rows(1 + number % 5, 3, begin=1000 * number)
        responses[number] = bool((runner.execute({"x": x})["y"] == 2 * x).all())

    with bench.runner(doubling((4, 3)), config=batching(replication_factor=2)) as runner:
        threads = [threading.Thread(target=ask, args=(runner, number)) for number in range(40)]
        for thread in threads:
            thread.start()
        runner.execute_async({"x": rows(40 * 4, 3)})
        while any(thread.is_alive() for thread in threads):
            bench.clock.advance(0.010)
            for thread in threads:
                thread.join(0.001)

    assert responses == dict.fromkeys(range(40), True)


def test_rows_of_all_replicas_make_up_the_compiled_batch(bench: Bench) -> None:
    with bench.runner(doubling((2, 3)), config=batching(), replicas=2) as runner:
        assert runner.get_execute_inputs()[0].shape == [4, 3]
        np.testing.assert_array_equal(runner.execute({"x": rows(4, 3)})["y"], 2 * rows(4, 3))
        future = runner.execute_async({"x": rows(3, 3)})
        bench.pass_timeout()
        np.testing.assert_array_equal(future.result(PATIENCE_S)["y"], 2 * rows(3, 3))


def test_inputs_with_data_of_the_file_are_shared_by_the_rows_of_a_batch(bench: Bench) -> None:
    b = rows(2, begin=10)
    with bench.runner(adding((2,)), config=batching(), tensor_data={"b": b}) as runner:
        np.testing.assert_array_equal(runner.execute({"a": rows(4)})["total"], rows(4) + np.tile(b, 2))
        with pytest.raises(ApplicationRuntimeError, match="'b' has data of its own"):
            runner.execute({"a": rows(2), "b": b})


@pytest.mark.parametrize(
    ("part", "dim", "message"),
    [(doubling((2, 3)), 2, r"'x' has shape \[2, 3\]"), (adding((2,)), 1, r"'a' has shape \[2\]"), (weighted((2,)), 5, "batching_dim is 5")],
)
def test_dimension_missing_in_some_input_is_refused_at_once(bench: Bench, part: object, dim: int, message: str) -> None:
    with pytest.raises(ApplicationRuntimeError, match=message):
        bench.runner(part, config=batching(dim), tensor_data={"w": rows(2)} if dim == 5 else None)  # type: ignore[arg-type]


def test_inputs_of_different_sizes_in_the_batching_dimension_are_refused(bench: Bench) -> None:
    with bench.runner(adding((4,)), config=batching()) as runner:
        with pytest.raises(ApplicationRuntimeError, match=r"differ in dimension 0 \(batching_dim\): 'a' 3, 'b' 2"):
            runner.execute({"a": rows(3), "b": rows(2)})
        with pytest.raises(ApplicationRuntimeError, match="'total' 4"):
            runner.execute({"a": rows(3), "b": rows(3)}, {"total": np.zeros(4, np.float32)})


def test_waiting_request_of_an_open_batch_fails_when_the_runner_is_closed(bench: Bench) -> None:
    runner = bench.runner(doubling((4, 2)), config=batching())
    waiting: InferenceFuture = runner.execute_async({"x": rows(1, 2)})
    runner.close()

    with pytest.raises(SessionStopped, match="closed while the request waited"):
        waiting.result(PATIENCE_S)
    with pytest.raises(SessionStopped, match="closed"):
        runner.execute({"x": rows(1, 2)})


@pytest.mark.parametrize("config", [RuntimeConfig(), batching()])
def test_unwritable_or_mistyped_output_is_refused(bench: Bench, config: RuntimeConfig) -> None:
    frozen = np.zeros((2, 2), np.float32)
    frozen.flags.writeable = False
    with bench.runner(doubling((2, 2)), config=config) as runner:
        with pytest.raises(ApplicationRuntimeError, match="'x' is float64, expected float32"):
            runner.execute({"x": np.zeros((2, 2))})
        with pytest.raises(ApplicationRuntimeError, match="'x' is a list"):
            runner.execute({"x": [[1, 2], [3, 4]]})  # type: ignore[dict-item]
        with pytest.raises(ApplicationRuntimeError, match="output 'y' is read-only"):
            runner.execute({"x": rows(2, 2)}, {"y": frozen})


def watch_inputs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """Everything that devices compute on from here on."""
    seen: list[dict[str, np.ndarray]] = []
    compute = Computation.run

    def watched(self: Computation, inputs: dict[str, np.ndarray], weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append(dict(inputs))
        return compute(self, inputs, weights)

    monkeypatch.setattr(Computation, "run", watched)
    return seen
