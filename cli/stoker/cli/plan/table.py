"""A plan as text for a terminal: the recommendation, the porting check and one row for each combination."""

from collections.abc import Sequence

from stoker.cli.output import print_line, print_table
from stoker.cli.plan.figures import Origin, number, with_bar
from stoker.cli.plan.model import CardCount, Combination, LoadPlan, Plan, Porting
from stoker.compiler.porting import Support

COLUMNS = ("device", "precision", "batch", "memory", "latency ms", "rows/s", "SNR dB", "origin", "note")
_NUMERIC = frozenset({"batch", "memory", "latency ms", "rows/s", "SNR dB"})
_SPARE = ("origin",)
LOAD_COLUMNS = ("combination", "devices", "p50 ms", "p99 ms", "busy", "rows of a batch", "note")
#: Support that a reader must know of.
NOT_PLAIN = (Support.IMPOSSIBLE.value, Support.LOWERED.value)
#: Operators of a target that are listed by name.
_MOST_OPERATORS = 12


def print_plan(plan: Plan) -> None:
    """Prints the plan."""
    for sentence in plan.recommendation:
        print_line(sentence)
    print_line()
    _print_porting(plan)
    leading = [each for each in plan.combinations if each.takes_no_more_than_needed(plan.combinations)]
    print_table(COLUMNS, [_row(plan, each) for each in leading], numeric=_NUMERIC, spare=_SPARE)
    if left_out := len(plan.combinations) - len(leading):
        print_line(f"left out: {left_out} combinations that shard a copy over more devices than it needs (see --json)")
    print_line()
    if plan.load is not None:
        _print_load(plan, plan.load)
    for source in dict.fromkeys(each.error_source for each in plan.combinations if each.error_source):
        print_line(f"error bars: {source}")
    print_line("simulated: computed by a cost model for a device that is not here; measured: on this machine")
    for note in (*plan.device_notes, *plan.notes):
        print_line(f"note: {note}")


def _print_porting(plan: Plan) -> None:
    for porting in plan.porting:
        print_line(f"{porting.target}: {verdict_of(porting)}")
        if porting.problem and porting.ports is not None:
            print_line(f"  {porting.problem}")
        for each in [each for each in porting.operators if each.support in NOT_PLAIN][:_MOST_OPERATORS]:
            print_line(f"  {each.support}: {each.operator} ({each.count} node{'' if each.count == 1 else 's'}): {each.reason}")
    print_line()


def verdict_of(porting: Porting) -> str:
    """Returns the result of a porting check in a few words."""
    if porting.ports is None:
        return porting.problem
    if porting.problem or not porting.ports:
        return "the model does not port"
    if porting.target == "cpu":
        return "the model ran on this machine"
    if lowered := porting.nodes_with(Support.LOWERED.value):
        plural = "" if lowered == 1 else "s"
        return f"the model ports; the vendor's tools reject {lowered} node{plural}, which Stoker computes with other operators"
    if porting.nodes_with(Support.UNPUBLISHED.value):
        return "the model ports; the vendor publishes no list of operators, so that its tools may reject some"
    return "the model ports; the vendor's tools take every operator"


def _print_load(plan: Plan, load: LoadPlan) -> None:
    info = load.load
    print_line(
        f"{info.arrivals} arrivals, {number(info.rate_per_s)} requests/s of {info.rows} row{'' if info.rows == 1 else 's'}, "
        f"p99 of at most {number(info.p99_goal_s * 1e3)} ms ({info.host_text}):"
    )
    print_table(LOAD_COLUMNS, [load_row(plan, each) for each in load.counts], numeric=frozenset(LOAD_COLUMNS[1:6]))
    print_line()


def load_row(plan: Plan, count: CardCount) -> Sequence[str]:
    """Returns the cells of `LOAD_COLUMNS`."""
    combination = plan.combinations[count.combination]
    if count.devices is None or count.p50 is None or count.p99 is None or count.utilisation is None:
        return (combination.label, "", "", "", "", "", count.problem)
    enough = f"{count.devices.value:.0f}" if count.devices.value == count.used else f"{count.used} ({count.devices.value:.0f} as modelled)"
    busy = f"{count.utilisation.value:.0%}"
    return (
        combination.label,
        enough,
        with_bar(count.p50.scaled(1e3)),
        with_bar(count.p99.scaled(1e3)),
        busy,
        number(count.mean_batch_rows),
        count.problem,
    )


def _row(plan: Plan, combination: Combination) -> Sequence[str]:
    accuracy = plan.accuracy_of(combination.target, combination.precision)
    snr_db = accuracy.snr_db if accuracy else None
    memory = combination.memory
    latency = combination.latency.scaled(1e3) if combination.latency and combination.fits else None
    return (
        combination.device_label,
        combination.precision,
        str(combination.batch) if combination.batch else "",
        f"{memory.used_bytes / memory.capacity_bytes:.1%}" if memory and memory.capacity_bytes else "",
        with_bar(latency) if latency else "",
        with_bar(combination.throughput) if combination.throughput and combination.fits else "",
        number(snr_db),
        "" if latency is None else latency.origin,
        _note(combination),
    )


def fitting_note(levers: Sequence[str]) -> str:
    """Returns what the compiler changes to make a model fit, as a clause; empty if nothing."""
    return f"the compiler makes it fit with {', '.join(levers)}" if levers else ""


def _note(combination: Combination) -> str:
    if combination.fits:
        return fitting_note(combination.memory_levers)
    if combination.remedy is None:
        return combination.problem
    remedy = combination.remedy
    return f"does not fit; fits with {remedy.change}: {number(remedy.throughput.value)} rows/s ({Origin.SIMULATED})"
