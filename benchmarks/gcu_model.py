"""The error of the GCU's cost model against the published tables, cell by cell, and the fit of its constants.

    python -m benchmarks.gcu_model          # every cell: published, modelled, error; what is behind those that stand out
    python -m benchmarks.gcu_model --fit    # searches the fitted constants again and prints them

All modelled figures are simulated. A cell is copies to the card, the run on all six clusters, and copies back. The fit minimises the mean
square of log(modelled / published) over the cells that are aimed at, by a pattern search from the constants as they stand.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from benchmarks.gcu_networks import gcu_network, weight_mebibytes
from benchmarks.gcu_published import PUBLISHED, PublishedNetwork
from benchmarks.network_graph import dims
from stoker.backends.gcu.compile.cost_model import FITTED, CostConstants, graph_cost
from stoker.backends.gcu.hardware import I20
from stoker.backends.gcu.timing import copy_time_s

TIME_CONSTANTS = ("launch_s", "convolution_efficiency", "product_efficiency", "hbm_efficiency")
#: Efficiencies, which the search keeps at 1 or below.
_SHARES = frozenset(TIME_CONSTANTS[1:])
_FIRST_RATIO, _LAST_RATIO = 1.3, 1.005


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
    """The networks at the batch sizes of the tables, each built once, by name and batch."""

    graphs: dict[tuple[str, int], ir.Model]

    @classmethod
    def build(cls) -> "Networks":
        return cls({(each.name, size): gcu_network(each.name, size) for each in PUBLISHED for size in (1, each.batch)})

    def modelled_ms(self, network: str, computed: int, moved: int, constants: CostConstants) -> float:
        """Modelled milliseconds of `computed` samples on all clusters, of which `moved` are copied."""
        graph = self.graphs[network, computed]
        cost = graph_cost(graph, batch_size=computed, hardware=I20, constants=constants)
        return 1e3 * (self._copy_s(graph, computed, moved) + cost.run_s[-1])

    @staticmethod
    def _copy_s(graph: ir.Model, computed: int, moved: int) -> float:
        fed = [value for value in graph.graph.inputs if value.const_value is None]
        return sum(copy_time_s(I20, _bytes(value) // computed * moved) for value in (*fed, *graph.graph.outputs))


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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="search the fitted constants, and print them")
    console = Console(width=130)
    networks, constants = Networks.build(), FITTED
    if parser.parse_args(arguments).fit:
        constants = fit(networks, console)
        console.print(constants)
    print_cells(networks, constants, console)
    print_batches(networks, constants, console)


def fit(networks: Networks, console: Console, start: CostConstants = FITTED) -> CostConstants:
    """Searches the constants: raises and lowers each in turn by a ratio that shrinks when no step helps."""
    aimed_at = [cell for cell in cells() if cell.is_aimed_at]

    def loss(constants: CostConstants) -> float:
        return statistics.fmean(math.log(1 + error_of(cell, networks, constants)) ** 2 for cell in aimed_at)

    best, least, ratio = start, loss(start), _FIRST_RATIO
    while ratio > _LAST_RATIO:
        improved = False
        for name in TIME_CONSTANTS:
            for factor in (ratio, 1 / ratio):
                value = getattr(best, name) * factor
                if name in _SHARES and value > 1:
                    continue
                tried = replace(best, **{name: value})
                if (found := loss(tried)) < least:
                    best, least, improved = tried, found, True
                    break
        console.print(f"steps of {ratio:.3f}: error (root mean square) {least**0.5:.1%}")
        ratio = ratio if improved else math.sqrt(ratio)
    return best


def print_cells(networks: Networks, constants: CostConstants, console: Console) -> None:
    """Prints every cell, and the mean error of the fitted ones."""
    table = Table(title="i20, fp32: published and modelled (simulated)", title_justify="left")
    for heading in ("cell", "published ms", "modelled ms", "error", ""):
        table.add_column(heading, justify="left" if heading in ("cell", "") else "right", no_wrap=heading != "")
    errors = []
    for cell in cells():
        error = error_of(cell, networks, constants)
        if cell.is_aimed_at:
            errors.append(abs(error))
        note = cell.note if cell.is_aimed_at else f"not aimed at; {cell.note}"
        table.add_row(cell.label, f"{cell.published_ms:,.2f}", f"{cell.published_ms * (1 + error):,.2f}", f"{error:+.1%}", note)
    console.print(table)
    console.print(f"cells aimed at: {len(errors)}, median |error| {statistics.median(errors):.1%}, largest {max(errors):.1%}")
    for each in PUBLISHED:
        built = weight_mebibytes(networks.graphs[each.name, 1])
        console.print(f"  {each.name}: built with {built:.1f} MiB of weights, published {each.mebibytes} MB")


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
