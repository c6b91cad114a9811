"""`python -m benchmarks`: one run, its tables, and its files in the output folder."""

import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.experiment import Experiment
from benchmarks.floors import judge
from benchmarks.machine import describe_machine
from benchmarks.plot import write_plot
from benchmarks.processes import end_on_sigterm
from benchmarks.report import print_report
from benchmarks.requests import PROTOCOLS
from benchmarks.results import Run
from benchmarks.settings import HEAVY_MODEL, LIGHT_MODELS, Settings

MISSED = 1


def bench(
    models: Annotated[str, typer.Option(help="Comma-separated: tiny, tiny-inline, mlp, resnet50.")] = ",".join(
        (*LIGHT_MODELS, HEAVY_MODEL)
    ),
    protocols: Annotated[str, typer.Option(help="Comma-separated: grpc, http-binary, http-json.")] = ",".join(PROTOCOLS),
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test of everything: one round, short windows, fewer cells.")] = False,
    duration: Annotated[float | None, typer.Option(min=0.1, max=60, help="Seconds of a window; ResNet-50 takes three times that.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, max=50, help="Rounds; medians are reported.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for results.json and results.png.")] = Path("benchmarks/results"),
    strict: Annotated[bool, typer.Option("--strict", help="End with 1 unless every floor is passed, clearly.")] = False,
) -> None:
    """Measures the server against raw onnxruntime and bare echoes, on this machine, in one run."""
    settings = _settings(models, protocols, quick, duration, repeats, output)
    output.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 170)
    started = time.monotonic()
    run = Run(describe_machine(), dataclasses.asdict(settings) | {"output": str(output)})
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as scratch:
        experiment = Experiment(
            settings, Path(scratch), lambda line: print(f"{time.monotonic() - started:6.1f} s  {line}", file=sys.stderr)
        )
        run.windows = experiment.run()
    run.verdicts = judge(run.windows)
    (output / "results.json").write_text(run.to_json(), encoding="utf-8")
    write_plot(run, output / "results.png")
    print_report(run, console)
    console.print(f"{time.monotonic() - started:.0f} s; wrote {output / 'results.json'} and {output / 'results.png'}")
    if strict and any(each.is_floor and not (each.passed and each.is_clear) for each in run.verdicts):
        raise typer.Exit(MISSED)


def _settings(models: str, protocols: str, quick: bool, duration: float | None, repeats: int | None, output: Path) -> Settings:
    usual = Settings()
    duration_s = duration or (0.5 if quick else usual.duration_s)
    return Settings(
        models=_choices("--models", models, (*LIGHT_MODELS, HEAVY_MODEL)),
        protocols=_choices("--protocols", protocols, PROTOCOLS),
        repeats=repeats or (1 if quick else usual.repeats),
        duration_s=duration_s,
        heavy_duration_s=duration_s * 3 if duration or quick else usual.heavy_duration_s,
        output=output,
        is_quick=quick,
    )


def _choices(flag: str, text: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [part for part in chosen if part not in allowed]
    if unknown or not chosen:
        raise typer.BadParameter(f"{flag}={text}: expected a comma-separated choice of {', '.join(allowed)}")
    return tuple(each for each in allowed if each in chosen)


if __name__ == "__main__":
    end_on_sigterm()
    typer.run(bench)
