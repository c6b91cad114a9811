"""`stoker device-check`: conformance and timing of a device, for owners of a card; and the fit of the cost model's constants to it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.options import AsJson
from stoker.cli.output import CommandFailed, ExitCode, print_json, print_line

if TYPE_CHECKING:
    from stoker.cli.device_check.report import Report

Device = Annotated[str, typer.Option("--device", help="Kind of device: gcu or ipu.")]
Card = Annotated[
    str, typer.Option("--card", metavar="NAME", help="The device whose times are modelled. [default: i20, C600]", show_default=False)
]
RuntimeName = Annotated[
    str, typer.Option("--runtime", help="vendor: the real device, by its vendor's package. simulated: Stoker's model of it.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A few cases and calls: about a minute.")]
Networks = Annotated[
    list[Path] | None, typer.Option("--model", metavar="FILE", help="Also time this ONNX network with static shapes; may be repeated.")
]
Constants = Annotated[str, typer.Option("--cost-constants", metavar="FILE", help="Constants of the simulated device.", show_default=False)]
FitReport = Annotated[
    Path | None,
    typer.Option(
        "--fit",
        metavar="REPORT",
        help="Instead, fit the constants of the cost model to a report of --report or --json.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="With --fit: the file of constants to write.", show_default=False)
]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Also write the report as JSON to FILE.", show_default=False)
]

_EXTRA = "this command needs the package {name}: install stoker with its extra, 'stoker[compile]'"


def device_check(
    device: Device = "gcu",
    runtime: RuntimeName = "vendor",
    card: Card = "",
    quick: Quick = False,
    model: Networks = None,
    cost_constants: Constants = "",
    report: ReportFile = None,
    fit: FitReport = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Check a device: compile small models, compare them with ONNX Runtime, and time them. Exit code 1: a result is wrong.

    --fit makes the times of such a report the constants of the cost model: `stoker compile --cost_constants FILE`.
    """
    try:
        if fit is not None:
            _fit(fit, output, as_json=as_json)
            return
        if output is not None:
            raise CommandFailed("--output: only with --fit", ExitCode.USAGE)
        if report is not None and not report.parent.is_dir():  # before the check, which takes long
            raise CommandFailed(f"--report: there is no folder '{report.parent}'", ExitCode.USAGE)
        result = _checked(device, runtime, card, quick, model or [], cost_constants)
    except ModuleNotFoundError as error:
        raise CommandFailed(_EXTRA.format(name=error.name)) from error
    if report is not None:
        _write(report, json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n", "--report")
    if as_json:
        print_json(result.to_dict())
    else:
        from stoker.cli.device_check.table import print_report

        print_report(result)
        if report is not None:
            print_line(f"wrote {report}")
    if not result.is_right:
        raise typer.Exit(ExitCode.FAILED)


def _checked(device: str, runtime: str, card: str, quick: bool, networks: list[Path], constants: str) -> "Report":
    from stoker.backends.api.errors import ModelLoadError
    from stoker.backends.devices.runtime import RuntimeKind
    from stoker.cli.device_check.conformance_cases import conformance_cases
    from stoker.cli.device_check.device import CARDS, PRECISIONS, CheckedDevice
    from stoker.cli.device_check.run import CALLS, QUICK_CALLS, SIMULATED_CALLS, Check, run_check
    from stoker.cli.device_check.timing_cases import network_case, timing_cases
    from stoker.cli.plan.progress import Progress
    from stoker.compiler.convert.source import read_onnx
    from stoker.compiler.errors import CompileError

    kinds = {each.value: each for each in (RuntimeKind.VENDOR, RuntimeKind.SIMULATED)}
    if device not in CARDS:
        raise CommandFailed(f"--device: expected {' or '.join(CARDS)}, got '{device[:64]}'", ExitCode.USAGE)
    if runtime not in kinds:
        raise CommandFailed(f"--runtime: expected {' or '.join(kinds)}, got '{runtime[:64]}'", ExitCode.USAGE)
    if constants and runtime != RuntimeKind.SIMULATED.value:
        raise CommandFailed("--cost-constants: are those of the simulated device; give --runtime simulated", ExitCode.USAGE)
    try:
        checked = CheckedDevice(device, card or CARDS[device], kinds[runtime], constants)
        cases = [network_case(path, read_onnx(str(path))) for path in networks]
    except ValueError as error:
        raise CommandFailed(str(error), ExitCode.USAGE) from error
    except (ModelLoadError, CompileError) as error:
        raise CommandFailed(str(error)) from error
    compared, timed = conformance_cases(PRECISIONS), [*timing_cases(PRECISIONS), *cases]
    if quick:
        compared, timed = ([case for case in each if case.is_quick] for each in (compared, timed))
    calls = SIMULATED_CALLS if checked.is_simulated else QUICK_CALLS if quick else CALLS
    with Progress(len(compared) + len(timed)) as progress:
        return run_check(checked, Check(compared=compared, timed=timed, calls=calls, on_case=lambda case: progress.step(case.name)))


def _fit(path: Path, output: Path | None, *, as_json: bool) -> None:
    from stoker.cli.device_check.constants import fitted_constants
    from stoker.cli.device_check.fit import ITERATIONS, FitError, fit_report
    from stoker.cli.device_check.report import ReportError, read_report
    from stoker.cli.device_check.table import print_fit
    from stoker.cli.plan.progress import Progress

    try:
        report = read_report(path)
        with Progress(ITERATIONS) as progress:
            found = fit_report(report, fitted_constants(report.device), lambda error: progress.step(f"error {error:.1%}"))
    except (ReportError, FitError) as error:
        raise CommandFailed(f"--fit: {error}") from error
    except ValueError as error:
        raise CommandFailed(f"--fit: {path}: {error}") from error
    document = found.document(report)
    if output is not None:
        _write(output, json.dumps(document, indent=2, allow_nan=False) + "\n", "--output")
    if as_json:
        print_json({**document, "cases": [{"name": each.name, "before": each.before, "after": each.after} for each in found.cases]})
        return
    print_fit(found, fitted_constants(report.device), document["source"])
    if output is not None:
        print_line(f"wrote {output}; stoker compile --target {report.device} --cost_constants {output} uses it")


def _write(path: Path, text: str, flag: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{flag}: {path} cannot be written: {error.strerror}") from error
