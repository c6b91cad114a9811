"""The summary report as one self-contained HTML page without scripts or network access, with light and dark colours."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from stoker.backends.ipu.compile import report_charts as charts
from stoker.backends.ipu.compile.report_charts import MEMORY_KINDS, TIME_KINDS, microseconds
from stoker.backends.ipu.compile.summary_report import GraphReport, IpuMemory, OpRun, SummaryReport
from stoker.compiler.output_files import written_whole
from stoker.compiler.pages.page import page, table
from stoker.compiler.pages.svg import legend

_FILE = "summary_report"
#: Number of rows in the table of operations, and of bars beside it.
TOP_OPERATIONS = 25
_TOP_BARS = 12
#: Number of micro-batches in the plot of the lanes.
_SHOWN_MICRO_BATCHES = 4


def render_page(report: SummaryReport) -> str:
    """Returns the page as HTML."""
    names = ", ".join(graph.name for graph in report.graphs)
    body = "".join((_head(report, names), *map(_memory, report.memory), *(_graph(graph, report) for graph in report.graphs)))
    return page(f"{names}: summary report (simulated)", body)


def write_report(report: SummaryReport, folder: Path) -> tuple[Path, Path]:
    """Writes `report` into `folder` as `summary_report.json` and `summary_report.html`, each atomically; returns their paths.

    Raises:
        CompileError: a file cannot be written.
    """
    paths = folder / f"{_FILE}.json", folder / f"{_FILE}.html"
    for path, text in zip(paths, (report.to_json(), render_page(report)), strict=True):
        with written_whole(path) as draft:
            draft.write_text(text, encoding="utf-8")
    return paths


def _head(report: SummaryReport, names: str) -> str:
    hardware = report.hardware
    fullest = max((each.fullest_bytes for each in report.memory), default=0)
    facts = {
        "device": f"{hardware.system} (ipu{hardware.ipu_version})",
        "IPUs x replicas": f"{report.num_ipus} x {report.replication_factor}",
        "tiles of an IPU, for IO": f"{hardware.tiles:,}, {report.num_io_tiles}",
        "batches per step": f"{report.batches_per_step}",
        "pipeline stages": f"{report.pipeline_stages}",
        "fullest tile": f"{fullest / hardware.tile_memory_bytes:.1%}",
        "weights": _size(report.weight_bytes),
        "code, all tiles": _size(report.code_bytes),
        "load time": f"{report.load_s:.2f} s",
    }
    tiles = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in facts.items())
    verdict = (
        '<p class="good">The program fits into the tiles.</p>'
        if report.fits
        else f'<section><p class="bad">The program does not fit into the tiles.</p><pre>{escape(report.out_of_memory)}</pre></section>'
    )
    return (
        f'<h1>{escape(names)}<span class="tag">simulated</span></h1>'
        '<p class="note">Summary report of the compilation. Every figure is computed by a cost model; no device was measured.</p>'
        f'{verdict}<div class="tiles">{tiles}</div>'
    )


def _size(count: int) -> str:
    """Returns a byte count as text with a suitable unit."""
    return f"{count / 2**20:,.1f} MiB" if count >= 2**19 else f"{count / 2**10:,.1f} KiB"


def _memory(memory: IpuMemory) -> str:
    account = memory.account
    kinds = [MEMORY_KINDS[key] for key in account.by_category if key in MEMORY_KINDS]
    rows = [(MEMORY_KINDS[key].name if key in MEMORY_KINDS else key, size) for key, size in account.by_category.items()]
    quartiles = _quartiles(account.tile_bytes)
    return (
        f'<h2>Memory of IPU {account.ipu}<span class="tag">simulated</span></h2>'
        f"<section><h3>Fullest tile, at its fullest moment</h3>{legend(kinds)}"
        f"{charts.memory_bar(account.by_category, account.capacity_bytes)}"
        + table(
            ("kind", "bytes", "share of a tile"),
            [
                (name, f"{size:,}", f"{size / account.capacity_bytes:.1%}")
                for name, size in (*rows, ("all", sum(account.by_category.values())))
            ],
        )
        + f"</section><section><h3>Tiles by bytes held</h3>{charts.tile_histogram(account.tile_bytes, account.capacity_bytes)}"
        + table(tuple(quartiles), [tuple(f"{size:,}" for size in quartiles.values())], numbers_from=0)
        + "</section><section><h3>What holds the fullest tile</h3>"
        + table(("holder", "bytes there"), [(what, f"{size:,}") for what, size in memory.holders])
        + "</section>"
    )


def _graph(graph: GraphReport, report: SummaryReport) -> str:
    timing = graph.timing
    rows = "calls" if not graph.micro_batch_size else "rows"
    facts = {
        "latency of a call": microseconds(timing.latency_s),
        "between calls, when busy": microseconds(timing.period_s),
        f"{rows} a second": f"{timing.rows_per_s:,.0f}",
        "rows of a call": f"{timing.rows:,}" if timing.rows else "no batch dimension",
        "precision": graph.precision,
    }
    tiles = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in facts.items())
    return f'<h2>Time of {escape(graph.name)}<span class="tag">simulated</span></h2><div class="tiles">{tiles}</div>' + "".join(
        _time_sections(graph, report)
    )


def _time_sections(graph: GraphReport, report: SummaryReport) -> Iterator[str]:
    used = [kind for key, kind in TIME_KINDS.items() if any(getattr(run, key) for run in graph.runs)]
    totals = {key: sum(getattr(run, key) for run in graph.runs) for key in TIME_KINDS}
    whole = sum(totals.values()) or 1.0
    yield (
        f"<section><h3>Time line of one micro-batch</h3>{legend(used)}{charts.activity(graph.runs)}"
        + table(
            ("what", "time", "share"),
            [(TIME_KINDS[key].name, microseconds(time), f"{time / whole:.1%}") for key, time in totals.items() if time],
        )
        + "</section>"
    )
    if len(graph.lane_s) > 1:
        shown = max(1, min(report.batches_per_step, _SHOWN_MICRO_BATCHES))
        slowest = max(graph.lane_s)
        yield (
            f"<section><h3>Lanes that work side by side: the first {shown} micro-batches of a call</h3>"
            + charts.lanes(graph.lane_names, graph.lane_s, shown)
            + table(
                ("lane", "time of a micro-batch", "busy"),
                [(name, microseconds(time), f"{time / slowest:.0%}") for name, time in zip(graph.lane_names, graph.lane_s, strict=True)],
            )
            + "</section>"
        )
    yield _operations(graph, report.hardware.clock_hz)
    if graph.batches:
        yield _batches(graph)


def _operations(graph: GraphReport, clock_hz: float) -> str:
    whole = sum(run.total_s for run in graph.runs) or 1.0
    top = sorted(graph.runs, key=lambda run: -run.total_s)[:TOP_OPERATIONS]
    by_type: dict[str, list[OpRun]] = defaultdict(list)
    for run in graph.runs:
        by_type[run.op_type].append(run)
    types = sorted(by_type.items(), key=lambda item: -sum(run.total_s for run in item[1]))
    bars = [(name, _parts(runs), f"{sum(run.total_s for run in runs) / whole:.1%}") for name, runs in types[:_TOP_BARS]]
    used = [kind for key, kind in TIME_KINDS.items() if any(getattr(run, key) for run in graph.runs)]
    return (
        f"<section><h3>By operator</h3>{legend(used)}{charts.stacked_rows(bars)}"
        + table(
            ("operator", "nodes", "cycles", "share", "GFLOP", "MB moved"),
            [
                (
                    name,
                    f"{len(runs):,}",
                    f"{sum(run.total_s for run in runs) * clock_hz:,.0f}",
                    f"{sum(run.total_s for run in runs) / whole:.1%}",
                    f"{sum(run.flops for run in runs) / 1e9:,.3f}",
                    f"{sum(run.data_bytes for run in runs) / 1e6:,.2f}",
                )
                for name, runs in types
            ],
        )
        + f"</section><section><h3>Longest operations ({len(top)} of {len(graph.runs)})</h3>{legend(used)}"
        + charts.stacked_rows([(run.node, _parts([run]), f"{run.total_s / whole:.1%}") for run in top[:_TOP_BARS]])
        + table(
            ("node", "operator", "IPU", "cycles", "compute", "exchange, link, IO", "sync", "share"),
            [
                (
                    run.node,
                    run.op_type,
                    str(run.ipu),
                    f"{run.total_s * clock_hz:,.0f}",
                    microseconds(run.compute_s),
                    microseconds(run.exchange_s + run.link_s + run.host_s),
                    microseconds(run.sync_s),
                    f"{run.total_s / whole:.1%}",
                )
                for run in top
            ],
            numbers_from=2,
        )
        + "</section>"
    )


def _batches(graph: GraphReport) -> str:
    rows = [
        (
            str(each.batch),
            "fits" if each.fits else "does not fit" if each.rows_per_s is not None else "not planned",
            f"{each.tile_bytes:,}" if each.tile_bytes else "",
            microseconds(each.latency_s) if each.latency_s is not None else each.note,
            f"{each.rows_per_s:,.0f}" if each.rows_per_s is not None else "",
        )
        for each in graph.batches
    ]
    own = next((at for at, each in enumerate(graph.batches) if each.batch == graph.micro_batch_size), None)
    return (
        f"<section><h3>Other batch sizes, planned anew</h3>{charts.throughput(graph.batches, graph.micro_batch_size)}"
        '<p class="note">The larger dot is the batch that this program was compiled for; hollow ones do not fit, and show what they'
        " would give if they did.</p>"
        + table(
            ("rows of a micro-batch", "memory", "fullest tile, bytes", "latency of a call", "rows a second"), rows, numbers_from=2, own=own
        )
        + "</section>"
    )


def _parts(runs: Sequence[OpRun]) -> Mapping[str, float]:
    return {key: sum(getattr(run, key) for run in runs) for key in TIME_KINDS}


def _quartiles(tile_bytes: Sequence[int]) -> Mapping[str, int]:
    ordered = sorted(tile_bytes) or [0]
    last = len(ordered) - 1
    shares = {"emptiest": 0.0, "quarter": 0.25, "median": 0.5, "three quarters": 0.75, "fullest": 1.0}
    return {name: ordered[round(share * last)] for name, share in shares.items()}
