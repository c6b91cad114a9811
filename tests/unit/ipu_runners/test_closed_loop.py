"""Measuring a file in a closed loop, on a clock that only the simulated device moves."""

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from benchmarks.closed_loop import LoopSettings, measure, predicted
from stoker.backends.ipu.popef.schema import PopefError
from stoker.backends.ipu.runtime import RecoverableRuntimeError, SimulatedSystem
from stoker.backends.simulated.faults import FaultPlan
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing, VirtualClock
from tests.fakes.ipu_programs import Part, adding, compute, doubling, host_read, host_write, write_popef
from tests.fakes.ipu_sessions import ipu_threads


def virtual(**settings: object) -> LoopSettings:
    return LoopSettings(**{"pacing": Pacing.VIRTUAL, "warm_up_s": 0.0, "seconds": 0.1, **settings})  # type: ignore[arg-type]


def test_one_client_measures_the_devices_latency(tmp_path: Path) -> None:
    steps = [host_read(0.5), compute(1), host_write(0.5)]
    path = write_popef(tmp_path / "m.popef", doubling((1, 3), steps=steps))
    measured = measure(path, virtual(), system=SimulatedSystem(1, clock=VirtualClock()))

    assert measured.mean_s == measured.p50_s == measured.p99_s == pytest.approx(0.002, rel=1e-3)
    assert measured.requests in (49, 50)
    assert measured.rows_per_s == pytest.approx(500, rel=0.05)
    assert ipu_threads() == []


def test_more_clients_than_the_device_runs_wait_for_each_other(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", doubling((1, 3), steps=[compute(1)]))
    measured = measure(path, virtual(clients=3), system=SimulatedSystem(1, clock=VirtualClock()))

    assert measured.rows_per_s == pytest.approx(1000, rel=0.05)
    assert measured.p99_s >= measured.p50_s >= 0.001 * (1 - 1e-3)


def test_prediction_is_what_the_runtime_measures_on_a_virtual_clock(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", doubling((1, 3), steps=[host_read(0.5), compute(1), host_write(0.5)]))
    found, measured = predicted(path, 1), measure(path, virtual(), system=SimulatedSystem(1, clock=VirtualClock()))

    assert found.p99_s == pytest.approx(measured.p99_s, rel=1e-3)
    assert found.rows_per_s == pytest.approx(measured.rows_per_s, rel=0.03)


def test_predicted_clients_wait_for_one_period_each(tmp_path: Path) -> None:
    steps = [host_read(0.5), compute(1), host_write(0.5)]
    path = write_popef(tmp_path / "m.popef", doubling((1, 3), steps=steps), num_io_tiles=32)
    for clients, latency_s in ((1, 0.002), (2, 0.002), (5, 0.005)):
        found = predicted(path, clients)
        assert found.mean_s == pytest.approx(latency_s, rel=1e-3)
        assert found.p99_s == pytest.approx(latency_s, rel=1e-3)
        assert found.rows_per_s == pytest.approx(clients / latency_s, rel=1e-3)


def test_number_of_requests_ends_the_loop(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", doubling((1, 3), steps=[compute(1)]))
    measured = measure(path, virtual(requests=5, seconds=3600.0, clients=2), system=SimulatedSystem(1, clock=VirtualClock()))

    assert measured.requests == 5
    assert measured.seconds == pytest.approx(0.005, abs=0.0011)


def test_fused_file_runs_its_first_model(tmp_path: Path) -> None:
    index = Part(
        nodes=[helper.make_node("Neg", ["i"], ["o"])], inputs={"i": (2,)}, outputs={"o": (2,)}, dtypes={"i": np.int32, "o": np.int32}
    )
    path = write_popef(tmp_path / "m.popef", adding(), index)
    measured = measure(path, LoopSettings(requests=10, warm_up_s=0.0, pacing=Pacing.NONE, numerics=Numerics.REAL))

    assert measured.requests == 10
    assert measured.rows_per_request == 1
    assert measured.rows_per_s > 0


def test_failing_device_ends_the_loop_with_its_error(tmp_path: Path) -> None:
    path = write_popef(tmp_path / "m.popef", doubling((1, 3), steps=[compute(1)]))
    system = SimulatedSystem(1, clock=VirtualClock(), faults=[FaultPlan.parse("reset@4")])
    with pytest.raises(RecoverableRuntimeError, match="execution 4"):
        measure(path, virtual(clients=2), system=system)


def test_invalid_file_and_invalid_settings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.popef").write_bytes(b"nonsense")
    with pytest.raises(PopefError):
        measure(tmp_path / "m.popef")
    for wrong in ({"clients": 0}, {"seconds": 0.0}, {"warm_up_s": -1.0}, {"requests": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} {next(iter(wrong.values()))}"):
            virtual(**wrong)
