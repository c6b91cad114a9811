"""Puts a compiled model into a model repository as a version that can be served: config.pbtxt and `<version>/<artefact>`.

A server that watches the repository sees the version only when it is whole: it is filled under a hidden name and then renamed. The
config.pbtxt of a model that is there already is kept, with all that people wrote into it, if the new version agrees with it.
"""

import dataclasses
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compiler.errors import CompileError, OptionError
from compiler.output_files import new_folder, write_text
from compiler.pbtxt import Word, print_message, read_message
from compiler.target import Artefact

CONFIG_NAME = "config.pbtxt"
#: What servers take for the name of a model's folder.
_MODEL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


@dataclasses.dataclass(frozen=True, slots=True)
class ServedTensor:
    """An input or output as clients see it.

    Attributes:
        name: As the source model has it.
        datatype: `TYPE_FP32`... as clients send and get it.
        dims: One item's, without the batch dimension where the model is batched.
        device_datatype: As the executable takes it; a config that says this one instead agrees too.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    device_datatype: str


def write_served_version(
    repository: Path,
    name: str,
    version: int | None,
    artefact: Artefact,
    *,
    filename: str,
    inputs: Sequence[ServedTensor],
    outputs: Sequence[ServedTensor],
) -> Path:
    """Writes the version and returns its folder.

    Args:
        repository: The model repository; made if it is not there.
        name: Of the model.
        version: None takes the one above the highest there.
        artefact: Its file is copied; `config` gives `backend`, `max_batch_size`, `parameters` and further fields of config.pbtxt.
        filename: What the file is called in the version's folder.
        inputs: In the order of the model.
        outputs: In the order of the model.

    Raises:
        OptionError: the name cannot be a model's, or the version exists.
        CompileError: the config.pbtxt that is there does not agree (the text says how), or nothing can be written.
    """
    if not _MODEL_NAME.fullmatch(name):
        raise OptionError(f"model_name '{name}': expected up to 128 letters, digits, '_', '-' and '.', the first no '.'")
    config = served_config(name, artefact.config, inputs, outputs)
    folder = repository / name
    if not folder.exists():
        try:
            return _new_model(folder, version or 1, artefact.path, filename, config)
        except FileExistsError:
            pass  # somebody else made the model meanwhile: it is looked at like any other
    _agree_or_write(folder / CONFIG_NAME, config, inputs, outputs)
    chosen = version or max(_versions(folder), default=0) + 1
    while True:
        try:
            with new_folder(folder / str(chosen)) as draft:
                shutil.copyfile(artefact.path, draft / filename)
        except FileExistsError:
            if version is not None:
                raise OptionError(f"model_version {version}: {folder / str(version)} exists; versions are never overwritten") from None
            chosen += 1
        else:
            return folder / str(chosen)


def served_config(
    name: str, target_config: Mapping[str, Any], inputs: Sequence[ServedTensor], outputs: Sequence[ServedTensor]
) -> dict[str, Any]:
    """The fields of config.pbtxt, in the order in which they are printed."""
    fields = dict(target_config)
    parameters = fields.pop("parameters", {})
    config: dict[str, Any] = {"name": name, "backend": fields.pop("backend", ""), "max_batch_size": fields.pop("max_batch_size", 0)}
    config["input"] = [_tensor(each) for each in inputs]
    config["output"] = [_tensor(each) for each in outputs]
    config |= fields
    if parameters:
        config["parameters"] = [{"key": key, "value": {"string_value": str(value)}} for key, value in parameters.items()]
    return config


def differences(existing: Mapping[str, Sequence[Any]], config: Mapping[str, Any], tensors: Sequence[ServedTensor]) -> list[str]:
    """What a config.pbtxt that was read says otherwise than `config`; fields that only it has are none of our business."""
    found = [
        f"{name} is {existing[name][-1]}, the new version needs {config[name]}"
        for name in ("name", "backend", "max_batch_size")
        if name in existing and str(existing[name][-1]) != str(config[name])
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


def _tensor(each: ServedTensor) -> dict[str, Any]:
    return {"name": each.name, "data_type": Word(each.datatype), "dims": list(each.dims)}


def _tensor_differences(kind: str, entry: Mapping[str, Sequence[Any]], wanted: ServedTensor) -> list[str]:
    found = []
    datatype = _last(entry, "data_type")
    if datatype not in (wanted.datatype, wanted.device_datatype):
        found.append(f"{kind} '{wanted.name}' is {datatype}, the new version has {wanted.datatype}")
    reshape = _last(entry, "reshape")
    dims = tuple(str(each) for each in (reshape.get("shape", ()) if reshape else entry.get("dims", ())))
    if dims != tuple(str(each) for each in wanted.dims):
        found.append(f"{kind} '{wanted.name}' has dims [{', '.join(dims)}], the new version [{', '.join(map(str, wanted.dims))}]")
    return found


def _last(entry: Mapping[str, Sequence[Any]], field: str) -> Any:
    values = entry.get(field)
    return values[-1] if values else None


def _new_model(folder: Path, version: int, executable: Path, filename: str, config: Mapping[str, Any]) -> Path:
    with new_folder(folder) as draft:
        (draft / CONFIG_NAME).write_text(print_message(config), encoding="utf-8")
        (draft / str(version)).mkdir()
        shutil.copyfile(executable, draft / str(version) / filename)
    return folder / str(version)


def _agree_or_write(path: Path, config: Mapping[str, Any], inputs: Sequence[ServedTensor], outputs: Sequence[ServedTensor]) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        write_text(path, print_message(config))
        return
    except (OSError, UnicodeDecodeError) as error:
        raise CompileError(f"cannot read {path}: {error}") from None
    found = differences(read_message(text, str(path)), config, [*inputs, *outputs])
    if found:
        listed = "\n".join(f"  {each}" for each in found)
        raise CompileError(f"{path} does not agree with the compiled model:\n{listed}\nchange it, or give the model another name")


def _versions(folder: Path) -> list[int]:
    return [int(each.name) for each in folder.iterdir() if each.is_dir() and each.name.isdecimal() and each.name.isascii()]
