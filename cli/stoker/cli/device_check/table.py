"""The tables of a check and of a fit."""

from collections import Counter
from dataclasses import asdict

from stoker.cli.device_check.fit import Fit
from stoker.cli.device_check.report import Report
from stoker.cli.output import print_line, print_table


def print_report(report: Report) -> None:
    """Prints the machine, the cases that are not right, the counts, and the times."""
    label = "SIMULATED: no device was used" if report.simulated else "measured on the device"
    print_line(f"{report.device} {report.card}, runtime {report.runtime} ({label})")
    print_line(", ".join(f"{name} {value}" for name, value in report.machine.items()))
    print_line()
    others = [each for each in report.conformance if each.result != "right"]
    if others:
        columns = ("case", "precision", "batch", "result", "error", "allowed", "reason")
        rows = [
            [each.name, each.precision, str(each.batch), each.result, _number(each.error), _number(each.tolerance), each.reason]
            for each in others
        ]
        print_table(columns, rows, numeric=frozenset({"batch", "error", "allowed"}))
    counts = Counter(each.result for each in report.conformance)
    print_line(f"{len(report.conformance)} cases beside ONNX Runtime: {', '.join(f'{count} {name}' for name, count in counts.items())}")
    print_line()
    headings = ("kernel", "kind", "batch", "median us", "quartiles us", "modelled us", "model error", "note")
    rows = []
    for each in report.timing:
        quartiles = "" if each.low_s is None or each.high_s is None else f"{1e6 * each.low_s:,.1f}-{1e6 * each.high_s:,.1f}"
        error = "" if each.median_s is None or each.modelled_s is None else f"{each.modelled_s / each.median_s - 1:+.1%}"
        rows.append([each.name, each.kind, str(each.batch), _us(each.median_s), quartiles, _us(each.modelled_s), error, each.reason])
    print_table(headings, rows, numeric=frozenset(headings[2:7]))
    print_line("A time is that of one call with its copies from and to the host; 'modelled' is the cost model fitted to published tables.")


def print_fit(fit: Fit, fitted: object, source: str) -> None:
    """Prints the constants before and after, and the error of each case."""
    before = asdict(fitted)  # type: ignore[call-overload] # a dataclass, which no annotation can say
    rows = [[name, f"{before[name]:.4g}", f"{value:.4g}", f"{value / before[name] - 1:+.1%}"] for name, value in fit.constants.items()]
    print_table(("constant", "published fit", "this fit", "change"), rows, numeric=frozenset({"published fit", "this fit", "change"}))
    if fit.not_identifiable:
        print_line(f"not identifiable by these cases, and kept: {', '.join(fit.not_identifiable)}")
    if fit.host_overhead_s is not None:
        print_line(f"overhead of this host per call, not a constant of the device: {1e6 * fit.host_overhead_s:.1f} us")
    print_line()
    columns = ("case", "measured us", "error before", "error after")
    rows = [[each.name, _us(each.measured_s), f"{each.before:+.1%}", f"{each.after:+.1%}"] for each in fit.cases]
    print_table(columns, rows, numeric=frozenset(columns[1:]))
    for name, reason in fit.left_out.items():
        print_line(f"not used: {name}: {reason}")
    print_line(f"{source}: median error {fit.median_error:.1%}, largest {fit.worst_error:.1%} over {len(fit.cases)} cases")


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * seconds:,.1f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
