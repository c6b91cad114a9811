"""Edges to an ONNX model in memory: from ONNX files, from TensorFlow's forms and from PyTorch's."""

import importlib
import importlib.util
import inspect
import pickle
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from model_compiler.edges import Job
from model_compiler.request import CompileRequest
from model_compiler.sources import (
    FrozenGraphFile,
    KerasFile,
    OnnxFile,
    OnnxModel,
    SavedModelFolder,
    TfliteFile,
    TorchProgramFile,
    TorchStateFile,
)
from stoker.compiler.convert.source import TensorflowOptions, checked, export_keras, export_tflite, read_onnx, read_tensorflow
from stoker.compiler.errors import CompileError, OptionError

#: Opset that TensorFlow models are exported to, where the request names none: the newest that tf2onnx 1.16 writes.
_TENSORFLOW_OPSET = 18


def read_onnx_file(source: OnnxFile, _job: Job) -> OnnxModel:
    """Reads the file and its external data.

    Raises:
        CompileError: it is no ONNX file.
    """
    return OnnxModel(read_onnx(source.path), str(source.path))


def import_saved_model(source: SavedModelFolder, job: Job) -> OnnxModel:
    """Converts a SavedModel by tf2onnx.

    Raises:
        CompileError: tf2onnx or TensorFlow is not installed, or fails.
    """
    request = job.request
    options = TensorflowOptions(
        saved_model=True,
        signature_def=request.signature_keys,
        tag=",".join(request.saved_model_tags) or None,
        inputs=",".join(request.input_names) or None,
        outputs=",".join(request.output_names) or None,
        opset=request.opset_version or _TENSORFLOW_OPSET,
    )
    return OnnxModel(read_tensorflow(source.path, options), str(source.path))


def import_frozen_graph(source: FrozenGraphFile, job: Job) -> OnnxModel:
    """Converts a frozen graph by tf2onnx.

    Raises:
        OptionError: the names of its inputs or outputs are missing.
        CompileError: as `import_saved_model`.
    """
    request = job.request
    missing = [name for name in ("input_names", "output_names") if not getattr(request, name)]
    if missing:
        raise OptionError(f"{' and '.join(missing)} missing: a frozen graph does not say what its inputs and outputs are")
    options = TensorflowOptions(
        inputs=",".join(request.input_names),
        outputs=",".join(request.output_names),
        opset=request.opset_version or _TENSORFLOW_OPSET,
    )
    return OnnxModel(read_tensorflow(source.path, options), str(source.path))


def import_by_suffix(source: KerasFile | TfliteFile, job: Job) -> OnnxModel:
    """Converts a Keras or TensorFlow Lite file by tf2onnx.

    Raises:
        OptionError: the request has options that do not concern a Keras file.
        CompileError: as `import_saved_model`.
    """
    request = job.request
    options = TensorflowOptions(
        inputs=",".join(request.input_names) or None,
        outputs=",".join(request.output_names) or None,
        opset=request.opset_version or _TENSORFLOW_OPSET,
    )
    return OnnxModel(read_tensorflow(source.path, options), str(source.path))


def export_saved_model(source: KerasFile, job: Job) -> SavedModelFolder:
    """Writes a Keras model as SavedModel.

    Raises:
        CompileError: Keras or TensorFlow is not installed, or fails.
    """
    folder = job.workspace / "saved_model"
    export_keras(source.path, folder)
    return SavedModelFolder(folder)


def export_tflite_file(source: SavedModelFolder, job: Job) -> TfliteFile:
    """Converts a SavedModel to TensorFlow Lite.

    Raises:
        CompileError: TensorFlow is not installed, or fails.
    """
    path = job.workspace / "model.tflite"
    export_tflite(source.path, path)
    return TfliteFile(path)


#: What Adlik's scripts call the class whose state is given.
MODEL_CLASS = "TheModelClass"
#: Packages of PyTorch's exporter; none of them is among Stoker's own.
_NEEDED = ("torch", "onnxscript")
#: Adlik's names of element types, in lower case, where PyTorch has another; any other is PyTorch's own.
_TYPE_NAMES = {"float": "float32", "double": "float64", "half": "float16", "fp16": "float16", "fp32": "float32"}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: Characters of PyTorch's reason that are shown.
_MAX_REASON = 400


def export_program(source: TorchProgramFile, job: Job) -> OnnxModel:
    """Reads what `torch.export.save` wrote and exports it.

    Raises:
        CompileError: PyTorch is not installed, the file is none of that kind, or PyTorch cannot export it.
    """
    torch = _torch()
    try:
        program = torch.export.load(str(source.path))
    except Exception as error:  # PyTorch raises whatever its readers of zip and JSON raise
        raise _failed(f"{source.path} cannot be read as an exported program", error) from error
    return _exported(torch, program, (), job.request, str(source.path))


def export_state(source: TorchStateFile, job: Job) -> OnnxModel:
    """Runs the script, gives the state to its `TheModelClass()` and exports that with inputs of `input_shapes`; their batch is variable.

    The script is the caller's own code and runs as such; of the state only tensors are read.

    Raises:
        OptionError: `input_shapes` is missing, or the script has no such class.
        CompileError: as `export_program`; or the state is not that of the class.
    """
    request = job.request
    torch = _torch()
    if not request.input_shapes:
        raise OptionError("input_shapes is missing: a PyTorch state does not say what its inputs are")
    made = _model_class(source.script)
    try:
        model = made()
        model.load_state_dict(torch.load(str(source.path), map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        raise CompileError(f"{source.path} holds more than tensors and is not read; save the model's state_dict(), or export it") from error
    except Exception as error:  # the user's class may raise anything
        raise _failed(f"{source.path} is no state of {MODEL_CLASS} in {source.script}", error) from error
    model.eval()
    return _exported(torch, model, _samples(torch, made, request), request, str(source.path))


def _torch() -> Any:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CompileError(
            f"PyTorch models need the package{'s' if len(missing) > 1 else ''} {' and '.join(missing)}, not installed here: "
            "pip install torch onnxscript, or export the model to ONNX elsewhere and give the ONNX file"
        )
    return importlib.import_module("torch")


def _model_class(script: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"_stoker_model_script_{script.stem}", script)
    if spec is None or spec.loader is None:
        raise OptionError(f"script_path: {script} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's script may raise anything
        raise _failed(f"script_path: {script} failed", error) from error
    finally:
        sys.modules.pop(spec.name, None)
    made = getattr(module, MODEL_CLASS, None)
    if not isinstance(made, type):
        raise OptionError(f"script_path: {script} defines no class {MODEL_CLASS}{_classes(module)}")
    return made


def _classes(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, type) and value.__module__ == module.__name__]
    return f"; it defines {', '.join(names)}" if names else ""


def _samples(torch: Any, made: Any, request: CompileRequest) -> tuple[Any, ...]:
    """Two samples for each input: with one, PyTorch takes the batch for fixed."""
    shapes = request.input_shapes
    if not isinstance(shapes, tuple):
        names = list(request.input_names) or [name for name in inspect.signature(made.forward).parameters if name != "self"]
        unknown = [f"'{name}'" for name in shapes if name not in names]
        if unknown:
            raise OptionError(f"input_shapes: the inputs of {MODEL_CLASS} are {', '.join(names) or 'none'}, not {', '.join(unknown)}")
        shapes = tuple(shapes[name] for name in names if name in shapes)
    types = [_type(torch, name) for name in request.data_type] or [torch.float32]
    if len(types) not in (1, len(shapes)):
        raise OptionError(f"data_type: {len(types)} types for {len(shapes)} inputs")
    types = types if len(types) == len(shapes) else types * len(shapes)
    return tuple(torch.ones((2, *shape), dtype=dtype) for shape, dtype in zip(shapes, types, strict=True))


def _type(torch: Any, name: str) -> Any:
    spelled = name.lower().removeprefix("torch.")
    found = getattr(torch, _TYPE_NAMES.get(spelled, spelled), None)
    if not isinstance(found, torch.dtype):
        raise OptionError(f"data_type: PyTorch has no element type '{name}'")
    return found


def _exported(torch: Any, model: Any, samples: Sequence[Any], request: CompileRequest, origin: str) -> OnnxModel:
    settings: dict[str, Any] = {"dynamo": True, "verbose": False}
    if samples:
        batch = torch.export.Dim("batch", min=1)
        settings["dynamic_shapes"] = tuple({0: batch} for _ in samples)
    settings |= {name: list(getattr(request, name)) for name in ("input_names", "output_names") if getattr(request, name)}
    if request.opset_version is not None:
        settings["opset_version"] = request.opset_version
    try:
        made = torch.onnx.export(model, tuple(samples), **settings).model_proto
    except Exception as error:  # PyTorch's exporter raises dozens of kinds
        raise _failed(f"PyTorch cannot export {origin} to ONNX", error) from error
    return OnnxModel(checked(made, origin), origin)


def _failed(what: str, error: BaseException) -> CompileError:
    """Names the first cause: what PyTorch wraps around it is advice for who develops PyTorch, in colours."""
    while error.__cause__ is not None:
        error = error.__cause__
    reason = " ".join(_COLOURS.sub("", str(error)).split())
    return CompileError(f"{what}: {type(error).__name__}: {reason[:_MAX_REASON]}")
