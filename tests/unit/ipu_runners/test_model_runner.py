"""Common behaviour of runners: descriptions, validation, threads, memory, closing."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from poprt.runtime import HostConcatRunnerConfig, LightRunner, LightRunnerConfig, Runner

from stoker.backends.ipu.popef.schema import DataType
from stoker.backends.ipu.runtime import (
    NO_BATCHING_DIM,
    ApplicationRuntimeError,
    DeviceManager,
    DeviceUnavailable,
    DeviceWaitConfig,
    DeviceWaitStrategy,
    ModelRunner,
    PackageHashMismatch,
    RunnerType,
    RuntimeConfig,
    SessionStopped,
    SimulatedSystem,
)
from tests.fakes.ipu_programs import adding, doubling, weighted, write_popef
from tests.fakes.ipu_runners import Bench, assert_nothing_is_left, rows
from tests.fakes.ipu_sessions import PATIENCE_S, ipu_threads


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    assert_nothing_is_left(bench)


def test_defaults_equal_the_vendors() -> None:
    config = RuntimeConfig()

    assert config.timeout_ns == 10_000_000
    assert config.batching_dim == NO_BATCHING_DIM == 0xFFFFFFFF
    assert (config.validate_io_params, config.thread_safe, config.check_package_hash) == (True, True, True)
    assert (config.auto_reset, config.flush_on_waiting_outputs, config.is_batch_size_timeout_enabled) == (False, False, False)
    assert (config.ring_buffer_size_multiplier, config.request_tracepoints_buffer_size) == (2, 1000)
    assert config.device_wait_config == DeviceWaitConfig(strategy=DeviceWaitStrategy.WAIT_WITH_TIMEOUT, timeout_s=1, sleep_s=6)
    assert (config.replica_id_to_device, config.flush_by_name) == ({}, {})
    assert [*RunnerType] == [0, 1, 2]
    assert config.runner_type is RunnerType.MODEL_RUNNER


def test_inputs_and_outputs_are_described(bench: Bench) -> None:
    with bench.runner(adding((2, 3)), tensor_data={"b": rows(2, 3)}) as runner:
        a, b = runner.get_execute_inputs()
        (total,) = runner.get_execute_outputs()

        assert (a.name, a.shape, a.size_in_bytes, a.data_type, a.popef_contains_tensor_data) == ("a", [2, 3], 24, DataType.F32, False)
        assert b.popef_contains_tensor_data
        assert total.numpy_data_type() == np.float32
        assert runner.get_model_outputs() == [total]


def test_script_may_set_the_rows_of_a_description(bench: Bench) -> None:
    with bench.runner(adding((2, 3))) as runner:
        desc = runner.get_execute_inputs()[0]
        desc.shape[0] = 6
        assert np.zeros(desc.shape).shape == (6, 3)
        assert runner.get_execute_inputs()[0].shape == [2, 3]


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"a": rows(2)}, None, "lacks input 'b' of executable 'model'"),
        ({}, {}, "lacks input 'a', input 'b', output 'total'"),
        ({"a": rows(2), "b": rows(2), "c": rows(2)}, None, "has no input 'c'; its inputs are 'a', 'b'"),
        ({"a": rows(2), "b": rows(2)}, {"sum": rows(2)}, "has no output 'sum'; its outputs are 'total'"),
        ({"a": rows(2), "b": np.zeros(2, np.float16)}, None, "'b' is float16, expected float32"),
        ({"a": rows(2), "b": rows(3)}, None, r"'b' has shape \[3\], expected \[2 x N\]"),
    ],
)
def test_every_input_and_output_must_exist_and_match(bench: Bench, inputs: dict, outputs: dict | None, message: str) -> None:
    with bench.runner(adding()) as runner, pytest.raises(ApplicationRuntimeError, match=message):
        runner.execute(inputs, outputs)


def test_outputs_are_written_into_the_callers_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    copy = np.copyto

    def watched(target: np.ndarray, source: np.ndarray) -> None:
        written.append(target.ctypes.data)
        copy(target, source)

    y = np.zeros((4, 3), np.float32)
    with bench.runner(doubling()) as runner:
        monkeypatch.setattr("stoker.backends.ipu.runtime.engine.np.copyto", watched)
        runner.execute({"x": rows(4, 3)}, {"y": y})
        monkeypatch.undo()

    assert written == [y.ctypes.data, y[2:].ctypes.data]


def test_concurrent_requests_of_many_threads_get_their_own_results(bench: Bench) -> None:
    wrong: list[int] = []

    def ask(runner: ModelRunner, number: int) -> None:
        for turn in range(20):
            x = rows(2, 3, begin=1000 * number + turn)
            if not (runner.execute({"x": x})["y"] == 2 * x).all():
                wrong.append(number)

    with bench.runner(doubling(), config=RuntimeConfig(replication_factor=2)) as runner:
        threads = [threading.Thread(target=ask, args=(runner, number)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len({device.id for device in runner.devices}) == 2
        assert all(device.metrics.micro_batches for device in runner.devices)

    assert wrong == []


def test_frozen_inputs_may_be_omitted(bench: Bench) -> None:
    with bench.runner(adding(), config=RuntimeConfig(frozen_inputs={"b": rows(2, begin=10)})) as runner:
        assert runner.execute({"a": rows(2)})["total"].tolist() == [11, 13]
        assert runner.execute({"a": rows(4)})["total"].tolist() == [11, 13, 13, 15]
    with bench.runner(weighted(), config=RuntimeConfig(frozen_inputs={"w": rows(2)})) as runner:
        assert runner.execute({"x": rows(2)})["y"].tolist() == [1, 4]
    with pytest.raises(ApplicationRuntimeError, match="frozen input 'b'"):
        bench.runner(adding(), config=RuntimeConfig(frozen_inputs={"b": rows(3)}))


def test_rings_hold_the_number_of_calls_of_the_multiplier(bench: Bench) -> None:
    config = RuntimeConfig(ring_buffer_size_multiplier=3)
    with bench.runner(doubling(), config=config, batches_per_step=2) as runner:
        queues = runner._replicas[0]._queues
        assert queues.input_queue("x").ring.capacity == 6
        with bench.passing_time():
            runner.execute({"x": rows(40, 3)})


def test_copies_run_on_their_assigned_devices(bench: Bench) -> None:
    with bench.manager.get_device(1) as device:
        config = RuntimeConfig(replica_id_to_device={1: device})
        with bench.runner(doubling(), config=config, ipu_version=21) as runner:
            assert runner.devices[1] is device
            assert runner.devices[0].id != device.id
        assert device.is_attached
        assert bench.free_ipus() == 3


def test_constructor_without_a_free_device_raises(tmp_path: Path) -> None:
    bench = Bench(tmp_path, num_ipus=1)
    no_wait = RuntimeConfig(device_wait_config=DeviceWaitConfig())
    with bench.runner(doubling()), pytest.raises(DeviceUnavailable):
        bench.runner(doubling(), config=no_wait)
    assert_nothing_is_left(bench)


def test_runner_that_fails_to_start_releases_its_devices(tmp_path: Path) -> None:
    bench = Bench(tmp_path, num_ipus=1)
    config = RuntimeConfig(replication_factor=2, device_wait_config=DeviceWaitConfig())
    with pytest.raises(DeviceUnavailable):
        bench.runner(doubling(), config=config)
    assert_nothing_is_left(bench)


def test_executable_of_another_build_is_refused_unless_the_check_is_disabled(bench: Bench) -> None:
    with pytest.raises(PackageHashMismatch, match="0123"):
        bench.runner(doubling(), hash_text="0123")
    with bench.runner(doubling(), config=RuntimeConfig(check_package_hash=False), hash_text="0123") as runner:
        runner.execute({"x": rows(2, 3)})


def test_pending_requests_fail_when_the_runner_is_closed(bench: Bench) -> None:
    runner = bench.runner(doubling(), config=RuntimeConfig(timeout_ns=0), batches_per_step=8)
    device = runner.devices[0]
    futures = []
    with device.claimed(_OtherProgram(), lambda: False):  # the device is busy with something else
        futures += [runner.execute_async({"x": rows(2, 3)}) for _ in range(4)]
        runner.close()
    for future in futures:
        with pytest.raises(SessionStopped):
            future.result(PATIENCE_S)
    with pytest.raises(SessionStopped, match="closed"):
        runner.execute({"x": rows(2, 3)})
    runner.close()


def test_unreferenced_runner_releases_its_device(bench: Bench) -> None:
    runner = bench.runner(doubling(), config=RuntimeConfig(batching_dim=0))
    runner.execute({"x": rows(2, 3)})
    assert bench.free_ipus() == 3
    threads = [thread for thread in threading.enumerate() if thread.name in ipu_threads()]
    del runner  # no cycle keeps it: this does not wait for the garbage collector
    for thread in threads:
        thread.join(PATIENCE_S)

    assert bench.free_ipus() == 4


def test_idle_device_is_not_fed_while_no_request_waits_for_outputs(bench: Bench) -> None:
    config = RuntimeConfig(flush_on_waiting_outputs=True)
    with bench.runner(doubling(), config=config, batches_per_step=4) as runner:
        runner.execute({"x": rows(2, 3)})
        for _ in range(10):
            bench.pass_timeout()
        assert runner.devices[0].metrics.micro_batches == 1


def test_traced_requests_are_bounded_by_the_buffer_size(bench: Bench) -> None:
    config = RuntimeConfig(flush_on_waiting_outputs=True, request_tracepoints_buffer_size=2)
    with bench.runner(doubling(), config=config) as runner:
        bench.clock.advance(1)
        for _ in range(3):
            runner.execute({"x": rows(2, 3)})
        last = runner.request_tracepoints()
        with pytest.raises(ApplicationRuntimeError):
            runner.execute({})

        assert [(each.request, each.begin_ns, each.error) for each in last] == [(2, 10**9, ""), (3, 10**9, "")]
        assert all(each.end_ns >= each.begin_ns for each in last)


def test_requests_are_not_traced_by_default(bench: Bench) -> None:
    with bench.runner(doubling()) as runner:
        runner.execute({"x": rows(2, 3)})
        assert runner.request_tracepoints() == ()


@pytest.mark.parametrize(
    ("config", "kind"),
    [(None, ModelRunner), (RuntimeConfig(), ModelRunner), (LightRunnerConfig(), LightRunner)],
)
def test_configuration_type_chooses_the_runner(bench: Bench, config: RuntimeConfig | None, kind: type) -> None:
    path = write_popef(bench.folder / "m.popef", doubling())
    with Runner(path, config, device_manager=bench.manager) as runner:
        assert type(runner.runner) is kind
        np.testing.assert_array_equal(runner.execute({"x": rows(2, 3)})["y"], 2 * rows(2, 3))


def test_configuration_for_joined_inputs_chooses_the_joining_runner(bench: Bench) -> None:
    path = write_popef(bench.folder / "m.popef", doubling())
    with pytest.raises(ApplicationRuntimeError, match="notes no joined inputs"):
        Runner(path, HostConcatRunnerConfig(), device_manager=bench.manager)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timeout_ns", -1),
        ("batch_size_timeout_ns", -1),
        ("ring_buffer_size_multiplier", 0),
        ("replication_factor", 0),
        ("request_tracepoints_buffer_size", -1),
        ("batching_dim", -1),
        ("replica_id_to_device", {-1: None}),
    ],
)
def test_field_out_of_range_is_refused_by_its_name(tmp_path: Path, field: str, value: object) -> None:
    config = RuntimeConfig()
    setattr(config, field, value)
    with pytest.raises(ValueError, match=field):
        ModelRunner(write_popef(tmp_path / "m.popef", doubling()), config, device_manager=DeviceManager(SimulatedSystem(1)))


def test_options_without_effect_are_reported_once(bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.backends.ipu.runtime.runtime_config._warned", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            bench.runner(doubling(), config=RuntimeConfig(thread_safe=False)).close()

    assert [record.message for record in caplog.records if "thread_safe" in record.message] == [
        "thread_safe=False has no effect on a simulated device: runners may always be used by several threads"
    ]


class _OtherProgram:
    name, load_s, reloads_when_evicted = "other", 0.0, True

    def on_loaded(self) -> None:
        """Nothing to load."""
