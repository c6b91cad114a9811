"""Weights that change, and runners that stop and load again."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from poprt.runtime import LightRunner, LightRunnerConfig

from stoker.backends.ipu.runtime import ApplicationRuntimeError, SessionStopped
from tests.fakes.ipu_programs import adding, weighted
from tests.fakes.ipu_runners import Bench, assert_nothing_is_left
from tests.fakes.ipu_sessions import PATIENCE_S

X = np.array([1, 2], np.float32)
OLD = np.array([10, 10], np.float32)
NEW = np.array([3, 5], np.float32)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    assert_nothing_is_left(bench)


def light(bench: Bench, config: LightRunnerConfig | None = None, **popef: object) -> LightRunner:
    runner = bench.runner(weighted(), config=config, kind=LightRunner, tensor_data={"w": OLD}, **popef)
    assert isinstance(runner, LightRunner)
    return runner


def test_new_weights_take_effect_when_they_are_updated(bench: Bench) -> None:
    with light(bench) as runner:
        assert runner.execute({"x": X})["y"].tolist() == [10, 20]
        runner.set_input_anchor("w", NEW)
        assert runner.execute({"x": X})["y"].tolist() == [10, 20]
        runner.update_weights()

        assert runner.execute({"x": X})["y"].tolist() == [3, 10]


def test_every_copy_gets_the_new_weights(bench: Bench) -> None:
    with light(bench, LightRunnerConfig(replication_factor=2)) as runner:
        runner.set_input_anchor("w", NEW)
        runner.update_weights()
        futures = [runner.execute_async({"x": X}) for _ in range(8)]

        assert [future.result(PATIENCE_S)["y"].tolist() for future in futures] == [[3, 10]] * 8


def test_requests_queued_before_the_update_run_on_the_old_weights(bench: Bench) -> None:
    with light(bench, batches_per_step=2) as runner:
        first = runner.execute_async({"x": X})  # half a call: the device waits for the other half
        runner.set_input_anchor("w", NEW)
        with bench.passing_time():
            runner.update_weights()
            second = runner.execute_async({"x": X})

        assert first.result(PATIENCE_S)["y"].tolist() == [10, 20]
        assert second.result(PATIENCE_S)["y"].tolist() == [3, 10]


def test_stopped_runner_refuses_requests_until_it_is_loaded_again(bench: Bench) -> None:
    with light(bench) as runner:
        runner.stop()
        with pytest.raises(SessionStopped, match="stopped"):
            runner.execute({"x": X})
        runner.set_input_anchor("w", NEW)
        runner.update_weights()
        with pytest.raises(SessionStopped, match="stopped"):
            runner.execute({"x": X})
        runner.reload()

        assert runner.execute({"x": X})["y"].tolist() == [3, 10]


def test_bound_inputs_of_the_main_program_may_be_omitted(bench: Bench) -> None:
    with bench.runner(adding(), kind=LightRunner) as runner:
        assert isinstance(runner, LightRunner)
        runner.set_input_anchor("b", NEW)
        with pytest.raises(ApplicationRuntimeError, match="lacks input 'b'"):
            runner.execute({"a": X})
        runner.update_weights()

        assert runner.execute({"a": X})["total"].tolist() == [4, 7]
        assert runner.execute({"a": X, "b": X})["total"].tolist() == [2, 4]


def test_data_of_weights_is_copied(bench: Bench) -> None:
    mine = NEW.copy()
    with light(bench) as runner:
        runner.set_input_anchor("w", mine)
        mine[:] = 0
        runner.update_weights()

        assert runner.execute({"x": X})["y"].tolist() == [3, 10]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("no", NEW, "has no input 'no'; it has w, x"),
        ("w", np.zeros(3, np.float32), r"float32\[3\] given, expected float32\[2\] \(8 bytes\)"),
        ("w", np.zeros(2), r"float64\[2\] given"),
    ],
)
def test_data_that_contradicts_the_model_is_refused(bench: Bench, name: str, data: np.ndarray, message: str) -> None:
    with light(bench) as runner, pytest.raises(ApplicationRuntimeError, match=message):
        runner.set_input_anchor(name, data)


def test_weights_are_described_among_the_models_inputs_only(bench: Bench) -> None:
    with light(bench) as runner:
        assert [desc.name for desc in runner.get_execute_inputs()] == ["x"]
        described = {desc.name: desc.popef_contains_tensor_data for desc in runner.get_model_inputs()}
        assert described == {"x": False, "w": True}


def test_device_is_selected_by_the_vendors_name(bench: Bench) -> None:
    config = LightRunnerConfig()
    with bench.manager.get_specific_device(2) as device:
        config.replica_to_device = {0: device}
        with light(bench, config, ipu_version=21) as runner:
            assert runner.devices == (device,)
            assert runner.execute({"x": X})["y"].tolist() == [10, 20]
        assert device.is_attached
