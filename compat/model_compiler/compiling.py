"""From a request to a served model: find the source, go the shortest way to the target, write the result."""

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_compiler.device_edges import compile_engine, compile_popef
from model_compiler.edges import EdgeGraph, Job
from model_compiler.environment import request_fields
from model_compiler.importing import import_frozen_graph, import_saved_model, read_onnx_file
from model_compiler.models import (
    FrozenGraphFile,
    GcuEngine,
    OnnxFile,
    OnnxModel,
    PopefExecutable,
    SavedModelFolder,
    ServableModel,
    ServedOnnx,
    TorchProgramFile,
    TorchStateFile,
)
from model_compiler.onnx_target import serve_onnx
from model_compiler.repository import check_version_is_free, save_model
from model_compiler.request import CompileRequest, read_request
from model_compiler.sources import SOURCES, find_source
from model_compiler.torch_export import export_program, export_state
from stoker.compiler.errors import OptionError

logger = logging.getLogger(__name__)

#: `serving_type` -> what is made; `engine` and `onnx` are Adlik's words.
TARGETS: Mapping[str, type[ServableModel]] = {"engine": GcuEngine, "popef": PopefExecutable, "onnx": ServedOnnx}


def edges() -> EdgeGraph:
    """All conversions there are. Every way leads through an ONNX model in memory, so that one given there goes everywhere, too."""
    graph = EdgeGraph()
    graph.add(OnnxFile, OnnxModel, read_onnx_file)
    graph.add(TorchProgramFile, OnnxModel, export_program)
    graph.add(TorchStateFile, OnnxModel, export_state)
    graph.add(SavedModelFolder, OnnxModel, import_saved_model)
    graph.add(FrozenGraphFile, OnnxModel, import_frozen_graph)
    graph.add(OnnxModel, GcuEngine, compile_engine)
    graph.add(OnnxModel, PopefExecutable, compile_popef)
    graph.add(OnnxModel, ServedOnnx, serve_onnx)
    return graph


def compile_fields(fields: Mapping[str, Any]) -> Path:
    """Compiles what the fields of a request say, and returns the zip file; see `CompileRequest` for the fields.

    Raises:
        OptionError: fields are missing or wrong; the text has all of them.
        CompileError: the model cannot be read, converted or compiled, or the result cannot be written.
    """
    return compile_request(read_request(fields))


def compile_environment(environment: Mapping[str, str] | None = None) -> Path:
    """As `compile_fields`, with the fields from environment variables (this process's own).

    Raises:
        CompileError: as `compile_fields`.
    """
    return compile_fields(request_fields(os.environ if environment is None else environment))


def compile_request(request: CompileRequest) -> Path:
    """Compiles one model into a version of `request.export_path`, and returns the zip file beside it.

    Raises:
        CompileError: as `compile_fields`. Nothing is written then, unless it is the zip file that could not be.
    """
    target = TARGETS.get(request.serving_type)
    if target is None:
        raise OptionError(
            f"serving_type '{request.serving_type}': there is no such target; targets: "
            f"{', '.join(f'{name} ({kind.label})' for name, kind in TARGETS.items())}; sources: {', '.join(kind.label for kind in SOURCES)}"
        )
    check_version_is_free(request)
    source = find_source(request)
    with tempfile.TemporaryDirectory(prefix="stoker-compile-") as workspace:
        model = edges().convert(source, target, Job(request, Path(workspace)))
        path = save_model(model, request)
    logger.info("wrote %s", path)
    return path
