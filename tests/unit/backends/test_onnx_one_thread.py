"""Models so small that a pool of threads would only cost have none."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx import one_thread
from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.backends.onnx.one_thread import MOST_FILE_BYTES, MOST_INPUT_BYTES, MOST_NS, RUNS, may_be_enough
from stoker.backends.testing.samples import same_in_and_out
from tests.fakes.onnx_models import load_request, model, onnx_files, value

QUICK_NS, SLOW_NS, COLD_NS = MOST_NS // 4, 2 * MOST_NS, 5 * MOST_NS
FAR_NS = 20 * MOST_NS


class TakenTimes:
    """A clock of CPU time; each run takes the next of `runs_ns`."""

    def __init__(self, runs_ns: Iterable[int]) -> None:
        self._runs = iter(runs_ns)
        self._now_ns = 0
        self._is_running = False
        self.runs = 0

    def __call__(self) -> int:
        if self._is_running:
            self._now_ns += next(self._runs)
            self.runs += 1
        self._is_running = not self._is_running
        return self._now_ns


def threads_of(
    files: ModelFiles, served: ModelSignature, clock: TakenTimes, *, cpu_threads: int = 3, written: Mapping[str, str] | None = None
) -> int:
    """Threads of the session that a load ends with."""
    request = dataclasses.replace(load_request(files, served), cpu_threads=cpu_threads, parameters=written or {})
    instance = OnnxRuntimeBackend(cpu_ns=clock).load(request)
    try:
        return int(instance._session.get_session_options().intra_op_num_threads)  # type: ignore[attr-defined]
    finally:
        instance.close()


def negation(folder: Path) -> ModelFiles:
    proto = model([helper.make_node("Neg", ["x"], ["y"])], [value("x", ("n", 2))], [value("y", ("n", 2))])
    return onnx_files(folder, proto)


@pytest.mark.parametrize(
    ("runs_ns", "threads", "runs"),
    [
        ([QUICK_NS] * 2 * RUNS, 1, 2 * RUNS),
        ([COLD_NS, *[QUICK_NS] * (RUNS - 1)] * 2, 1, 2 * RUNS),
        ([SLOW_NS] * RUNS, 3, RUNS),
        ([QUICK_NS] * RUNS + [SLOW_NS] * RUNS, 3, 2 * RUNS),
        ([FAR_NS], 3, 1),
        ([QUICK_NS] * RUNS + [FAR_NS], 3, RUNS + 1),
    ],
    ids=["quick", "quick once warm", "slow", "slow with many rows", "far too slow", "far too slow with many rows"],
)
def test_model_gets_one_thread_if_full_batches_are_quick_on_it(tmp_path: Path, runs_ns: list[int], threads: int, runs: int) -> None:
    clock = TakenTimes(runs_ns)
    assert threads_of(negation(tmp_path), same_in_and_out(), clock) == threads
    assert clock.runs == runs


@pytest.mark.parametrize(
    "written",
    [{"intra_op_thread_count": "2"}, {"execution_mode": "1", "intra_op_thread_count": "2"}],
    ids=["threads", "parallel"],
)
def test_configured_threads_are_kept(tmp_path: Path, written: dict[str, str]) -> None:
    clock = TakenTimes(())
    assert threads_of(negation(tmp_path), same_in_and_out(), clock, written=written) == 2
    assert clock.runs == 0


def test_trial_is_skipped_if_one_thread_is_available(tmp_path: Path) -> None:
    assert threads_of(negation(tmp_path), same_in_and_out(), TakenTimes(()), cpu_threads=1) == 1


def test_model_without_batching_is_tried_unchanged(tmp_path: Path) -> None:
    proto = model([helper.make_node("Neg", ["x"], ["y"])], [value("x", (2,))], [value("y", (2,))])
    clock = TakenTimes([QUICK_NS] * RUNS)
    assert threads_of(onnx_files(tmp_path, proto), same_in_and_out(max_batch_size=0), clock) == 1
    assert clock.runs == RUNS


def test_file_of_fixed_batch_size_is_tried_with_that_size_only(tmp_path: Path) -> None:
    proto = model([helper.make_node("Neg", ["x"], ["y"])], [value("x", (8, 2))], [value("y", (8, 2))])
    clock = TakenTimes([QUICK_NS] * RUNS)
    assert threads_of(onnx_files(tmp_path, proto), same_in_and_out(max_batch_size=8), clock) == 1
    assert clock.runs == RUNS


def test_rows_increase_stepwise_to_a_full_batch(tmp_path: Path) -> None:
    clock = TakenTimes([QUICK_NS] * 5 * RUNS)
    assert threads_of(negation(tmp_path), same_in_and_out(max_batch_size=1000), clock) == 1
    assert clock.runs == len([1, 8, 64, 512, 1000]) * RUNS
    # What is slow with few rows is never run with many.
    clock = TakenTimes([QUICK_NS] * RUNS + [SLOW_NS] * RUNS)
    assert threads_of(negation(tmp_path), same_in_and_out(max_batch_size=1000), clock) == 3
    assert clock.runs == 2 * RUNS


def test_full_batch_of_one_row_is_tried_once(tmp_path: Path) -> None:
    clock = TakenTimes([QUICK_NS] * RUNS)
    assert threads_of(negation(tmp_path), same_in_and_out(max_batch_size=1), clock) == 1
    assert clock.runs == RUNS


def test_model_that_fails_on_synthetic_inputs_keeps_its_threads(tmp_path: Path) -> None:
    def only_of_size_five() -> onnx.ModelProto:
        # Reshapes to five columns: two times any number of rows that is tried does not fit.
        shape = helper.make_node("Constant", [], ["shape"], value_ints=[-1, 5])
        return model([shape, helper.make_node("Reshape", ["x", "shape"], ["y"])], [value("x", ("n", 2))], [value("y", ("m", 2))])

    clock = TakenTimes(itertools.repeat(QUICK_NS))
    assert threads_of(onnx_files(tmp_path, only_of_size_five()), same_in_and_out(), clock) == 3


def specs(*inputs: TensorSpec, max_batch_size: int = 8, output_dims: tuple[int, ...] = (1,)) -> ModelSignature:
    return ModelSignature(inputs, (TensorSpec("y", DataType.FP32, output_dims),), max_batch_size)


PAIR = TensorSpec("x", DataType.FP32, (2,))
WIDEST = MOST_INPUT_BYTES // (8 * 4)


def test_model_with_value_dependent_work_is_not_tried(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["sizes"], to=onnx.TensorProto.INT64),
        helper.make_node("Constant", [], ["shape"], value_ints=[-1]),
        helper.make_node("Reshape", ["sizes", "shape"], ["repeats"]),
        helper.make_node("Tile", ["x", "repeats"], ["y"]),
    ]
    proto = model(nodes, [value("x", (2,))], [value("y", ("n",))])
    clock = TakenTimes(())
    assert threads_of(onnx_files(tmp_path, proto), specs(PAIR, max_batch_size=0, output_dims=(-1,)), clock) == 3
    assert clock.runs == 0


@pytest.mark.parametrize(
    ("served", "file_bytes", "may_be"),
    [
        (specs(PAIR), 100, True),
        (specs(PAIR), MOST_FILE_BYTES, True),
        (specs(PAIR), MOST_FILE_BYTES + 1, False),
        (specs(TensorSpec("x", DataType.FP32, (-1,))), 100, False),
        (specs(TensorSpec("x", DataType.BYTES, (2,))), 100, False),
        (specs(TensorSpec("x", DataType.FP32, (WIDEST,))), 100, True),
        (specs(TensorSpec("x", DataType.FP32, (WIDEST + 1,))), 100, False),
        (specs(), 100, False),
    ],
)
def test_only_small_models_of_fixed_rows_are_tried(served: ModelSignature, file_bytes: int, may_be: bool) -> None:
    assert may_be_enough(served, file_bytes) is may_be


def test_synthetic_inputs_have_the_models_types_and_shapes() -> None:
    served = specs(TensorSpec("a", DataType.FP32, (3,)), TensorSpec("b", DataType.INT64, (2, 1), reshape=(2,)), max_batch_size=4)
    made = one_thread.synthetic_inputs(served, 4)
    assert {name: (array.dtype, array.shape) for name, array in made.items()} == {
        "a": (np.dtype(np.float32), (4, 3)),
        "b": (np.dtype(np.int64), (4, 2)),
    }
