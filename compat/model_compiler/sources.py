"""The kind of source that a request names: found by `framework`, by the file's name, or by what a folder holds."""

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from model_compiler.edges import Model
from model_compiler.models import FrozenGraphFile, OnnxFile, OnnxModel, SavedModelFolder, TorchProgramFile, TorchStateFile
from model_compiler.request import CompileRequest
from stoker.compiler.errors import OptionError

SOURCES = (OnnxFile, OnnxModel, TorchProgramFile, TorchStateFile, SavedModelFolder, FrozenGraphFile)
_FRAMEWORK_OF: Mapping[str, str] = {".onnx": "onnx", ".pt2": "torch", ".pth": "torch", ".pt": "torch", ".pb": "tensorflow"}


def find_source(request: CompileRequest) -> Model:
    """The source that `request` names.

    Raises:
        OptionError: there is no such file, or it is of no kind that can be read; the text lists those that can.
    """
    named = request.input_model
    if isinstance(named, onnx.ModelProto):
        return OnnxModel(named, "input_model")
    path = Path(named)
    if not path.exists():
        raise OptionError(f"input_model: there is no {path}")
    framework = request.framework or ("tensorflow" if path.is_dir() else _FRAMEWORK_OF.get(path.suffix.lower()))
    if framework is None:
        known = "; ".join(kind.label for kind in SOURCES)
        raise OptionError(f"input_model: cannot tell what {path} is by its name; give framework, or one of: {known}")
    return _OF_FRAMEWORK[framework](path, request)


def _onnx(path: Path, _request: CompileRequest) -> Model:
    return OnnxFile(path)


def _torch(path: Path, request: CompileRequest) -> Model:
    if path.suffix.lower() == ".pt2":
        return TorchProgramFile(path)
    if request.script_path is None:
        raise OptionError(
            f"input_model: {path} is no exported program (.pt2), and a state needs script_path, a Python file that defines its class "
            "TheModelClass; whole pickled models are not read, since reading one runs whatever is in it"
        )
    script = Path(request.script_path)
    if not script.is_file():
        raise OptionError(f"script_path: there is no file {script}")
    return TorchStateFile(path, script)


def _tensorflow(path: Path, request: CompileRequest) -> Model:
    if path.is_dir():
        if not any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
            raise OptionError(f"input_model: {path} is a folder without a saved_model.pb")
        return SavedModelFolder(path)
    missing = [name for name in ("input_names", "output_names") if not getattr(request, name)]
    if missing:
        raise OptionError(f"{' and '.join(missing)} missing: a frozen graph does not say what its inputs and outputs are")
    return FrozenGraphFile(path)


_OF_FRAMEWORK: Mapping[str, Callable[[Path, CompileRequest], Model]] = {"onnx": _onnx, "torch": _torch, "tensorflow": _tensorflow}
