"""The output of a started server: a table of the models, the build, then one line with the real addresses.

On a terminal the table is drawn by rich, imported only then; elsewhere it is aligned text, or one JSON object for a log collector.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TextIO

from stoker.backends.api.clock import Clock, SystemClock
from stoker.server.core.build_kind import BUILD
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.observability.logs import FIELD_LIMIT, escaped

_HEADINGS = ("model", "version", "backend", "state", "reason")
_EMPTY = "no models in the repository"
_CUT = "reasons that end in ... are complete in the log, in 'stoker models' and in 'stoker check'"
#: Characters of a reason that decide whether it is cut in the table.
_WHOLE = 2 * FIELD_LIMIT
_STYLES = {VersionState.READY: "green", VersionState.FAILED: "red"}


def print_startup(
    index: Sequence[IndexEntry],
    addresses: Mapping[str, str],
    *,
    stream: TextIO,
    is_terminal: bool,
    as_json: bool = False,
    notices: Sequence[str] = (),
    console: str = "",
    not_ready: Sequence[str] = (),
    clock: Clock | None = None,
) -> None:
    """Prints the models, whether the build is native or pure, and, as the last line, where the server listens.

    Args:
        index: One row for each entry, in this order.
        addresses: Protocol to address with the real port, such as `{"grpc": "127.0.0.1:8500"}`, in the order to print.
        stream: Where the text is printed.
        is_terminal: Draw the table with rich.
        as_json: Instead, print one line in the form of the JSON log with `"event": "models"`, for a stream that also carries the log.
        notices: The backends' notices about the loaded models, one line each.
        console: The address of the console; empty: there is none.
        not_ready: Models that keep the server from being ready; printed on a separate line.
        clock: The time of the JSON line; None: that of the machine.
    """
    if as_json:
        _print_json(index, addresses, notices, console, not_ready, stream, (clock or SystemClock()).wall_ms())
        return
    if not index:
        print(_EMPTY, file=stream)
    elif is_terminal:
        _draw(index, stream)
    else:
        _print_aligned(index, stream)
    if any(escaped(entry.reason, _WHOLE) != escaped(entry.reason) for entry in index):
        print(_CUT, file=stream)
    print(f"build: {BUILD}", file=stream)
    for notice in notices:
        print(f"note: {escaped(notice)}", file=stream)
    if not_ready:
        print(f"not ready: no READY version of {', '.join(escaped(name) for name in not_ready)}", file=stream)
    if console:
        print(f"console: {console}", file=stream)
    print(address_line(addresses), file=stream, flush=True)


def address_line(addresses: Mapping[str, str]) -> str:
    """`serving grpc on 127.0.0.1:8500, http on 127.0.0.1:8501`."""
    return "serving " + ", ".join(f"{protocol} on {address}" for protocol, address in addresses.items())


def without_ready_version(index: Sequence[IndexEntry]) -> list[str]:
    """Models without a READY version; without those never selected for loading (explicit control), unless all are."""
    ready = {entry.name for entry in index if entry.state is VersionState.READY}
    missing = [entry for entry in index if entry.name not in ready]
    tried = [entry for entry in missing if entry.state is not None or entry.reason]
    return list(dict.fromkeys(entry.name for entry in tried or missing))


def _cells(entry: IndexEntry) -> tuple[str, str, str, str, str]:
    return (
        escaped(entry.name),
        "-" if entry.version is None else str(entry.version),
        escaped(entry.backend) or "-",
        "-" if entry.state is None else entry.state.value,
        escaped(entry.reason),
    )


def _print_aligned(index: Sequence[IndexEntry], stream: TextIO) -> None:
    rows = [_HEADINGS, *(_cells(entry) for entry in index)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), file=stream)


def _draw(index: Sequence[IndexEntry], stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading == "version" else "left", no_wrap=heading != "reason", overflow="fold")
    for entry in index:
        name, version, backend, state, reason = _cells(entry)
        # Text instead of str: brackets in a name or a reason are not markup.
        style = _STYLES.get(entry.state, "yellow") if entry.state else "dim"
        table.add_row(Text(name), version, Text(backend), Text(state, style=style), Text(reason))
    Console(file=stream, force_terminal=True, highlight=False).print(table)


def _print_json(
    index: Sequence[IndexEntry],
    addresses: Mapping[str, str],
    notices: Sequence[str],
    console: str,
    not_ready: Sequence[str],
    stream: TextIO,
    wall_ms: int,
) -> None:
    models = [dict(zip(_HEADINGS, _cells(entry), strict=True)) for entry in index]
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {
        "ts": moment,
        "level": "INFO",
        "logger": "stoker.startup",
        "event": "models",
        "message": address_line(addresses),
        "addresses": dict(addresses),
        "build": BUILD,
        "models": models,
        "notices": [escaped(notice) for notice in (notices if index else (_EMPTY, *notices))],
        **({"console": console} if console else {}),
        "not_ready": [escaped(name) for name in not_ready],
    }
    print(json.dumps(line), file=stream, flush=True)
