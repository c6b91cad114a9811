"""The error of the GCU's cost model against the published tables: in the fit, and of networks that are left out of it.

    python -m benchmarks.gcu_model           # fitted rows, rows of left-out networks, and how well the constants are determined
    python -m benchmarks.gcu_model --fit     # searches the fitted constants again and prints them
    python -m benchmarks.gcu_model --docs    # also writes the tables into docs/gcu.md

All modelled figures are simulated. A cell is copies to the card, the run on all six clusters, and copies back. The fit minimises the mean
square of log(modelled / published) over the cells that are aimed at, by a pattern search. A network that is left out contributes no cell.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from benchmarks.gcu_networks import gcu_network
from benchmarks.gcu_published import PUBLISHED, PublishedNetwork
from benchmarks.network_graph import dims
from stoker.backends.gcu.compile.cost_model import FITTED, CostConstants, KernelWork, graph_work, run_times
from stoker.backends.gcu.hardware import I20
from stoker.backends.gcu.timing import copy_time_s

#: The fitted constants. Both belong to the device, and every network has a share in both.
TIME_CONSTANTS = ("launch_s", "block_bytes")
#: Left out together too, because the two are nearly one network.
RESNETS = ("resnet50", "pruned resnet50")
_FIRST_RATIO, _LAST_RATIO = 1.4, 1.01
#: Loss, over the least one, up to which a value of a constant counts as determined by the tables.
_NEARLY_BEST = 1.01
#: Share of the fitted value below which a constant has no effect: the search only divides, and does not reach zero.
_AS_GOOD_AS_ZERO = 1e-3
DOCS = Path(__file__).resolve().parent.parent / "docs" / "gcu.md"
_MARKS = ("<!-- benchmarks.gcu_model: begin -->\n", "<!-- benchmarks.gcu_model: end -->\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One published latency.

    Attributes:
        network: The network's name.
        measure: `served` or `raw`.
        batch: The published batch size.
        computed: Number of samples computed: more than `batch` for a static batch.
        published_ms: The published latency, milliseconds.
        is_aimed_at: Whether the fit includes it.
        note: The explanation of an outlier; empty for others.
    """

    network: str
    measure: str
    batch: int
    computed: int
    published_ms: float
    is_aimed_at: bool = True
    note: str = ""

    @property
    def label(self) -> str:
        return f"{self.network} b{self.batch} {self.measure}"


@dataclass(frozen=True, slots=True)
class Networks:
    """The networks at the batch sizes of the tables, each built once, by name and batch.

    Attributes:
        graphs: The networks.
        works: The kernels of each that differ in more than names, and for each kernel, in order, its place among them.
        known_ms: Modelled milliseconds by the arguments of `modelled_ms`: the fits compute many of them again.
    """

    graphs: dict[tuple[str, int], ir.Model]
    works: dict[tuple[str, int], tuple[tuple[KernelWork, ...], tuple[int, ...]]]
    known_ms: dict[tuple[str, int, int, CostConstants], float] = field(default_factory=dict)

    @classmethod
    def build(cls) -> "Networks":
        graphs = {(each.name, size): gcu_network(each.name, size) for each in PUBLISHED for size in (1, each.batch)}
        return cls(graphs, {(name, size): _distinct(graph_work(graph, size)) for (name, size), graph in graphs.items()})

    def modelled_ms(self, network: str, computed: int, moved: int, constants: CostConstants) -> float:
        """Modelled milliseconds of `computed` samples on all clusters, of which `moved` are copied."""
        key = (network, computed, moved, constants)
        if key not in self.known_ms:
            distinct, places = self.works[network, computed]
            costs = [work.cost(I20, constants) for work in distinct]
            run_s = run_times(tuple(costs[place] for place in places), computed, I20, constants)[-1]
            self.known_ms[key] = 1e3 * (self._copy_s(self.graphs[network, computed], computed, moved) + run_s)
        return self.known_ms[key]

    @staticmethod
    def _copy_s(graph: ir.Model, computed: int, moved: int) -> float:
        fed = [value for value in graph.graph.inputs if value.const_value is None]
        return sum(copy_time_s(I20, _bytes(value) // computed * moved) for value in (*fed, *graph.graph.outputs))


def _distinct(kernels: Sequence[KernelWork]) -> tuple[tuple[KernelWork, ...], tuple[int, ...]]:
    """Returns the kernels of different work, and for each of `kernels` its place among them."""
    places: dict[KernelWork, int] = {}
    order = tuple(places.setdefault(replace(work, node="", op_type="", fused=()), len(places)) for work in kernels)
    return tuple(places), order


def cells() -> list[Cell]:
    """All published cells."""
    found = []
    for each in PUBLISHED:
        full = each.is_single_full
        why = f"the full static batch of {each.batch} was computed" if full else ""
        computed = each.batch if full else 1
        found.append(Cell(network=each.name, measure="served", batch=1, computed=computed, published_ms=each.single_ms, note=why))
        found.append(Cell(network=each.name, measure="raw", batch=each.batch, computed=each.batch, published_ms=each.raw_ms))
        found.append(_served(each))
    return found


def _served(each: PublishedNetwork) -> Cell:
    """The large batch through Adlik's server, which the device model does not cover: shown, but not fitted."""
    share = each.raw_ms / each.served_ms
    note = f"{share:.3f} of raw" + (": pageable copies and responses of 257 MB, not the device" if share < 0.5 else "")
    return Cell(
        network=each.name,
        measure="served",
        batch=each.batch,
        computed=each.batch,
        published_ms=each.served_ms,
        is_aimed_at=False,
        note=note,
    )


def error_of(cell: Cell, networks: Networks, constants: CostConstants = FITTED) -> float:
    """Modelled over published, minus 1."""
    return networks.modelled_ms(cell.network, cell.computed, cell.batch, constants) / cell.published_ms - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The errors of networks that were left out of a fit.

    Attributes:
        networks: Their names.
        constants: Of the fit on the other networks.
        errors: Modelled over published, minus 1, of each of their cells.
    """

    networks: tuple[str, ...]
    constants: CostConstants
    errors: tuple[tuple[Cell, float], ...]


def aimed_at(without: Collection[str] = ()) -> list[Cell]:
    """The cells of the fit, without those of some networks."""
    return [cell for cell in cells() if cell.is_aimed_at and cell.network not in without]


def loss_of(networks: Networks, fitted: Sequence[Cell]) -> Callable[[CostConstants], float]:
    """Returns the loss over `fitted`: the mean square of log(modelled / published)."""
    return lambda constants: statistics.fmean(math.log(1 + error_of(cell, networks, constants)) ** 2 for cell in fitted)


def fit(loss: Callable[[CostConstants], float], names: Sequence[str] = TIME_CONSTANTS) -> tuple[CostConstants, float]:
    """Returns the constants with the least loss, and the loss. Starts at several points, since the search finds local minima."""
    starts = [replace(FITTED, launch_s=launch_s, block_bytes=size) for launch_s, size in ((22e-6, 12e3), (40e-6, 40e3), (5e-6, 6e3))]
    starts = [replace(FITTED, **{name: getattr(start, name) for name in names}) for start in starts]
    return min((_descended(loss, start, names) for start in starts), key=lambda found: found[1])


def _descended(loss: Callable[[CostConstants], float], start: CostConstants, names: Sequence[str]) -> tuple[CostConstants, float]:
    """Raises and lowers each constant in turn by a ratio that shrinks when no step helps."""
    best, least, ratio = start, loss(start), _FIRST_RATIO
    while ratio > _LAST_RATIO:
        improved = False
        for name in names:
            for factor in (ratio, 1 / ratio):
                tried = replace(best, **{name: getattr(best, name) * factor})
                if (found := loss(tried)) < least:
                    best, least, improved = tried, found, True
                    break
        ratio = ratio if improved else math.sqrt(ratio)
    return best, least


def held_out(networks: Networks) -> list[HeldOut]:
    """Fits without each network in turn, and without both ResNets."""
    found = []
    for names in (*((each.name,) for each in PUBLISHED), RESNETS):
        constants, _ = fit(loss_of(networks, aimed_at(names)))
        own = [cell for cell in aimed_at() if cell.network in names]
        found.append(
            HeldOut(networks=names, constants=constants, errors=tuple((cell, error_of(cell, networks, constants)) for cell in own))
        )
    return found


def errors_of_single(found: Sequence[HeldOut]) -> list[float]:
    """The absolute errors of the networks that were left out one at a time."""
    return [abs(error) for each in found if len(each.networks) == 1 for _, error in each.errors]


def determined_range(networks: Networks, name: str) -> tuple[float, float]:
    """Returns the range of a constant within 1 % of the least loss, if the other constants are fitted again for each value."""
    loss = loss_of(networks, aimed_at())
    least = loss(FITTED)
    others = [each for each in TIME_CONSTANTS if each != name]
    ends = []
    for ratio in (1 / 1.02, 1.02):
        value = getattr(FITTED, name)
        while 1e-2 < value * ratio / getattr(FITTED, name) < 1e2:
            fixed = replace(FITTED, **{name: value * ratio})
            if _descended(loss, fixed, others)[1] > least * _NEARLY_BEST:
                break
            value *= ratio
        ends.append(value)
    return ends[0], ends[1]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="search the fitted constants, and print them")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/gcu.md")
    given = parser.parse_args(arguments)
    console = Console(width=130)
    networks = Networks.build()
    if given.fit:
        constants, loss = fit(loss_of(networks, aimed_at()))
        console.print(constants, f"error (root mean square) {loss**0.5:.1%}")
        return
    text = tables(networks, held_out(networks))
    console.print(text, markup=False, highlight=False)
    print_batches(networks, FITTED, console)
    if given.docs:
        DOCS.write_text(with_tables(DOCS.read_text(), text))


def with_tables(page: str, text: str) -> str:
    """Returns the page of documentation with `text` between its marks."""
    before, _, rest = page.partition(_MARKS[0])
    _, _, after = rest.partition(_MARKS[1])
    return f"{before}{_MARKS[0]}{text}{_MARKS[1]}{after}"


def tables(networks: Networks, found: Sequence[HeldOut]) -> str:
    """Returns the Markdown tables of the errors and of the constants; `found` is from `held_out`."""
    out = {cell.label: error for each in found if len(each.networks) == 1 for cell, error in each.errors}
    both = {cell.label: error for each in found if len(each.networks) > 1 for cell, error in each.errors}
    lines = ["| cell | published, ms | fitted | left out | without both ResNets |", "|---|---|---|---|---|"]
    fitted = []
    for cell in aimed_at():
        fitted.append(abs(error_of(cell, networks)))
        of_both = f"{both[cell.label]:+.0%}" if cell.label in both else ""
        error = f"{error_of(cell, networks):+.0%} | {out[cell.label]:+.0%} | {of_both}"
        lines.append(f"| {cell.network}, batch {cell.batch}, {cell.measure} | {cell.published_ms:.2f} | {error} |")
    single = errors_of_single(found)
    lines.append(f"| median, worst | | {_summary(fitted)} | {_summary(single)} | {_summary([abs(error) for error in both.values()])} |")
    lines += ["", "| constant | fitted | within 1 % of the least loss | without one network |", "|---|---|---|---|"]
    for name in TIME_CONSTANTS:
        low, high = determined_range(networks, name)
        values = [getattr(each.constants, name) for each in found]
        least = min(values) if min(values) > getattr(FITTED, name) * _AS_GOOD_AS_ZERO else 0.0
        lines.append(f"| `{name}` | {getattr(FITTED, name):.3g} | {low:.3g} to {high:.3g} | {least:.2g} to {max(values):.2g} |")
    return "\n".join(lines) + "\n"


def _summary(errors: Sequence[float]) -> str:
    return f"{statistics.median(errors):.0%}, {max(errors):.0%}"


def print_batches(networks: Networks, constants: CostConstants, console: Console) -> None:
    """What one sample costs where the executable has a batch of 1, beside the static batch computed in full."""
    table = Table(title="one sample (simulated): several compiled batch sizes, or the large one alone", title_justify="left")
    for heading in ("network", "batch 1 compiled too", "only the large batch", "saved"):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    for each in PUBLISHED:
        alone = networks.modelled_ms(each.name, 1, 1, constants)
        full = networks.modelled_ms(each.name, each.batch, 1, constants)
        table.add_row(each.name, f"{alone:,.2f} ms", f"{full:,.2f} ms", f"{full / alone:.1f}x")
    console.print(table)


def _bytes(value: ir.Value) -> int:
    assert value.dtype is not None
    return math.prod(dims(value)) * round(value.dtype.itemsize)


if __name__ == "__main__":
    main()
