"""A whole executable: the static program, its metadata, the data and notes beside it; and its file."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from stoker.backends.ipu.compile.device_choice import check_options, check_sharding, choose_device
from stoker.backends.ipu.compile.fusion import fused_memory, fusion_map, graph_name
from stoker.backends.ipu.compile.pass_notes import note_blobs, with_noted_options
from stoker.backends.ipu.compile.streams import PROGRAM, PROGRAM_NAMES, WEIGHTS_FROM_HOST, index_anchor
from stoker.backends.ipu.compile.sub_graph import CompiledGraph, check_names, compile_graph
from stoker.backends.ipu.hardware import IpuHardware
from stoker.backends.ipu.opaques import COMPILATION, MODEL_FUSION, dump_facts
from stoker.backends.ipu.popef.errors import PopefError
from stoker.backends.ipu.popef.package_hash import package_hash
from stoker.backends.ipu.popef.program_codec import encode_description
from stoker.backends.ipu.popef.schema import Anchor, Metadata, Option, ProgramFlow, TensorDataInfo
from stoker.backends.ipu.popef.writer import FileWriter
from stoker.backends.ipu.program import CUSTOM_LIBRARIES, StaticProgram
from stoker.compiler.custom_libraries import library_marks
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel

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
