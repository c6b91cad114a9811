"""User-defined passes: Python files that register passes, and passes that work on `onnx.ModelProto`."""

import abc
import importlib.machinery
import importlib.util
import sys
import traceback
from pathlib import Path

import onnx
import onnx_ir as ir

from stoker.compiler.errors import PassError
from stoker.compiler.passes.registry import Pass, registered_since, registration_mark


class ProtoPass(Pass):
    """A pass whose `run` takes and returns an `onnx.ModelProto` (changed in place or new), as in PopRT.

    The model is serialised for the call and parsed afterwards, which costs one copy of the model.
    """

    @abc.abstractmethod
    def run(self, onnx_model: onnx.ModelProto) -> onnx.ModelProto:  # type: ignore[override]
        """Returns the changed model."""

    def apply(self, model: ir.Model) -> bool:
        """Runs the pass on a copy, and replaces the content of `model` by the result.

        Raises:
            PassError: `run` returned something else than a model.
        """
        proto = ir.to_proto(model)
        before = proto.SerializeToString(deterministic=True) if proto.ByteSize() < _COMPARABLE_BYTES else None
        result = self.run(proto)
        if not isinstance(result, onnx.ModelProto):
            raise PassError(f"run returned {type(result).__name__} instead of an onnx.ModelProto")
        if before is not None and result.SerializeToString(deterministic=True) == before:
            return False
        _become(model, ir.from_proto(result))
        return True


#: Larger models count as changed instead of being compared byte by byte.
_COMPARABLE_BYTES = 1 << 26


def _become(model: ir.Model, other: ir.Model) -> None:
    model.graph = other.graph
    model.functions.clear()
    model.functions.update(other.functions)
    model.ir_version = other.ir_version
    model.metadata_props.clear()
    model.metadata_props.update(other.metadata_props)


def load_custom_passes(path: str | Path) -> list[str]:
    """Runs a Python file that registers passes, and returns their names in the order of registration.

    Raises:
        PassError: there is no such file, it fails, or it registers nothing; one line with file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise PassError(f"{path}: there is no such file of custom passes")
    module_name = f"stoker_custom_passes_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path, loader=importlib.machinery.SourceFileLoader(module_name, str(path)))
    assert spec is not None, "a loader was given, so that there is a spec"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    mark = registration_mark()
    sys.modules[module_name] = module  # dataclasses and pickle look up their module in sys.modules
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # user code may raise anything
        del sys.modules[module_name]
        raise PassError(f"{path}:{_line_of(error, path)}: {type(error).__name__}: {_first_line(error)}") from error
    names = registered_since(mark)
    if not names:
        raise PassError(f"{path}: registers no pass; decorate the class with @register('its_name')")
    return names


def _first_line(error: Exception) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return text.splitlines()[0] if text else ""


def _line_of(error: Exception, path: Path) -> int:
    """Returns the line of `path` that ran last before the error."""
    if isinstance(error, SyntaxError) and error.lineno is not None and error.filename == str(path):
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] or 1 if lines else 1
