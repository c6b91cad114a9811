"""The IPU as a target of the compiler: `stoker compile --target ipu`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from backends.ipu.compile.assemble import CompiledModel
from backends.ipu.compile.engine_cache import compile_into
from backends.ipu.program import StaticProgram
from backends.ipu.timing import step_timing
from compiler.options import CompilerOptions
from compiler.target import Artefact, SourceModel, Target


class IpuTarget(Target):
    """Compiles for a simulated Graphcore IPU, into a PopEF file."""

    name = "ipu"
    aliases = ("graphcore", "poplar")
    artefact_filename = "executable.popef"

    def export(self, sources: Sequence[SourceModel], options: CompilerOptions, path: Path) -> Artefact:
        """Compiles `sources` into the PopEF file `path`, which appears whole or not at all; several are fused into one executable.

        Raises:
            CompileError: see `compile_sources`; or the file cannot be written.
        """
        compiled = compile_into(sources, options, path)
        return Artefact(path=path, summary=summarise(compiled), config=served_config(compiled.program))


def summarise(compiled: CompiledModel) -> Mapping[str, object]:
    """What people want to know of an executable: device, batch, memory, and the modelled times of each sub-graph."""
    program = compiled.program
    fullest = max(program.memory, key=lambda each: sum(each.by_category.values()), default=None)
    timings = {graph.name: step_timing(program, graph.index) for graph in program.graphs}
    return {
        "device": f"simulated IPU, {program.system} (ipu{program.ipu_version})",
        "executable": compiled.metadata.executable,
        "precision": program.attributes.get("precision", ""),
        "num_ipus": program.num_ipus,
        "replication_factor": program.replication_factor,
        "micro_batch_size": program.micro_batch_size,
        "batches_per_step": program.batches_per_step,
        "tile_bytes": sum(fullest.by_category.values()) if fullest else 0,
        "tile_capacity_bytes": fullest.capacity_bytes if fullest else 0,
        "weight_bytes": program.weight_bytes,
        "code_bytes": program.code_bytes,
        "modelled_latency_ms": {name: 1e3 * timing.latency_s for name, timing in timings.items()},
        "modelled_rows_per_s": {name: timing.rows_per_s for name, timing in timings.items()},
    }


def served_config(program: StaticProgram) -> Mapping[str, object]:
    """What config.pbtxt must say of it: the rows that one call of the main program takes are the most a batch can have."""
    rows = program.micro_batch_size * program.batches_per_step * program.replication_factor
    return {"backend": "poplar", "max_batch_size": rows, "parameters": {}}
