"""`CompileRequest`: what Adlik's model compiler is asked for, read from a dictionary, with everything that is wrong said at once.

Names of the fields are Adlik's (its `config_schema.json` and the code that reads it); `framework`, `batch_sizes`, `compile_options` and
`allow_drift` are ours. What Adlik reads on the way to other devices only is accepted and has no effect; a warning says so.

Kinds of values that fields of a compile request take, beyond those of `stoker compile`. Each takes what JSON gives, and the text of an
environment variable.
"""

import dataclasses
import enum
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.errors import OptionError
from stoker.compiler.option_fields import COUNT, PATH, TEXT, Kind, option, specs
from stoker.compiler.repository_writer import check_model_name

#: In the order of the model's inputs, or by their names.
InputShapes: TypeAlias = tuple[tuple[int, ...], ...] | Mapping[str, tuple[int, ...]]


class Layout(enum.Enum):
    """Where an image has its channels, as Adlik's requests say it; the value is config.pbtxt's word."""

    CHANNELS_FIRST = "FORMAT_NCHW"
    CHANNELS_LAST = "FORMAT_NHWC"


class BuildFlag(enum.Enum):
    """The type that the device computes in: TopsInference's build flags KDEFAULT, KFP16, KFP16_MIX; the value is our name of it."""

    FP32 = "fp32"
    FP16 = "fp16"
    MIXED = "mixed"


#: Spellings of the build flags: TopsInference's names, its numbers, ours.
_BUILD_FLAGS: Mapping[str, BuildFlag] = {
    "kdefault": BuildFlag.FP32,
    "default": BuildFlag.FP32,
    "1": BuildFlag.FP32,
    "fp32": BuildFlag.FP32,
    "kfp16": BuildFlag.FP16,
    "2": BuildFlag.FP16,
    "fp16": BuildFlag.FP16,
    "kfp16_mix": BuildFlag.MIXED,
    "4": BuildFlag.MIXED,
    "mix": BuildFlag.MIXED,
    "mixed": BuildFlag.MIXED,
}
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off", ""})
_NO_LAYOUT = frozenset({"", "none", "null"})


def _switch(value: object) -> bool:
    """Adlik's schema has some switches as integers and some as booleans."""
    word = str(value).lower()
    if isinstance(value, bool | int | str) and word in _TRUE | _FALSE:
        return word in _TRUE
    raise ValueError(f"expected true or false, 1 or 0, got {value!r}")


def _model(value: object) -> str | onnx.ModelProto:
    if isinstance(value, onnx.ModelProto):
        return value
    if isinstance(value, str | os.PathLike) and str(os.fspath(value)):
        return str(Path(os.fspath(value)))
    raise ValueError(f"expected the path of a model, or an onnx.ModelProto, got {_short(value)}")


def _texts(value: object) -> tuple[str, ...]:
    """A list of names, or names separated by commas; tensors' names may hold almost anything else."""
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"expected a list of names, got {_short(value)}")
    return tuple(word.strip() for word in words if word.strip())


def _layouts(value: object) -> tuple[Layout | None, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple):
        raise ValueError(f"expected a list of channels_first, channels_last or null, got {_short(value)}")
    return tuple(_layout(word) for word in words)


def _layout(word: object) -> Layout | None:
    if word is None or (isinstance(word, str) and word.strip().lower() in _NO_LAYOUT):
        return None
    try:
        return Layout[str(word).strip().upper()]
    except KeyError:
        raise ValueError(f"expected channels_first, channels_last or null for each input, got {word!r}") from None


def _build_flag(value: object) -> BuildFlag:
    """`TopsInference.KFP16`, `KFP16`, the number that a TopsInference constant may be, or our own word."""
    found = _BUILD_FLAGS.get(str(value).rpartition(".")[2].strip().lower())
    if found is None or isinstance(value, bool):
        raise ValueError(f"expected KDEFAULT, KFP16 or KFP16_MIX (fp32, fp16, mixed), got {_short(value)}")
    return found


def _input_shapes(value: object) -> InputShapes:
    """Lists of sizes in the order of the inputs, a mapping by name, or text: JSON, `[1,3],[1,10]` or TopsInference's `1,3:1,10`."""
    if isinstance(value, str):
        value = _written_shapes(value)
    if isinstance(value, Mapping):
        return {str(name): _sizes(each) for name, each in value.items()}
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list of shapes such as [[1, 3, 224, 224]], got {_short(value)}")
    return tuple(_sizes(each) for each in value)


def _written_shapes(text: str) -> object:
    text = text.strip()
    if not text.startswith(("[", "{")):
        return [part.split(",") for part in text.split(":") if part.strip()]
    for candidate in (text, f"[{text}]"):
        try:
            found = json.loads(candidate)
        except json.JSONDecodeError:
            continue
        # `[1, 3]` is the shape of one input, written without the outer list.
        return [found] if isinstance(found, list) and found and not isinstance(found[0], list) else found
    raise ValueError(f"cannot be read as shapes such as [[1, 3, 224, 224]] or 1,3,224,224:1,10: {_short(text)}")


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a shape such as [1, 3, 224, 224], got {_short(value)}")
    sizes = tuple(_size(each) for each in value)
    if any(size < 1 for size in sizes):
        raise ValueError(f"the device takes static shapes only: expected sizes of 1 or more, got {list(sizes)}")
    return sizes


def _size(value: object) -> int:
    if isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return int(value)
        except ValueError:
            pass
    raise ValueError(f"expected a size, got {_short(value)}")


def _counts(value: object) -> tuple[int, ...]:
    words: object = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
    if not isinstance(words, list | tuple):
        raise ValueError(f"expected batch sizes such as [1, 8, 32], got {_short(value)}")
    sizes = _unique(_size(word) for word in words)
    if not sizes or sizes[0] < 1:
        raise ValueError(f"expected batch sizes of 1 or more, got {_short(value)}")
    return sizes


def _unique(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(numbers)))


def _settings(value: object) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"expected a JSON object, got {_short(value)}: {error.msg}") from None
    if not isinstance(value, Mapping):
        raise ValueError(f"expected an object of options by name, got {_short(value)}")
    return {str(key): each for key, each in value.items()}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


SWITCH = Kind("true or false", "", _switch, is_flag=True)
MODEL = Kind("model", "PATH", _model)
TEXTS = Kind("list of names", "NAME,...", _texts)
LAYOUTS = Kind("list of formats", "FORMAT,...", _layouts)
BUILD_FLAG = Kind("build flag", "FLAG", _build_flag)
INPUT_SHAPES = Kind("shapes", "SHAPE,...", _input_shapes)
COUNTS = Kind("batch sizes", "N,...", _counts)
SETTINGS = Kind("object", "JSON", _settings)


logger = logging.getLogger(__name__)

_WHAT, _SOURCE, _DEVICE = "What to make", "The source", "The device"
FRAMEWORKS = ("onnx", "torch", "tensorflow", "paddle", "openvino")
_REQUIRED = ("serving_type", "model_name", "max_batch_size", "input_model", "export_path")
#: Other names of a field, by which parts of Adlik's API know it.
_ALIASES: Mapping[str, str] = {"model_path": "input_model", "optimizer_options": "compile_options"}

#: Fields of Adlik's that mean something for other devices and frameworks only.
NO_EFFECT: Mapping[str, str] = {
    "input_layer_names": "the model's own inputs are served, as by Adlik",
    "output_layer_names": "the model's own outputs are served, as by Adlik",
    "input_signatures": "tensors are served by the names that the model has, as by Adlik",
    "output_signatures": "tensors are served by the names that the model has, as by Adlik",
    "model_filename": "it is for Paddle models",
    "params_filename": "it is for Paddle models",
    "enable_onnx_checker": "models are always checked",
    "optimize_offline": "it is for TF-TRT",
    "enable_strict_types": "it is for TensorRT",
    "optimization": "it is for TensorFlow Lite",
    "supported_types": "it is for TensorFlow Lite",
    "supported_ops": "it is for TensorFlow Lite",
    "inference_input_type": "it is for TensorFlow Lite",
    "inference_output_type": "it is for TensorFlow Lite",
    "calibrator": "it is for TensorRT",
    "calibration_dataset": "it is for TensorRT",
}
#: Read by the command, not by the compiler: where the result is reported, and the caller's name of the job.
REPORTING = ("callback", "job_id")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """One model to be compiled. Each field is a key of the JSON form, and in upper case an environment variable."""

    serving_type: str = option(TEXT, "What to make: engine (GCU), popef (IPU), onnx, openvino, tf, tflite, paddle.", group=_WHAT)
    model_name: str = option(TEXT, "Name of the served model.", group=_WHAT)
    max_batch_size: int = option(COUNT, "Most samples of one batch, for config.pbtxt.", group=_WHAT)
    export_path: str = option(PATH, "The model repository; made if it is not there.", group=_WHAT)
    version: int | None = option(COUNT, "Version of the served model. [default: one above the highest there]", group=_WHAT)
    input_formats: tuple[Layout | None, ...] = option(
        LAYOUTS, "channels_first, channels_last or null for each input, in order.", group=_WHAT, default=()
    )

    # `option` gives a field, not a default that instances would share; ruff cannot know for types that it does not know.
    input_model: str | onnx.ModelProto = option(MODEL, "Path of the model, or an onnx.ModelProto in memory.", group=_SOURCE)  # noqa: RUF009
    framework: str | None = option(TEXT, "What input_model comes from. [default: by its name]", group=_SOURCE, choices=FRAMEWORKS)
    script_path: str | None = option(PATH, "Python file with TheModelClass, of which input_model holds the state.", group=_SOURCE)
    input_names: tuple[str, ...] = option(TEXTS, "Names for the inputs of a model that has none.", group=_SOURCE, default=())
    output_names: tuple[str, ...] = option(TEXTS, "Names for the outputs of a model that has none.", group=_SOURCE, default=())
    input_shapes: InputShapes = option(  # noqa: RUF009
        INPUT_SHAPES, "Shape of each input, in order or by name, with or without the batch.", group=_SOURCE, default=()
    )
    data_type: tuple[str, ...] = option(TEXTS, "Element type of the inputs of a PyTorch state.", group=_SOURCE, default=())
    opset_version: int | None = option(COUNT, "Opset that other frameworks' models are exported to.", group=_SOURCE)
    signature_keys: str | None = option(TEXT, "Signature of a SavedModel.", group=_SOURCE)
    saved_model_tags: tuple[str, ...] = option(TEXTS, "Tags of a SavedModel.", group=_SOURCE, default=())

    build_flag: BuildFlag | None = option(BUILD_FLAG, "KDEFAULT, KFP16 or KFP16_MIX (fp32, fp16, mixed).", group=_DEVICE)  # noqa: RUF009
    batch_sizes: tuple[int, ...] = option(COUNTS, "Batch sizes to compile the model for.", group=_DEVICE, default=())
    resource_mode: str | None = option(TEXT, "TopsInference's compile option of that name.", group=_DEVICE)
    compile_options: Mapping[str, Any] = option(SETTINGS, "Options of the device's compiler.", group=_DEVICE, default={})
    enable_fp16: bool = option(SWITCH, "As build_flag KFP16.", group=_DEVICE, default=False)
    allow_drift: bool = option(
        SWITCH, "Only warn where the converted model differs too much from its source.", group=_DEVICE, default=False
    )
    enable_int8: bool = option(SWITCH, "Rejected: no target has it.", group=_DEVICE, default=False)

    @property
    def flag(self) -> BuildFlag:
        """The number type of the computation."""
        if self.build_flag is not None:
            return self.build_flag
        return BuildFlag.FP16 if self.enable_fp16 else BuildFlag.FP32

    @property
    def repository(self) -> Path:
        """Where the served model goes."""
        return Path(self.export_path)


def read_request(given: Mapping[str, Any]) -> CompileRequest:
    """The request that `given` makes: the JSON form as Python values, or texts as environment variables have them.

    Raises:
        OptionError: fields are missing, not of their kind or contradict each other; the text has all of them, one a line.
    """
    if not isinstance(given, Mapping):
        raise OptionError(f"expected a dictionary with {', '.join(_REQUIRED)}, got {type(given).__name__}")
    known = specs(CompileRequest)
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for key, written in given.items():
        name = _ALIASES.get(key, key)
        if written is None or name in REPORTING:
            continue
        if name in NO_EFFECT:
            logger.warning("%s has no effect: %s", name, NO_EFFECT[name])
        elif name not in known:
            logger.warning("there is no field '%s'%s", key, did_you_mean(key, [*known, *NO_EFFECT]))
        elif name in values:
            wrong.append(f"{key}: '{name}' says the same, give one of them")
        else:
            try:
                values[name] = known[name].parse(os.fspath(written) if isinstance(written, os.PathLike) else written)
            except OptionError as error:
                wrong.append(str(error))
                values[name] = None  # it is wrong, not missing
    wrong += [f"{name} is missing" for name in _REQUIRED if name not in values]
    wrong += _contradictions({name: value for name, value in values.items() if value is not None})
    if wrong:
        raise OptionError("\n".join(wrong))
    return CompileRequest(**values)


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    """The contradictions between values that are well-formed by themselves."""
    wrong = []
    if "model_name" in values:
        try:
            check_model_name(values["model_name"])
        except OptionError as error:
            wrong.append(str(error))
    if not str(values.get("export_path", ".")).strip():
        wrong.append("export_path: expected a folder, got nothing")
    largest = values.get("max_batch_size")
    above = [size for size in values.get("batch_sizes", ()) if largest is not None and size > largest]
    if above:
        wrong.append(f"batch_sizes: {', '.join(map(str, above))} above max_batch_size {largest}: no batch would ever be that large")
    flag = values.get("build_flag")
    if values.get("enable_fp16") and flag not in (None, BuildFlag.FP16):
        wrong.append(f"enable_fp16 and build_flag {flag.value} contradict each other")
    if values.get("enable_int8"):
        wrong.append("enable_int8: no target computes in INT8; leave it out, or take build_flag KFP16")
    return wrong


#: Variables that name the source, with what it comes from; in Adlik's order.
_SOURCES: Mapping[str, str | None] = {
    "SAVED_MODEL_PATH": "tensorflow",
    "FROZEN_GRAPH_PATH": "tensorflow",
    "H5_PATH": "tensorflow",
    "ONNX_PATH": "onnx",
    "TORCH_PATH": "torch",
    "PADDLE_PADDLE_PATH": "paddle",
    "PADDLE_PATH": "paddle",
    "OPENVINO_PATH": "openvino",
}
#: Sources of Adlik's that nothing here reads.
_UNREAD = ("CHECKPOINT_PATH", "CAFFE_PATH", "MXNET_PATH", "ONEFLOW_PATH")


def request_fields(environment: Mapping[str, str]) -> dict[str, str]:
    """The fields of a request that `environment` sets; empty variables count as not set.

    Raises:
        OptionError: it names several sources, or one that cannot be read.
    """
    own = {field.name for field in fields(CompileRequest)} - {"input_model"}
    names = (*sorted(own), *NO_EFFECT, *REPORTING)
    found = {name: environment[name.upper()] for name in names if environment.get(name.upper())}
    sources = [name for name in ("INPUT_MODEL", *_SOURCES) if environment.get(name)]
    if len(sources) > 1:
        raise OptionError(f"{' and '.join(sources)} are set: give one source")
    for name in _UNREAD:
        if environment.get(name) and not sources:
            raise OptionError(f"{name}: no such source can be read here; those that can: {', '.join(_SOURCES)}")
    for name in sources:
        found["input_model"] = environment[name]
        framework = _SOURCES.get(name)
        if framework is not None:
            found["framework"] = framework
    return found
