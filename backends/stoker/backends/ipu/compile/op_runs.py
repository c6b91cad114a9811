"""A schedule by nodes: how long each of them, and each stream, takes of a micro-batch."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.backends.ipu.program import Step, StepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRun:
    """One node, or one stream, in the schedule of a micro-batch; times in seconds.

    Attributes:
        node, op_type: Of the converted graph; `Stream` moves an input or output, `Copy` goes between IPUs.
        ipu, stage: Where it runs.
        start_s: Since the micro-batch began, one step after the other.
        compute_s, exchange_s, sync_s, link_s, host_s: By what the device does.
        tiles: The most that take part in a step.
        flops, data_bytes: Done and moved.
    """

    node: str
    op_type: str
    ipu: int
    stage: int
    start_s: float
    compute_s: float
    exchange_s: float
    sync_s: float
    link_s: float
    host_s: float
    tiles: int
    flops: int
    data_bytes: int

    @property
    def total_s(self) -> float:
        return self.compute_s + self.exchange_s + self.sync_s + self.link_s + self.host_s


def op_runs(steps: Sequence[Step], clock_hz: float) -> tuple[OpRun, ...]:
    """The schedule of one micro-batch, node by node in its order."""
    runs, begun = [], 0
    for gathered in _by_node(steps):
        runs.append(_run(gathered, begun, clock_hz))
        begun += sum(step.cycles for step in gathered)
    return tuple(runs)


def _by_node(steps: Sequence[Step]) -> list[list[Step]]:
    """Successive steps of one node together; a sync belongs to what is waited for with it, the step behind it."""
    groups: list[list[Step]] = []
    waiting: list[Step] = []
    for step in steps:
        waiting.append(step)
        if step.kind is StepKind.SYNC:
            continue
        if not groups or (groups[-1][-1].node, groups[-1][-1].op_type) != (step.node, step.op_type):
            groups.append([])
        groups[-1] += waiting
        waiting = []
    return [*groups, waiting] if waiting else groups


def _run(gathered: Sequence[Step], begun: int, clock_hz: float) -> OpRun:
    spent: dict[StepKind, int] = defaultdict(int)
    for step in gathered:
        spent[step.kind] += step.cycles
    named = gathered[-1]
    return OpRun(
        node=named.node,
        op_type=named.op_type,
        ipu=named.ipu,
        stage=named.stage,
        start_s=begun / clock_hz,
        compute_s=spent[StepKind.COMPUTE] / clock_hz,
        exchange_s=spent[StepKind.EXCHANGE] / clock_hz,
        sync_s=spent[StepKind.SYNC] / clock_hz,
        link_s=spent[StepKind.LINK] / clock_hz,
        host_s=(spent[StepKind.HOST_READ] + spent[StepKind.HOST_WRITE]) / clock_hz,
        tiles=max(step.tiles for step in gathered),
        flops=sum(step.flops for step in gathered),
        data_bytes=sum(step.data_bytes for step in gathered),
    )
