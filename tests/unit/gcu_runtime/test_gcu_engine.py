"""Engines: what they compute, in which batches, and what they refuse."""

import numpy as np
import pytest

from backends.gcu.runtime import GcuSystem
from tests.fakes.gcu_executables import scaled


@pytest.fixture
def system():
    made = GcuSystem()
    yield made
    made.close()


def rows(count, width=3):
    return np.random.default_rng(count).normal(size=(count, width)).astype(np.float32)


def run(device, engine, x, samples):
    """Runs `x` through `engine` on a stream of its own; y and n of all samples."""
    y, n = np.empty((samples, x.shape[1]), np.float32), np.empty(samples, np.int64)
    buffers = [device.allocate(array.nbytes) for array in (x, y, n)]
    with device.create_stream() as stream:
        stream.copy_to_device(x, buffers[0])
        engine.run_with_batch(samples, buffers[:1], buffers[1:], stream)
        stream.copy_to_host(buffers[1], y)
        stream.copy_to_host(buffers[2], n)
        stream.synchronize(30)
    for buffer in buffers:
        buffer.free()
    return y, n


@pytest.mark.parametrize(
    ("samples", "batches"), [(1, {1: 1, 4: 0}), (2, {1: 0, 4: 1}), (4, {1: 0, 4: 1}), (5, {1: 1, 4: 1}), (11, {1: 0, 4: 3})]
)
def test_any_number_of_samples_runs_in_the_smallest_batches_that_take_them(system, samples, batches):
    with system.acquire(0, 0) as device:
        engine = device.load(scaled())
        x = rows(samples)
        y, n = run(device, engine, x, samples)
        np.testing.assert_array_equal(y, x * np.float32([1, 2, 3]))
        assert n.tolist() == x.argmax(axis=1).tolist()
        assert engine.runs == batches
        assert system.cards[0].figures.samples == samples
