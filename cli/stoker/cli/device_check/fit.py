"""Fits the constants of a device's cost model to the measured times of a report.

The fit minimises the squares of log(modelled / measured) over all timed cases except host copies and whole networks, by the
Levenberg-Marquardt method in the logarithms of the constants. So constants stay positive, and a long case counts as much as a short one.
A constant that changes no case by more than `LEAST_EFFECT` is not identifiable, and keeps its fitted value.

If the cost model has no constant for the host's overhead of a call (that of the GCU has `run_overhead_s`), the fit has one more parameter
for it, which is reported and not written: it belongs to this host's Python, not to the device.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stoker.cli.device_check.device import PRECISIONS, CaseModel
from stoker.cli.device_check.report import Report, Timing
from stoker.cli.device_check.timing_cases import COPY, NETWORK, timing_cases
from stoker.compiler.errors import CompileError

#: Largest change of a case's logarithm, per change of a constant's, that counts as none.
LEAST_EFFECT: Final = 0.01
LEAST_CASES: Final = 4
_STEP: Final = 0.02  # of a derivative, in logarithms: above the rounding of cycles
_LONGEST_STEP: Final = 0.7  # of one iteration: a constant at most doubles or halves
#: Most iterations of a fit.
ITERATIONS: Final = 40
_CONVERGED: Final = 0.01  # share of the loss that an iteration must take away
_GOOD_ENOUGH: Final = 1e-4  # root mean square of the logarithms
_LARGEST_DAMPING: Final = 1e3
_HOST_OVERHEAD: Final = "host_overhead_s"
_FIRST_OVERHEAD_S: Final = 1e-6
#: Constants that are no times: choices of the planner, and memory.
_NO_TIMES: Final = ("_tolerance", "_bytes", "_share")

Vector = npt.NDArray[np.float64]


class FitError(ValueError):
    """A report that no constants can be fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCase:
    """One case of the fit.

    Attributes:
        name: Its name.
        measured_s: As reported.
        before_s, after_s: Modelled, by the constants before and after the fit.
    """

    name: str
    measured_s: float
    before_s: float
    after_s: float

    @property
    def before(self) -> float:
        """Modelled over measured, less 1, before the fit."""
        return self.before_s / self.measured_s - 1

    @property
    def after(self) -> float:
        """Likewise after the fit."""
        return self.after_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The result.

    Attributes:
        constants: The constants that were fitted, by name.
        not_identifiable: Those that no case depends on.
        host_overhead_s: Seconds of a call beyond the model; None if the model has a constant for it.
        cases: The cases.
        left_out: Names of timed cases that the fit does not use, with reasons.
    """

    constants: Mapping[str, float]
    not_identifiable: Sequence[str]
    host_overhead_s: float | None
    cases: Sequence[FittedCase]
    left_out: Mapping[str, str]

    def document(self, report: Report) -> dict[str, Any]:
        """Returns the content of the file that the compile option `cost_constants` takes."""
        kind = "simulated" if report.simulated else "measured"
        return {
            "format": 1,
            "device": report.device,
            "source": f"{kind} on {report.card} ({report.runtime}) by device-check {report.stoker}, {report.date[:10]}",
            "simulated": report.simulated,
            "constants": dict(self.constants),
            "not_identifiable": list(self.not_identifiable),
            "host_overhead_s": self.host_overhead_s,
            "error": {"median": self.median_error, "worst": self.worst_error, "cases": len(self.cases)},
        }

    @property
    def median_error(self) -> float:
        """Median of |modelled / measured - 1| after the fit."""
        return statistics.median(abs(case.after) for case in self.cases)

    @property
    def worst_error(self) -> float:
        """The largest of them."""
        return max(abs(case.after) for case in self.cases)


def fit_report(report: Report, fitted: object, on_iteration: Callable[[float], None] = lambda error: None) -> Fit:
    """Fits the constants to `report`.

    Args:
        report: The report.
        fitted: The constants to begin with: a dataclass of floats.
        on_iteration: Called with the error (root mean square of the logarithms) of each iteration.

    Raises:
        FitError: the report has too few usable cases.
    """
    usable, left_out = _usable(report)
    model = CaseModel(report.device, report.card)
    known = {case.name: case for case in timing_cases(PRECISIONS)}
    start = {field.name: float(getattr(fitted, field.name)) for field in fields(fitted)}  # type: ignore[arg-type] # see `fitted`
    names = [name for name, value in start.items() if value > 0 and not name.endswith(_NO_TIMES)]
    has_overhead = not any("overhead" in name for name in names)
    sources = {}
    for timing in usable:
        try:
            sources[timing.name] = model.source(known[timing.name])
        except CompileError as error:
            left_out[timing.name] = str(error).partition("\n")[0]
    measured = {timing.name: timing.median_s for timing in usable if timing.name in sources and timing.median_s is not None}
    if len(measured) < LEAST_CASES:
        raise FitError(f"the report has {len(measured)} timed cases that a fit can use, which is less than {LEAST_CASES}")

    def modelled(parameters: Mapping[str, float]) -> Vector:
        overhead_s = parameters.get(_HOST_OVERHEAD, 0.0)
        constants = {name: value for name, value in parameters.items() if name != _HOST_OVERHEAD}
        return np.array([model.modelled_s(known[name], sources[name], constants) + overhead_s for name in measured])

    before = modelled({name: start[name] for name in names})
    first = {name: start[name] for name in names} | ({_HOST_OVERHEAD: _FIRST_OVERHEAD_S} if has_overhead else {})
    found, idle = _minimised(modelled, first, np.array(list(measured.values())), on_iteration)
    after = modelled(found)
    pairs = zip(measured.items(), before, after, strict=True)
    return Fit(
        constants={name: value for name, value in found.items() if name != _HOST_OVERHEAD and name not in idle},
        not_identifiable=[name for name in start if name not in names or name in idle],
        host_overhead_s=found.get(_HOST_OVERHEAD),
        cases=[FittedCase(name=name, measured_s=seconds, before_s=float(one), after_s=float(two)) for (name, seconds), one, two in pairs],
        left_out=left_out,
    )


def _usable(report: Report) -> tuple[list[Timing], dict[str, str]]:
    known = {case.name for case in timing_cases(PRECISIONS)}
    usable, left_out = [], {}
    for timing in report.timing:
        if timing.kind in (COPY, NETWORK):
            left_out[timing.name] = f"kind {timing.kind}"
        elif timing.median_s is None:
            left_out[timing.name] = timing.reason or "no time"
        elif timing.name not in known:
            left_out[timing.name] = "a case of another version of Stoker"
        else:
            usable.append(timing)
    return usable, left_out


def _minimised(
    modelled: Callable[[Mapping[str, float]], Vector],
    start: Mapping[str, float],
    measured: Vector,
    on_iteration: Callable[[float], None],
) -> tuple[dict[str, float], set[str]]:
    """Returns the parameters that minimise the error, and the names of those without effect."""
    names = list(start)

    def residuals(logs: Vector) -> Vector:
        return np.log(modelled(dict(zip(names, np.exp(logs).tolist(), strict=True))) / measured)

    def derivatives(logs: Vector, at: Vector) -> Vector:
        return np.stack([(residuals(logs + _STEP * unit) - at) / _STEP for unit in np.eye(len(names))], axis=1)

    best = np.log(np.array([start[name] for name in names]))
    error = residuals(best)
    loss, damping = float(error @ error), 1e-3
    slopes = derivatives(best, error)
    effects = np.abs(slopes).max(axis=0)
    for _ in range(ITERATIONS):
        on_iteration(math.sqrt(loss / len(measured)))
        active = np.abs(slopes).max(axis=0) >= LEAST_EFFECT
        used = slopes[:, active]
        normal = used.T @ used
        step = np.zeros(len(names))
        step[active] = -np.linalg.solve(normal + damping * (np.diag(np.diag(normal)) + 1e-6 * np.eye(len(normal))), used.T @ error)
        step = np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
        tried = residuals(best + step)
        if (new := float(tried @ tried)) < loss:
            is_converged = loss - new < _CONVERGED * loss or new < len(measured) * _GOOD_ENOUGH**2
            best, error, loss, damping = best + step, tried, new, max(damping / 10, 1e-9)
            if is_converged:
                break
            slopes = derivatives(best, error)
            effects = np.maximum(effects, np.abs(slopes).max(axis=0))
        else:
            damping *= 10
            if damping > _LARGEST_DAMPING:
                break
    idle = {name for name, effect in zip(names, effects, strict=True) if effect < LEAST_EFFECT and name != _HOST_OVERHEAD}
    values = dict(zip(names, np.exp(best).tolist(), strict=True))
    return {name: start[name] if name in idle else value for name, value in values.items()}, idle
