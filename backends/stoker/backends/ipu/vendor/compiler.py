"""Compiles an ONNX model with the vendor's own converter and compiler (PopRT)."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.backends.ipu.vendor.failure import APPLICATION, VendorRunFailed, called


def compile_onnx(library: ModuleType, model: Any, executable: Path, *, precision: str) -> None:
    """Writes the PopEF file of `model`, whose shapes are static.

    Args:
        library: The module of the vendor's runtime; its package must be `poprt`.
        model: An ONNX `ModelProto`.
        executable: The file to write.
        precision: `fp32` or `fp16`.

    Raises:
        VendorRunFailed: the package has no compiler, the compiler rejects the model, or the file cannot be written.
    """
    package = library.__name__.partition(".")[0]
    if package != "poprt":
        raise VendorRunFailed(
            f"package '{package}' runs PopEF files and compiles none: compiling needs PopRT's package 'poprt'", APPLICATION
        )
    poprt, compiler = (importlib.import_module(name) for name in ("poprt", "poprt.compiler"))
    converted = called(called(poprt.Converter, precision=precision).convert, model)
    outputs = [output.name for output in converted.graph.output]
    called(compiler.Compiler.compile_and_export, converted, outputs, str(executable), called(compiler.CompilerOptions))
