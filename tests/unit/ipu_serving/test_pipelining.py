"""Several batches on their way to one device."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from stoker.backends.api.tensor import DataType
from stoker.backends.testing.samples import same_in_and_out
from tests.fakes.ipu_backend import Bench, output_of
from tests.fakes.ipu_programs import doubling
from tests.fakes.ipu_served import popef

TWO_ROWS = same_in_and_out(DataType.FP32, max_batch_size=2)


def test_batches_are_queued_in_the_rings_while_the_device_is_busy(bench: Bench) -> None:
    instance = bench.load(popef(doubling((2, 2))), TWO_ROWS, pipeline_depth="4")
    loaded = instance._loaded  # type: ignore[attr-defined]
    submitted = threading.Semaphore(0)
    execute_async = loaded._runner.execute_async

    def counted(*arguments: object) -> object:
        future = execute_async(*arguments)
        submitted.release()
        return future

    loaded._runner.execute_async = counted
    program = loaded.device.resident
    with ThreadPoolExecutor(4) as pool:
        with loaded.device.claimed(program, lambda: False):
            futures = [pool.submit(output_of, instance, np.full((1, 2), number, np.float32)) for number in range(4)]
            assert all(submitted.acquire(timeout=20) for _ in range(4)), "a batch waited for another to come back"
            assert bench.figure("stoker_ipu_batches_in_flight") == 4
            assert not any(future.done() for future in futures)
        assert [future.result(20).tolist() for future in futures] == [[[2.0 * number] * 2] for number in range(4)]
    assert bench.figure("stoker_ipu_batches_in_flight") == 0
    assert bench.figure("stoker_ipu_queue_wait_seconds_total") > 0


def test_results_of_concurrent_batches_are_not_mixed_up(bench: Bench) -> None:
    instance = bench.load(popef(doubling((1, 2)), batches_per_step=2), TWO_ROWS)

    def ask(number: int) -> list[list[float]]:
        return output_of(instance, np.full((1 + number % 2, 2), number, np.float32)).tolist()

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(ask, range(60)))
    assert found == [[[2.0 * number] * 2] * (1 + number % 2) for number in range(60)]
