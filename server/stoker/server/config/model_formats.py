"""Recognises model files by their names: those that a backend serves, and those to convert to ONNX, with the command.

Only names decide: no file is opened. `stoker add` looks into the files.
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

#: Files that are served as they are: by suffix, the name that the suffix's backend expects.
SERVED_NAMES: Final = {".onnx": "model.onnx", ".popef": "executable.popef", ".exec": "model.exec", ".tflite": "model.tflite"}
#: OpenVINO IR consists of two files; an `.xml` file alone may have any content.
_IR, _IR_WEIGHTS, _IR_NAME = ".xml", ".bin", "model.xml"
#: File names that need no quotes in a shell command.
_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")
#: For weights without a description of the model.
_WEIGHTS: Final = (
    "stoker add FOLDER, where FOLDER holds the weights with their config.json; other PyTorch weights: load them into your module, then "
    'torch.export.save(torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},)), "model.pt2"), '
    "and stoker add model.pt2"
)


@dataclass(frozen=True, slots=True)
class RawFormat:
    """A format of model files that is to be converted to ONNX, because no backend serves it, or not the backend that was chosen.

    Attributes:
        what: The reason, as a clause.
        suffixes: In lower case, with the dot.
        names: Whole file names of the format, where the suffix alone is ambiguous.
        step: Returns, for a file name, the step that converts the file to ONNX.
        is_certain: Whether a file with the suffix is a model in any folder; if not, only in a folder that should hold a model file.
    """

    what: str
    suffixes: tuple[str, ...]
    step: Callable[[str], str]
    names: tuple[str, ...] = ()
    is_certain: bool = True


#: In order of precedence: the first format decides for a folder with files of several formats.
RAW_FORMATS: Final = (
    RawFormat(
        "backend openvino serves a SavedModel as the folder model.savedmodel; for other backends it has to be converted to ONNX",
        (),
        lambda file: f"stoker add --convert {_folder(file)}",
        names=("saved_model.pb",),
    ),
    RawFormat(
        "a TorchScript or PyTorch file has to be converted to ONNX",
        (".pt", ".pth"),
        lambda file: f"stoker add {file}",
    ),
    RawFormat(
        "an exported PyTorch program has to be converted to ONNX",
        (".pt2",),
        lambda file: f"stoker add {file}",
    ),
    RawFormat(
        "a pickled model has to be converted to ONNX",
        (".pkl", ".pickle", ".joblib"),
        lambda file: f"stoker add {file} --trust-pickle, if you trust the file: a pickle can run any code",
    ),
    RawFormat(
        "a Keras model has to be converted to ONNX",
        (".h5", ".hdf5", ".keras"),
        lambda file: f"stoker add {file}",
    ),
    RawFormat(
        "backend openvino serves a TensorFlow Lite model as model.tflite; for other backends it has to be converted to ONNX",
        (".tflite",),
        lambda file: f"stoker add --convert {file}",
    ),
    RawFormat(
        "a CatBoost model has to be converted to ONNX",
        (".cbm",),
        lambda file: f"stoker add {file}",
    ),
    RawFormat(
        "backend openvino serves a PaddlePaddle model as model.pdmodel and model.pdiparams; "
        "for other backends it has to be converted to ONNX",
        (".pdmodel",),
        lambda file: f"stoker add --convert {file}",
    ),
    RawFormat(
        "a PaddlePaddle model without a .pdmodel file is of Paddle 3's default form (PIR), which no backend reads",
        (".pdiparams",),
        lambda file: "set the environment variable FLAGS_enable_pir_api=0 and save the model again, which writes a .pdmodel file",
    ),
    RawFormat(
        "backend openvino serves a frozen TensorFlow graph as model.pb; for other backends it has to be converted to ONNX",
        (".pb",),
        lambda file: f"python -m tf2onnx.convert --graphdef {file} --inputs INPUT:0 --outputs OUTPUT:0 --output model.onnx",
    ),
    RawFormat(
        "an XGBoost model has to be converted to ONNX",
        (".ubj", ".xgb"),
        lambda file: f"stoker add {file}",
    ),
    RawFormat(
        "weights alone are no model",
        (".safetensors",),
        lambda file: _WEIGHTS,
    ),
    RawFormat(
        "a TensorRT plan runs on the GPU it was built for",
        (".plan", ".engine", ".trt"),
        lambda file: "export the model that it was built from to ONNX",
    ),
    RawFormat(
        "backend python serves a model written in Python as model.py",
        (".py",),
        lambda file: f'rename {file} to model.py, or write backend: "python" and default_model_filename: "{file}" into config.pbtxt',
        is_certain=False,
    ),
    RawFormat(
        "weights alone (probably of PyTorch) are no model",
        (".bin",),
        lambda file: _WEIGHTS,
        is_certain=False,
    ),
    RawFormat(
        "an XGBoost model in JSON, if this is one, has to be converted to ONNX",
        (".json",),
        lambda file: f"stoker add {file}",
        is_certain=False,
    ),
    RawFormat(
        "a LightGBM model, if this is one, has to be converted to ONNX",
        (".txt",),
        lambda file: f"stoker add {file}",
        is_certain=False,
    ),
)

#: By the first characters of other servers' `backend` or `platform`: the format of their models.
_OF_OTHERS: Final = {
    "tensorflow": "saved_model.pb",
    "pytorch": "model.pt",
    "libtorch": "model.pt",
    "torch": "model.pt",
    "sklearn": "model.joblib",
    "xgboost": "model.ubj",
    "fil": "model.ubj",
    "lightgbm": "model.txt",
    "keras": "model.keras",
    "tensorrt": "model.plan",
}


def is_model_file(name: str) -> bool:
    """Whether a file of that name is a model in any folder, to be served or to be exported first."""
    return is_served(name) or any(format_.is_certain and _is(format_, name) for format_ in RAW_FORMATS)


def is_certain(name: str, beside: Collection[str]) -> bool:
    """Whether the file is a model in any folder: by its name, or as the `.xml` file of OpenVINO IR, whose `.bin` is among `beside`."""
    return is_model_file(name) or (name.endswith(_IR) and name.removesuffix(_IR) + _IR_WEIGHTS in beside)


def is_served(name: str) -> bool:
    """Whether a backend serves files of that name's suffix."""
    return PurePosixPath(name.lower()).suffix in SERVED_NAMES


def served_name(name: str) -> str:
    """The name under which a backend finds the file `name`; `name` itself if no backend serves it."""
    return SERVED_NAMES.get(PurePosixPath(name.lower()).suffix, name)


def ir_files(names: Collection[str]) -> list[str]:
    """The OpenVINO IR files among `names`: each `.xml` with a `.bin` of the same name, and that `.bin`."""
    pairs = [(name, name.removesuffix(_IR) + _IR_WEIGHTS) for name in names if name.endswith(_IR)]
    return sorted(file for pair in pairs if pair[1] in names for file in pair)


def next_step(names: Collection[str]) -> str | None:
    """The next step for the model among the files `names` so that a backend can serve it; None: no model is recognised.

    Args:
        names: Paths with `/`, relative to the folder they lie in.
    """
    served = next((name for name in _nearest(names) if served_name(name) != name and is_served(name)), None)
    if served is None:
        return conversion(names)
    return f'rename {_plain(served)} to {served_name(served)}, or write default_model_filename: "{_plain(served)}" into config.pbtxt'


def conversion_for(own_names: Iterable[str], names: Collection[str]) -> str | None:
    """As `next_step`, for a backend that loads files of the names `own_names`: a file of one of their suffixes needs no conversion."""
    suffixes = {PurePosixPath(name).suffix for name in own_names}
    own = next((name for name in _nearest(names) if PurePosixPath(name.lower()).suffix in suffixes), None)
    return conversion(names) if own is None else f'write default_model_filename: "{_plain(own)}" into config.pbtxt'


def conversion(names: Collection[str]) -> str | None:
    """The conversion to ONNX of the model among the files `names`; None: no file needs one."""
    ordered = _nearest(names)
    if (transformer := _transformer(ordered)) is not None:
        return transformer
    for format_ in RAW_FORMATS:
        found = next((name for name in ordered if _is(format_, name)), None)
        if found is not None:
            return f"{format_.what}: {format_.step(_plain(found))}"
    return None


def next_step_of(platform: str) -> str | None:
    """The conversion for models of another server's backend or platform of that name; None: it is unknown."""
    file = next((file for beginning, file in _OF_OTHERS.items() if platform.lower().startswith(beginning)), None)
    return None if file is None else conversion([file])


def _nearest(names: Iterable[str]) -> list[str]:
    """The paths sorted, the least deep first."""
    return sorted(names, key=lambda name: (name.count("/"), name))


def _is(format_: RawFormat, name: str) -> bool:
    path = PurePosixPath(name.lower())
    return path.name in format_.names or path.suffix in format_.suffixes


def _transformer(names: Iterable[str]) -> str | None:
    """The advice for a folder of Hugging Face transformers: weights beside a config.json."""
    bare = {name.rpartition("/")[2]: name.rpartition("/")[0] for name in names}
    weights = any(
        name.startswith(("pytorch_model", "model", "tf_model")) and name.endswith((".bin", ".safetensors", ".h5")) for name in bare
    )
    if not weights or "config.json" not in bare:
        return None
    folder = _plain(bare["config.json"]) or "."
    return f"a Hugging Face model has to be converted to ONNX: stoker add {folder}"


def _folder(file: str) -> str:
    return file.rpartition("/")[0] or "FOLDER"


def _plain(name: str) -> str:
    """`name`, or a placeholder with its suffix if `name` cannot stand unquoted in a command."""
    return name if not name or _PLAIN.fullmatch(name) else f"FILE{PurePosixPath(name).suffix if name.isprintable() else ''}"
