"""Engines: results, batches, and refusals."""

import dataclasses
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from TopsInference.host_runs import run_on_host, submit_on_host

from stoker.backends.gcu.executable import write_executable
from stoker.backends.gcu.program import GcuTensor
from stoker.backends.gcu.runtime import GcuSystem, OutOfDeviceMemory, Status, StatusError
from stoker.backends.simulated.numerics import Numerics
from tests.fakes.gcu_executables import scaled


def rows(count, width=3):
    return np.random.default_rng(count).normal(size=(count, width)).astype(np.float32)


@pytest.mark.parametrize(
    ("samples", "runs"), [(1, {1: 1, 4: 0}), (2, {1: 0, 4: 1}), (4, {1: 0, 4: 1}), (5, {1: 1, 4: 1}), (11, {1: 0, 4: 3})]
)
def test_any_number_of_samples_runs_in_the_smallest_sufficient_batches(device, samples, runs):
    engine = device.load(scaled())
    x = rows(samples)
    y, n = run_on_host(engine, [x])
    np.testing.assert_array_equal(y, x * np.array([1, 2, 3], np.float32))
    assert n.tolist() == x.argmax(axis=1).tolist()
    assert engine.runs == runs
    figures = device.figures
    assert (figures.runs, figures.samples) == (sum(runs.values()), samples)
    assert figures.padded_samples == sum(size * count for size, count in runs.items()) - samples


def test_run_on_a_stream_equals_a_run_without_one(device):
    engine, x = device.load(scaled()), rows(7)
    with device.create_stream() as stream:
        future = submit_on_host(engine, [x], stream)
        for queued, direct in zip(future.result(30), run_on_host(engine, [x]), strict=True):
            np.testing.assert_array_equal(queued, direct)
    assert device.hbm_used_bytes == engine.hbm_bytes


def test_padding_is_zeros_and_never_an_earlier_request(device):
    engine = device.load(scaled([4], scale=[0, 0, 0], mixes_batch=True))
    x, y, n = device.allocate(48), device.allocate(48), device.allocate(32)
    device.copy_to_device(np.full((4, 3), 100, np.float32), x)  # what another request has left
    device.copy_to_device(np.ones((2, 3), np.float32), x)
    engine.run_with_batch(2, [x], [y, n])
    response = np.empty((2, 3), np.float32)
    device.copy_to_host(y, response)
    assert (response == 2).all()


@pytest.mark.parametrize(("samples", "computed"), [(1, 2), (2, 2), (5, 5), (8, 8)])
def test_host_computes_the_rows_of_a_call_and_charges_the_compiled_batch(device, samples, computed):
    static, variable = device.load(scaled([8])), device.load(scaled([8], has_variable_rows=True, mixes_batch=True))
    x = rows(samples)
    y, _ = run_on_host(variable, [x])
    # y has the sum of all computed rows: with zeros as padding it is that of x.
    np.testing.assert_allclose(y, x * np.array([1, 2, 3], np.float32) + x.sum(axis=0), rtol=1e-6)
    assert run_on_host(static, [x])[1].tolist() == run_on_host(variable, [x])[1].tolist()
    assert device.figures.padded_samples == 3 * (8 - samples)
    assert device.figures.cluster_busy_s[0] == pytest.approx(3 * 8 * 1e-3 / 2)
    assert _rows_computed(variable, x) == computed


def _rows_computed(engine, x):
    """The rows of the graph's run, seen by the runner."""
    runner = engine._batches[8]._runner
    seen = []
    run = runner.run

    def counted(inputs, outputs):
        seen.append(len(inputs["x"]))
        return run(inputs, outputs)

    runner.run = counted
    run_on_host(engine, [x])
    return seen[0]


def test_log_says_why_the_host_pads_batches(device, caplog):
    caplog.set_level("INFO", "stoker.backends.topsinference")
    device.load(scaled([1, 4], has_variable_rows=True))
    assert caplog.messages == []
    device.load(scaled([1, 4]))
    device.load(dataclasses.replace(scaled([1, 4, 8]), attributes={"padded_on_host": "batch 4: it does not run with fewer rows"}))
    old, new = caplog.messages
    assert "batches of 4 " in old
    assert "before graphs had a variable batch" in old
    assert "batches of 4, 8 " in new
    assert "does not run with fewer rows" in new


def test_outputs_beyond_the_requested_samples_are_unchanged(device):
    engine = device.load(scaled([4]))
    x, y, n = device.allocate(48), device.allocate(48), device.allocate(32)
    device.copy_to_device(np.full(12, 7, np.float32), y)
    engine.run_with_batch(1, [x], [y, n])
    response = np.empty((4, 3), np.float32)
    device.copy_to_host(y, response)
    assert (response[0] == 0).all()
    assert (response[1:] == 7).all()


def test_without_numerics_outputs_are_zeros_and_figures_count():
    system = GcuSystem(numerics=Numerics.OFF)
    with system.acquire() as device:
        engine = device.load(scaled())
        x, y, n = device.allocate(48), device.allocate(48), device.allocate(32)
        device.copy_to_device(np.full(12, 7, np.float32), y)
        engine.run_with_batch(3, [x], [y, n])
        response = np.ones((4, 3), np.float32)
        device.copy_to_host(y, response)
        assert (response[:3] == 0).all()
        assert (response[3] == 7).all()
        assert device.figures.samples == 3


@given(st.integers(1, 300), st.sets(st.integers(1, 64), min_size=1, max_size=5))
def test_plan_covers_every_sample_once_and_pads_only_its_last_run(samples, sizes):
    with GcuSystem(numerics=Numerics.OFF).acquire() as device:
        runs = list(device.load(scaled(sorted(sizes))).plan(samples))
    assert [first for first, _, _ in runs] == [sum(count for _, count, _ in runs[:place]) for place in range(len(runs))]
    assert sum(count for _, count, _ in runs) == samples
    assert all(count == size == max(sizes) for _, count, size in runs[:-1])
    _, count, size = runs[-1]
    assert size == min(each for each in sizes if each >= count)


@pytest.mark.parametrize(
    ("samples", "sizes", "says"),
    [
        (0, (48, 48, 32), "takes at least one sample, not 0"),
        (5, (48, 60, 40), "input 'x', 5 samples: bytes 0 to 60 are outside the buffer of 48 bytes"),
        (4, (48, 47, 32), "output 'y', 4 samples: bytes 0 to 48 are outside the buffer of 47 bytes"),
        (4, (48, 48), r"outputs: 1 buffers for 2 tensors \('y', 'n'\)"),
    ],
)
def test_run_that_exceeds_the_memory_is_refused_with_the_buffer(device, samples, sizes, says):
    engine = device.load(scaled())
    buffers = [device.allocate(size) for size in sizes]
    with pytest.raises(StatusError, match=says):
        engine.run_with_batch(samples, buffers[:1], buffers[1:])
    assert engine.runs == {1: 0, 4: 0}


def test_buffers_that_cannot_be_used_are_refused():
    system = GcuSystem(2)
    first, second = system.acquire(0), system.acquire(1)
    engine = first.load(scaled())
    x, y, n = first.allocate(48), first.allocate(48), first.allocate(32)
    with pytest.raises(StatusError, match="is not on card 0"):
        engine.run_with_batch(1, [second.allocate(48)], [y, n])
    with pytest.raises(StatusError, match="a buffer of the device is needed, not ndarray"):
        engine.run_with_batch(1, [np.zeros((1, 3), np.float32)], [y, n])  # type: ignore[list-item]
    x.free()
    with pytest.raises(StatusError, match="freed> cannot be used any more"):
        engine.run_with_batch(1, [x], [y, n])
    with pytest.raises(StatusError, match=r"is on card 0, stream \d+ on card 1"):
        engine.run_with_batch(1, [y], [y, n], second.create_stream())
    engine.unload()
    engine.unload()
    with pytest.raises(StatusError, match="is unloaded") as caught:
        engine.run_with_batch(1, [y], [y, n])
    assert caught.value.status is Status.TIF_NOT_INITIALIZED
    system.close()


def test_weights_and_the_largest_workspace_are_accounted_until_the_engine_is_unloaded(device):
    engine = device.load(scaled(workspace_bytes=1 << 20))
    assert engine.hbm_bytes == (1 << 20) + 12
    assert device.hbm_used_bytes == device.figures.hbm_used_bytes == engine.hbm_bytes
    engine.unload()
    assert device.figures.hbm_used_bytes == 0
    assert device.figures.hbm_peak_bytes == engine.hbm_bytes


def test_engine_that_exceeds_the_memory_is_refused_and_others_stay_loaded(device):
    fits = device.load(scaled(workspace_bytes=9 << 30))
    with pytest.raises(
        OutOfDeviceMemory, match=r"engine 'second' \(weights 12 bytes, and workspace\) needs .*taken: 9663676428 bytes of engines"
    ):
        device.load(scaled(workspace_bytes=9 << 30, name="second"))
    assert device.hbm_used_bytes == fits.hbm_bytes
    assert run_on_host(fits, [rows(1)])[0].shape == (1, 3)


def test_unloadable_executable_reports_the_reason_and_allocates_nothing(device, tmp_path):
    with pytest.raises(StatusError, match="compiled for s60; card 0 is of type i20") as caught:
        device.load(scaled(card="s60"))
    assert caught.value.status is Status.TIF_EXECUTABLE_DEVICE_VERIFY_FAILED
    good = scaled([4])
    wider = dataclasses.replace(good, inputs=(GcuTensor("x", good.inputs[0].dtype, (5,)),))
    with pytest.raises(StatusError, match=r"batch 4: input 'x' is float32\[4, 3\] in its graph, and float32\[4, 5\] in the executable"):
        device.load(wider)
    renamed = dataclasses.replace(good, outputs=(GcuTensor("z", good.outputs[0].dtype, (3,)),))
    with pytest.raises(StatusError, match="its graph has no output 'z'"):
        device.load(renamed)
    damaged = dataclasses.replace(good, batches=(dataclasses.replace(good.batches[0], onnx=b"\x08garbage"),))
    with pytest.raises(StatusError, match="the lowered graph cannot be prepared"):
        device.load(damaged)
    with pytest.raises(StatusError, match="there is no file") as caught:
        device.load(tmp_path / "model.exec")
    assert caught.value.status is Status.TIF_LOAD_NON_EXIST_FILE
    assert device.hbm_used_bytes == 0


def test_tensors_of_more_dimensions_than_the_cards_limit_are_refused(device):
    good = scaled([4])
    deep = dataclasses.replace(good, inputs=(GcuTensor("x", good.inputs[0].dtype, (1,) * 8),))
    with pytest.raises(StatusError, match="tensor 'x' has 9 dimensions, the batch included; the i20 takes 8") as caught:
        device.load(deep)
    assert caught.value.status is Status.TIF_MIS_MATCHED_SHAPE_OR_DIM
    assert device.hbm_used_bytes == 0


def test_queued_run_without_memory_or_stream_leaks_nothing(device):
    engine, stream = device.load(scaled()), device.create_stream()
    free = device.figures.hbm_bytes - device.figures.hbm_used_bytes
    rest = device.allocate(free - 50)
    with pytest.raises(OutOfDeviceMemory, match="a buffer of 48 bytes needs 48 bytes of HBM"):
        submit_on_host(engine, [rows(4)], stream)
    stream.synchronize(30)
    assert device.figures.hbm_used_bytes == device.figures.hbm_bytes - 50
    rest.free()
    stream.close()
    with pytest.raises(StatusError, match="is destroyed"):
        submit_on_host(engine, [rows(4)], stream)
    assert device.hbm_used_bytes == engine.hbm_bytes


def test_file_is_loaded_and_a_damaged_one_refused(device, tmp_path):
    path = tmp_path / "model.exec"
    write_executable(path, scaled())
    x = rows(3)
    np.testing.assert_array_equal(run_on_host(device.load(path), [x])[0], x * np.array([1, 2, 3], np.float32))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(StatusError) as caught:
        device.load(path)
    assert caught.value.status is Status.TIF_EXECUTABLE_CRC_VERIFY_FAILED


def test_engine_in_use_cannot_be_unloaded(device):
    engine, gate = device.load(scaled()), threading.Event()
    x, y, n = device.allocate(48), device.allocate(48), device.allocate(32)
    with device.create_stream() as stream:
        stream.submit(lambda *_: gate.wait(30), [])
        future = engine.run_with_batch(1, [x], [y, n], stream)
        with pytest.raises(StatusError, match="work queued on a stream uses it"):
            engine.unload()
        gate.set()
        future.result(30)
        engine.unload()


def test_arrays_of_the_wrong_kind_are_refused_by_name(device):
    engine = device.load(scaled())
    for wrong, says in (
        ([], r"0 arrays for 1 inputs \('x'\)"),
        ([rows(2).astype(np.float64)], "input 'x' is float32, not float64"),
        ([rows(2, 4)], r"shape \[2, 4\]; expected \[samples, 3\]"),
        ([rows(0)], r"shape \[0, 3\]"),
    ):
        with pytest.raises(StatusError, match=says):
            run_on_host(engine, wrong)
    assert device.hbm_used_bytes == engine.hbm_bytes


def test_engine_runs_on_some_of_a_devices_clusters(system):
    with system.acquire(0, [1, 2, 5]) as device:
        run_on_host(device.load(scaled([1]), [5]), [rows(1)])
        assert device.figures.cluster_busy_s == (0, 0, 0, 0, 0, 1e-3)
        run_on_host(device.load(scaled([1])), [rows(1)])
        assert device.figures.cluster_busy_s == pytest.approx((0, 5e-4, 5e-4, 0, 0, 1.5e-3))
        with pytest.raises(StatusError, match=r"is to run on clusters \[0\]") as caught:
            device.load(scaled([1]), [0])
        assert caught.value.status is Status.TIF_MORE_CLUSTER_APPLIED
