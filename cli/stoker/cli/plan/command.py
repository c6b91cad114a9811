"""`stoker plan`: which devices run an ONNX model, how fast, and how many of them carry a load."""

from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.options import AsJson
from stoker.cli.output import CommandFailed, ExitCode, print_json, print_line

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX file.", show_default=False)]
Devices = Annotated[str, typer.Option("--devices", metavar="NAME,...", help="Targets (ipu, gcu, cpu) or devices (C600, i20) to compare.")]
Precisions = Annotated[str, typer.Option("--precisions", metavar="NAME,...", help="Precisions to try.")]
Batches = Annotated[str, typer.Option("--batch-sizes", metavar="N,...", help="Batch sizes to try.")]
Shapes = Annotated[
    list[str] | None, typer.Option("--input-shape", metavar="NAME=d1,d2", help="Sizes of variable dimensions; may be repeated.")
]
Samples = Annotated[
    Path | None,
    typer.Option(
        "--samples",
        metavar="FILE",
        help="Compare outputs on these samples (.npz or pickle: an array for each input) instead of generated data.",
        show_default=False,
    ),
]
Constants = Annotated[
    Path | None,
    typer.Option(
        "--cost-constants",
        metavar="FILE",
        help="Constants of the cost model that device-check measured, for the devices of the file's target.",
        show_default=False,
    ),
]
_LOAD = "Load"
Rate = Annotated[
    float | None,
    typer.Option("--rate", metavar="N", rich_help_panel=_LOAD, help="Requests per second to carry (Poisson arrivals).", show_default=False),
]
Rows = Annotated[int, typer.Option("--rows", metavar="N", rich_help_panel=_LOAD, help="Rows of a request.")]
Arrivals = Annotated[
    Path | None,
    typer.Option(
        "--arrivals",
        metavar="FILE",
        rich_help_panel=_LOAD,
        help="Recorded arrivals to carry instead: a line 'SECONDS' or 'SECONDS,ROWS' for each request.",
        show_default=False,
    ),
]
Goal = Annotated[
    float | None,
    typer.Option("--p99-ms", metavar="MS", rich_help_panel=_LOAD, help="Goal for the 99th percentile of the latency.", show_default=False),
]
HostTime = Annotated[
    float,
    typer.Option("--host-ms", metavar="MS", rich_help_panel=_LOAD, help="Time for which a response takes the server's event loop."),
]
Overhead = Annotated[
    float,
    typer.Option(
        "--request-overhead-ms", metavar="MS", rich_help_panel=_LOAD, help="Time of a request outside of queue, device and event loop."
    ),
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write the plan as a page.", show_default=False)]


def plan(
    model: Model,
    devices: Devices = "ipu,gcu,cpu",
    precisions: Precisions = "fp32,fp16,fp8",
    batch_sizes: Batches = "1,4,16,32",
    input_shape: Shapes = None,
    samples: Samples = None,
    cost_constants: Constants = None,
    rate: Rate = None,
    rows: Rows = 1,
    arrivals: Arrivals = None,
    p99_ms: Goal = None,
    host_ms: HostTime = 0.0,
    request_overhead_ms: Overhead = 0.0,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Compare devices for an ONNX model: what ports, what fits, latency, throughput, accuracy, and how many devices carry a load."""
    try:
        from stoker.cli.plan.planner import make_plan
        from stoker.cli.plan.request import PlanRequest, check_batches, check_precisions, chosen_devices, load_of, with_constants
        from stoker.compiler.errors import CompileError, OptionError
        from stoker.compiler.option_fields import COUNTS, NAMES, SHAPES
        from stoker.compiler.output_files import check_folder
        from stoker.compiler.precision.samples import load_samples
    except ModuleNotFoundError as error:
        raise CommandFailed(f"planning needs the package {error.name}: install stoker with its extra, 'stoker[compile]'") from error
    try:
        targets, found = chosen_devices(NAMES.parse(devices))
        request = PlanRequest(
            model=model,
            targets=targets,
            devices=with_constants(found, cost_constants),
            precisions=check_precisions(NAMES.parse(precisions)),
            batches=check_batches(COUNTS.parse(batch_sizes)),
            shapes=SHAPES.parse(input_shape or []),
            samples=None if samples is None else load_samples(samples),
            load=load_of(rate, rows, arrivals, p99_ms, host_ms=host_ms, request_overhead_ms=request_overhead_ms),
        )
    except (ValueError, OptionError) as error:
        raise CommandFailed(str(error).replace("calibration data", "--samples"), ExitCode.USAGE) from error
    if html is not None:
        if html.is_dir():
            raise CommandFailed(f"--html: {html} is a folder, expected a file", ExitCode.USAGE)
        try:
            check_folder(html.parent)
        except CompileError as error:
            raise CommandFailed(f"--html: {error}", ExitCode.USAGE) from error
    try:
        result = make_plan(request)
    except CompileError as error:
        code = ExitCode.USAGE if isinstance(error, OptionError) else ExitCode.FAILED
        raise CommandFailed(str(error).removeprefix("input_model: ").replace("calibration data", "--samples"), code) from error
    if html is not None:
        from stoker.cli.plan.page import write_page

        try:
            write_page(result, html)
        except CompileError as error:
            raise CommandFailed(f"--html: {error}") from error
    if as_json:
        print_json(result.to_dict())
        return
    from stoker.cli.plan.table import print_plan

    print_plan(result)
    if html is not None:
        print_line(f"wrote {html}")
