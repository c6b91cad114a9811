"""Assembles an executable: the static program, its metadata, weights and opaque blobs; and writes its file.

A fused program holds several models in one resident executable, which avoids reloads. The input `index` selects the model of each call.
Weights, code and stream buffers of all models are always on the device. The models share the memory for activations and temporary data,
because only one runs at a time.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import onnx_ir as ir

from stoker.backends.ipu.compile.chosen_constants import chosen_constants
from stoker.backends.ipu.compile.memory import FusedPart, check_fit, fused_accounts
from stoker.backends.ipu.compile.plan import GraphPlan
from stoker.backends.ipu.compile.porting import check_operators
from stoker.backends.ipu.compile.sub_graph import (
    INDEX_ANCHOR,
    PROGRAM,
    PROGRAM_NAMES,
    WEIGHTS_FROM_HOST,
    CompiledGraph,
    check_names,
    compile_graph,
    index_anchor,
)
from stoker.backends.ipu.hardware import BY_VERSION, SYSTEMS, IpuHardware
from stoker.backends.ipu.opaques import (
    COMPILATION,
    HOST_CONCAT,
    MODEL_FUSION,
    NOTES,
    PACKING,
    ConcatenatedInput,
    FusedAnchor,
    FusedGraph,
    FusionMap,
    HostConcat,
    OpaqueError,
    dump_facts,
)
from stoker.backends.ipu.popef.program_codec import encode_description, package_hash
from stoker.backends.ipu.popef.schema import Anchor, Metadata, Option, PopefError, ProgramFlow, TensorDataInfo
from stoker.backends.ipu.popef.writer import FileWriter
from stoker.backends.ipu.program import CUSTOM_LIBRARIES, LOWERED_OPERATORS, MemoryAccount, StaticProgram
from stoker.backends.simulated.numerics import PADDED_ON_HOST
from stoker.compiler import marks
from stoker.compiler.custom_libraries import library_marks
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.options import NO_EFFECT, CompilerOptions, check_operator_mode
from stoker.compiler.target import SourceModel

_logger = logging.getLogger(__name__)

_PARTIALS_TYPES = ("half", "float")
#: Attribute of an executable whose outputs have the roundings of half partials.
PARTIAL_SUMS = "partial_sums"
#: Attribute of an executable that fits only because its plan deviates from the options: what was changed.
LEVERS = "memory_levers"
_VIRTUAL_GRAPH_MODES = ("off", "manual", "auto")
_NOT_SPREAD = "manual_sharding_config, or virtual_graph_mode=auto for a model without it, places nodes on several"


def choose_device(options: CompilerOptions) -> IpuHardware:
    """Returns the IPU that `system`, `ipu_version` and `tiles_per_ipu` name; by default the `ipu2` of an M2000.

    Raises:
        OptionError: a name is unknown, or two options contradict each other.
    """
    named = {name.lower(): hardware for name, hardware in SYSTEMS.items()}.get(options.system.lower())
    if options.system and named is None:
        raise OptionError(f"system is '{options.system}', expected one of {', '.join(SYSTEMS)}")
    version = options.ipu_version.lower()
    if version and version not in BY_VERSION:
        raise OptionError(f"ipu_version is '{options.ipu_version}', expected one of {', '.join(BY_VERSION)} or nothing")
    if named is not None and version and BY_VERSION[version].ipu_version != named.ipu_version:
        raise OptionError(f"system {named.system} has an ipu{named.ipu_version}; ipu_version says '{options.ipu_version}'")
    hardware = named or BY_VERSION[version or "ipu2"]
    if options.tiles_per_ipu:
        if not 0 < options.tiles_per_ipu <= hardware.tiles:
            raise OptionError(f"tiles_per_ipu is {options.tiles_per_ipu}, expected 1 to {hardware.tiles}")
        hardware = replace(hardware, tiles=options.tiles_per_ipu)
    return hardware


def check_options(options: CompilerOptions, hardware: IpuHardware) -> None:
    """Checks the options that need no plan.

    Raises:
        OptionError: an option is invalid; the text names the option, its value and the expected values.
    """
    check_operator_mode(options)
    for name in ("num_ipus", "batches_per_step", "replication_factor", "stream_buffering_depth"):
        if getattr(options, name) < 1:
            raise OptionError(f"{name} is {getattr(options, name)}, expected 1 or more")
    if options.partials_type and options.partials_type not in _PARTIALS_TYPES:
        raise OptionError(f"partials_type is '{options.partials_type}', expected one of {', '.join(_PARTIALS_TYPES)} or nothing")
    if options.virtual_graph_mode not in _VIRTUAL_GRAPH_MODES:
        raise OptionError(f"virtual_graph_mode is '{options.virtual_graph_mode}', expected one of {', '.join(_VIRTUAL_GRAPH_MODES)}")
    if not 0 <= options.num_io_tiles < hardware.tiles:
        raise OptionError(f"num_io_tiles is {options.num_io_tiles}, expected 0 to {hardware.tiles - 1}")
    proportions = options.available_memory_proportion
    for node, proportion in (proportions if isinstance(proportions, Mapping) else {"": proportions}).items():
        if not 0 < proportion <= 1:
            raise OptionError(f"available_memory_proportion{f' of {node!r}' if node else ''} is {proportion}, expected above 0, up to 1")
    if options.enable_engine_caching and not options.cache_path:
        raise OptionError("enable_engine_caching is set without cache_path, which says where to keep compiled models")


def warn_of_no_effect(options: CompilerOptions) -> None:
    """Warns once of each changed option that has no effect here.

    The command line and YAML readers warn separately, with their own option names.
    """
    defaults = CompilerOptions()
    for each in fields(CompilerOptions):
        if each.name in NO_EFFECT and getattr(options, each.name) != getattr(defaults, each.name):
            _logger.warning("%s has no effect on a simulated IPU: %s", each.name, NO_EFFECT[each.name])


def check_sharding(options: CompilerOptions, plan: GraphPlan) -> None:
    """Checks the number of IPUs and pipeline stages of a planned model.

    Raises:
        OptionError: there are more IPUs than `num_ipus`, or `batches_per_step` cannot fill the pipeline.
    """
    used = 1 + max((account.ipu for account in plan.memory), default=0)
    if used > options.num_ipus:
        raise OptionError(f"the model is sharded over {used} IPUs, num_ipus is {options.num_ipus}")
    if used < options.num_ipus:
        _logger.warning("the model uses %d of %d IPUs: %s", used, options.num_ipus, _NOT_SPREAD)
    elif options.virtual_graph_mode != "off" and used == 1:
        _logger.warning("virtual_graph_mode=%s has no effect with one IPU: give num_ipus too", options.virtual_graph_mode)
    stages = plan.pipeline_stages
    if options.enable_pipelining and stages == 1:
        _logger.warning("enable_pipelining has no effect: all nodes are in one stage, manual_sharding_config spreads them over several")
    if stages > 1 and options.batches_per_step % stages:
        raise OptionError(
            f"the model is pipelined over {stages} stages, so batches_per_step must be a multiple of that; it is {options.batches_per_step}"
        )


def graph_name(index: int) -> str:
    """Returns the name of model number `index` in a fused program."""
    return f"graph{index}"


def fusion_map(graphs: Sequence[CompiledGraph], sources: Sequence[SourceModel]) -> FusionMap:
    """Returns the fusion map: the streams of each model."""
    return FusionMap(
        index_anchor=INDEX_ANCHOR,
        graphs=tuple(
            FusedGraph(
                index=graph.sub_graph.index,
                name=graph.sub_graph.name,
                model=source.model.graph.name,
                inputs=tuple(_fused_anchor(tensor, anchor, graph) for tensor, anchor in graph.inputs),
                outputs=tuple(_fused_anchor(tensor, anchor, graph) for tensor, anchor in graph.outputs),
            )
            for graph, source in zip(graphs, sources, strict=True)
        ),
    )


def fused_memory(graphs: Sequence[CompiledGraph], *, io_tiles: int) -> tuple[MemoryAccount, ...]:
    """Returns the memory accounts of all IPUs with all models on them.

    Raises:
        OutOfTileMemory: the models do not fit together, although each fits alone.
    """
    parts = [FusedPart(graph.sub_graph.name, graph.plan.memory) for graph in graphs]
    accounts = []
    for account, holders in fused_accounts(parts, io_tiles=io_tiles):
        check_fit(account, name=" + ".join(part.name for part in parts), holders=holders)
        accounts.append(account)
    return tuple(accounts)


def _fused_anchor(tensor: str, anchor: Anchor, graph: CompiledGraph) -> FusedAnchor:
    alias = f"{graph.sub_graph.name}/{tensor}"
    return FusedAnchor(
        anchor=anchor.name,
        tensor=tensor,
        aliases=() if alias == anchor.name else (alias,),
        shape=anchor.tensor_info.shape,
        dtype=anchor.tensor_info.data_type.numpy.name,
    )


def with_noted_options(options: CompilerOptions, sources: Sequence[SourceModel]) -> CompilerOptions:
    """Returns `options`, completed by the number of IO tiles that the pass `overlap_io` noted, if the caller set none.

    Raises:
        OptionError: a model notes a different number of IO tiles than the options, or an invalid number.
    """
    for source in sources:
        text = next((each.value for each in source.model.metadata_props if each.key == marks.NUM_IO_TILES), "")
        if not text:
            continue
        if not text.isdecimal():
            raise OptionError(f"model '{source.name}': metadata '{marks.NUM_IO_TILES}' is {text!r}, expected a number")
        if options.num_io_tiles not in (0, int(text)):
            raise OptionError(f"model '{source.name}' was converted for {text} IO tiles, num_io_tiles is {options.num_io_tiles}")
        options = replace(options, num_io_tiles=int(text))
    return options


def note_blobs(graphs: Sequence[CompiledGraph], *, is_fused: bool) -> Mapping[str, bytes]:
    """Returns the opaque blobs for the notes of the passes.

    Raises:
        CompileError: the content of a note does not match its name.
    """
    blobs: dict[str, bytes] = {}
    concatenated: list[ConcatenatedInput] = []
    others: dict[str, object] = {}
    for graph in graphs:
        prefix = f"{graph.sub_graph.name}/" if is_fused else ""
        anchors = {tensor: anchor.name for tensor, anchor in graph.inputs}
        for key, text in graph.notes.items():
            if key == marks.HOST_CONCAT:
                concatenated += [
                    replace(
                        each,
                        tensor_name=anchors.get(each.tensor_name, each.tensor_name),
                        input_tensor_names=tuple(f"{prefix}{name}" for name in each.input_tensor_names),
                    )
                    for each in _host_concat(text)
                ]
            elif key == marks.PACKING:
                blobs[f"{prefix}{PACKING}"] = text.encode()
            else:
                others[f"{prefix}{key}"] = text
    if concatenated:
        blobs[HOST_CONCAT] = HostConcat(inputs=tuple(concatenated)).to_bytes()
    if others:
        blobs[NOTES] = dump_facts(others)
    return blobs


def _host_concat(text: str) -> tuple[ConcatenatedInput, ...]:
    try:
        return HostConcat.from_bytes(json.dumps({"inputs": json.loads(text)}).encode()).inputs
    except (ValueError, OpaqueError) as error:
        raise CompileError(f"metadata '{marks.HOST_CONCAT}' of the model: {error}") from None


#: Number of hash digits in the name of an executable.
_NAME_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledModel:
    """The result of compilation, as a PopEF file holds it.

    Attributes:
        program: Content of the executable blob.
        metadata: Content of the metadata blob.
        weights: Streamed weights: the description and value of each.
        opaques: Contents of opaque blobs by name.
    """

    program: StaticProgram
    metadata: Metadata
    weights: tuple[tuple[TensorDataInfo, ir.TensorProtocol], ...] = ()
    opaques: Mapping[str, bytes] = field(default_factory=dict)


def compile_sources(sources: Sequence[SourceModel], options: CompilerOptions) -> CompiledModel:
    """Compiles one model, or several as the sub-graphs of one program.

    Raises:
        OptionError: an option is unknown, out of range or contradicts another.
        ShapeError: a size is not known.
        UnsupportedOperators: the device cannot run some nodes; the text names all of them.
        CompileError: the model exceeds another limit of the device.
    """
    if not sources:
        raise OptionError("there is no model to compile")
    hardware = choose_device(options)
    options = with_noted_options(options, sources)
    check_options(options, hardware)
    is_fused = len(sources) > 1
    lowered = check_operators(sources, options, hardware)
    graphs = []
    for index, source in enumerate(sources):
        _progress(options, index, len(sources))
        named = replace(source, name=graph_name(index)) if is_fused else source
        graphs.append(compile_graph(named, index=index, is_fused=is_fused, hardware=hardware, options=options))
        check_sharding(options, graphs[-1].plan)
    _progress(options, len(sources), len(sources))
    check_names(tuple(graphs))
    libraries = library_marks([path for source in sources for path in source.custom_libraries])
    program = _program(graphs, hardware, options, libraries, lowered)
    opaques = {COMPILATION: dump_facts(_facts(program, sources)), **note_blobs(graphs, is_fused=is_fused)}
    if is_fused:
        opaques[MODEL_FUSION] = fusion_map(graphs, sources).to_bytes()
    weights = [(anchor, tensor) for graph in graphs for anchor, tensor in graph.weights]
    return CompiledModel(
        program=program,
        metadata=_metadata(graphs, program, options),
        weights=tuple((TensorDataInfo(anchor.name, anchor.tensor_info), tensor) for anchor, tensor in weights),
        opaques={**opaques, **options.opaque_blobs},
    )


def write_popef(compiled: CompiledModel, path: Path, *, compress: bool = False) -> None:
    """Writes `compiled` as one PopEF file, atomically: it appears under its name only when it is complete.

    Raises:
        CompileError: the file cannot be written.
    """
    name = compiled.metadata.executable
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileWriter(path) as writer:
            with writer.create_executable(name, compress) as blob:
                blob.write(encode_description(compiled.program))
                for graph in compiled.program.graphs:
                    blob.write(graph.onnx)
            for info, tensor in compiled.weights:
                with writer.create_tensor_data(info, name, compress) as blob:
                    blob.write(tensor.tobytes())
            for opaque, content in sorted(compiled.opaques.items()):
                with writer.create_opaque_blob(opaque, name) as blob:
                    blob.write(content)
            writer.write(compiled.metadata)
    except (PopefError, OSError) as error:
        raise CompileError(f"the executable cannot be written: {error}") from error


def _program(
    graphs: Sequence[CompiledGraph], hardware: IpuHardware, options: CompilerOptions, libraries: Sequence[str], lowered: str
) -> StaticProgram:
    batches = {graph.micro_batch_size for graph in graphs}
    micro_batch = batches.pop() if len(batches) == 1 else 0
    plans = [graph.plan for graph in graphs]
    chosen = chosen_constants(options)
    padded = "; ".join(f"{graph.sub_graph.name}: {graph.padded_on_host}" for graph in graphs if graph.padded_on_host)
    levers = "; ".join(f"{graph.sub_graph.name}: {lever}" for graph in graphs for lever in graph.plan.levers)
    one = plans[0].memory
    return StaticProgram(
        package_hash=package_hash(),
        system=hardware.system,
        ipu_version=hardware.ipu_version,
        tiles_per_ipu=hardware.tiles,
        graphs=tuple(graph.sub_graph for graph in graphs),
        num_io_tiles=options.num_io_tiles,
        num_ipus=options.num_ipus,
        replication_factor=options.replication_factor,
        batches_per_step=options.batches_per_step,
        micro_batch_size=micro_batch,
        batch_axis=options.batch_axis if micro_batch else -1,
        memory=one if len(plans) == 1 else fused_memory(graphs, io_tiles=options.num_io_tiles),
        pipeline_stages=max(plan.pipeline_stages for plan in plans),
        code_bytes=sum(plan.code_bytes for plan in plans),
        weight_bytes=sum(plan.weight_bytes for plan in plans),
        attributes={
            "precision": ",".join(graph.precision for graph in graphs),
            "partials_type": options.partials_type or "half",
            **({PARTIAL_SUMS: "FLOAT16"} if options.partials_type == "half" else {}),
            "stream_buffering_depth": str(options.stream_buffering_depth),
            **({CUSTOM_LIBRARIES: ", ".join(libraries)} if libraries else {}),
            **({PADDED_ON_HOST: padded} if padded else {}),
            **({LOWERED_OPERATORS: lowered} if lowered else {}),
            **({} if chosen.is_fitted else {"cost_constants": chosen.source}),
            **({LEVERS: levers} if levers else {}),
        },
    )


def _metadata(graphs: Sequence[CompiledGraph], program: StaticProgram, options: CompilerOptions) -> Metadata:
    anchors: list[Anchor] = [index_anchor()] if len(graphs) > 1 else []
    for graph in graphs:
        anchors += [anchor for _, anchor in graph.inputs]
        anchors += [anchor for anchor, _ in graph.weights]
        anchors += [anchor for _, anchor in graph.outputs]
    device = {
        "system": program.system,
        "tilesPerIPU": str(program.tiles_per_ipu),
        "numIOTiles": str(program.num_io_tiles),
    }
    return Metadata(
        executable=executable_name(program),
        anchors=tuple(anchors),
        replication_factor=program.replication_factor,
        num_ipus=program.num_ipus,
        ipu_version=program.ipu_version,
        engine_options=tuple(Option(name, str(value)) for name, value in sorted(options.engine_options.items())),
        device_options=tuple(Option(name, value) for name, value in device.items()),
        device_iterations=program.batches_per_step,
        program_flow=ProgramFlow(load=(WEIGHTS_FROM_HOST,), main=(PROGRAM,)),
        programs_map=PROGRAM_NAMES,
    )


def executable_name(program: StaticProgram) -> str:
    """Returns a hash of the program. PopART also names executables by a hash."""
    digest = hashlib.sha256(encode_description(program))
    for graph in program.graphs:
        digest.update(graph.onnx)
    return digest.hexdigest()[:_NAME_DIGITS]


def _facts(program: StaticProgram, sources: Sequence[SourceModel]) -> Mapping[str, object]:
    return {
        "compiler": "stoker",
        "simulated": True,
        "system": program.system,
        "models": [source.name for source in sources],
        "micro_batch_size": program.micro_batch_size,
        "batches_per_step": program.batches_per_step,
        "replication_factor": program.replication_factor,
        **program.attributes,
    }


def _progress(options: CompilerOptions, step: int, steps: int) -> None:
    if options.compilation_progress_logger is not None:
        options.compilation_progress_logger(step, steps)
