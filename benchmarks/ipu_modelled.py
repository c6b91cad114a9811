"""The published rows beside their models: throughput and verdict on memory of each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from benchmarks.ipu_held_out import held_out_rows
from benchmarks.ipu_published import Group, PublishedRow, fitted_rows
from stoker.backends.ipu.compile.constants import FITTED, CostConstants
from stoker.backends.ipu.compile.plan import GraphPlan, survey_graph
from stoker.backends.ipu.hardware import C600
from stoker.backends.ipu.program import StepKind
from stoker.backends.ipu.timing import lane_cycles


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledRow:
    """A published row beside its model.

    Attributes:
        row: As published.
        rows_per_s: Modelled, whether it fits or not.
        tile_bytes: On the fullest tile.
        fits: Whether that is within the tile's memory.
        levers: What the compiler changed to make it fit.
    """

    row: PublishedRow
    rows_per_s: float
    tile_bytes: int
    fits: bool
    levers: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """Modelled over published, less 1; None where nothing was published."""
        return None if self.row.rows_per_s is None else self.rows_per_s / self.row.rows_per_s - 1

    @property
    def is_memory_right(self) -> bool:
        """Whether it fits if a card ran it, and does not fit with the options as given if it ran out of memory there."""
        return self.fits if self.row.is_known_to_fit else not self.fits or bool(self.levers)

    @property
    def memory(self) -> str:
        """The verdict, and whether it is the published one."""
        fits = f"fits: {self.levers[0].replace('available_memory_proportion', 'proportion')}" if self.levers else "fits"
        return (fits if self.fits else "OOM") + ("" if self.is_memory_right else " (published otherwise)")


def published_rows(*groups: Group) -> Iterator[PublishedRow]:
    """The rows of the groups, in the order of the tables."""
    yield from (row for row in (*fitted_rows(), *held_out_rows()) if row.group in groups)


def modelled(row: PublishedRow, graph: ir.Model, constants: CostConstants = FITTED) -> ModelledRow:
    """The model of one row; `graph` is that row's network, so that a fit builds it once."""
    plan = survey_graph(graph, hardware=C600, options=row.options, name=row.label, constants=constants)
    return ModelledRow(
        row=row,
        rows_per_s=row.batch / _seconds(row, plan),
        tile_bytes=max(plan.memory[0].tile_bytes),
        fits=plan.fits,
        levers=plan.levers,
    )


def _seconds(row: PublishedRow, plan: GraphPlan) -> float:
    """Returns the time of a micro-batch: between two of a busy device, or of a call where one client waits for it."""
    steps = plan.steps
    if row.is_synthetic:
        steps = tuple(step for step in steps if step.kind not in (StepKind.HOST_READ, StepKind.HOST_WRITE))
    lanes = lane_cycles(steps, is_io_overlapped=row.options.num_io_tiles > 0, is_pipelined=False)
    return (sum(lanes) if row.is_latency else max(lanes)) / C600.clock_hz


def aimed_errors(rows: Sequence[ModelledRow]) -> list[float]:
    """|error| of the rows that were published as a number and are no anomalies."""
    return [abs(each.error) for each in rows if each.error is not None and not each.row.is_anomaly]
