"""The IPU as a target of the compiler: `stoker compile --target ipu`."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from stoker.backends.api.tensor import DataType
from stoker.backends.ipu.compile.assemble import LEVERS, CompiledModel, check_options, choose_device
from stoker.backends.ipu.compile.compiler import compile_into
from stoker.backends.ipu.compile.porting import ipu_porting
from stoker.backends.ipu.compile.report_page import write_report
from stoker.backends.ipu.compile.sizing import IpuSizedModel, lowered, sized_devices
from stoker.backends.ipu.compile.sub_graph import batch_size, is_batched
from stoker.backends.ipu.compile.summary_report import summary_report
from stoker.backends.ipu.compile.supported import check_supported
from stoker.backends.ipu.popef.schema import Anchor
from stoker.backends.ipu.popef.served_types import SERVED, castable_to
from stoker.backends.ipu.program import LOWERED_OPERATORS, StaticProgram, SubGraph
from stoker.backends.ipu.timing import step_timing
from stoker.backends.simulated.cost_constants import FITTED_SOURCE
from stoker.compiler.convert.free_batch import dependence_of_rows
from stoker.compiler.errors import OptionError
from stoker.compiler.lowering.typed_graph import typed_graph
from stoker.compiler.options import CompilerOptions
from stoker.compiler.porting import PortingFact
from stoker.compiler.sizing import SizedDevice, SizedModel
from stoker.compiler.target import Artefact, ServedPart, SourceModel, Target

_logger = logging.getLogger(__name__)
#: config.pbtxt parameter that selects one model of a fused executable, by its index.
SUB_GRAPH_PARAMETER = "sub_graph"
#: File beside an executable that maps its anchors to the names clients use.
NAME_MAP_FILENAME = "name_map.json"


class IpuTarget(Target):
    """Compiles for a simulated Graphcore IPU, into a PopEF file."""

    name = "ipu"
    aliases = ("graphcore", "poplar")
    artefact_filename = "executable.popef"
    build_options = frozenset({"operators", "cost_constants"})
    has_report = True
    has_porting = True

    def check_options(self, options: CompilerOptions, precisions: Sequence[str]) -> None:
        """Rejects options that contradict each other or the device, and FP8 if the device does not support it.

        Raises:
            OptionError: an option is invalid; the text names the option, its value and the expected values.
        """
        hardware = choose_device(options)
        check_options(options, hardware)
        wide = next((each for each in precisions if each.startswith("fp8") and not hardware.fp8_flops), None)
        if wide is not None:
            raise OptionError(f"precision {wide}: {hardware.system} (ipu{hardware.ipu_version}) has no FP8; give ipu_version ipu21, a C600")

    def check_operators(self, model: ir.Model, options: CompilerOptions, custom_libraries: Sequence[str]) -> None:
        """Checks that the device can run every node; see `check_supported`.

        Raises:
            UnsupportedOperators: the text lists all nodes that the device cannot run, with reasons.
        """
        check_supported(typed_graph(ir.to_proto(model)), choose_device(options), has_custom_libraries=bool(custom_libraries))

    def porting(self, model: onnx.ModelProto, options: CompilerOptions, custom_libraries: Sequence[str] = ()) -> Sequence[PortingFact]:
        """Judges each node by PopART's operators and PopRT's documented passes: see `Target.porting`."""
        return ipu_porting(model, has_custom_libraries=bool(custom_libraries))

    def export(self, sources: Sequence[SourceModel], options: CompilerOptions, path: Path) -> Artefact:
        """Compiles `sources` into the PopEF file `path`, which appears whole or not at all; several are fused into one executable.

        Raises:
            CompileError: see `compile_sources`; or the file cannot be written.
        """
        compiled = compile_into(sources, options, path)
        served = [served_part(compiled, at, options.batch_axis, source) for at, source in enumerate(sources)]
        if len(sources) == 1:
            [part] = served
            return Artefact(
                path=path, summary=summarise(compiled), config=part.config, datatypes=part.datatypes, not_servable=part.not_servable
            )
        return Artefact(path=path, summary=summarise(compiled), parts=served)

    def sized_devices(self) -> Sequence[SizedDevice]:
        return sized_devices()

    def sized_model(self, source: SourceModel, options: CompilerOptions) -> SizedModel:
        """See `Target.sized_model`.

        Raises:
            CompileError: the device cannot run the model, or an option is invalid.
        """
        return IpuSizedModel(source, options)

    def lowered(self, source: SourceModel, options: CompilerOptions) -> onnx.ModelProto:
        """See `Target.lowered`.

        Raises:
            CompileError: see `sizing.lowered`.
        """
        return lowered(source, options)

    def report(self, sources: Sequence[SourceModel], options: CompilerOptions, folder: Path) -> Sequence[Path]:
        """Writes the summary report: `summary_report.json` and `summary_report.html`.

        Raises:
            CompileError: see `summary_report`; or a file cannot be written.
        """
        return write_report(summary_report(sources, options), folder)


def summarise(compiled: CompiledModel) -> Mapping[str, object]:
    """Returns the summary of an executable: device, batch, memory, and the modelled times of each sub-graph."""
    program = compiled.program
    fullest = max(program.memory, key=lambda each: sum(each.by_category.values()), default=None)
    timings = {graph.name: step_timing(program, graph.index) for graph in program.graphs}
    axis = max(program.batch_axis, 0)
    rows = {graph.name: batch_size(*_stream_shapes(compiled, graph), axis) for graph in program.graphs}
    calls = program.batches_per_step * program.replication_factor
    return {
        "device": f"simulated IPU, {program.system} (ipu{program.ipu_version})",
        "executable": compiled.metadata.executable,
        "precision": program.attributes.get("precision", ""),
        "cost_constants": program.attributes.get("cost_constants", FITTED_SOURCE),
        "operators": _operators(program),
        "num_ipus": program.num_ipus,
        "replication_factor": program.replication_factor,
        "micro_batch_size": program.micro_batch_size if len(set(rows.values())) == 1 else rows,
        "batches_per_step": program.batches_per_step,
        "tile_bytes": sum(fullest.by_category.values()) if fullest else 0,
        **({LEVERS: program.attributes[LEVERS]} if LEVERS in program.attributes else {}),
        "tile_capacity_bytes": fullest.capacity_bytes if fullest else 0,
        "weight_bytes": program.weight_bytes,
        "code_bytes": program.code_bytes,
        "modelled_latency_ms": {name: 1e3 * timing.latency_s for name, timing in timings.items()},
        "modelled_rows_per_s": {name: max(rows[name], 1) * calls / timing.period_s for name, timing in timings.items()},
    }


def _operators(program: StaticProgram) -> str:
    lowered = program.attributes.get(LOWERED_OPERATORS, "")
    return f"lowered, the vendor's tools do not take: {lowered}" if lowered else "vendor"


def served_part(compiled: CompiledModel, at: int, batch_axis: int, source: SourceModel) -> ServedPart:
    """Returns the served part for model number `at` of the executable.

    The largest batch is the number of rows in one call of the main program. Servers batch all tensors along dimension 0. A model is served
    without batching if its batch is another dimension, an input has no batch dimension, or its rows depend on each other.
    """
    program = compiled.program
    graph = program.graphs[at]
    inputs, outputs = _stream_shapes(compiled, graph)
    rows = batch_size(inputs, outputs, 0) if batch_axis == 0 and is_batched(inputs, outputs, 0) else 0
    calls = program.batches_per_step * program.replication_factor
    not_servable = ""
    if rows * calls > 1 and (reason := dependence_of_rows(source)):
        if calls > 1:
            not_servable = f"{reason}, and a step computes {calls} micro-batches apart: give batches_per_step 1 and one replica"
            _logger.warning("model '%s' cannot be served: %s", source.name, not_servable)
        else:
            _logger.warning("model '%s' is served without batching, with the shapes it has: %s", source.name, reason)
        rows = 0
    config: dict[str, object] = {
        "backend": "poplar",
        "max_batch_size": rows * calls,
        "parameters": {},
    }
    datatypes = _datatypes(compiled, graph)
    if len(program.graphs) == 1:
        return ServedPart(suffix=graph.name, config=config, datatypes=datatypes, not_servable=not_servable)
    # Clients use the names in the model; the streams of a fused executable have other names.
    names = {each.anchor: each.tensor for each in (*graph.inputs, *graph.outputs)}
    config["parameters"] = {SUB_GRAPH_PARAMETER: str(graph.index)}
    files = {NAME_MAP_FILENAME: json.dumps(names, indent=2) + "\n"}
    return ServedPart(suffix=graph.name, config=config, files=files, datatypes=datatypes, not_servable=not_servable)


def _datatypes(compiled: CompiledModel, graph: SubGraph) -> dict[str, tuple[DataType, ...]]:
    """Returns the element types in which each tensor may be served: see `ServedPart.datatypes`."""
    kinds = {anchor.name: SERVED.get(anchor.tensor_info.data_type) for anchor in compiled.metadata.anchors}
    bound = ((each.tensor, kinds[each.anchor]) for each in (*graph.inputs, *graph.outputs))
    return {tensor: (kind, *castable_to(kind)) for tensor, kind in bound if kind is not None}


def _stream_shapes(compiled: CompiledModel, graph: SubGraph) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Returns the shapes of inputs and outputs in one micro-batch of one replica."""
    shapes = {anchor.name: _micro_batch_shape(anchor) for anchor in compiled.metadata.anchors}
    return [shapes[each.anchor] for each in graph.inputs], [shapes[each.anchor] for each in graph.outputs]


def _micro_batch_shape(anchor: Anchor) -> tuple[int, ...]:
    shape = tuple(anchor.tensor_info.shape)
    return shape[1:] if anchor.is_per_replica else shape
