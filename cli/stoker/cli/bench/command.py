"""The command `stoker bench`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli.bench.filling import Filling
from stoker.cli.bench.levels import levels
from stoker.cli.connection import read_headers
from stoker.cli.options import DEFAULT_TIMEOUT_S, DEFAULT_URL, ApiKey, AsJson, Headers, Model, Timeout, Url, Version
from stoker.cli.output import CommandFailed, ExitCode, print_json
from stoker.cli.protocols import Protocol, ProtocolOption, TensorFormat, predicting, target

if TYPE_CHECKING:
    from stoker.cli.bench.figures import Outcome

_LOAD, _DATA, _RULES = "Load", "What is sent", "When it is measured"
Concurrency = Annotated[
    str | None,
    typer.Option(
        "--concurrency", metavar="RANGE", rich_help_panel=_LOAD, help="Requests in flight: N, START:END[:STEP] or a list. Default 1."
    ),
]
Rate = Annotated[
    str | None,
    typer.Option(
        "--request-rate",
        metavar="RANGE",
        rich_help_panel=_LOAD,
        help="Requests a second, sent without waiting for responses; latency counts from the due time.",
    ),
]
Poisson = Annotated[
    bool,
    typer.Option(
        "--poisson", rich_help_panel=_LOAD, help="With --request-rate: exponentially distributed gaps, as from independent users."
    ),
]
Connections = Annotated[
    int,
    typer.Option(
        "--connections", min=1, max=64, rich_help_panel=_LOAD, help="gRPC connections; HTTP opens one for each request in flight."
    ),
]
Format = Annotated[TensorFormat, typer.Option("--tensor-format", rich_help_panel=_DATA, help="Encoding of tensors for kserve-http.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", "-i", metavar="NAME=VALUE", rich_help_panel=_DATA, help="A .npy, .json or picture file, or JSON, as for `stoker infer`."
    ),
]
Data = Annotated[Filling, typer.Option("--input-data", rich_help_panel=_DATA, help="Values of the inputs without --input.")]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="NAME:SIZE,...", rich_help_panel=_DATA, help="Sizes of an input's variable dimensions; may be repeated."
    ),
]
Batch = Annotated[
    int | None, typer.Option("--batch-size", "-b", min=1, max=1_000_000, rich_help_panel=_DATA, help="Rows of a request. Default 1.")
]
Length = Annotated[int, typer.Option("--string-length", min=0, max=1_000_000, rich_help_panel=_DATA, help="Characters of each string.")]
WindowS = Annotated[
    float, typer.Option("--window", metavar="SECONDS", min=0.05, max=3600, rich_help_panel=_RULES, help="Length of a measurement window.")
]
WarmUp = Annotated[
    float,
    typer.Option("--warmup", metavar="SECONDS", min=0, max=3600, rich_help_panel=_RULES, help="Time of load before the first window."),
]
Stability = Annotated[
    float,
    typer.Option(
        "--stability",
        metavar="PERCENT",
        min=0.1,
        max=100,
        rich_help_panel=_RULES,
        help="Largest deviation of three consecutive windows that ends a level.",
    ),
]
MaxTrials = Annotated[
    int, typer.Option("--max-trials", min=3, max=1000, rich_help_panel=_RULES, help="Largest number of windows of one level.")
]
MaxRequests = Annotated[
    int, typer.Option("--max-requests", min=1, max=20_000_000, rich_help_panel=_RULES, help="Largest number of requests of one level.")
]
Csv = Annotated[
    Path | None, typer.Option("--csv", "-f", metavar="FILE", dir_okay=False, help="CSV file to write in perf_analyzer's format.")
]


def bench(
    model: Model,
    concurrency: Concurrency = None,
    rate: Rate = None,
    poisson: Poisson = False,
    connections: Connections = 1,
    inputs: Inputs = None,
    data: Data = Filling.RANDOM,
    shapes: Shapes = None,
    batch: Batch = None,
    string_length: Length = 16,
    tensor_format: Format = TensorFormat.BINARY,
    window: WindowS = 2.0,
    warmup: WarmUp = 1.0,
    stability: Stability = 10.0,
    max_trials: MaxTrials = 10,
    max_requests: MaxRequests = 2_000_000,
    csv: Csv = None,
    version: Version = None,
    protocol: ProtocolOption = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    api_key: ApiKey = None,
    headers: Headers = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Load one model and measure: closed loops (--concurrency) or open ones (--request-rate), over any protocol, against any server."""
    from stoker.cli.bench.report import check_csv, print_outcomes, write_csv
    from stoker.cli.bench.run import Task, run_levels
    from stoker.cli.bench.tensors import TensorPlan, make_inputs, parse_shapes, rows_of
    from stoker.cli.bench.trial import Rules
    from stoker.cli.inputs import PictureOptions, read_inputs
    from stoker_client.inference import InferOptions, build_request

    sent = read_headers(headers, api_key)
    loads = levels(concurrency, rate)
    if poisson and rate is None:
        raise CommandFailed("--poisson goes with --request-rate", ExitCode.USAGE)
    whom = target(protocol, url)
    if tensor_format is TensorFormat.JSON and whom.protocol is not Protocol.KSERVE_HTTP:
        raise CommandFailed(f"--tensor-format json goes with --protocol {Protocol.KSERVE_HTTP}", ExitCode.USAGE)
    if csv is not None:
        check_csv(csv)
    plan = TensorPlan(parse_shapes(shapes or []), data, batch, string_length)
    with predicting(whom, sent, timeout, tensor_format) as client:
        facts = client.metadata(model, version)
        tensors = make_inputs(facts, plan, read_inputs(inputs or [], facts, PictureOptions()))
        # Rejected before the load, an invalid request is one line; under load it would be a table of errors.
        client.predict(model, tensors, version=version)
    request = build_request(model, tensors, InferOptions(version=version))
    rules = Rules(warmup, window, stability / 100, max_trials, max_requests)
    task = Task(whom, tensor_format, request, facts, rows_of(tensors, facts), sent, timeout, connections, poisson)
    outcomes: list[Outcome] = []
    is_interrupted = False
    try:
        with _progress(shown=not as_json) as progress:
            outcomes.extend(run_levels(task, loads, rules, progress))
    except KeyboardInterrupt:
        is_interrupted = True
        if not outcomes:
            raise CommandFailed("interrupted before a level was measured", ExitCode.INTERRUPTED) from None
    if as_json:
        summary = {"model": model, "protocol": whom.protocol.value, "url": whom.url, "is_interrupted": is_interrupted}
        print_json({**summary, "levels": [outcome.facts() for outcome in outcomes]})
    else:
        rows = f"{task.rows} row{'' if task.rows == 1 else 's'} a request"
        print_outcomes(outcomes, rules.within, f"{model} over {whom.protocol} at {whom.url}, {rows}")
    if csv is not None:
        write_csv(csv, outcomes)
    if is_interrupted:
        raise CommandFailed(f"interrupted: levels measured are {len(outcomes)} of {len(loads)}", ExitCode.INTERRUPTED)
    if not any(outcome.figures.requests for outcome in outcomes):
        text = next((text for outcome in outcomes for text in outcome.failures), "no request got a response in the time given")
        raise CommandFailed(f"no figures: {text}")


@contextlib.contextmanager
def _progress(*, shown: bool) -> Iterator[Any]:
    """Shows the progress of each level: a bar on standard error if that is a terminal."""
    import sys

    if not shown or not sys.stderr.isatty():
        yield lambda text, part, requests_per_s: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown_task = bar.add_task("", total=1.0, rate="")

        def hear(text: str, part: float, requests_per_s: float | None) -> None:
            rate = "" if requests_per_s is None else f"{requests_per_s:.0f} req/s"
            bar.update(shown_task, description=text, completed=part, rate=rate)

        yield hear
