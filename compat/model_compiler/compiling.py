"""From a request to a served model: find the source, go the shortest way to the target, write the result.

The result is where Adlik's compiler puts it: a version in the repository, and the same as a zip file beside the model's folder.

<export_path>/<model>/config.pbtxt
<export_path>/<model>/<version>/model.exec
<export_path>/<model>_<version>.zip       holds `<version>/model.exec` and `config.pbtxt`
"""

import logging
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_compiler.edges import EdgeGraph, Job
from model_compiler.graph_files import (
    frozen_graph_to_ir,
    keep_frozen_graph,
    keep_ir,
    keep_paddle,
    keep_saved_model,
    keep_tflite,
    paddle_to_ir,
    saved_model_to_ir,
    tflite_to_ir,
)
from model_compiler.importing import (
    export_program,
    export_saved_model,
    export_state,
    export_tflite_file,
    import_by_suffix,
    import_frozen_graph,
    import_saved_model,
    read_onnx_file,
)
from model_compiler.request import CompileRequest, read_request, request_fields
from model_compiler.sources import (
    SOURCES,
    FrozenGraphFile,
    GcuEngine,
    IrFile,
    KerasFile,
    OnnxFile,
    OnnxModel,
    PaddleFile,
    PopefExecutable,
    SavedModelFolder,
    ServableModel,
    ServedIr,
    ServedOnnx,
    ServedPaddle,
    ServedTensorflow,
    ServedTflite,
    TfliteFile,
    TorchProgramFile,
    TorchStateFile,
    find_source,
)
from model_compiler.targets import compile_engine, compile_popef, serve_onnx, serve_openvino
from stoker.cli.written_version import load_once
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.output_files import written_whole
from stoker.compiler.repository_writer import CONFIG_NAME, ServedModel, write_served_versions

#: The earliest time that zip files know, and rights that do not depend on who packed: the same model gives the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)
_RIGHTS = 0o100644 << 16
_UNIX = 3
_CHUNK_BYTES = 1 << 20


def check_version_is_free(request: CompileRequest) -> None:
    """Raises:
    OptionError: the version that `request` names exists. Asked before anything is compiled.
    """
    if request.version is not None and (request.repository / request.model_name / str(request.version)).exists():
        raise OptionError(
            f"version {request.version}: {request.repository / request.model_name / str(request.version)} exists, and versions are never "
            "overwritten; leave version out to take the next one"
        )


def save_model(model: ServableModel, request: CompileRequest) -> Path:
    """Writes the version and then the zip file, each whole or not at all, and returns the zip file.

    Raises:
        OptionError: the version exists.
        CompileError: the config.pbtxt that is there does not agree with the model, the version does not load, or nothing can be
            written.
    """
    served = ServedModel(name=request.model_name, config=model.config, inputs=model.inputs, outputs=model.outputs)
    (version,) = write_served_versions(
        request.repository,
        [served],
        request.version,
        model.path,
        filename=model.filename,
        companions=model.companions,
        load_once=load_once,
    )
    path = request.repository / f"{request.model_name}_{version.name}.zip"
    try:
        _pack(version, path)
    except CompileError as error:
        raise CompileError(f"{error}; version {version.name} is written and can be served, only its zip file is missing") from error
    return path


def _pack(version: Path, path: Path) -> None:
    files = sorted(each for each in version.rglob("*") if each.is_file())
    members = [(each.relative_to(version.parent).as_posix(), each) for each in files]
    members.append((CONFIG_NAME, version.parent / CONFIG_NAME))
    # Weights do not get smaller by deflating, and what is stored is the same whatever version of zlib packs it.
    with written_whole(path) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
        for name, source in members:
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr, entry.create_system = _RIGHTS, _UNIX
            entry.file_size = source.stat().st_size
            with source.open("rb") as reading, archive.open(entry, "w") as writing:
                while chunk := reading.read(_CHUNK_BYTES):
                    writing.write(chunk)


logger = logging.getLogger(__name__)

#: `serving_type` -> what is made; all but `popef` are Adlik's words.
TARGETS: Mapping[str, type[ServableModel]] = {
    "engine": GcuEngine,
    "popef": PopefExecutable,
    "onnx": ServedOnnx,
    "openvino": ServedIr,
    "tf": ServedTensorflow,
    "tflite": ServedTflite,
    "paddle": ServedPaddle,
}


def edges() -> EdgeGraph:
    """All conversions there are. All ways to devices lead through an ONNX model in memory, so that one given there reaches them, too."""
    graph = EdgeGraph()
    graph.add(OnnxFile, OnnxModel, read_onnx_file)
    graph.add(TorchProgramFile, OnnxModel, export_program)
    graph.add(TorchStateFile, OnnxModel, export_state)
    graph.add(SavedModelFolder, OnnxModel, import_saved_model)
    graph.add(FrozenGraphFile, OnnxModel, import_frozen_graph)
    graph.add(KerasFile, OnnxModel, import_by_suffix)
    graph.add(TfliteFile, OnnxModel, import_by_suffix)
    graph.add(KerasFile, SavedModelFolder, export_saved_model)
    graph.add(SavedModelFolder, TfliteFile, export_tflite_file)
    graph.add(OnnxModel, GcuEngine, compile_engine)
    graph.add(OnnxModel, PopefExecutable, compile_popef)
    graph.add(OnnxModel, ServedOnnx, serve_onnx)
    graph.add(OnnxModel, ServedIr, serve_openvino)
    graph.add(SavedModelFolder, ServedTensorflow, keep_saved_model)
    graph.add(FrozenGraphFile, ServedTensorflow, keep_frozen_graph)
    graph.add(TfliteFile, ServedTflite, keep_tflite)
    graph.add(PaddleFile, ServedPaddle, keep_paddle)
    graph.add(SavedModelFolder, ServedIr, saved_model_to_ir)
    graph.add(FrozenGraphFile, ServedIr, frozen_graph_to_ir)
    graph.add(TfliteFile, ServedIr, tflite_to_ir)
    graph.add(PaddleFile, ServedIr, paddle_to_ir)
    graph.add(IrFile, ServedIr, keep_ir)
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
