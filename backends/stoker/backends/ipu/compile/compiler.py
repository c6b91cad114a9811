"""The Python API to compile one converted model: to a program, to a file, or for its summary report.

`compat/poprt` offers these functions under PopRT's names (`poprt.compiler.Compiler`).

`enable_engine_caching`: an executable that was compiled before is copied from `cache_path` instead of compiled again. The file name is a
hash of everything that compilation depends on: models, options, the format's version and the cost model. A file that is damaged or of
another version is compiled again and replaced.
"""

import hashlib
import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import onnx

from stoker.backends.ipu.compile.assemble import CompiledModel, compile_sources, warn_of_no_effect, write_popef
from stoker.backends.ipu.compile.chosen_constants import chosen_constants
from stoker.backends.ipu.compile.summary_report import SummaryReport, summary_report
from stoker.backends.ipu.popef.model import ModelBuilder
from stoker.backends.ipu.popef.program_codec import package_hash
from stoker.backends.ipu.popef.reader import Reader
from stoker.backends.ipu.popef.schema import Metadata, PopefError
from stoker.backends.ipu.program import StaticProgram
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.opset import opset_of
from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.custom_libraries import library_marks
from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.passes.registry import INTERNAL_OPSET
from stoker.compiler.target import SourceModel, fed_inputs

_logger = logging.getLogger(__name__)

#: Options that do not change the compiled executable.
_IRRELEVANT = frozenset({"cache_path", "enable_engine_caching", "compilation_progress_logger", "show_compilation_progress_bar"})


def compile_into(sources: Sequence[SourceModel], options: CompilerOptions, path: Path) -> CompiledModel:
    """Compiles `sources` into the file `path`, or copies the cached executable if the options allow it.

    Raises:
        CompileError: see `compile_sources`; or a file cannot be written.
    """
    if not (options.enable_engine_caching and options.cache_path):
        return _compile(sources, options, path)
    cached = Path(options.cache_path) / f"{cache_key(sources, options)}.popef"
    compiled = _read(cached)
    if compiled is None:
        compiled = _compile(sources, options, cached)
    else:
        _logger.info("taken from the cache: %s", cached)
    _copy(cached, path)
    return compiled


def cache_key(sources: Sequence[SourceModel], options: CompilerOptions) -> str:
    """Returns a hash of everything that the compiled executable depends on."""
    digest = hashlib.sha256()
    settings = {field.name: getattr(options, field.name) for field in fields(options) if field.name not in _IRRELEVANT}
    for text in (package_hash(), repr(chosen_constants(options)), repr(sorted(settings.items()))):
        digest.update(text.encode() + b"\0")
    for source in sources:
        libraries = library_marks(source.custom_libraries)
        digest.update(repr((source.name, tuple(source.inputs), tuple(source.outputs), libraries)).encode() + b"\0")
        digest.update(source.model.SerializeToString(deterministic=True))
    return digest.hexdigest()


def _copy(cached: Path, path: Path) -> None:
    """Copies a file atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
            shutil.copyfile(cached, Path(beside, path.name))
            Path(beside, path.name).replace(path)
    except OSError as error:
        raise CompileError(f"the executable cannot be written: {error}") from error


def _compile(sources: Sequence[SourceModel], options: CompilerOptions, path: Path) -> CompiledModel:
    compiled = compile_sources(sources, options)
    write_popef(compiled, path, compress=options.compress)
    return compiled


def _read(path: Path) -> CompiledModel | None:
    """Reads the file without its streamed weights; None if it does not exist or is damaged."""
    if not path.exists():
        return None
    try:
        reader = Reader()
        reader.parse_file(path)
        model = ModelBuilder(reader).create_model()
        program = model.program()
    except PopefError as error:
        _logger.warning("compiled again, since the cached file cannot be used: %s", error)
        return None
    if program.package_hash != package_hash():
        return None
    return CompiledModel(program=program, metadata=model.metadata, opaques=model.opaques)


def as_source(model: onnx.ModelProto, outputs: Sequence[str] = ()) -> SourceModel:
    """Returns a converted model as a source for targets, under its graph's name.

    `Converter` writes opset 11 by default, which splits operators. They are fused again, so that the program is that of the command line.

    Raises:
        CompileError: the model is invalid, or a dimension is variable.
    """
    given = model
    if opset_of(model) < INTERNAL_OPSET:
        converter = Converter.of(ConversionOptions())
        fused = converter.convert_internal(model, is_compared=False)
        converter.check_drift(model, fused, notes=logging.INFO)  # what cannot be compared was logged by the conversion before
        model = fused
    return SourceModel(
        model=model,
        name=model.graph.name or "model",
        outputs=tuple(outputs),
        inputs=tuple(each.name for each in fed_inputs(model)),
        source=given,
    )


def compile_program(sources: Sequence[SourceModel], options: CompilerOptions | None = None) -> tuple[StaticProgram, Metadata]:
    """Compiles `sources` to a program with its metadata.

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
    model: onnx.ModelProto, outputs: Sequence[str] = (), options: CompilerOptions | None = None
) -> SummaryReport:
    """Returns the summary report on memory and time of a converted model, also if the model does not fit. Writes no file.

    Args:
        model: The converted model.
        outputs: The outputs wanted; empty for all.
        options: Compiler options.

    Raises:
        CompileError: see `summary_report`.
    """
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
