"""Kinds of values that fields of a compile request take, beyond those of `stoker compile`.

Each takes what JSON gives, and the text of an environment variable.
"""

import enum
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from stoker.compiler.option_fields import Kind

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
