"""Batches on a card: merged, run as the compiled batch that fits, split."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from stoker.backends.api.backend import Instance
from stoker.backends.api.batch import Array, BatchItem, Outcome, processor_for
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import BackendFailed, InvalidRequest, ServingError
from stoker.backends.api.tensor import DataType
from stoker.backends.gcu.serving.card_executable import CardExecutable
from stoker.backends.gcu.serving.instance import GcuInstance
from stoker.backends.gcu.serving.mount import SMALL_BYTES
from stoker.backends.testing.fake_backend import PATIENCE_S
from stoker.backends.testing.samples import same_in_and_out, signature
from tests.fakes.gcu_backend import CardBench, batch, output_of
from tests.fakes.gcu_served import doubling, echo, pair, picking

SERVED = same_in_and_out(DataType.FP32, max_batch_size=10)


def numbers(*values: float) -> Array:
    return np.array([[value, -value] for value in values], np.float32)


def answered(outcome: Outcome) -> Array:
    assert not isinstance(outcome, ServingError), outcome
    return outcome["y"]


def runs(bench: CardBench) -> dict[str, float]:
    return {
        each.labels["compiled_batch"]: each.value for each in bench.backend.figures() if each.name == "stoker_gcu_runs_total" and each.value
    }


@pytest.mark.parametrize(("width", "copies"), [(2, 1), (SMALL_BYTES // 4, 3)])
def test_requests_are_merged_on_the_card_and_each_gets_its_own_rows(bench: CardBench, width: int, copies: int) -> None:
    served = same_in_and_out(DataType.FP32, (width,), max_batch_size=10)
    instance = bench.load(doubling(batches=(1, 4, 10), width=width), served)
    loading = bench.figure("stoker_gcu_copies_total", direction="to_device")
    arrays = [np.outer(values, np.ones(width, np.float32)).astype(np.float32) for values in ([1], [2, 3], [4])]
    result = batch(instance, served, arrays)
    assert [answered(each).tolist() for each in result.outcomes] == [(2 * array).tolist() for array in arrays]
    assert result.executions == [4]
    assert bench.figure("stoker_gcu_copies_total", direction="to_device") == loading + copies
    assert bench.figure("stoker_gcu_copies_total", direction="to_host") == copies
    assert bench.figure("stoker_gcu_copy_bytes_total", direction="to_host") == 4 * width * 4


@pytest.mark.parametrize("numerics", ["real", "off"])
@pytest.mark.parametrize("width", [2, SMALL_BYTES])
def test_each_request_gets_its_requested_outputs(bench_with: Callable[..., CardBench], width: int, numerics: str) -> None:
    side = (DataType.FP32, (width,))
    served = signature(dict.fromkeys("ab", side), dict.fromkeys("pq", side))
    instance = bench_with(numerics=numerics).load(pair(width=width), served)
    wanted: list[tuple[str, ...]] = [("p",), ("q", "p"), ("q",), ()]
    items = [
        BatchItem({"a": np.full((1, width), place, np.float32), "b": np.full((1, width), -place, np.float32)}, 1, names)
        for place, names in enumerate(wanted, 1)
    ]
    for place, (names, outcome) in enumerate(
        zip(wanted, processor_for(instance, served, SystemClock()).process(items).outcomes, strict=True), 1
    ):
        assert not isinstance(outcome, ServingError), outcome
        assert set(outcome) == set(names)
        for name, array in outcome.items():
            value = {"p": place, "q": -place}[name] if numerics == "real" else 0
            assert array.shape == (1, width)
            assert (array == value).all()


@pytest.mark.parametrize(
    ("rows", "expected", "padding"),
    [(1, {"1": 1}, 0), (2, {"4": 1}, 2), (4, {"4": 1}, 0), (5, {"4": 1, "1": 1}, 0), (10, {"4": 3}, 2)],
)
def test_batch_runs_as_the_smallest_sufficient_compiled_one_and_larger_ones_in_parts(
    bench: CardBench, rows: int, expected: dict[str, int], padding: int
) -> None:
    instance = bench.load(doubling(batches=(1, 4)), SERVED)
    x = numbers(*range(rows))
    [outcome] = batch(instance, SERVED, [x]).outcomes
    assert answered(outcome).tolist() == (2 * x).tolist()
    assert runs(bench) == expected
    assert bench.figure("stoker_gcu_samples_total") == rows
    assert bench.figure("stoker_gcu_padded_samples_total") == padding


def test_bad_request_fails_alone(bench: CardBench) -> None:
    served = same_in_and_out(DataType.INT64)
    arrays = [np.array([[1, 2]]), np.array([[13, 0], [3, 4]]), np.array([[5, 6]])]
    first, second, third = batch(bench.load(picking(), served), served, arrays).outcomes
    assert answered(first).tolist() == [[1, 2]]
    assert answered(third).tolist() == [[5, 6]]
    assert isinstance(second, BackendFailed)
    assert "TIF_ENGINE_RUN_FAILED" in second.message
    assert bench.figure("stoker_gcu_failed_batches_total") == 2
    assert bench.figure("stoker_gcu_faults_total", status="TIF_ENGINE_RUN_FAILED") == 2


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"x": numbers(1, 2)}, r"input 'x' is float32 \[2, 2\], 16 bytes; 1 samples of FP32 \[2\] have 8"),
        ({"x": np.ones((1, 2), np.int32)}, r"input 'x' is int32 \[1, 2\]"),
    ],
)
def test_data_of_an_earlier_request_on_the_card_is_never_read(bench: CardBench, inputs: dict[str, Array], message: str) -> None:
    instance = bench.load(doubling(), SERVED, pipeline_depth="1")
    unit = processor_for(instance, SERVED, SystemClock())
    assert answered(unit.process([BatchItem({"x": numbers(7)}, 1, ("y",))]).outcomes[0]).tolist() == [[14, -14]]
    bad, good = unit.process([BatchItem(inputs, 1, ("y",)), BatchItem({"x": numbers(1)}, 1, ("y",))]).outcomes
    assert isinstance(bad, InvalidRequest)
    with pytest.raises(InvalidRequest, match=message):
        raise bad
    assert answered(good).tolist() == [[2, -2]]


def test_failed_batch_responds_when_the_card_no_longer_uses_its_memory(bench: CardBench) -> None:
    width = SMALL_BYTES  # so that each request is copied by itself
    served = same_in_and_out(DataType.FP32, (width,))
    instance = bench.load(doubling(width=width), served, pipeline_depth="1")
    assert isinstance(instance, GcuInstance)
    assert isinstance(instance.loaded, CardExecutable)
    mount = instance.loaded._mount
    assert mount is not None
    may_go_on, is_draining = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        may_go_on.wait(PATIENCE_S)

    with mount.slot() as slot:
        slot._stream.submit(hold, [])
        drain = slot.drain

        def watched(timeout_s: float | None) -> bool:
            is_draining.set()
            return drain(timeout_s)

        slot.drain = watched  # type: ignore[method-assign]
    good, bad = BatchItem({"x": np.ones((1, width), np.float32)}, 1, ("y",)), BatchItem({"x": numbers(1)}, 1, ("y",))
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(instance.loaded.run, [good, bad], SystemClock())
        assert is_draining.wait(PATIENCE_S)
        assert not future.done()
        may_go_on.set()
        assert isinstance(future.exception(PATIENCE_S), InvalidRequest)
    assert answered(processor_for(instance, served, SystemClock()).process([good]).outcomes[0]).tolist() == [[2.0] * width]


def test_arrays_that_are_not_contiguous_are_accepted(bench: CardBench) -> None:
    instance = bench.load(echo(dims=(2, 3)), same_in_and_out(DataType.FP32, (2, 3)))
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2).transpose(1, 2, 0)
    assert not x.flags.c_contiguous
    assert output_of(instance, x).tolist() == x.tolist()


def test_model_without_batch_dimension_accepts_the_samples_of_its_dims(bench: CardBench) -> None:
    served = same_in_and_out(DataType.FP32, (3, 2), max_batch_size=0)
    x = numbers(1, 2, 3)
    instance = bench.load(doubling(), served)
    [outcome] = batch(instance, served, [x]).outcomes
    assert answered(outcome).tolist() == (2 * x).tolist()
    assert output_of(instance, x).tolist() == (2 * x).tolist()
    assert runs(bench) == {"4": 2}


def test_only_the_requested_outputs_are_copied_back(bench: CardBench) -> None:
    served = signature(dict.fromkeys("ab", (DataType.FP32, (2,))), {"q": (DataType.FP32, (2,))})
    instance = bench.load(pair(), served)
    found = instance.execute({"a": numbers(1), "b": numbers(2)}, ["q"])
    assert found["q"].tolist() == [[2, -2]]
    assert bench.figure("stoker_gcu_copies_total", direction="to_host") == 1


def test_batches_in_flight_do_not_mix(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with()
    instance = bench.load(doubling(batches=(1, 2)), SERVED, pipeline_depth="3")
    assert instance.pipeline_depth == 3

    def ask(number: int) -> tuple[int, list[list[float]]]:
        return number, output_of(instance, numbers(*[number] * (1 + number % 3))).tolist()

    with ThreadPoolExecutor(3) as pool:
        for number, found in pool.map(ask, range(90)):
            assert found == [[2.0 * number, -2.0 * number]] * (1 + number % 3)
    assert bench.figure("stoker_gcu_batches_total") == 90


def test_closed_instance_frees_its_memory_on_the_card(bench: CardBench) -> None:
    def load() -> Instance:
        return bench.load(doubling(), SERVED)

    instance = load()
    engine_and_buffers = bench.figure("stoker_gcu_hbm_used_bytes")
    assert engine_and_buffers == 4096 + 2 * (10 * 8 + 10 * 8)
    assert bench.figure("stoker_gcu_streams") == 2
    output_of(instance, numbers(1))
    bench.unload(instance)
    assert bench.figure("stoker_gcu_hbm_used_bytes") == 0
    assert bench.figure("stoker_gcu_streams") == 0
    assert bench.figure("stoker_gcu_cluster_instances") == 0
    assert bench.figure("stoker_gcu_runs_total") == 1
    assert bench.figure("stoker_gcu_hbm_peak_bytes") == engine_and_buffers
    assert output_of(load(), numbers(2)).tolist() == [[4, -4]]
