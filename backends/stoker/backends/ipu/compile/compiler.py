"""Compiling one converted model by API: to a program, to a file, or for its summary report.

`compat/poprt` gives these PopRT's spelling (`poprt.compiler.Compiler`).
"""

from collections.abc import Sequence
from pathlib import Path

import onnx

from stoker.backends.ipu.compile.assemble import CompiledModel, compile_sources
from stoker.backends.ipu.compile.device_choice import warn_of_no_effect
from stoker.backends.ipu.compile.engine_cache import compile_into
from stoker.backends.ipu.compile.summary_report import SummaryReport, summary_report
from stoker.backends.ipu.popef.schema import Metadata
from stoker.backends.ipu.program import StaticProgram
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel


def as_source(model: onnx.ModelProto, outputs: Sequence[str] = ()) -> SourceModel:
    """A converted model as what targets take, under its graph's name."""
    given = {each.name for each in model.graph.initializer}
    return SourceModel(
        model=model,
        name=model.graph.name or "model",
        outputs=tuple(outputs),
        inputs=tuple(each.name for each in model.graph.input if each.name not in given),
    )


def compile_program(sources: Sequence[SourceModel], options: CompilerOptions | None = None) -> tuple[StaticProgram, Metadata]:
    """The program of `sources` and its metadata.

    Raises:
        CompileError: see `compile_sources`.
    """
    compiled = compile_sources(sources, options or CompilerOptions())
    return compiled.program, compiled.metadata


def compile_model(model: onnx.ModelProto, outputs: Sequence[str] = (), options: CompilerOptions | None = None) -> CompiledModel:
    """Compiles a converted model without writing a file; `outputs` empty means all.

    Raises:
        CompileError: see `compile_sources`.
    """
    options = options or CompilerOptions()
    warn_of_no_effect(options)
    return compile_sources([as_source(model, outputs)], options)


def compile_and_get_summary_report(
    model: onnx.ModelProto, outputs: Sequence[str] = (), options: CompilerOptions | None = None, *, reset_profile: bool = True
) -> SummaryReport:
    """Where memory and time of a converted model go, without a file; also of a model that does not fit.

    Args:
        model: After conversion.
        outputs: Those wanted; empty for all.
        options: Of the compiler.
        reset_profile: As PopRT has it. Every report is computed anew, so it changes nothing.

    Raises:
        CompileError: see `summary_report`.
    """
    del reset_profile
    options = options or CompilerOptions()
    warn_of_no_effect(options)
    return summary_report([as_source(model, outputs)], options)


def compile_and_export(
    model: onnx.ModelProto, outputs: Sequence[str], filename: str | Path, options: CompilerOptions | None = None
) -> CompiledModel:
    """Compiles a converted model into a PopEF file.

    Raises:
        CompileError: see `compile_sources`; or the file cannot be written.
    """
    options = options or CompilerOptions()
    warn_of_no_effect(options)
    return compile_into([as_source(model, outputs)], options, Path(filename))
