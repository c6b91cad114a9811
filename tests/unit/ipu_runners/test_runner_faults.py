"""The errors of a runner whose device fails, the requests that receive them, and its recovery."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.ipu.runtime import (
    ApplicationRuntimeError,
    IpuRuntimeError,
    ModelRunner,
    RecoverableRuntimeError,
    RecoveryAction,
    RuntimeConfig,
    UnknownRuntimeError,
)
from tests.fakes.ipu_programs import Part, doubling, failing
from tests.fakes.ipu_runners import Bench, assert_nothing_is_left, rows
from tests.fakes.ipu_sessions import PATIENCE_S

X = rows(2, 3)


class Bad:
    """A runner on a device with a plan of faults."""

    def __init__(self, folder: Path, faults: str, part: Part | None = None, **config: object) -> None:
        self.bench = Bench(folder, num_ipus=2, faults=faults)
        self.runner: ModelRunner = self.bench.runner(part or doubling(), config=RuntimeConfig(**config))  # type: ignore[arg-type]

    def ask(self) -> np.ndarray:
        return self.runner.execute({"x": X})["y"]

    def failure(self) -> IpuRuntimeError:
        with pytest.raises(IpuRuntimeError) as caught:
            self.ask()
        return caught.value


@pytest.fixture
def bad(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bad]:
    faults, config = request.param
    bad = Bad(tmp_path, faults, **config)
    yield bad
    bad.runner.close()
    for ipu in bad.bench.system.ipus:
        assert not ipu.is_attached


def with_faults(faults: str, **config: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bad", [(faults, config)], indirect=True, ids=[faults])


@with_faults("reset@2")
def test_failed_device_without_auto_reset_stays_failed(bad: Bad) -> None:
    assert bad.ask().tolist() == (2 * X).tolist()
    error = bad.failure()
    assert isinstance(error, RecoverableRuntimeError)
    assert error.action is RecoveryAction.IPU_RESET
    assert bad.failure() is error
    assert bad.runner.error is error


@with_faults("reset@2,reset@4", auto_reset=True)
def test_device_with_auto_reset_is_reset_before_the_next_request(bad: Bad) -> None:
    assert bad.ask().tolist() == (2 * X).tolist()
    for _ in range(2):
        assert isinstance(bad.failure(), RecoverableRuntimeError)
        assert bad.ask().tolist() == (2 * X).tolist()
    assert bad.runner.error is None
    assert bad.runner.devices[0].metrics.loads == 3


@pytest.mark.parametrize("auto_reset", [False, True])
def test_queued_requests_get_the_same_error(tmp_path: Path, auto_reset: bool) -> None:
    bad = Bad(tmp_path, "reset@2", auto_reset=auto_reset, ring_buffer_size_multiplier=8)
    with bad.runner as runner:
        with runner.devices[0].claimed(_OtherProgram(), lambda: False):  # while the device is busy, requests queue
            futures = [runner.execute_async({"x": X}) for _ in range(5)]
        errors = [future.exception(PATIENCE_S) for future in futures]

        assert isinstance(errors[0], RecoverableRuntimeError)
        assert all(error is errors[0] for error in errors)
        if auto_reset:
            assert bad.ask().tolist() == (2 * X).tolist()


@pytest.mark.parametrize("action", ["link", "partition", "full"])
def test_other_resets_are_left_to_operators(tmp_path: Path, action: str) -> None:
    bad = Bad(tmp_path, f"reset:{action}@1", auto_reset=True)
    with bad.runner:
        error = bad.failure()
        assert isinstance(error, RecoverableRuntimeError)
        assert error.action is RecoveryAction[f"{action.upper()}_RESET"]
        assert bad.failure() is error


@with_faults("lost@2", auto_reset=True)
def test_lost_device_is_an_unknown_error_and_is_not_reset(bad: Bad) -> None:
    bad.ask()
    error = bad.failure()
    assert isinstance(error, UnknownRuntimeError)
    assert bad.failure() is error


@with_faults("oom@1", auto_reset=True)
def test_executable_is_loaded_again_after_an_application_error(bad: Bad) -> None:
    assert isinstance(bad.failure(), ApplicationRuntimeError)
    assert bad.ask().tolist() == (2 * X).tolist()


def test_program_that_cannot_run_on_its_data_fails_that_request(tmp_path: Path) -> None:
    bad = Bad(tmp_path, "", failing((2,)), auto_reset=True)
    with bad.runner as runner:
        with pytest.raises(ApplicationRuntimeError, match="sub-graph 'model'"):
            runner.execute({"x": np.ones(2, np.float32)})
        assert runner.execute({"x": np.zeros(2, np.float32)})["y"].tolist() == [7, 7]


def test_hanging_device_is_aborted_after_the_host_sync_timeout(tmp_path: Path) -> None:
    bad = Bad(tmp_path, "hang@1")
    with bad.runner as runner, bad.bench.passing_time():
        future = runner.execute_async({"x": X})
        bad.bench.clock.advance(300)
        bad.bench.pass_timeout(300)
        assert isinstance(future.exception(PATIENCE_S), UnknownRuntimeError)


def test_requests_are_sent_to_the_copies_that_still_run(tmp_path: Path) -> None:
    bad = Bad(tmp_path, "lost@1", replication_factor=2)
    with bad.runner as runner:
        outcomes = [runner.execute_async({"x": X}).exception(PATIENCE_S) for _ in range(6)]

        assert len([error for error in outcomes if error is not None]) == 1
        assert runner.error is None


def test_merged_batch_fails_for_all_its_requests_and_the_next_runs(tmp_path: Path) -> None:
    bad = Bad(tmp_path, "reset@1", auto_reset=True, batching_dim=0)
    with bad.runner as runner:
        first = runner.execute_async({"x": X[:1]})
        second = runner.execute_async({"x": X[:1]})
        error = first.exception(PATIENCE_S)
        assert isinstance(error, RecoverableRuntimeError)
        assert second.exception(PATIENCE_S) is error
        late = runner.execute_async({"x": X[:1]})
        bad.bench.pass_timeout()
        assert late.result(PATIENCE_S)["y"].tolist() == (2 * X[:1]).tolist()
        assert_running(runner)
    assert_nothing_is_left(bad.bench)


def test_bad_outputs_are_returned_unchanged(tmp_path: Path) -> None:
    bad = Bad(tmp_path, "bad@1")
    with bad.runner:
        assert np.isnan(bad.ask()).all()
        assert bad.ask().tolist() == (2 * X).tolist()


def assert_running(runner: ModelRunner) -> None:
    assert runner.error is None
    assert runner.execute({"x": X})["y"].tolist() == (2 * X).tolist()


class _OtherProgram:
    name, load_s, reloads_when_evicted = "other", 0.0, True

    def on_loaded(self) -> None:
        """Nothing to load."""
