"""`Parser` reads models; `Optimizer` compiles them to engines."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from stoker_compat.absent import WithReasons

from stoker.backends.gcu.hardware import I20
from stoker.backends.gcu.runtime.errors import Status, StatusError
from TopsInference.constants import BuildFlag, DType, ParserType
from TopsInference.error_manager import recorded
from TopsInference.network import Network, read_network
from TopsInference.py_engine import PyEngine

logger = logging.getLogger(__name__)

_PRECISIONS = {BuildFlag.KDEFAULT: "fp32", BuildFlag.KFP16: "fp16", BuildFlag.KFP16_MIX: "mixed"}


class Optimizer(WithReasons):
    """Compiles networks to engines. Confined to one thread."""

    _absent: ClassVar = {
        "set_max_shape_range": "engines have static shapes: set_input_shapes of the parser",
        "set_int8_calibrator": "the device computes in fp32 and fp16, not in int8",
        "set_auto_batch_mode": "an engine has the batch sizes that it is compiled for",
    }

    def __init__(self) -> None:
        self._flag = BuildFlag.KDEFAULT
        self._options: dict[str, Any] = {}

    @recorded
    def set_build_flag(self, flag: int) -> bool:
        """Sets the precision of engines: `KDEFAULT`, `KFP16` or `KFP16_MIX`.

        Raises:
            StatusError: anything else; the device has no int8, and engines cannot be refitted here.
        """
        if flag in (BuildFlag.KINT8_MIX_FP32,):
            raise StatusError(Status.TIF_UN_SUPPORTED_DATA_TYPE, "set_build_flag: the device computes in fp32 and fp16, not in int8")
        if flag not in _PRECISIONS:
            known = ", ".join(f"{each.name} ({each.value})" for each in _PRECISIONS)
            raise StatusError(Status.TIF_INVALID_PARAM, f"set_build_flag: {flag!r} cannot be built; there are {known}")
        self._flag = BuildFlag(flag)
        return True

    def get_build_flag(self) -> BuildFlag:
        """Returns the current build flag."""
        return self._flag

    @recorded
    def set_compile_options(self, options: str | Mapping[str, Any]) -> bool:
        """Sets compiler options from a dict or JSON: `resource_mode` has an effect; all others are accepted and logged.

        Raises:
            StatusError: they are no JSON object.
        """
        if isinstance(options, str):
            try:
                options = json.loads(options)
            except ValueError as error:
                raise StatusError(Status.TIF_INVALID_PARAM, f"set_compile_options: no JSON: {error}") from error
        if not isinstance(options, Mapping):
            raise StatusError(
                Status.TIF_INVALID_PARAM, f"set_compile_options: a JSON object or dict is needed, not {type(options).__name__}"
            )
        for name in options:
            if name != "resource_mode":
                logger.warning("set_compile_options: '%s' has no effect on a simulated device", name)
        self._options = dict(options)
        return True

    def get_compile_options(self) -> str:
        """Returns the current options as JSON."""
        return json.dumps(self._options)

    @recorded
    def build(self, network: Network) -> PyEngine:
        """Compiles `network`, which a parser has read.

        Raises:
            StatusError: it is none, an option is wrong, or the model exceeds a limit of the device.
        """
        if not hasattr(network, "build"):
            raise StatusError(Status.TIF_INVALID_PARAM, f"build: what a parser has read is needed, not {type(network).__name__}")
        resource_mode = str(self._options.get("resource_mode", ""))
        return PyEngine(network.build(build_flag=_PRECISIONS[self._flag], resource_mode=resource_mode))


def create_optimizer() -> Optimizer:
    """Returns an optimizer with default settings."""
    return Optimizer()


class Parser:
    """Reads models with the settings made before. Confined to one thread. None resets a setting."""

    def __init__(self) -> None:
        self._input_names: list[str] | None = None
        self._input_shapes: list[list[int]] | None = None
        self._input_dtypes: list[DType] | None = None
        self._output_names: list[str] | None = None
        self._output_dtypes: list[DType] | None = None

    @recorded
    def set_input_names(self, names: str | Sequence[str] | None) -> bool:
        """Sets the names of all inputs, as a list or as `a,b`. They define the order of shapes and types.

        Raises:
            StatusError: these are no names.
        """
        self._input_names = _names(names, "set_input_names")
        return True

    @recorded
    def set_output_names(self, names: str | Sequence[str] | None) -> bool:
        """Sets the names of the requested outputs, as a list or as `a,b`.

        Raises:
            StatusError: these are no names.
        """
        self._output_names = _names(names, "set_output_names")
        return True

    @recorded
    def set_input_dtypes(self, dtypes: str | Sequence[int | str] | None) -> bool:
        """Sets the types of the inputs, which must match the model: `DT_FLOAT32,DT_INT64`, or a list of `DT_*`.

        Raises:
            StatusError: there is no such type.
        """
        self._input_dtypes = _dtypes(dtypes, "set_input_dtypes")
        return True

    @recorded
    def set_output_dtypes(self, dtypes: str | Sequence[int | str] | None) -> bool:
        """Sets the types of the requested outputs, which must match the model.

        Raises:
            StatusError: there is no such type.
        """
        self._output_dtypes = _dtypes(dtypes, "set_output_dtypes")
        return True

    @recorded
    def set_input_shapes(self, shapes: str | Sequence[Sequence[int]] | None) -> bool:
        """Sets the full shapes of the inputs: `1,3,224,224:1,10`, with a colon between inputs, or a list of lists.

        Raises:
            StatusError: a shape is none, not static, or has more dimensions than the device takes.
        """
        self._input_shapes = _shapes(shapes)
        return True

    def enable_graph_builder(self, is_enabled: bool = True) -> bool:
        """Accepted without effect: Stoker has a single graph builder."""
        return is_enabled

    @recorded
    def read(self, model: str | os.PathLike[str]) -> Network:
        """Reads a model from an ONNX file.

        Raises:
            StatusError: there is no such file, it cannot be read, or it is not what was set.
        """
        if not isinstance(model, str | os.PathLike):
            raise StatusError(
                Status.TIF_INVALID_PARAM,
                f"read: a path is needed, not {type(model).__name__}; a model in memory goes to read_from_str or read_object",
            )
        path = Path(model)
        if not path.is_file():
            raise StatusError(Status.TIF_LOAD_NON_EXIST_FILE, f"read: there is no file '{path}'")
        return self._read(path)

    @recorded
    def read_from_str(self, content: bytes) -> Network:
        """Reads a model from the bytes of an ONNX file.

        Raises:
            StatusError: they cannot be read, or the model is not what was set.
        """
        if not isinstance(content, bytes | bytearray | memoryview):
            raise StatusError(Status.TIF_INVALID_PARAM, f"read_from_str: bytes are needed, not {type(content).__name__}")
        return self._read(bytes(content))

    @recorded
    def read_object(self, model: Any) -> Network:
        """Reads an `onnx.ModelProto` in memory.

        Raises:
            StatusError: it is none, or not what was set.
        """
        return self._read(model)

    def _read(self, model: Any) -> Network:
        return read_network(
            model,
            input_names=self._input_names,
            input_shapes=self._input_shapes,
            input_dtypes=self._input_dtypes,
            output_names=self._output_names,
            output_dtypes=self._output_dtypes,
        )


@recorded
def create_parser(model_type: int = ParserType.ONNX_MODEL) -> Parser:
    """Returns a parser of ONNX models.

    Raises:
        StatusError: another kind of model is asked for.
    """
    if model_type == ParserType.TF_MODEL:
        raise StatusError(Status.TIF_PARSER_UNSUPPORTED_MODEL, "create_parser: TensorFlow models are not read; convert to ONNX first")
    if model_type != ParserType.ONNX_MODEL:
        raise StatusError(Status.TIF_INVALID_PARAM, f"create_parser: there is no model type {model_type!r}; there is ONNX_MODEL")
    return Parser()


def _names(names: Any, purpose: str) -> list[str] | None:
    if names is None:
        return None
    found = [each.strip() for each in names.split(",")] if isinstance(names, str) else list(names) if isinstance(names, Sequence) else []
    if not found or not all(isinstance(each, str) and each for each in found):
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: expected a list of names or 'a,b', not {names!r}")
    if len(set(found)) < len(found):
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: a name stands twice in {names!r}")
    return found


def _dtypes(dtypes: Any, purpose: str) -> list[DType] | None:
    if dtypes is None:
        return None
    found = dtypes.split(",") if isinstance(dtypes, str) else list(dtypes) if isinstance(dtypes, Sequence) else []
    if not found:
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: expected a list of DT_* or 'DT_FLOAT32,...', not {dtypes!r}")
    try:
        return [DType[each.strip()] if isinstance(each, str) else DType(each) for each in found]
    except (KeyError, ValueError):
        known = ", ".join(each.name for each in DType)
        raise StatusError(
            Status.TIF_UN_SUPPORTED_DATA_TYPE, f"{purpose}: {dtypes!r} has a type that does not exist; there are {known}"
        ) from None


def _shapes(shapes: Any) -> list[list[int]] | None:
    if shapes is None:
        return None
    try:
        if isinstance(shapes, str):
            found = [[int(size) for size in part.split(",") if size.strip()] for part in shapes.split(":")]
        else:
            found = [[int(size) for size in part] for part in shapes]
    except (TypeError, ValueError):
        raise StatusError(
            Status.TIF_INVALID_PARAM, f"set_input_shapes: expected [[1, 3, 224, 224], ...] or '1,3,224,224:1,10', not {shapes!r}"
        ) from None
    for shape in found:
        if any(size < 1 for size in shape):
            raise StatusError(Status.TIF_MIS_MATCHED_SHAPE_OR_DIM, f"set_input_shapes: {shape} is not static; every size must be 1 or more")
        if len(shape) > I20.max_dims:
            raise StatusError(
                Status.TIF_MIS_MATCHED_SHAPE_OR_DIM,
                f"set_input_shapes: {shape} has {len(shape)} dimensions; the device takes {I20.max_dims}",
            )
    return found
