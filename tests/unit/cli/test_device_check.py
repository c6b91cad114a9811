"""`stoker device-check` on simulated devices: comparison, times on the virtual clock, and the fit of constants to them."""

import dataclasses
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from stoker.backends.api.backend import Instance
from stoker.backends.api.errors import BackendFailed
from stoker.backends.devices.runtime import RuntimeKind
from stoker.backends.testing.fake_clock import FakeClock
from stoker.cli.device_check.case import Case, model_of, step
from stoker.cli.device_check.conformance_cases import conformance_cases
from stoker.cli.device_check.constants import fitted_constants
from stoker.cli.device_check.device import CARDS, PRECISIONS, CaseModel, CheckedDevice
from stoker.cli.device_check.fit import FitError, fit_report
from stoker.cli.device_check.report import Report, ReportError, read_report
from stoker.cli.device_check.run import Check, compare, run_check
from stoker.cli.device_check.timing_cases import network_case, timing_cases

SHAPE = (2, 3)
RELU = Case(name="Relu", kind="operator", batch=2, build=partial(model_of, [step("Relu", "x", "y")], {"x": SHAPE}, SHAPE))
NONZERO = Case(
    name="NonZero",
    kind="operator",
    batch=2,
    build=partial(model_of, [step("NonZero", "x", "y")], {"x": SHAPE}, (2, 6), dtypes={"y": TensorProto.INT64}),
)
#: Different constants, and cases that distinguish them and are quick to plan.
ALTERED: Mapping[str, Mapping[str, float]] = {
    "gcu": {
        "launch_s": 15e-6,
        "block_bytes": 11040.0,
        "hbm_efficiency": 0.8,
        "run_overhead_s": 90e-6,
    },
    "ipu": {"step_cycles": 800, "block_cycles": 30, "vector_cycles": 6, "copy_cycles": 3, "erf_passes": 10},
}
FITTED_CASES = (
    "launch fp32",
    "launch x16 fp32",
    "matmul of 512 rows fp32",
    "conv 28x28x128 fp32",
    "Tanh 256 KiB fp32",
    "Erf 256 KiB fp32",
    "Transpose 1 MiB fp32",
    "Softmax 1 MiB fp32",
    "matmul 256 fp32",
)


def simulated(device: str, constants: str = "") -> CheckedDevice:
    return CheckedDevice(device, CARDS[device], RuntimeKind.SIMULATED, constants)


def constants_file(folder: Path, device: str) -> str:
    path = folder / "altered.json"
    path.write_text(json.dumps({"format": 1, "device": device, "source": "altered", "constants": ALTERED[device]}))
    return str(path)


class Offset(Instance):
    """Adds to the outputs of another instance, or fails."""

    def __init__(self, inner: Instance, offset: float) -> None:
        self._inner, self._offset = inner, offset

    def execute(self, inputs: Any, output_names: Any) -> Any:
        if self._offset < 0:
            raise BackendFailed("the card failed")
        return {name: np.add(array, np.float32(self._offset)) for name, array in self._inner.execute(inputs, output_names).items()}

    def close(self) -> None:
        self._inner.close()


def faulty(device: CheckedDevice, offset: float) -> CheckedDevice:
    backend = device._computing
    load = backend.load
    backend.load = lambda request: Offset(load(request), offset)  # type: ignore[method-assign]
    return device


def test_names_of_cases_are_unique():
    for cases in (conformance_cases(PRECISIONS), timing_cases(PRECISIONS)):
        names = [case.name for case in cases]
        assert len(set(names)) == len(names)


def test_quick_check_has_a_few_cases_of_every_kind():
    quick = [case for case in timing_cases(PRECISIONS) if case.is_quick]
    assert {case.kind for case in quick} == {case.kind for case in timing_cases(PRECISIONS)}
    assert len(quick) < 20


@pytest.mark.parametrize("device", CARDS)
def test_right_result_is_reported_with_its_error(device: str):
    found = compare(simulated(device), RELU)
    assert (found.result, found.tolerance) == ("right", 1e-3)
    assert found.error is not None
    assert found.error <= 1e-3


def test_result_beyond_the_tolerance_is_wrong():
    found = compare(faulty(simulated("gcu"), 0.01), RELU)
    assert (found.result, found.reason) == ("wrong", "output 'y'")
    assert found.error == pytest.approx(0.01, rel=0.2)


def test_error_within_the_tolerance_is_right():
    assert compare(faulty(simulated("gcu"), 5e-4), RELU).result == "right"


def test_result_that_is_not_a_number_is_wrong():
    assert compare(faulty(simulated("gcu"), float("nan")), RELU).result == "wrong"


def test_run_that_fails_is_reported_with_its_error():
    found = compare(faulty(simulated("gcu"), -1), RELU)
    assert (found.result, found.reason) == ("failed", "the card failed")


def test_case_that_the_compiler_does_not_take_is_rejected_with_the_reason():
    found = compare(simulated("gcu"), NONZERO)
    assert found.result == "rejected"
    assert found.reason


def test_report_is_right_only_without_wrong_and_failed_cases():
    device = simulated("gcu")
    right = run_check(device, Check(compared=[RELU, NONZERO], timed=[], calls=3))
    assert right.is_right
    assert not dataclasses.replace(right, conformance=(compare(faulty(device, 1), RELU),)).is_right


@pytest.mark.parametrize("device", CARDS)
def test_time_of_a_simulated_device_is_that_of_its_virtual_clock(device: str, tmp_path: Path):
    cases = [case for case in timing_cases(PRECISIONS) if case.name == "launch fp32"]
    report = run_check(simulated(device), Check(compared=[], timed=cases, calls=3))
    [timing] = report.timing
    assert report.simulated
    assert timing.runs == 3
    assert timing.median_s == pytest.approx(timing.modelled_s, rel=1e-3)
    altered = run_check(simulated(device, constants_file(tmp_path, device)), Check(compared=[], timed=cases, calls=3))
    assert altered.timing[0].median_s != pytest.approx(timing.modelled_s, rel=1e-3)
    assert altered.timing[0].modelled_s == timing.modelled_s


def test_report_survives_its_file(tmp_path: Path):
    report = run_check(simulated("gcu"), Check(compared=[RELU], timed=[timing_cases(PRECISIONS)[0]], calls=3))
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report.to_dict()))
    assert read_report(path) == report


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "expected a report of 'stoker device-check --json'"),
        ('{"format": 1}', "incomplete or of another version"),
        ('{"format": 1, "conformance": [], "timing": [{"x": 1}]}', "incomplete or of another version"),
    ],
)
def test_file_that_is_no_report_is_rejected(tmp_path: Path, text: str, reason: str):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=reason):
        read_report(path)


def test_unknown_card_is_rejected_with_the_known_ones():
    with pytest.raises(ValueError, match="there is no card 'i99' of device gcu; there are i20"):
        CheckedDevice("gcu", "i99", RuntimeKind.SIMULATED, "")


def test_network_needs_static_shapes(tmp_path: Path):
    with pytest.raises(ValueError, match="expected static shapes with one batch"):
        network_case(tmp_path / "m.onnx", model_of([step("Relu", "x", "y")], {"x": (0, 3)}, (0, 3)))


def empty_report() -> Report:
    return Report(device="gcu", card="i20", simulated=True, runtime="simulated", stoker="0", date="2026-01-01", machine={})


def test_report_with_too_few_times_cannot_be_fitted():
    with pytest.raises(FitError, match="0 timed cases that a fit can use, which is less than 4"):
        fit_report(empty_report(), fitted_constants("gcu"))


@pytest.mark.slow
@pytest.mark.parametrize("device", CARDS)
def test_fit_to_a_device_with_other_constants_recovers_its_times(device: str, tmp_path: Path):
    known = {case.name: case for case in timing_cases(PRECISIONS)}
    cases = [known[name] for name in FITTED_CASES]
    report = run_check(simulated(device, constants_file(tmp_path, device)), Check(compared=[], timed=cases, calls=3))
    fit = fit_report(report, fitted_constants(device))
    assert max(abs(case.before) for case in fit.cases) > 0.2
    assert fit.worst_error < 0.03
    # Times of cases that the fit has not seen are recovered too.
    path = tmp_path / "constants.json"
    path.write_text(json.dumps(fit.document(report)))
    unseen, model = known["LayerNormalization 1 MiB fp32"], CaseModel(device, CARDS[device])
    source = model.source(unseen)
    assert model.modelled_s(unseen, source, str(path)) == pytest.approx(model.modelled_s(unseen, source, ALTERED[device]), rel=0.05)
    assert fit.document(report)["source"].startswith(f"simulated on {CARDS[device]} (simulated, Stoker ")


@pytest.mark.parametrize("device", CARDS)
def test_compiled_program_has_the_times_and_the_source_of_the_constants_file(device: str, tmp_path: Path):
    model = CaseModel(device, CARDS[device])
    case = timing_cases(PRECISIONS)[0]
    source, latencies = model.source(case), []
    for constants in ("", constants_file(tmp_path, device)):
        summary = model.target.export([source], model.options(case, constants), tmp_path / "executable").summary
        assert summary["cost_constants"] == ("altered" if constants else "fitted to published tables")
        latencies.append(summary["modelled_latency_ms"])
    assert latencies[0] != latencies[1]


def test_estimate_with_measured_constants_has_no_error_of_the_published_fit(tmp_path: Path):
    model = CaseModel("gcu", "i20")
    case = timing_cases(PRECISIONS)[0]
    estimate = model.target.sized_model(model.source(case), model.options(case, constants_file(tmp_path, "gcu"))).estimate()
    assert (estimate.time_factors, estimate.error.source, estimate.error.rows) == (None, "altered", 0)


def test_comparison_that_the_time_limit_leaves_out_is_not_right(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stoker.cli.device_check.run.CHECK_LIMIT_S", 0.0)
    report = run_check(simulated("gcu"), Check(compared=[RELU], timed=[], calls=3), clock=FakeClock())
    assert [each.result for each in report.conformance] == ["left out"]
    assert not report.is_right


def test_folder_of_the_report_is_checked_before_the_device(stoker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def unexpected(*_: object, **__: object) -> None:
        raise AssertionError("the check began")

    monkeypatch.setattr("stoker.cli.device_check.command._checked", unexpected)
    ran = stoker("device-check", "--device", "gcu", "--runtime", "simulated", "--report", str(tmp_path / "none" / "r.json"))
    assert ran.code == 2
    assert f"--report: there is no folder '{tmp_path / 'none'}'" in ran.err
