"""Runs the cases of a check: compares results with ONNX Runtime, and times calls. Times and counts are bounded."""

import datetime
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Final

import numpy as np
import onnxruntime

from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.api.errors import ServingError
from stoker.cli.device_check.case import TOLERANCES, Array, Case
from stoker.cli.device_check.device import CaseFailed, CaseRejected, CheckedDevice
from stoker.cli.device_check.report import FAILED, LEFT_OUT, REJECTED, RIGHT, WRONG, Comparison, Report, Timing
from stoker.compiler.errors import CompileError

WARM_UP_CALLS: Final = 2
#: Timed calls of a case; a simulated device takes the same time at every call.
CALLS, QUICK_CALLS, SIMULATED_CALLS = 30, 10, 3
#: Longest time that the calls of one case take, seconds of the machine. At least three calls are timed.
CASE_LIMIT_S: Final = 10.0
LEAST_CALLS: Final = 3
#: Longest time of a whole check, seconds of the machine; cases that are left are reported without a result.
CHECK_LIMIT_S: Final = 1800.0
_PACKAGES: Final = ("numpy", "onnx", "onnxruntime")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What to run.

    Attributes:
        compared, timed: The cases.
        calls: Timed calls of each case.
        on_case: Called with each case before it runs.
    """

    compared: Sequence[Case]
    timed: Sequence[Case]
    calls: int
    on_case: Callable[[Case], None] = lambda case: None


def run_check(device: CheckedDevice, check: Check, *, clock: Clock | None = None) -> Report:
    """Runs all cases; `clock` bounds the time."""
    clock = clock or SystemClock()
    end_ns = clock.now_ns() + round(CHECK_LIMIT_S * 1e9)
    compared, timed = [], []
    for case in check.compared:
        check.on_case(case)
        compared.append(compare(device, case) if clock.now_ns() < end_ns else _left_out(case))
    for case in check.timed:
        check.on_case(case)
        is_late = clock.now_ns() >= end_ns
        timed.append(_timing(case, reason=_late()) if is_late else time_case(device, case, check.calls, clock))
    moment = datetime.datetime.fromtimestamp(clock.wall_ms() / 1e3, datetime.UTC)
    return Report(
        device=device.model.target.name,
        card=device.model.card.name,
        simulated=device.is_simulated,
        runtime=device.runtime,
        stoker=installed_version("stoker"),
        date=moment.isoformat(timespec="seconds"),
        machine=machine(),
        conformance=tuple(compared),
        timing=tuple(timed),
    )


def machine() -> dict[str, str]:
    """Returns the system, the processor and the versions that results depend on."""
    facts = {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.processor() or platform.machine(),
        "cores": str(os.cpu_count() or 0),
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            facts[name] = installed_version(name)
        except PackageNotFoundError:
            facts[name] = "not installed"
    return facts


def compare(device: CheckedDevice, case: Case) -> Comparison:
    """Runs `case` once, and compares its outputs with those of ONNX Runtime."""
    model = case.build()
    inputs = dict(case.inputs(model))
    names = [output.name for output in model.graph.output]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    try:
        with device.loaded(case, model, is_timed=False) as loaded:
            found = loaded.instance.execute(inputs, names)
    except CaseRejected as error:
        return _comparison(case, REJECTED, reason=str(error))
    except CaseFailed as error:
        return _comparison(case, FAILED, reason=str(error))
    except ServingError as error:
        return _comparison(case, FAILED, reason=error.message)
    tolerance = TOLERANCES[case.precision]
    errors = {name: _difference(np.asarray(found[name]), expected[name]) for name in names}
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] <= tolerance:
        return _comparison(case, RIGHT, error=errors[worst], tolerance=tolerance)
    return _comparison(case, WRONG, error=errors[worst], tolerance=tolerance, reason=f"output '{worst}'")


def time_case(device: CheckedDevice, case: Case, calls: int, clock: Clock) -> Timing:
    """Times calls of `case`; `clock` bounds the time."""
    model = case.build()
    inputs = dict(case.inputs(model))
    names = [output.name for output in model.graph.output]
    try:
        modelled_s: float | None = device.model.modelled_s(case, device.model.source(case))
    except CompileError:
        modelled_s = None
    times: list[float] = []
    try:
        with device.loaded(case, model, is_timed=True) as loaded:
            end_ns = clock.now_ns() + round(CASE_LIMIT_S * 1e9)
            for call in range(WARM_UP_CALLS + calls):
                begin_ns = loaded.clock.now_ns()
                loaded.instance.execute(inputs, names)
                if call >= WARM_UP_CALLS:
                    times.append((loaded.clock.now_ns() - begin_ns) / 1e9)
                if len(times) >= LEAST_CALLS and clock.now_ns() > end_ns:
                    break
    except CaseRejected as error:
        return _timing(case, modelled_s=modelled_s, reason=f"{REJECTED}: {error}")
    except CaseFailed as error:
        return _timing(case, modelled_s=modelled_s, reason=f"{FAILED}: {error}")
    except ServingError as error:
        return _timing(case, modelled_s=modelled_s, reason=f"{FAILED}: {error.message}")
    low, _, high = statistics.quantiles(times, n=4)
    return _timing(case, runs=len(times), median_s=statistics.median(times), low_s=low, high_s=high, modelled_s=modelled_s)


def _difference(found: Array, expected: Array) -> float:
    """Returns the largest difference, relative to the largest expected magnitude or to 1; infinite if shape, type or a NaN differs."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    left, right = found.astype(np.float64), expected.astype(np.float64)
    if not left.size:
        return 0.0
    if not np.isfinite(left).all():
        return float("inf")
    return float(np.abs(left - right).max() / max(1.0, np.abs(right).max()))


def _late() -> str:
    return f"not run: the check takes at most {CHECK_LIMIT_S:g} s"


def _left_out(case: Case) -> Comparison:
    return _comparison(case, LEFT_OUT, reason=_late())


def _comparison(case: Case, result: str, *, error: float | None = None, tolerance: float | None = None, reason: str = "") -> Comparison:
    return Comparison(
        name=case.name,
        kind=case.kind,
        precision=case.precision,
        batch=case.batch,
        result=result,
        error=error,
        tolerance=tolerance,
        reason=reason,
    )


def _timing(
    case: Case,
    *,
    runs: int = 0,
    median_s: float | None = None,
    low_s: float | None = None,
    high_s: float | None = None,
    modelled_s: float | None = None,
    reason: str = "",
) -> Timing:
    return Timing(
        name=case.name,
        kind=case.kind,
        precision=case.precision,
        batch=case.batch,
        runs=runs,
        median_s=median_s,
        low_s=low_s,
        high_s=high_s,
        modelled_s=modelled_s,
        reason=reason,
    )
