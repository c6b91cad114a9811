"""`Report`: the results of a check, as a JSON file and back."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

FORMAT: Final = 1
MAX_BYTES: Final = 16 << 20
RIGHT, WRONG, REJECTED, FAILED, LEFT_OUT = "right", "wrong", "rejected", "failed", "left out"


class ReportError(ValueError):
    """A file that is no report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One case beside ONNX Runtime.

    Attributes:
        name, kind, precision, batch: As in `Case`.
        result: `right`, `wrong`, `rejected` (the compiler does not take it), `failed` (the device does not run it) or `left out` (the check
            was at its time limit).
        error: Largest difference, relative to the largest expected magnitude, or to 1 if that is smaller; None if nothing ran.
        tolerance: The largest allowed.
        reason: Why it was rejected or failed, or which output is wrong.
    """

    name: str
    kind: str
    precision: str
    batch: int
    result: str
    error: float | None = None
    tolerance: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The time of one call of a case, including the copies from and to the host.

    Attributes:
        name, kind, precision, batch: As in `Case`.
        runs: Timed calls; 0 if it was rejected, failed or left out.
        median_s, low_s, high_s: Median, lowest and highest quartile in seconds; None without runs.
        modelled_s: What the cost model with fitted constants says; None if it cannot say it.
        reason: Why there are no runs.
    """

    name: str
    kind: str
    precision: str
    batch: int
    runs: int = 0
    median_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    modelled_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of one check.

    Attributes:
        device, card: What was checked, such as `gcu`, `i20`.
        simulated: Whether no real device was used.
        runtime: The runtime with its version.
        stoker: Version of Stoker.
        date: Day and time in UTC, ISO 8601.
        machine: System, processor, cores, and versions of the packages that matter.
        conformance, timing: The cases in order.
    """

    device: str
    card: str
    simulated: bool
    runtime: str
    stoker: str
    date: str
    machine: Mapping[str, str]
    conformance: tuple[Comparison, ...] = ()
    timing: tuple[Timing, ...] = field(default=())

    @property
    def is_right(self) -> bool:
        """Whether every case that the compiler took ran and gave the right result, and no comparison was left out."""
        failed = any(each.reason.startswith(f"{FAILED}: ") for each in self.timing)
        return not failed and all(each.result in (RIGHT, REJECTED) for each in self.conformance)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"format": FORMAT, **asdict(self)}


def read_report(path: Path) -> Report:
    """Reads a report that `--json` wrote.

    Raises:
        ReportError: the file cannot be read, or is no report.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ReportError(f"{path} has more than the {MAX_BYTES} bytes that are read")
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ReportError(f"{path}: {error}") from error
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise ReportError(f"{path}: expected a report of 'stoker device-check --json', with \"format\": {FORMAT}")
    try:
        compared = tuple(Comparison(**each) for each in document.pop("conformance"))
        timed = tuple(Timing(**each) for each in document.pop("timing"))
        report = Report(**document, conformance=compared, timing=timed)
    except (KeyError, TypeError) as error:
        raise ReportError(f"{path}: the report is incomplete or of another version: {error}") from error
    for each in report.timing:
        if each.median_s is not None and not (isinstance(each.median_s, int | float) and each.median_s > 0):
            raise ReportError(f"{path}: the time of '{each.name}' is {each.median_s}; expected a positive number of seconds")
    return report
