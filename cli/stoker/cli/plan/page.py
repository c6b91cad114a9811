"""A plan as one self-contained HTML page without scripts or network access, for a browser, a phone and a printer."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from stoker.cli.plan import plots
from stoker.cli.plan.figures import number, with_bar
from stoker.cli.plan.load_plot import load_plot
from stoker.cli.plan.model import Combination, Plan, Porting
from stoker.cli.plan.table import LOAD_COLUMNS, NOT_PLAIN, fitting_note, load_row, verdict_of
from stoker.compiler.output_files import written_whole
from stoker.compiler.pages.page import COLOURS, page, table

_STYLE = """
main{max-width:1080px}.lead{font-size:16px;margin:14px 0}.lead p{margin:0 0 8px}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:14px}
figure{margin:0;min-width:0;max-width:520px}figcaption{font-weight:600;font-size:13px;margin:0 0 2px}
svg.key{display:inline-block;width:12px;height:12px;margin-right:5px;vertical-align:-1px}
.series{fill:none;stroke-width:1.8}.band{opacity:.15}.err{stroke-width:1.2;opacity:.55}
td.wrap{white-space:normal;min-width:240px}td.wrap:empty{min-width:0}
.scroll{overflow-x:auto;background:linear-gradient(90deg,var(--card) 40%,transparent),
linear-gradient(270deg,var(--card) 40%,transparent) 100% 0,linear-gradient(90deg,#8888,transparent),
linear-gradient(270deg,#8888,transparent) 100% 0;background-repeat:no-repeat;background-size:40px 100%,40px 100%,14px 100%,14px 100%;
background-attachment:local,local,scroll,scroll}
.wide svg{min-width:620px}.sideways{display:none}
.yes{color:var(--good)}.no{color:var(--bad)}
details{margin:8px 0}summary{cursor:pointer;color:var(--ink2)}
ul{margin:6px 0;padding-left:20px}
@media (max-width:720px){.sideways{display:block}}
@media (max-width:560px){main{padding:14px 10px 40px}section{padding:10px}h1{font-size:20px}.lead{font-size:15px}}
@media print{:root{--page:#fff;--card:#fff;--ink:#000;--ink2:#333;--grid:#ccc;--axis:#888}
body{font-size:11px;print-color-adjust:exact}
main{max-width:none;padding:0}.sideways{display:none}.scroll{background:none}section{break-inside:auto;border:0;padding:0;overflow:visible}figure,tr{break-inside:avoid}
h2,h3{break-after:avoid}
table{font-size:9.5px}th,td{white-space:normal;padding:2px 4px}td.n{white-space:nowrap}
.wide svg{min-width:0}.panels{grid-template-columns:1fr 1fr}}
""" + "".join(
    f"path.c{at}{{fill:var(--c{at})}}circle.c{at},polygon.c{at}{{fill:var(--c{at})}}polyline.c{at},line.c{at}{{stroke:var(--c{at})}}"
    for at in range(COLOURS + 1)
)
_SIMULATED = (
    "Simulated figures are computed by a cost model for a device that is not here; no device was measured. Their error bars are the "
    "model's worst error on published measurements that it was not fitted on. Measured figures were measured on this machine; their error "
    "bars hold eight of ten calls."
)

_CURVES = (
    "A curve is the p99 of Poisson arrivals with the device's times; its band lies between the p99 at both ends of their error bar. A band "
    "ends where the slow end is overloaded, and a curve at 97 % of what the devices complete in full batches. A p99 far above the goal is "
    "drawn at the upper edge."
)


def render_page(plan: Plan) -> str:
    """Returns the page as HTML."""
    body = "".join(
        (
            _head(plan),
            _load(plan),
            _porting(plan),
            _speed(plan),
            _memory(plan),
            _unfitting(plan),
            _accuracy(plan),
            _combinations(plan),
            _notes(plan),
        )
    )
    return page(f"Plan for {plan.model.name}", body, _STYLE)


def write_page(plan: Plan, path: Path) -> None:
    """Writes the page atomically.

    Raises:
        CompileError, OSError: the file cannot be written.
    """
    with written_whole(path) as draft:
        draft.write_text(render_page(plan), encoding="utf-8")


def _head(plan: Plan) -> str:
    model = plan.model
    facts = {
        "nodes": f"{model.nodes:,}",
        "parameters": f"{model.parameter_bytes / 2**20:,.1f} MiB",
        "operator set": str(model.opset),
        "combinations that fit": f"{sum(each.fits for each in plan.combinations)} of {len(plan.combinations)}",
    }
    tiles = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in facts.items())
    tensors = [
        (side, each.name, each.datatype, str(list(each.shape)).replace("'", ""))
        for side, values in (("input", model.inputs), ("output", model.outputs))
        for each in values
    ]
    headings = ("side", "name", "type", "shape")
    sentences = "".join(f"<p>{escape(each)}</p>" for each in plan.recommendation)
    return (
        f'<h1>Plan for {escape(model.name)}</h1><p class="note">{escape(_SIMULATED)}</p>'
        f'<section class="lead" aria-label="Recommendation">{sentences}</section><div class="tiles">{tiles}</div>'
        f"<details><summary>Inputs and outputs</summary><section>{table(headings, tensors, numbers_from=len(headings))}</section></details>"
    )


def _load(plan: Plan) -> str:
    if plan.load is None:
        return ""
    info = plan.load.load
    rows = "1 row" if info.rows == 1 else f"{info.rows} rows"
    note = (
        f"{info.arrivals.capitalize()} arrivals of {number(info.rate_per_s)} requests/s with {rows} each, and a p99 of at most "
        f"{number(info.p99_goal_s * 1e3)} ms. The server's own scheduler runs on a virtual clock for {info.requests:,} requests: with the "
        "device's times, and with those at each end of their error bar. The number of devices is enough at the slow end. "
        f"{info.host_text.capitalize()}."
    )
    met = [load_row(plan, each) for each in plan.load.counts if each.devices is not None]
    missed = [(each.label, each.problem) for each in plan.load.counts if each.devices is None]
    drawn = load_plot(plan.load)
    plot = f'<p class="note sideways">The plot scrolls sideways.</p><div class="scroll wide">{drawn}</div>' if drawn else ""
    plot += f'<p class="note">{_CURVES}</p>' if drawn else ""
    counts = ""
    if met:
        counts += f"<h3>Devices for each combination</h3>{_wrapped(LOAD_COLUMNS, met, numeric=(1, 2, 3, 4, 5))}"
    if missed:
        counts += f"<h3>Combinations that miss the goal</h3>{_wrapped(('combination', 'reason'), missed)}"
    return f'<h2>Load</h2><section><p class="note">{escape(note)}</p>{plot}{counts}</section>'


def _porting(plan: Plan) -> str:
    return "<h2>Porting</h2>" + "".join(_target_porting(each) for each in plan.porting)


def _target_porting(porting: Porting) -> str:
    css = "note" if porting.ports is None else "yes" if porting.ports else "no"
    problem = f'<p class="bad">{escape(porting.problem)}</p>' if porting.problem and porting.ports is not None else ""
    rows = [
        (
            each.operator,
            each.support,
            f"{each.count:,}",
            _listed(each.nodes, each.count),
            each.reason + (f" [{each.source}]" if each.source else ""),
        )
        for each in porting.operators
    ]
    headings = ("operator", "support", "nodes", "names", "reason")
    special = [row for row in rows if row[1] in NOT_PLAIN]
    shown = _wrapped(headings, special, numeric=(2,)) if special else ""
    every = f"<details><summary>All {len(rows)} operators</summary>{_wrapped(headings, rows, numeric=(2,))}</details>" if rows else ""
    verdict = f'<h3>{escape(porting.target)}: <span class="{css}">{escape(verdict_of(porting))}</span></h3>'
    return f"<section>{verdict}{problem}{shown}{every}</section>"


def _listed(names: Sequence[str], count: int) -> str:
    return ", ".join(names) + (", ..." if count > len(names) else "")


def _speed(plan: Plan) -> str:
    panels = plots.throughput_panels(leading(plan.combinations))
    if not panels:
        return ""
    return (
        f"<h2>Throughput and latency</h2><section>{panels}"
        '<p class="note">Numbers beside the marks are batch sizes, with the number of devices that one copy takes if it is above 1; '
        "a number is left out where it would cover another. Both axes are logarithmic, and the same in all panels.</p></section>"
    )


def _memory(plan: Plan) -> str:
    panels = plots.memory_panels(leading(plan.combinations))
    if not panels:
        return ""
    note = '<p class="note">The dashed line is what the device has.</p>'
    return f'<h2>Memory<span class="tag">simulated</span></h2><section>{panels}{note}</section>'


def _unfitting(plan: Plan) -> str:
    rows = []
    for each in leading(plan.combinations):
        if each.fits:
            continue
        remedy = each.remedy
        memory = f"{each.memory.used_bytes / each.memory.capacity_bytes:.1%}" if each.memory else ""
        rows.append(
            (
                each.label,
                memory,
                "" if remedy is None else "; ".join(filter(None, (remedy.change, fitting_note(remedy.memory_levers)))),
                "" if remedy is None else with_bar(remedy.throughput),
                "" if remedy is None else with_bar(remedy.latency.scaled(1e3)),
                each.problem if remedy is not None or each.memory is None else f"{each.problem}. No change that was tried makes it fit",
            )
        )
    if not rows:
        return ""
    headings = ("combination", "memory", "fits with", "rows/s then", "latency then, ms", "why it does not fit")
    return f"<h2>What does not fit</h2><section>{_wrapped(headings, rows, numeric=(1, 3, 4))}</section>"


def _accuracy(plan: Plan) -> str:
    if not plan.accuracy:
        return ""
    rows = []
    for each in plan.accuracy:
        if each.problem:
            rows.append((each.target, each.precision, "", "", "", f"not compared: {each.problem}"))
        rows += [
            (
                each.target,
                each.precision,
                drift.output,
                number(drift.snr_db),
                "" if drift.cosine is None else f"{drift.cosine:.6f}",
                drift.note,
            )
            for drift in each.outputs
        ]
    samples = next((each.samples for each in plan.accuracy if each.samples), "")
    note = (
        f"Outputs of the simulated device against the source model on ONNX Runtime, on {samples}. 20 dB is an error of a tenth."
        if samples
        else ""
    )
    headings = ("target", "precision", "output", "SNR dB", "cosine", "note")
    return f'<h2>Accuracy</h2><section><p class="note">{escape(note)}</p>{_wrapped(headings, rows, numeric=(3, 4))}</section>'


def leading(combinations: Sequence[Combination]) -> list[Combination]:
    """Returns `combinations` without those that use more devices for a copy than one that fits."""
    return [each for each in combinations if each.takes_no_more_than_needed(combinations)]


def _combinations(plan: Plan) -> str:
    headings = ("device", "precision", "batch", "memory", "latency, ms", "rows/s", "SNR dB", "origin", "note")
    shown = leading(plan.combinations)
    rest = [each for each in plan.combinations if each not in shown]
    text = (
        f"<h2>All combinations</h2><section>{_wrapped(headings, [_row(plan, each) for each in shown], numeric=(2, 3, 4, 5, 6))}</section>"
    )
    if rest:
        text += (
            f"<details><summary>{len(rest)} combinations that shard a copy over more devices than it needs</summary>"
            f"<section>{_wrapped(headings, [_row(plan, each) for each in rest], numeric=(2, 3, 4, 5, 6))}</section></details>"
        )
    return text


def _row(plan: Plan, each: Combination) -> Sequence[str]:
    accuracy = plan.accuracy_of(each.target, each.precision)
    note = fitting_note(each.memory_levers) if each.fits else "see what does not fit" if each.memory else each.problem
    return (
        each.device_label,
        each.precision,
        str(each.batch) if each.batch else "",
        f"{each.memory.used_bytes / each.memory.capacity_bytes:.1%}" if each.memory else "",
        with_bar(each.latency.scaled(1e3)) if each.latency and each.fits else "",
        with_bar(each.throughput) if each.throughput and each.fits else "",
        number(accuracy.snr_db) if accuracy else "",
        each.latency.origin if each.latency and each.fits else "does not fit" if not each.fits else "",
        note,
    )


def _notes(plan: Plan) -> str:
    sources = dict.fromkeys(each.error_source for each in plan.combinations if each.error_source)
    items = "".join(f"<li>{escape(each)}</li>" for each in (*(f"Error bars: {each}" for each in sources), *plan.device_notes, *plan.notes))
    version = f'<p class="note">Written by stoker {escape(plan.version)}.</p>' if plan.version else ""
    return f"<h2>Sources and notes</h2><section><ul>{items}</ul>{version}</section>"


def _wrapped(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Sequence[int] = ()) -> str:
    """Returns a table whose last column wraps."""

    def cells(row: Sequence[str]) -> str:
        last = len(row) - 1
        return "".join(
            f'<td class="{"n" if at in numeric else "wrap" if at == last else "name"}">{escape(cell)}</td>' for at, cell in enumerate(row)
        )

    heads = "".join(f'<th scope="col" class="{"n" if at in numeric else ""}">{escape(each)}</th>' for at, each in enumerate(headings))
    lines = "".join(f"<tr>{cells(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
