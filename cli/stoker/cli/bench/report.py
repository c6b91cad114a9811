"""The report of a run: a table for people, perf_analyzer's columns for spreadsheets, JSON for machines."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from stoker.cli.bench.figures import PERCENTILES, Outcome
from stoker.cli.bench.levels import Level
from stoker.cli.output import CommandFailed, ExitCode, print_line, print_table

#: Share of a core, and delay of sends, above which the client is the bottleneck.
_BUSY_CLIENT = 0.9
_LATE_US = 2000.0
_TABLE = ("load", "req/s", "rows/s", "mean ms", "p50 ms", "p90 ms", "p95 ms", "p99 ms", "errors", "queue ms", "compute ms", "rows/batch")
_SPARE = ("rows/batch", "mean ms", "p90 ms", "rows/s", "compute ms", "queue ms", "p95 ms")


def load_text(level: Level) -> str:
    """The load as text."""
    return f"{level.rate_per_s:g}/s" if level.rate_per_s is not None else str(level.concurrency)


def print_outcomes(outcomes: Sequence[Outcome], within: float, subject: str) -> None:
    """Prints the subject of the measurement, the table, and warnings about doubtful figures."""
    print_line(subject)
    closed = outcomes[0].level.rate_per_s is None
    columns = ("concurrency" if closed else "request rate", *_TABLE[1:])
    print_table(columns, [_row(outcome) for outcome in outcomes], numeric=frozenset(columns), spare=_SPARE)
    for outcome in outcomes:
        for note in _notes(outcome, within):
            print_line(f"{load_text(outcome.level)}: {note}")


def check_csv(path: Path) -> None:
    """Checks before the measurement that the file can be written.

    Raises:
        CommandFailed: It cannot.
    """
    if not path.parent.is_dir():
        raise CommandFailed(f"--csv {path}: the folder does not exist", ExitCode.USAGE)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise CommandFailed(f"--csv {path}: no permission to write", ExitCode.USAGE)


def write_csv(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Writes the file that perf_analyzer's -f writes: the same columns, whole microseconds, rows by throughput.

    Where the server's protocol reports no times, the columns that need them are left out, as perf_analyzer leaves them out.

    Raises:
        CommandFailed: the file cannot be written.
    """
    has_server_times = all(outcome.server is not None for outcome in outcomes)
    first = "Concurrency" if outcomes[0].level.rate_per_s is None else "Request Rate"
    server = ("Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output")
    percentiles = [f"p{percent} latency" for percent in PERCENTILES]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow([first, "Inferences/Second", "Client Send", *(server if has_server_times else ()), "Client Recv", *percentiles])
            for outcome in sorted(outcomes, key=lambda each: each.rows_per_s):
                lines.writerow(_csv_row(outcome, has_server_times))
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror}") from error


def _csv_row(outcome: Outcome, has_server_times: bool) -> list[str]:
    figures, times = outcome.figures, outcome.server
    level = outcome.level
    load = f"{level.rate_per_s:g}" if level.rate_per_s is not None else str(level.concurrency)
    server: list[float] = []
    if has_server_times and times is not None:
        rest_us = figures.mean_us - figures.send_us - figures.receive_us - times.total_us
        parts = (times.queue_us, times.compute_input_us, times.compute_infer_us, times.compute_output_us)
        server = [max(0.0, rest_us), *parts]
    latencies = [figures.latency_us[percent] for percent in PERCENTILES]
    whole = [str(round(value)) for value in (figures.send_us, *server, figures.receive_us, *latencies)]
    return [load, f"{outcome.rows_per_s:g}", *whole]


def _row(outcome: Outcome) -> list[str]:
    figures, times = outcome.figures, outcome.server
    cells = ["-", "-", "-"]
    if times is not None:
        cells = [_ms(times.queue_us), _ms(times.total_us - times.queue_us), f"{times.rows_per_batch:.1f}"]
    return [
        load_text(outcome.level),
        f"{figures.requests_per_s:.1f}",
        f"{outcome.rows_per_s:.1f}",
        _ms(figures.mean_us),
        *(_ms(figures.latency_us[percent]) for percent in PERCENTILES),
        str(figures.errors),
        *cells,
    ]


def _ms(value_us: float) -> str:
    return f"{value_us / 1000:.3f}"


def _notes(outcome: Outcome, within: float) -> list[str]:
    notes = []
    if not outcome.figures.requests:
        notes.append("no request got a good response")
    elif not outcome.is_stable:
        notes.append(f"not stable: three windows in a row never agreed within {within * 100:g}%; the figures are of the last windows")
    if outcome.client_cpu >= _BUSY_CLIENT and outcome.level.rate_per_s is None:
        notes.append(f"this client used {outcome.client_cpu:.0%} of a core: it may be the limit, not the server")
    if outcome.figures.lag_us >= _LATE_US:
        notes.append(f"requests left up to {_ms(outcome.figures.lag_us)} ms late (p99): latency counts from when they were due")
    notes.extend(f"{count} x {text}" for text, count in list(outcome.failures.items())[:3])
    return notes
