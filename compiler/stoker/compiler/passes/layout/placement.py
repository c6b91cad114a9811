"""Marks for the compiler: which IPU computes a node, where layouts change, how many tiles do IO."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import onnx_ir as ir

from stoker.compiler.errors import OptionError
from stoker.compiler.marks import IPU_NUMBER, NUM_IO_TILES, PIPELINE_STAGE, REMAP
from stoker.compiler.passes.edit import traverse_nodes
from stoker.compiler.passes.matching.edges import ancestors, is_constant, values_read_by
from stoker.compiler.passes.matching.editing import GraphEditor, find_node, require_unique_names
from stoker.compiler.passes.registry import Pass, register

log = logging.getLogger(__name__)

_OPTION = "manual_sharding"


@dataclass(frozen=True, slots=True)
class ShardPoint:
    """The last node of a part: everything it needs that no earlier point took goes to `device` and, if given, `stage`."""

    node: str
    device: int | None = None
    stage: int | None = None

    @classmethod
    def of(cls, record: object) -> Self:
        """Reads one entry of the YAML list.

        Raises:
            OptionError: `record` is not {node, device, stage} with integers >= 0.
        """
        if not isinstance(record, Mapping) or not isinstance(record.get("node"), str):
            raise OptionError(f"{_OPTION}: each entry must be {{node: NAME, device: NUMBER, stage: NUMBER}}, not {record!r}")
        unknown = sorted(str(key) for key in set(record) - {"node", "device", "stage"})
        if unknown:
            raise OptionError(f"{_OPTION}: node '{record['node']}' has unknown key '{unknown[0]}'; known are node, device, stage")
        for key in ("device", "stage"):
            number = record.get(key)
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
                raise OptionError(f"{_OPTION}: {key} of node '{record['node']}' must be a whole number from 0, not {number!r}")
        if record.get("device") is None and record.get("stage") is None:
            raise OptionError(f"{_OPTION}: node '{record['node']}' has neither a device nor a stage")
        return cls(record["node"], record.get("device"), record.get("stage"))


def read_config(config: str | Path | Sequence[Any]) -> list[ShardPoint]:
    """Shard points from a YAML file, or from the list that such a file holds.

    Raises:
        OptionError: the file cannot be read or is no such list; the text names the file.
    """
    records: Any = config
    if isinstance(config, str | Path):
        import yaml

        try:
            records = yaml.safe_load(Path(config).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OptionError(f"{_OPTION}: {config}: {reason}") from None
    if not isinstance(records, Sequence) or isinstance(records, str) or not records:
        raise OptionError(f"{_OPTION}: expected a list of {{node, device, stage}}, not {records!r}")
    return [ShardPoint.of(record) for record in records]


@register("manual_sharding")
class ManualSharding(Pass):
    """Marks every node with the device, and where given the pipeline stage, that it belongs to.

    Points are taken in graph order. A point's node and all its ancestors that have no mark yet get its device and stage; what is left when
    all points are done gets the largest number so far plus one. Nodes inside branches and loop bodies go with the node that holds them. The
    marks are node metadata `__ipu_number` and `__pipeline_stage` (PopART's attribute names; ONNX's checker allows no such attributes).
    Values do not change. Pipelining goes with sharding: points with stages only need a model that has devices already.

    Args:
        config: Path of a YAML list of {node, device, stage}, or such a list.
        sharding_info: Node name to device, as PopRT's Sharder takes it.
        pipelining_info: Node name to pipeline stage.
    """

    def __init__(
        self,
        config: str | Path | Sequence[Mapping[str, Any]] | None = None,
        *,
        sharding_info: Mapping[str, int] | None = None,
        pipelining_info: Mapping[str, int] | None = None,
    ) -> None:
        devices, stages = sharding_info or {}, pipelining_info or {}
        points = [] if config is None else read_config(config)
        names = dict.fromkeys([*devices, *stages])
        points += [ShardPoint.of({"node": name, "device": devices.get(name), "stage": stages.get(name)}) for name in names]
        if not points:
            raise OptionError(f"{_OPTION}: no shard points were given")
        twice = sorted(name for name in {point.node for point in points} if sum(point.node == name for point in points) > 1)
        if twice:
            raise OptionError(f"{_OPTION}: node '{twice[0]}' is given twice")
        self._points = points

    def run(self, model: ir.Model) -> bool:
        require_unique_names(model, option=_OPTION)
        nodes = list(model.graph)
        positions = {node: index for index, node in enumerate(nodes)}
        points = [(find_node(model, point.node, option=_OPTION), point) for point in self._points]
        for node, _ in points:
            if node not in positions:
                raise OptionError(f"{_OPTION}: node '{node.name}' stands inside another node; only nodes of the main graph can be points")
        points.sort(key=lambda pair: positions[pair[0]])
        devices = {node: point.device for node, point in points if point.device is not None}
        stages = {node: point.stage for node, point in points if point.stage is not None}
        if not devices and any(IPU_NUMBER not in node.metadata_props for node in nodes):
            raise OptionError(f"{_OPTION}: stages without devices need a model whose nodes have devices already")
        if devices:
            _colour(model.graph, devices, IPU_NUMBER)
        if stages:
            _colour(model.graph, stages, PIPELINE_STAGE)
        return True


def _colour(graph: ir.Graph, points: Mapping[ir.Node, int], key: str) -> None:
    """Marks all nodes of `graph` under `key`; `points` in graph order."""
    colours: dict[ir.Node, int] = {}
    for point, number in points.items():
        for node in [point, *ancestors(values_read_by(point), within=graph)]:
            colours.setdefault(node, number)
    rest = max(points.values()) + 1
    for node in graph:
        node.metadata_props[key] = str(colours.get(node, rest))
    log.info("%s: %s", key, {number: list(colours.values()).count(number) for number in sorted(set(colours.values()))})


@register("auto_insert_remap")
class AutoInsertRemap(Pass):
    """Inserts layout remaps before or after operators of given types: marked Identity nodes that the planner prices as an exchange.

    Values do not change. A remap moves every element once between tiles; on a real device what follows may then run faster, on a simulated
    one a remap only costs its exchange.

    Args:
        remap_mode: `before_<type>` or `after_<type>`, such as `after_matmul` or `before_softmax`; types in any case. A string may list
            several with commas. `before` remaps every input that is not constant, `after` every output.
    """

    def __init__(self, remap_mode: str | Sequence[str] = ("after_matmul",)) -> None:
        modes = remap_mode.split(",") if isinstance(remap_mode, str) else remap_mode
        self._before: dict[str, str] = {}
        self._after: dict[str, str] = {}
        for mode in (each.strip() for each in modes):
            side, _, op_type = mode.partition("_")
            if side not in ("before", "after") or not op_type:
                raise OptionError(f"remap_mode '{mode}': expected before_<operator type> or after_<operator type>, such as after_matmul")
            (self._before if side == "before" else self._after)[op_type.lower()] = mode

    def run(self, model: ir.Model) -> bool:
        editor = GraphEditor(model)
        count = 0
        for node in list(traverse_nodes(model)):
            kind = node.op_type.lower()
            if kind in self._before:
                count += _remap_inputs(editor, node, self._before[kind])
            if kind in self._after:
                count += _remap_outputs(editor, node, self._after[kind])
        log.info("%d remap(s) inserted (%s)", count, ", ".join([*self._before.values(), *self._after.values()]))
        return count > 0


def _remap_inputs(editor: GraphEditor, node: ir.Node, mode: str) -> int:
    remapped: dict[ir.Value, ir.Value] = {}
    for index, value in enumerate(node.inputs):
        if value is None or is_constant(value):
            continue
        if value not in remapped:
            name = f"{node.name or node.op_type}/remap_{index}"
            remapped[value] = editor.insert(node, "Identity", [value], name=name, like=value, metadata={REMAP: mode})
        node.replace_input_with(index, remapped[value])
    return len(remapped)


def _remap_outputs(editor: GraphEditor, node: ir.Node, mode: str) -> int:
    count = 0
    for output in node.outputs:
        if not output.name or not (output.uses() or output.is_graph_output()):
            continue
        editor.insert_after(node, output, "Identity", name=f"{node.name or node.op_type}/remap", metadata={REMAP: mode})
        count += 1
    return count


#: Usual choices are 32 to 192; this is the middle of them in powers of two.
DEFAULT_IO_TILES = 64


@register("overlap_io")
class OverlapIo(Pass):
    """Marks the model so that loading, computing and storing of consecutive batches overlap on `num_io_tiles` tiles set apart for IO.

    The graph stays as it is. What changes is the schedule: the target reads the mark from the model's metadata, takes the tiles from those
    that compute, and counts host IO beside compute instead of before and after it.

    Args:
        num_io_tiles: How many. About the bytes of all inputs and outputs over the memory of a tile, rounded up to a power of two.
    """

    def __init__(self, num_io_tiles: int = DEFAULT_IO_TILES) -> None:
        if num_io_tiles < 1:
            raise OptionError(f"num_io_tiles must be at least 1 for IO to overlap, not {num_io_tiles}")
        self._num_io_tiles = num_io_tiles

    def run(self, model: ir.Model) -> bool:
        before = model.metadata_props.get(NUM_IO_TILES)
        model.metadata_props[NUM_IO_TILES] = str(self._num_io_tiles)
        log.info("host IO overlaps with compute on %d tiles", self._num_io_tiles)
        return before != str(self._num_io_tiles)
