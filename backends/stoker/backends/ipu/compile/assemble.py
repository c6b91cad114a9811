"""A whole executable: the static program, its metadata, the data and notes beside it; and its file.

Several models in one program: one resident executable instead of reloads, a model selected by `index` for each call. Weights and code of
all models are on the device all the time, as are their stream buffers; what a model needs while it runs is shared, since only one runs at a
time.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from stoker.backends.ipu.compile.device_choice import check_options, check_sharding, choose_device
from stoker.backends.ipu.compile.memory import FusedPart, check_fit, fused_accounts
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
from stoker.backends.ipu.hardware import IpuHardware
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
from stoker.backends.ipu.program import CUSTOM_LIBRARIES, MemoryAccount, StaticProgram
from stoker.compiler import marks
from stoker.compiler.custom_libraries import library_marks
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel


def graph_name(index: int) -> str:
    """The name that a fused program gives its model number `index`."""
    return f"graph{index}"


def fusion_map(graphs: Sequence[CompiledGraph], sources: Sequence[SourceModel]) -> FusionMap:
    """Which streams are whose, for the opaque blob."""
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
    """The accounts of all IPUs with all models on them.

    Raises:
        OutOfTileMemory: together they do not fit, though each does.
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
    """`options` with what `overlap_io` decided, where the caller asked for nothing.

    Raises:
        OptionError: a model notes another number of IO tiles than the options say, or no number.
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
    """The opaque blobs of what the passes noted.

    Raises:
        CompileError: a note does not say what its name promises.
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


#: Digits of the hash that names an executable.
_NAME_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledModel:
    """What compiling gives and a PopEF file holds.

    Attributes:
        program: For the executable blob.
        metadata: For the metadata blob.
        weights: Streamed weights: what each is, and its value.
        opaques: Opaque blobs by name.
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
        UnsupportedOperators: naming every node that the device cannot run.
        CompileError: anything else that the device has not, or has not enough of.
    """
    if not sources:
        raise OptionError("there is no model to compile")
    hardware = choose_device(options)
    options = with_noted_options(options, sources)
    check_options(options, hardware)
    is_fused = len(sources) > 1
    graphs = []
    for index, source in enumerate(sources):
        _progress(options, index, len(sources))
        named = replace(source, name=graph_name(index)) if is_fused else source
        graphs.append(compile_graph(named, index=index, is_fused=is_fused, hardware=hardware, options=options))
        check_sharding(options, graphs[-1].plan)
    _progress(options, len(sources), len(sources))
    check_names(tuple(graphs))
    libraries = library_marks([path for source in sources for path in source.custom_libraries])
    program = _program(graphs, hardware, options, libraries)
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
    """Writes `compiled` as one PopEF file, which appears under its name only when it is whole.

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


def _program(graphs: Sequence[CompiledGraph], hardware: IpuHardware, options: CompilerOptions, libraries: Sequence[str]) -> StaticProgram:
    batches = {graph.micro_batch_size for graph in graphs}
    micro_batch = batches.pop() if len(batches) == 1 else 0
    plans = [graph.plan for graph in graphs]
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
            "partials_type": options.partials_type,
            "stream_buffering_depth": str(options.stream_buffering_depth),
            **({CUSTOM_LIBRARIES: ", ".join(libraries)} if libraries else {}),
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
    """A hash of the program: PopART names executables by the hash of what they were made from, too."""
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
