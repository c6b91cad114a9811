"""Says what is wrong with model files that do not lie in a version folder, and the commands that put them there.

Texts name paths relative to the repository only, so that clients may read them.
"""

import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

from stoker.server.config.model_formats import conversion, ir_files, is_model_file, is_served, served_name
from stoker.server.lifecycle.names import is_model_name, shown

#: Files named in one text at most.
_MOST_FILES = 10


def model_files(names: Collection[str]) -> list[str]:
    """The model files among `names`, with the weights that lie beside them, sorted."""
    models = {name for name in names if is_model_file(name)}
    beside = {name for name in names if any(name.startswith((f"{model}.", f"{model}_", f"{_stem(model)}.data")) for model in models)}
    return sorted(models | beside | set(ir_files(names)))


def misplaced_root_files(names: Mapping[str, bool]) -> Mapping[str, str]:
    """What is wrong with model files that lie beside the model folders, and the cure.

    Args:
        names: Of the files, by whether they are links.

    Returns:
        By the name that the model gets.
    """
    by_model: dict[str, list[str]] = {}
    for file in model_files(names):
        by_model.setdefault(_model_name(file), []).append(file)
    return {
        model: f"{_files(files)} in the repository itself; a model is a folder with version folders in it. {_cure(model, files, names)}"
        for model, files in sorted(by_model.items())
    }


def misplaced_model_files(model: str, names: Mapping[str, bool]) -> str | None:
    """What is wrong with the folder `model` that has no version folder and holds `names`; None where no model file is among them.

    `names` say whether they are links.
    """
    files = model_files(names)
    if not files:
        return None
    return f"{_files(files)} in the model folder, which has no version folder such as '1'. {_cure(model, files, names, folder=f'{model}/')}"


def _cure(model: str, files: Collection[str], links: Mapping[str, bool], *, folder: str = "") -> str:
    """The commands that make of `files`, which lie in `folder`, version 1 of `model`."""
    version = f"{model}/1"
    served = any(is_served(file) for file in files) or ir_files(files)
    # A config.json makes Hugging Face models of weights.
    if not served and (step := conversion({*files, *(folder + name for name in links if name == "config.json")})) is not None:
        return f"{step[:1].upper()}{step[1:]}; the result belongs in {version}/"
    # A link that is relative leads to nothing from elsewhere.
    moves = [
        f"{'cp -L' if links[file] else 'mv'} {_argument(folder + file)} {_argument(f'{version}/{_target(file, files)}')}"
        for file in sorted(files)
    ]
    return f"In the repository: mkdir -p {_argument(version)} && {' && '.join(moves)}"


def _argument(path: str) -> str:
    """The path as a shell command has it, which does not read it as an option."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def _target(file: str, files: Collection[str]) -> str:
    """What `file` is called in its version folder: models as their backend looks for them, other files as they are."""
    if file in ir_files(files):
        return f"model{PurePosixPath(file).suffix}"
    models = [each for each in files if is_served(each)]
    return served_name(file) if models == [file] else file


def _model_name(file: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", _stem(file)).strip("_")
    return stem if is_model_name(stem) else "model"


def _stem(file: str) -> str:
    """The name without its suffixes, and without the number that a part of one model's weights has (`-00001-of-00002`)."""
    return re.sub(r"-[0-9]{5}-of-[0-9]{5}\Z", "", file.partition(".")[0])


def _files(files: Collection[str]) -> str:
    named = ", ".join(shown(file) for file in sorted(files)[:_MOST_FILES])
    more = len(files) - _MOST_FILES
    return f"{named}{f' and {more} more' if more > 0 else ''} {'lies' if len(files) == 1 else 'lie'}"
