"""`plan_graph`: the schedule and the memory of a converted graph on a simulated IPU.

The converted graph is planned in its own precision; the arithmetic that the host runs is separate (`lowering`). The schedule is the graph's
order. `cost_model` computes a node's steps, `Residency` its memory.

Where nodes run: the IPU and pipeline stage that `manual_sharding` marked them with, and what a pipeline asks of these marks. PopART's
rules: a stage lies on one IPU, stages are numbered without gaps, and data go forward only, from a stage to itself or a later one.
"""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from stoker.backends.ipu.compile.chosen_constants import chosen_constants
from stoker.backends.ipu.compile.constants import (
    HOST_LATENCY_S,
    LINK_EFFICIENCY,
    WEIGHT_LOAD_BYTES,
    WIDE_LOAD_BYTES,
    CostConstants,
)
from stoker.backends.ipu.compile.cost_model import VIEWS, Machine, NodeCost, move_cost, node_cost
from stoker.backends.ipu.compile.layouts import Layouts, is_in_place
from stoker.backends.ipu.compile.liveness import Aliases
from stoker.backends.ipu.compile.memory import Residency, check_fit
from stoker.backends.ipu.compile.tiling import Rates
from stoker.backends.ipu.hardware import IpuHardware
from stoker.backends.ipu.program import MemoryAccount, Step, StepKind
from stoker.compiler import marks
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.lowering.typed_graph import TensorFacts, node_label, tensor_facts
from stoker.compiler.options import CompilerOptions
from stoker.compiler.precision.representation import float8_use, is_float8_cast

_logger = logging.getLogger(__name__)

IPU_KEY = "__ipu_number"
STAGE_KEY = "__pipeline_stage"


def placement(node: ir.Node) -> tuple[int, int]:
    """Returns the IPU and pipeline stage that `manual_sharding` gave the node; by default 0 and 0.

    Raises:
        CompileError: a value is not an integer.
    """
    found = []
    for key in (IPU_KEY, STAGE_KEY):
        attribute = node.attributes.get(key)
        text = node.metadata_props.get(key) if attribute is None else attribute.value
        try:
            found.append(int(text) if text is not None else 0)
        except (TypeError, ValueError):
            raise CompileError(f"node '{node_label(node)}': {key} is {text!r}, expected a whole number") from None
    return found[0], found[1]


@dataclass(frozen=True, slots=True)
class Placement:
    """An IPU of the replica, and a pipeline stage."""

    ipu: int = 0
    stage: int = 0


class Sharding:
    """The IPUs and pipeline stages of all nodes and streams of a graph."""

    def __init__(self, graph: ir.Graph, *, is_pipelined: bool, automatic_ipus: int = 1) -> None:
        """Reads the marks. Without marks, spreads the nodes over `automatic_ipus`, each of which is one stage if the graph is pipelined.

        Raises:
            CompileError: a mark is not an integer, or the graph is to be pipelined and breaks a rule; the text names the nodes.
        """
        self._placements: Mapping[ir.Node, Placement] = {node: Placement(*placement(node)) for node in graph}
        if automatic_ipus > 1 and set(self._placements.values()) == {Placement()}:
            self._placements = _spread(list(graph), automatic_ipus, is_pipelined=is_pipelined)
        nodes = list(self._placements.values())
        self._first, self._last = (nodes[0], nodes[-1]) if nodes else (Placement(), Placement())
        if is_pipelined:
            self._check_pipeline()

    def of(self, node: ir.Node) -> Placement:
        """Where `node` of the graph runs."""
        return self._placements[node]

    def of_input(self, value: ir.Value) -> Placement:
        """Returns the place where a stream arrives: that of the first node that reads it."""
        readers = {use.node for use in value.uses()}
        return next((placement for node, placement in self._placements.items() if node in readers), self._first)

    def of_output(self, value: ir.Value) -> Placement:
        """Returns the place where a stream leaves: that of the node that produces it."""
        producer = value.producer()
        return self._last if producer is None else self._placements.get(producer, self._last)

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return len({placement.stage for placement in self._placements.values()} | {0})

    def _check_pipeline(self) -> None:
        stage_ipus: dict[int, tuple[int, str]] = {}
        for node, at in self._placements.items():
            label = node_label(node)
            ipu, other = stage_ipus.setdefault(at.stage, (at.ipu, label))
            if ipu != at.ipu:
                raise CompileError(
                    f"pipeline stage {at.stage} must lie on one IPU: node '{other}' is on IPU {ipu}, node '{label}' on {at.ipu}"
                )
            for value in node.inputs:
                producer = None if value is None else value.producer()
                before = None if producer is None else self._placements.get(producer)
                if before is not None and before.stage > at.stage:
                    raise CompileError(
                        f"node '{label}' of pipeline stage {at.stage} reads '{value.name if value else ''}', which only stage "
                        f"{before.stage} makes; data go to later stages only"
                    )
        missing = sorted(set(range(max(stage_ipus, default=0) + 1)) - set(stage_ipus))
        if missing:
            raise CompileError(
                f"no node is in pipeline stage {missing[0]}, though there is a stage {max(stage_ipus)}; number them without gaps"
            )


#: Bytes that a node takes beside its weights, mostly code on every tile.
_NODE_BYTES = 1_500_000


def _spread(nodes: Sequence[ir.Node], ipus: int, *, is_pipelined: bool) -> dict[ir.Node, Placement]:
    """Cuts the nodes, in their order, into one part for each of `ipus`, with about the same number of bytes."""
    seen: set[ir.Value] = set()
    ends: list[int] = []
    total = 0
    for node in nodes:
        weights = {value for value in node.inputs if value is not None and value.const_value is not None} - seen
        seen |= weights
        total += _NODE_BYTES + sum(value.const_value.nbytes for value in weights if value.const_value is not None)
        ends.append(total)
    # A node lies where the middle of its bytes lies.
    parts = [min((begin + end) * ipus // (2 * total), ipus - 1) for begin, end in itertools.pairwise([0, *ends])]
    numbers = {part: number for number, part in enumerate(sorted(set(parts)))}  # without gaps, if there are fewer nodes than IPUs
    return {node: Placement(numbers[part], numbers[part] if is_pipelined else 0) for node, part in zip(nodes, parts, strict=True)}


_DEFAULT_PROPORTION = 0.6
#: Shares of the available memory proportion that are tried in turn until the graph fits. Less temporary memory means plans that split
#: products into more sequential slices.
_SHARES = (1.0, 0.65, 0.4, 0.25, 0.15, 0.08)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPlan:
    """The plan of a graph on one replica.

    Attributes:
        steps: The schedule of one micro-batch.
        memory: One account per IPU.
        code_bytes, weight_bytes: Bytes that loading moves over the host link.
        pipeline_stages: Number of pipeline stages; 1 if the graph is not pipelined.
        holders: For each IPU, the users of memory on its fullest tile with their bytes, largest first.
        levers: What was changed to make the graph fit, one text each; empty if the options were followed.
    """

    steps: tuple[Step, ...]
    memory: tuple[MemoryAccount, ...]
    code_bytes: int
    weight_bytes: int
    pipeline_stages: int
    holders: tuple[tuple[tuple[str, int], ...], ...] = ()
    levers: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether no tile is over capacity."""
        return all(max(account.tile_bytes, default=0) <= account.capacity_bytes for account in self.memory)

    @property
    def can_shrink(self) -> bool:
        """Whether less temporary data could make it fit: it would without any, and no IO tile is over capacity."""
        for account in self.memory:
            held = sum(account.by_category.values())
            if max(account.tile_bytes, default=0) > max(held, account.capacity_bytes):
                return False
            if held - account.by_category.get("temporary", 0) > account.capacity_bytes:
                return False
        return True


def plan_graph(
    model: ir.Model, *, hardware: IpuHardware, options: CompilerOptions, name: str, constants: CostConstants | None = None
) -> GraphPlan:
    """Plans the converted `model` for `hardware`. Only adds missing shapes to `model`.

    A graph that does not fit is planned again with less memory for temporary data: see `GraphPlan.levers`.

    Raises:
        OutOfTileMemory: a tile would have to hold more than it can.
        CompileError: a tensor has no static shape, or a sharding number is invalid.
        OptionError: the options leave no tiles, or name no memory proportion in (0, 1].
    """
    plan = survey_graph(model, hardware=hardware, options=options, name=name, constants=constants)
    for lever in plan.levers:
        _logger.warning("model '%s' fits with less memory for temporary data: %s", name, lever)
    for account, holders in zip(plan.memory, plan.holders, strict=True):
        check_fit(account, name=name, holders=holders)
    return plan


def survey_graph(
    model: ir.Model, *, hardware: IpuHardware, options: CompilerOptions, name: str, constants: CostConstants | None = None
) -> GraphPlan:
    """Like `plan_graph`, but without its warning, and also returns a plan that does not fit, with accounts over capacity: that of the
    options as given.

    Raises:
        CompileError: as `plan_graph`, except for memory.
    """
    chosen = constants or chosen_constants(options).values
    first = _Planner(model, hardware, options, name, chosen).plan()
    if first.fits or not first.can_shrink:
        return first
    for share in _SHARES[1:]:
        plan = _Planner(model, hardware, options, name, chosen, proportion_share=share).plan()
        if plan.fits:
            return replace(plan, levers=(_lowered(options, share),))
        if not plan.can_shrink:
            break
    return first


def _lowered(options: CompilerOptions, share: float) -> str:
    given = options.available_memory_proportion
    if isinstance(given, Mapping):
        return f"available_memory_proportion of all nodes {share:.0%} of what was given"
    return f"available_memory_proportion {given * share:.3g} instead of {given:g}"


class _Planner:
    """Walks one graph once."""

    def __init__(
        self,
        model: ir.Model,
        hardware: IpuHardware,
        options: CompilerOptions,
        name: str,
        constants: CostConstants,
        *,
        proportion_share: float = 1.0,
    ) -> None:
        self._graph = _with_shapes(model).graph
        self._hardware = hardware
        self._options = options
        self._name = name
        self._constants = constants
        self._proportion_share = proportion_share
        self._tiles_per_ipu = options.tiles_per_ipu or hardware.tiles
        self._tiles = self._tiles_per_ipu - options.num_io_tiles
        if self._tiles < 1 or options.num_io_tiles < 0:
            raise OptionError(
                f"num_io_tiles is {options.num_io_tiles}: it must be at least 0 and leave some of {self._tiles_per_ipu} tiles"
            )
        automatic_ipus = options.num_ipus if options.virtual_graph_mode == "auto" else 1
        self._sharding = Sharding(self._graph, is_pipelined=options.enable_pipelining, automatic_ipus=automatic_ipus)
        self._made_in: dict[ir.Value, int] = {}
        self._views = [node for node in self._graph if _is_view(node)]
        self._is_view = set(self._views)
        self._aliases = Aliases(self._graph, self._views)
        self._steps: list[Step] = []
        self._residencies: dict[int, Residency] = {}
        self._facts: dict[ir.Value, TensorFacts] = {}
        self._layouts = Layouts()
        self._rates = Rates(
            load_bytes=WIDE_LOAD_BYTES if options.use_128bit_conv_unit_load else WEIGHT_LOAD_BYTES,
            reduce_vectors=2 if options.enable_fast_reduce else 1,
        )

    def plan(self) -> GraphPlan:
        for value in self._graph.inputs:
            if value.const_value is None:
                self._host(value, StepKind.HOST_READ, self._sharding.of_input(value))
        for index, node in enumerate(self._graph):
            self._node(index, node)
        for value in self._graph.outputs:
            self._host(value, StepKind.HOST_WRITE, self._sharding.of_output(value))
        residencies = self.residencies
        return GraphPlan(
            steps=tuple(self._steps),
            memory=tuple(each.account(capacity_bytes=self._hardware.tile_memory_bytes) for each in residencies),
            code_bytes=sum(each.code_bytes for each in residencies),
            weight_bytes=sum(each.weight_bytes for each in residencies),
            pipeline_stages=self._sharding.stages if self._options.enable_pipelining else 1,
            holders=tuple(tuple(each.holders()) for each in residencies),
        )

    @property
    def residencies(self) -> list[Residency]:
        """The residencies, by number of their IPU."""
        return [self._residencies[ipu] for ipu in sorted(self._residencies)]

    def _node(self, index: int, node: ir.Node) -> None:
        where = f"node '{node_label(node)}' ({node.op_type})"
        placement = self._sharding.of(node)
        residency = self._residency(placement.ipu)
        for value in node.inputs:
            if value is not None:
                self._bring(value, residency, placement, where)
        inputs = [None if value is None else self._fact(value, where) for value in node.inputs]
        is_view = node in self._is_view
        for value in node.outputs:
            facts = tensor_facts(value, where)
            self._facts[value] = _as_viewed(facts, inputs) if is_view else facts
            self._made_in[value] = placement.stage
        outputs = [self._facts[value] for value in node.outputs]
        moved_bytes = self._layouts.moved_bytes(node, self._facts, is_view=is_view)
        if is_view:
            cost = NodeCost()
        elif marks.REMAP in node.metadata_props:
            cost = move_cost(outputs[0], self._machine(node))
        else:
            use = float8_use(node)
            cost = node_cost(node, inputs, outputs, self._machine(node), is_fp8=use is not None and use.computes, moved_bytes=moved_bytes)
        self._place_outputs(index, node, residency)
        self._emit(node, cost, placement)
        residency.ran(where, (node.op_type, *inputs, *outputs) if self._options.enable_outlining else node, cost)

    def _place_outputs(self, index: int, node: ir.Node, residency: Residency) -> None:
        for value in node.outputs:
            source: ir.Value | None = None
            if node in self._is_view:
                source = node.inputs[0] if node.inputs else None
            elif is_in_place(node):
                source = self._overwritten(index, node, value, residency)
            if source is not None and residency.holds(source):
                residency.share(value, source)
            elif value.const_value is not None or self._facts[value].is_constant:
                residency.hold_weight(value, self._facts[value])
            else:
                residency.hold(value, self._facts[value])

    def _overwritten(self, index: int, node: ir.Node, output: ir.Value, residency: Residency) -> ir.Value | None:
        """Returns an input that `output` may overwrite: of the same size, on this IPU, and read by no later node."""
        for value in node.inputs:
            if value is None or self._facts[value].is_constant or not residency.holds(value):
                continue
            if self._facts[value].byte_count == self._facts[output].byte_count and not self._aliases.is_read_after(value, index):
                return value
        return None

    def _fact(self, value: ir.Value, where: str) -> TensorFacts:
        if value not in self._facts:
            self._facts[value] = tensor_facts(value, where)
        return self._facts[value]

    def _residency(self, ipu: int) -> Residency:
        if ipu not in self._residencies:
            self._residencies[ipu] = Residency(ipu, tiles=self._tiles, io_tiles=self._options.num_io_tiles, constants=self._constants)
        return self._residencies[ipu]

    def _bring(self, value: ir.Value, residency: Residency, placement: Placement, where: str) -> None:
        """Ensures that `value` is on the IPU: weights are loaded there once, activations are sent over the link.

        In a pipeline an activation waits here while the micro-batches before it pass the stages between its maker and its reader.
        """
        facts = self._fact(value, where)
        if not residency.holds(value):
            if facts.is_constant:
                residency.hold_weight(value, facts)
            else:
                one_way = self._hardware.ipu_link_bytes_per_s / 2 * LINK_EFFICIENCY
                cycles = facts.byte_count / one_way * self._hardware.clock_hz + self._constants.sync_cycles
                self._step(StepKind.LINK, cycles, value.name or "", "Copy", facts.byte_count, placement)
                behind = placement.stage - self._made_in.get(value, placement.stage) if self._options.enable_pipelining else 0
                residency.hold(value, facts, waiting=max(behind - 1, 0))
        residency.read(value)

    def _host(self, value: ir.Value, kind: StepKind, placement: Placement) -> None:
        """Streams `value` from or to the host through permanent buffers."""
        facts = self._fact(value, f"graph '{self._name}'")
        seconds = HOST_LATENCY_S + facts.byte_count / self._hardware.host_link_bytes_per_s
        self._step(kind, seconds * self._hardware.clock_hz, value.name or "", "Stream", facts.byte_count, placement)
        residency = self._residency(placement.ipu)
        if self._options.num_io_tiles > 0:  # through the IO tiles, which exchange data with the other tiles
            residency.buffer(facts.byte_count)
            rate = self._hardware.exchange_bytes * self._options.num_io_tiles
            cycles = facts.byte_count / rate + self._constants.step_cycles
            self._step(StepKind.EXCHANGE, cycles, value.name or "", "Stream", facts.byte_count, placement)
        if kind is StepKind.HOST_READ:
            residency.hold(value, facts)
            self._made_in[value] = placement.stage
        else:
            residency.read(value)

    def _step(self, kind: StepKind, cycles: float, node: str, op_type: str, data_bytes: int, placement: Placement) -> None:
        self._steps.append(
            Step(
                kind=kind,
                cycles=math.ceil(cycles),
                node=node,
                op_type=op_type,
                tiles=self._tiles,
                data_bytes=data_bytes,
                ipu=placement.ipu,
                stage=placement.stage,
            )
        )

    def _machine(self, node: ir.Node) -> Machine:
        proportion = self._options.available_memory_proportion
        if not isinstance(proportion, int | float):
            proportion = proportion.get(node_label(node), proportion.get(node.op_type, _DEFAULT_PROPORTION))
        if not 0 < proportion <= 1:
            raise OptionError(f"available_memory_proportion is {proportion} for node '{node_label(node)}', expected a number in (0, 1]")
        return Machine(
            hardware=self._hardware,
            tiles=self._tiles,
            temporary_limit_bytes=math.floor(self._proportion_share * proportion * self._hardware.tile_memory_bytes),
            partials_type=self._options.partials_type,
            constants=self._constants,
            rates=self._rates,
            is_softmax_stable=not self._options.enable_non_stable_softmax,
        )

    def _emit(self, node: ir.Node, cost: NodeCost, placement: Placement) -> None:
        label = node_label(node)
        for step in cost.steps:
            is_sync = step.kind is StepKind.SYNC
            self._steps.append(
                Step(
                    kind=step.kind,
                    cycles=step.cycles,
                    node="" if is_sync else label,
                    op_type="" if is_sync else node.op_type,
                    tiles=step.tiles,
                    flops=step.flops,
                    data_bytes=step.data_bytes,
                    ipu=placement.ipu,
                    stage=placement.stage,
                )
            )


def _is_view(node: ir.Node) -> bool:
    """Whether the node's output is a view of its input. A remap is an Identity node, but moves all data."""
    return (node.op_type in VIEWS and marks.REMAP not in node.metadata_props) or is_float8_cast(node)


def _as_viewed(facts: TensorFacts, inputs: Sequence[TensorFacts | None]) -> TensorFacts:
    """Gives a view the width and constness of its source (decoded fp8 is read as its codes)."""
    source = inputs[0] if inputs else None
    return facts if source is None else replace(facts, bits=source.bits, is_constant=source.is_constant)


def _with_shapes(model: ir.Model) -> ir.Model:
    """Returns `model` with missing shapes inferred."""
    is_known = all(value.shape is not None and value.shape.is_static() for node in model.graph for value in node.outputs if value.name)
    return model if is_known else ShapeInferencePass()(model).model
