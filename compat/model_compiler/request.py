"""`CompileRequest`: what Adlik's model compiler is asked for, read from a dictionary, with everything that is wrong said at once.

Names of the fields are Adlik's (its `config_schema.json` and the code that reads it); `framework`, `batch_sizes` and `compile_options` are
ours. What Adlik reads on the way to other devices only is accepted and has no effect; a warning says so.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from model_compiler.kinds import (
    BUILD_FLAG,
    COUNTS,
    INPUT_SHAPES,
    LAYOUTS,
    MODEL,
    SETTINGS,
    SWITCH,
    TEXTS,
    BuildFlag,
    InputShapes,
    Layout,
)
from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.errors import OptionError
from stoker.compiler.option_fields import COUNT, PATH, TEXT, option, specs
from stoker.compiler.repository_writer import check_model_name

logger = logging.getLogger(__name__)

_WHAT, _SOURCE, _DEVICE = "What to make", "The source", "The device"
FRAMEWORKS = ("onnx", "torch", "tensorflow")
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

    serving_type: str = option(TEXT, "What to make: engine (GCU), popef (IPU), onnx.", group=_WHAT)
    model_name: str = option(TEXT, "Name of the served model.", group=_WHAT)
    max_batch_size: int = option(COUNT, "Most samples of one batch, for config.pbtxt.", group=_WHAT)
    export_path: str = option(PATH, "The model repository; made if it is not there.", group=_WHAT)
    version: int | None = option(COUNT, "Version of the served model. [default: one above the highest there]", group=_WHAT)
    input_formats: tuple[Layout | None, ...] = option(
        LAYOUTS, "channels_first, channels_last or null for each input, in order.", group=_WHAT, default=()
    )

    # `option` gives a field, not a default that instances would share; ruff cannot know for types that it does not know.
    input_model: str | onnx.ModelProto = option(MODEL, "Path of the model, or an onnx.ModelProto in memory.", group=_SOURCE)  # noqa: RUF009
    framework: str | None = option(TEXT, "What input_model comes from. [default: told by its name]", group=_SOURCE, choices=FRAMEWORKS)
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
    enable_int8: bool = option(SWITCH, "Refused: no target has it.", group=_DEVICE, default=False)

    @property
    def flag(self) -> BuildFlag:
        """What to compute in."""
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
