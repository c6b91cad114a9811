"""Edges to what OpenVINO's front ends serve: models that are served as they are, and models of other formats as OpenVINO IR.

OpenVINO reads the source, which tells the inputs and outputs and finds what it cannot convert before anything is written. The framework
that wrote the source need not be installed.
"""

import importlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from model_compiler.edges import Job
from model_compiler.importing import import_by_suffix, import_frozen_graph, import_saved_model
from model_compiler.request import BuildFlag, CompileRequest
from model_compiler.sources import (
    FrozenGraphFile,
    IrFile,
    PaddleFile,
    SavedModelFolder,
    ServableModel,
    ServedIr,
    ServedPaddle,
    ServedTensorflow,
    ServedTflite,
    TfliteFile,
)
from model_compiler.targets import serve_openvino, with_layouts
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import VARIABLE, FileTensor, ModelFacts
from stoker.backends.cpu.openvino_files import check_openvino, save_ir
from stoker.backends.openvino.formats import SAVED_MODEL_FILE
from stoker.compiler.errors import CompileError, OptionError, ShapeError
from stoker.compiler.repository_writer import ServedTensor

_OPENVINO = "openvino"
#: What OpenVINO reads of a SavedModel.
_SIGNATURE, _TAGS = "serving_default", ("serve",)
#: Rows of the trial that finds models whose rows depend on each other, and the size given to dimensions that vary.
_ROWS, _VARIABLE_SIZE = 3, 4
_TOLERANCE = 1e-3

S = TypeVar("S", bound=ServableModel)


def keep_saved_model(source: SavedModelFolder, job: Job) -> ServedTensorflow:
    """Serves the SavedModel as it is, with its signature `serving_default`.

    Raises:
        OptionError: the request has options that need a conversion, or OpenVINO is not installed.
        ShapeError: its batch does not fit max_batch_size.
        CompileError: OpenVINO does not read it.
    """
    _check_signature(job.request)
    return _kept(ServedTensorflow, "tensorflow", source.path, SAVED_MODEL_FILE, SAVED_MODEL_FILE, job)


def keep_frozen_graph(source: FrozenGraphFile, job: Job) -> ServedTensorflow:
    """Serves the frozen graph as it is; see `keep_saved_model`."""
    return _kept(ServedTensorflow, "tensorflow", source.path.parent, source.path.name, "model.pb", job)


def keep_tflite(source: TfliteFile, job: Job) -> ServedTflite:
    """Serves the TensorFlow Lite file as it is; see `keep_saved_model`."""
    return _kept(ServedTflite, "tensorflow_lite", source.path.parent, source.path.name, "model.tflite", job)


def keep_paddle(source: PaddleFile, job: Job) -> ServedPaddle:
    """Serves the PaddlePaddle model as it is; see `keep_saved_model`."""
    return _kept(ServedPaddle, "paddle", source.path.parent, source.path.name, "model.pdmodel", job)


def saved_model_to_ir(source: SavedModelFolder, job: Job) -> ServedIr:
    """Converts the SavedModel to OpenVINO IR: by tf2onnx where the request has options that OpenVINO's front end does not have.

    Raises:
        OptionError, ShapeError, CompileError: as `keep_saved_model`; with such options, as `import_saved_model` and `serve_openvino`.
    """
    request = job.request
    if request.input_shapes or request.input_names or request.output_names or not _is_default_signature(request):
        return serve_openvino(import_saved_model(source, job), job)
    return _ir(source.path, SAVED_MODEL_FILE, job)


def frozen_graph_to_ir(source: FrozenGraphFile, job: Job) -> ServedIr:
    """Converts the frozen graph to OpenVINO IR; see `saved_model_to_ir`."""
    request = job.request
    if request.input_shapes or request.input_names or request.output_names:
        return serve_openvino(import_frozen_graph(source, job), job)
    return _ir(source.path.parent, source.path.name, job)


def tflite_to_ir(source: TfliteFile, job: Job) -> ServedIr:
    """Converts the TensorFlow Lite file to OpenVINO IR; see `saved_model_to_ir`."""
    request = job.request
    if request.input_shapes or request.input_names or request.output_names:
        return serve_openvino(import_by_suffix(source, job), job)
    return _ir(source.path.parent, source.path.name, job)


def paddle_to_ir(source: PaddleFile, job: Job) -> ServedIr:
    """Converts the PaddlePaddle model to OpenVINO IR; see `keep_saved_model`."""
    return _ir(source.path.parent, source.path.name, job)


def keep_ir(source: IrFile, job: Job) -> ServedIr:
    """Serves the OpenVINO IR as it is; see `keep_saved_model`."""
    return _kept(ServedIr, _OPENVINO, source.path.parent, source.path.name, "model.xml", job)


def _is_default_signature(request: CompileRequest) -> bool:
    return request.signature_keys in (None, _SIGNATURE) and request.saved_model_tags in ((), _TAGS)


def _check_signature(request: CompileRequest) -> None:
    if not _is_default_signature(request):
        raise OptionError(
            f"signature_keys, saved_model_tags: serving_type {request.serving_type} serves the signature {_SIGNATURE} of the tag "
            f"{_TAGS[0]}; serving_type onnx or openvino converts others"
        )


def _kept(kind: type[S], platform: str, folder: Path, filename: str, served_filename: str, job: Job) -> S:
    """The model as it is, under the names that the backend looks for."""
    files, facts = _inspected(folder, filename, job.request)
    _check_rows(files, filename, facts, job.request)
    stem, served_stem = Path(filename).stem, Path(served_filename).stem
    names = {name: served_stem + name.removeprefix(stem) if "/" not in name and Path(name).stem == stem else name for name in files}
    return _servable(
        kind,
        platform,
        facts,
        job,
        files[filename],
        served_filename,
        {names[name]: path for name, path in files.items() if name != filename},
    )


def _ir(folder: Path, filename: str, job: Job) -> ServedIr:
    """The model as IR, whose inputs and outputs have the names that clients of the source use.

    Raises:
        CompileError: two outputs are the same tensor, which has one name in IR.
    """
    files, facts = _inspected(folder, filename, job.request)
    _check_rows(files, filename, facts, job.request)
    model = _model(files, filename)
    for ports, tensors in ((model.inputs, facts.inputs or ()), (model.outputs, facts.outputs or ())):
        for port, tensor in zip(ports, tensors, strict=True):
            port.get_tensor().set_names({tensor.name})
    path = job.workspace / "model.xml"
    weights = save_ir(model, path)
    lost = [tensor.name for port, tensor in zip(model.outputs, facts.outputs or (), strict=True) if tensor.name not in port.get_names()]
    if lost:
        raise CompileError(f"{folder / filename}: output '{lost[0]}' is the same tensor as another output, and IR has one name for both")
    return _servable(ServedIr, _OPENVINO, facts, job, path, "model.xml", weights)


def _servable(kind: type[S], platform: str, facts: ModelFacts, job: Job, path: Path, filename: str, companions: Mapping[str, Path]) -> S:
    request = job.request
    return kind(
        path=path,
        filename=filename,
        config={
            "platform": platform,
            "platform_version": importlib.metadata.version(_OPENVINO),
            "max_batch_size": request.max_batch_size,
            "parameters": {"precision": "f32"},
        },
        inputs=with_layouts([_served(tensor) for tensor in facts.inputs or ()], request),
        outputs=tuple(_served(tensor) for tensor in facts.outputs or ()),
        companions=companions,
    )


def _inspected(folder: Path, filename: str, request: CompileRequest) -> tuple[dict[str, Path], ModelFacts]:
    """The files of the model, by name, and what they declare.

    Raises:
        OptionError, ShapeError, CompileError: see `keep_saved_model`.
    """
    given = [name for name in ("input_shapes", "batch_sizes", "input_names", "output_names") if getattr(request, name)]
    if request.flag is not BuildFlag.FP32:
        given.append("build_flag" if request.build_flag is not None else "enable_fp16")
    if given:
        raise OptionError(f"{', '.join(given)}: serving_type {request.serving_type} serves this model as it is")
    check_openvino(f"serving_type {request.serving_type}")
    files = _files(folder, filename)
    from stoker.backends.openvino.backend import OpenVinoBackend

    try:
        facts = OpenVinoBackend().inspect(_model_files(folder, files), filename)
    except ModelLoadError as error:
        raise CompileError(f"{folder / filename}: {error.message}") from error
    for tensor in (*(facts.inputs or ()), *(facts.outputs or ())):
        if not tensor.shape:
            raise ShapeError(f"tensor '{tensor.name}' has no shape with a batch as dimension 0")
        if tensor.shape[0] not in (VARIABLE, request.max_batch_size):
            raise ShapeError(
                f"max_batch_size {request.max_batch_size}: tensor '{tensor.name}' has shape {list(tensor.shape)}, so that its batch is "
                f"fixed to {tensor.shape[0]}; say {tensor.shape[0]}, or export the model with a variable batch"
            )
    return files, facts


def _files(folder: Path, filename: str) -> dict[str, Path]:
    """The files that belong to the model, by their names in `folder`: for a SavedModel all, else those of the same stem."""
    if filename == SAVED_MODEL_FILE:
        return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    parts = {Path(filename).with_suffix(suffix).name for suffix in (".bin", ".pdiparams")}
    return {path.name: path for path in sorted(folder.iterdir()) if path.name == filename or path.name in parts}


def _model_files(folder: Path, files: Mapping[str, Path]) -> ModelFiles:
    return ModelFiles(folder, {name: path.stat().st_size for name, path in files.items()})


def _model(files: Mapping[str, Path], filename: str) -> Any:
    from stoker.backends.openvino.model_source import read_model

    ov = importlib.import_module(_OPENVINO)
    path = files[filename]
    return read_model(ov.Core(), _model_files(path.parent, files), filename).model


def _check_rows(files: Mapping[str, Path], filename: str, facts: ModelFacts, request: CompileRequest) -> None:
    """Runs rows together and alone, where the batch is open.

    Raises:
        ShapeError: a row's outputs depend on the other rows.
        CompileError: OpenVINO does not compile or run the model.
    """
    inputs = facts.inputs or ()
    if request.max_batch_size < 2 or not inputs or any(tensor.shape and tensor.shape[0] != VARIABLE for tensor in inputs):
        return
    from stoker.backends.openvino.runtime import OPENVINO_ERRORS, public_text

    ov = importlib.import_module(_OPENVINO)
    rng = np.random.default_rng(0)
    feeds = [_drawn(rng, tensor) for tensor in inputs]
    try:
        compiled = ov.compile_model(_model(files, filename), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        together = list(compiled(feeds).to_tuple())
        alone = list(compiled([array[:1] for array in feeds]).to_tuple())
    except OPENVINO_ERRORS as error:
        raise CompileError(f"OpenVINO does not run {filename}: {public_text(error, files[filename].parent)}") from error
    for tensor, whole, row in zip(facts.outputs or (), together, alone, strict=True):
        if len(whole) != _ROWS or not np.allclose(whole[:1], row, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
            raise ShapeError(
                f"max_batch_size {request.max_batch_size}: output '{tensor.name}' of a row depends on the other rows of the batch; "
                "give max_batch_size 1"
            )


def _drawn(rng: np.random.Generator, tensor: FileTensor) -> Any:
    """Normal floats; integers of 0 and 1, which are valid as indices and masks."""
    shape = (_ROWS, *(_VARIABLE_SIZE if size == VARIABLE else size for size in (tensor.shape or (VARIABLE,))[1:]))
    kind = tensor.datatype.numpy
    return np.asarray(rng.standard_normal(shape) if kind.kind == "f" else rng.integers(0, 2, shape)).astype(kind)


def _served(tensor: FileTensor) -> ServedTensor:
    datatype = tensor.datatype.config_name
    return ServedTensor(tensor.name, datatype, (tensor.shape or ())[1:], datatype)
