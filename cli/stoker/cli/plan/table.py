"""A plan as text for a terminal: the recommendation, the porting check and one row for each combination."""

from collections.abc import Sequence

from stoker.cli.output import print_line, print_table
from stoker.cli.plan.figures import Origin, number, with_bar
from stoker.cli.plan.model import Combination, Plan, Porting
from stoker.compiler.porting import Support

COLUMNS = ("device", "precision", "batch", "memory", "latency ms", "rows/s", "SNR dB", "origin", "note")
_NUMERIC = frozenset({"batch", "memory", "latency ms", "rows/s", "SNR dB"})
_SPARE = ("origin",)
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
    print_table(COLUMNS, [_row(plan, each) for each in plan.combinations], numeric=_NUMERIC, spare=_SPARE)
    print_line()
    for source in dict.fromkeys(each.error_source for each in plan.combinations if each.error_source):
        print_line(f"error bars: {source}")
    print_line("simulated: computed by a cost model for a device that is not here; measured: on this machine")
    for note in plan.notes:
        print_line(f"note: {note}")


def _print_porting(plan: Plan) -> None:
    for porting in plan.porting:
        print_line(f"{porting.target}: {verdict_of(porting)}")
        if porting.problem:
            print_line(f"  {porting.problem}")
        for each in [each for each in porting.operators if each.support in NOT_PLAIN][:_MOST_OPERATORS]:
            print_line(f"  {each.support}: {each.operator} ({each.count} node{'' if each.count == 1 else 's'}): {each.reason}")
    print_line()


def verdict_of(porting: Porting) -> str:
    """Returns the result of a porting check in a few words."""
    if porting.problem or not porting.ports:
        return "the model does not port"
    if porting.target == "cpu":
        return "the model ran on this machine"
    if lowered := porting.nodes_with(Support.LOWERED.value):
        return f"the model ports; the vendor's tools reject {lowered} nodes, which Stoker computes with other operators"
    if porting.nodes_with(Support.UNPUBLISHED.value):
        return "the model ports; the vendor publishes no list of operators, so that its tools may reject some"
    return "the model ports; the vendor's tools take every operator"


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


def _note(combination: Combination) -> str:
    if combination.fits:
        return ""
    if combination.remedy is None:
        return combination.problem
    remedy = combination.remedy
    return f"does not fit; fits with {remedy.change}: {number(remedy.throughput.value)} rows/s ({Origin.SIMULATED})"
