"""A version in a model repository: `<version>/<artefact>`, config.pbtxt, and how clients see the model's inputs and outputs.

A server that watches the repository sees the version only when it is whole: it is filled under a hidden name, loaded once, and renamed. The
config.pbtxt of a model that exists is kept, with all that people wrote into it, if the new version agrees with it. Clients see the source
model's names and element types, and one item's dimensions.
"""

import dataclasses
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from stoker.backends.api.tensor import BY_CONFIG_NAME, DataType
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.output_files import new_folder, write_text
from stoker.compiler.pbtxt import Word, print_message, read_message
from stoker.compiler.target import fed_inputs

#: `TYPE_FP32` -> `DT_FLOAT`, for all that both have (tensorflow/core/framework/types.proto).
TENSORFLOW_NAMES: Mapping[str, str] = {
    "TYPE_BOOL": "DT_BOOL",
    "TYPE_UINT8": "DT_UINT8",
    "TYPE_UINT16": "DT_UINT16",
    "TYPE_UINT32": "DT_UINT32",
    "TYPE_UINT64": "DT_UINT64",
    "TYPE_INT8": "DT_INT8",
    "TYPE_INT16": "DT_INT16",
    "TYPE_INT32": "DT_INT32",
    "TYPE_INT64": "DT_INT64",
    "TYPE_FP16": "DT_HALF",
    "TYPE_FP32": "DT_FLOAT",
    "TYPE_FP64": "DT_DOUBLE",
    "TYPE_BF16": "DT_BFLOAT16",
    "TYPE_STRING": "DT_STRING",
}
_TRITON_NAMES = {theirs: ours for ours, theirs in TENSORFLOW_NAMES.items()}


def triton_name(datatype: str) -> str:
    """Returns Triton's name of `datatype`, which may be in either spelling; other texts are returned unchanged."""
    return _TRITON_NAMES.get(datatype, datatype)


CONFIG_NAME = "config.pbtxt"
#: Loads a version as a server does; returns the reason of a failure, or None. Takes the name and version, the path of config.pbtxt in the
#: model's folder, and the folder with the version's files. The compiler may not import the server: `stoker.cli.written_version` has one.
LoadOnce = Callable[[str, int, Path, Path], str | None]
#: Valid names of a model's folder.
_MODEL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


@dataclasses.dataclass(frozen=True, slots=True)
class ServedTensor:
    """An input or output as clients see it.

    Attributes:
        name: Name in the source model.
        datatype: `TYPE_FP32`..., the type that clients send and receive.
        dims: Dimensions of one item, without the batch dimension if the model is batched.
        device_datatype: As the executable takes it; a config that says this one instead agrees too.
        layout: `FORMAT_NCHW` or `FORMAT_NHWC` of an image; empty where unknown.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    device_datatype: str
    layout: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model to be served.

    Attributes:
        name: Name of its folder in the repository.
        config: What the target says for config.pbtxt: `backend`, `max_batch_size`, `parameters` and further fields. One that says
            `platform` instead of `backend` is written in Adlik's form: with TensorFlow's names of the element types.
        inputs, outputs: In the order of the model.
        files: Further text files of the version's folder, by name.
    """

    name: str
    config: Mapping[str, Any]
    inputs: Sequence[ServedTensor]
    outputs: Sequence[ServedTensor]
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def message(self) -> dict[str, Any]:
        """Returns the fields of the model's config.pbtxt."""
        return served_config(self.name, self.config, self.inputs, self.outputs)


def write_served_versions(
    repository: Path,
    models: Sequence[ServedModel],
    version: int | None,
    executable: Path,
    *,
    filename: str,
    companions: Mapping[str, Path] | None = None,
    load_once: LoadOnce | None = None,
) -> list[Path]:
    """Writes one version of each of `models`, all with the same number and the same executable, and returns their folders.

    Each version appears whole. All of them are looked at before the first is written, so that none is written where one cannot be.

    Args:
        repository: The model repository; made if it is not there.
        models: One, or those of a fused executable.
        version: None takes the one above the highest there.
        executable: The file to be copied.
        filename: What it is called in a version's folder.
        companions: Further files to be copied, by the name they get, which may lead through folders.
        load_once: Loads each version before it appears; None loads none.

    Raises:
        OptionError: a name cannot be a model's, or the version exists.
        CompileError: a config.pbtxt that is there does not agree (the text says how), a version does not load, or nothing can be written.
    """
    for model in models:
        check_model_name(model.name)
    for model in models:
        folder = repository / model.name
        _check_agreement(folder / CONFIG_NAME, model)
        if version is not None and (folder / str(version)).exists():
            raise _version_exists(folder, version)
    chosen = version or max((number for model in models for number in _versions(repository / model.name)), default=0) + 1
    files = {filename: executable, **(companions or {})}
    if len(models) == 1:
        return [_write(repository / models[0].name, models[0], chosen, version is None, files, load_once)]
    # Parts of one executable keep one number: the server's log and its metrics then say which belong together.
    return [_write(repository / model.name, model, chosen, False, files, load_once) for model in models]


def check_model_name(name: str) -> None:
    """Raises:
    OptionError: `name` cannot be that of a served model.
    """
    if not _MODEL_NAME.fullmatch(name):
        raise OptionError(f"model_name '{name}': expected up to 128 letters, digits, '_', '-' and '.', the first no '.'")


def _write(
    folder: Path, model: ServedModel, version: int, may_count_on: bool, files: Mapping[str, Path], load_once: LoadOnce | None
) -> Path:
    """Writes the version. If another process wrote the same version meanwhile and `may_count_on` is set, uses the next free number."""

    def fill(draft: Path, config: Path) -> None:
        for name, path in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, draft / name)
        for name, text in model.files.items():
            (draft / name).write_text(text, encoding="utf-8")
        failure = load_once(model.name, version, config, draft) if load_once is not None else None
        if failure is not None:
            raise CompileError(f"model '{model.name}' is compiled, but a server cannot load it, so that it is not written: {failure}")

    if not folder.exists():
        try:
            with new_folder(folder) as draft:
                (draft / CONFIG_NAME).write_text(print_message(model.message), encoding="utf-8")
                (draft / str(version)).mkdir()
                fill(draft / str(version), draft / CONFIG_NAME)
            return folder / str(version)
        except FileExistsError:
            _check_agreement(folder / CONFIG_NAME, model)  # another process made the model meanwhile
    if not (folder / CONFIG_NAME).exists():
        write_text(folder / CONFIG_NAME, print_message(model.message))
    while True:
        try:
            with new_folder(folder / str(version)) as draft:
                fill(draft, folder / CONFIG_NAME)
        except FileExistsError:
            if not may_count_on:
                raise _version_exists(folder, version) from None
            version += 1
        else:
            return folder / str(version)


def served_config(
    name: str, target_config: Mapping[str, Any], inputs: Sequence[ServedTensor], outputs: Sequence[ServedTensor]
) -> dict[str, Any]:
    """Returns the fields of config.pbtxt in printing order.

    Batching is enabled for a model that takes batches, because an executable takes equally long for one row and for many.
    """
    fields = dict(target_config)
    parameters = fields.pop("parameters", {})
    is_adlik = "platform" in fields
    config: dict[str, Any] = {"name": name}
    if is_adlik:
        config |= {key: fields.pop(key) for key in ("platform", "platform_version") if key in fields}
    else:
        config["backend"] = fields.pop("backend", "")
    config["max_batch_size"] = fields.pop("max_batch_size", 0)
    config["input"] = [_tensor(each, is_adlik) for each in inputs]
    config["output"] = [_tensor(each, is_adlik) for each in outputs]
    config |= fields
    if config["max_batch_size"] > 1 and not is_adlik:  # where Adlik's form batches always, Triton's does so only if configured
        config.setdefault("dynamic_batching", {})
    if parameters:
        config["parameters"] = [{"key": key, "value": {"string_value": str(value)}} for key, value in parameters.items()]
    return config


def differences(existing: Mapping[str, Sequence[Any]], config: Mapping[str, Any], tensors: Sequence[ServedTensor]) -> list[str]:
    """Returns the differences between an existing config.pbtxt and `config`; fields that only the existing file has are ignored."""
    found = [
        f"{name} is {existing[name][-1]}, the new version needs {config[name]}"
        for name in ("name", "backend", "platform", "max_batch_size")
        if name in existing and name in config and str(existing[name][-1]) != str(config[name])
    ]
    if "max_batch_size" not in existing and config["max_batch_size"]:
        found.append(f"max_batch_size is not written (0), the new version needs {config['max_batch_size']}")
    by_name = {each.name: each for each in tensors}
    for kind in ("input", "output"):
        written = {str(_last(entry, "name")): entry for entry in existing.get(kind, ())}
        wanted = [str(entry["name"]) for entry in config[kind]]
        if written and set(written) != set(wanted):
            found.append(f"{kind}s are {', '.join(written)}, the new version has {', '.join(wanted)}")
            continue
        found += [text for each, entry in written.items() for text in _tensor_differences(kind, entry, by_name[each])]
    parameters = {
        str(_last(entry, "key")): _last((_last(entry, "value") or {}), "string_value") for entry in existing.get("parameters", ())
    }
    for parameter in config.get("parameters", ()):
        key, value = parameter["key"], parameter["value"]["string_value"]
        if key in parameters and parameters[key] != value:
            found.append(f"parameter {key} is '{parameters[key]}', the new version needs '{value}'")
    return found


def _tensor(each: ServedTensor, is_adlik: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"name": each.name, "data_type": Word(TENSORFLOW_NAMES[each.datatype] if is_adlik else each.datatype)}
    if each.layout:
        message["format"] = Word(each.layout)
    message["dims"] = list(each.dims) or [1]
    if not each.dims:
        message["reshape"] = {"shape": []}  # config.pbtxt has no empty dims: clients send one element, the model gets a scalar
    return message


def _tensor_differences(kind: str, entry: Mapping[str, Sequence[Any]], wanted: ServedTensor) -> list[str]:
    found = []
    datatype = _last(entry, "data_type")
    if triton_name(str(datatype)) not in (wanted.datatype, wanted.device_datatype):
        found.append(f"{kind} '{wanted.name}' is {datatype}, the new version has {wanted.datatype}")
    reshape = _last(entry, "reshape")
    dims = tuple(str(each) for each in (reshape.get("shape", ()) if reshape is not None else entry.get("dims", ())))
    if dims != tuple(str(each) for each in wanted.dims):
        found.append(f"{kind} '{wanted.name}' has dims [{', '.join(dims)}], the new version [{', '.join(map(str, wanted.dims))}]")
    return found


def _last(entry: Mapping[str, Sequence[Any]], field: str) -> Any:
    values = entry.get(field)
    return values[-1] if values else None


def _version_exists(folder: Path, version: int) -> OptionError:
    return OptionError(f"model_version {version}: {folder / str(version)} exists; versions are never overwritten")


def _check_agreement(path: Path, model: ServedModel) -> None:
    """Compares the config.pbtxt at `path`, if it exists, with the requirements of `model`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise CompileError(f"cannot read {path}: {error}") from None
    found = differences(read_message(text, str(path)), model.message, [*model.inputs, *model.outputs])
    if found:
        listed = "\n".join(f"  {each}" for each in found)
        raise CompileError(f"{path} does not agree with the compiled model:\n{listed}\nchange it, or give the model another name")


def _versions(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return [int(each.name) for each in folder.iterdir() if each.is_dir() and each.name.isdecimal() and each.name.isascii()]


_NAMES = {"FLOAT": "TYPE_FP32", "DOUBLE": "TYPE_FP64", "FLOAT16": "TYPE_FP16", "BFLOAT16": "TYPE_BF16", "STRING": "TYPE_STRING"}


def served_tensors(
    source: onnx.ModelProto,
    converted: onnx.ModelProto,
    *,
    is_batched: bool,
    datatypes: Mapping[str, Sequence[DataType]] | None = None,
) -> tuple[list[ServedTensor], list[ServedTensor]]:
    """Returns the inputs and outputs for config.pbtxt.

    Args:
        source: Its element types are what clients send and get where the server casts them to what the artefact takes.
        converted: What only it has, clients see as it has it. A dimension that it leaves open is -1.
        is_batched: Whether dimension 0 is the batch, which config.pbtxt leaves out.
        datatypes: See `Artefact.datatypes`.

    Raises:
        CompileError: a tensor has a type that no request can carry, or lacks a shape.
    """
    types = {value.name: value.type.tensor_type.elem_type for value in (*source.graph.input, *source.graph.output)}
    allowed = {name: tuple(each.config_name for each in kinds) for name, kinds in (datatypes or {}).items()}
    return _tensors(fed_inputs(converted), types, allowed, is_batched), _tensors(converted.graph.output, types, allowed, is_batched)


def _tensors(
    values: Iterable[onnx.ValueInfoProto], types: Mapping[str, int], allowed: Mapping[str, tuple[str, ...]], is_batched: bool
) -> list[ServedTensor]:
    served = []
    for value in values:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            described = (kind or "unknown").removesuffix("_type").replace("_", " ")
            raise CompileError(f"'{value.name}' is of type {described}: no request can carry it")
        own = value.type.tensor_type
        dims = tuple(size.dim_value if size.HasField("dim_value") else -1 for size in own.shape.dim)
        if 0 in dims or (is_batched and not dims) or not own.HasField("shape"):
            raise CompileError(f"tensor '{value.name}' has the shape {list(dims)}: no request can carry it")
        kinds = allowed.get(value.name) or (config_name(value.name, own.elem_type),)
        wanted = config_name(value.name, types.get(value.name, own.elem_type))
        datatype = wanted if wanted in kinds else kinds[0]
        served.append(ServedTensor(value.name, datatype, dims[1:] if is_batched else dims, kinds[0]))
    return served


def config_name(tensor: str, element_type: int) -> str:
    """Returns config.pbtxt's name of the ONNX element type of `tensor`.

    Raises:
        CompileError: no request can carry it.
    """
    name = onnx.TensorProto.DataType.Name(element_type)
    spelled = _NAMES.get(name, f"TYPE_{name}")
    if spelled not in BY_CONFIG_NAME:
        raise CompileError(f"tensor '{tensor}' is {name}, which no request can carry")
    return spelled
