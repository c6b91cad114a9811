"""Writes a new model, or a new version of a model, into a repository: everything appears at once, by a rename."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.backends.api.model import TensorSpec
from stoker.cli.output import CommandFailed, ExitCode
from stoker.server.core.model_config import ModelConfig
from stoker.server.lifecycle.settings import MODEL_NAME_RULE, is_model_name, parse_version

CONFIG_NAME: Final = "config.pbtxt"
LABELS_NAME: Final = "labels.txt"
#: Models and repositories ignore names that begin with a dot.
_WORK_PREFIX: Final = ".stoker-add-"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model is to be written.

    Attributes:
        repository: The repository's folder.
        name: The model's name.
        version: The version's number.
        config: The text of the config.pbtxt of an existing model; None: the model is new, or has none.
        is_new: Whether the model does not exist.
    """

    repository: Path
    name: str
    version: int
    config: str | None
    is_new: bool

    @property
    def model(self) -> Path:
        """The model's folder."""
        return self.repository / self.name


def place_of(repository: Path, name: str, *, is_new_version: bool) -> Place:
    """The place for a model.

    Raises:
        CommandFailed: the name is invalid, the model exists already, or cannot be read.
    """
    if not is_model_name(name) or name.startswith("."):
        raise CommandFailed(f"'{name}' is not a model name: expected {MODEL_NAME_RULE}; --name sets one", ExitCode.USAGE)
    model = repository / name
    try:
        if not os.path.lexists(model):
            return Place(repository, name, 1, None, is_new=True)
        if not is_new_version:
            raise CommandFailed(f"{model} exists: --new-version adds a version, --name chooses another name", ExitCode.USAGE)
        versions = [number for entry in model.iterdir() if (number := parse_version(entry.name)) is not None]
        path = model / CONFIG_NAME
        config = path.read_text(encoding="utf-8") if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{model} cannot be read: {error}") from error
    return Place(repository, name, max(versions, default=0) + 1, config, is_new=False)


def default_name(source: Path) -> str:
    """The model's name for a source without `--name`: that of the file without its suffixes, or of the folder."""
    stem = source.resolve().name if source.is_dir() else source.name.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", stem).strip("_.") or "model"


@contextlib.contextmanager
def work_folder(repository: Path) -> Iterator[Path]:
    """A hidden folder in the repository, which is made if it is not there. The folder is removed at the end.

    Raises:
        CommandFailed: it cannot be made.
    """
    try:
        repository.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=repository))
    except OSError as error:
        raise CommandFailed(f"{repository} cannot be written: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(place: Place, folder: Path) -> None:
    """Moves the model (or, for an existing model, the version) from `folder`, where it has its final form, to its place.

    Raises:
        CommandFailed: something has appeared there meanwhile, or the repository cannot be written.
    """
    target = place.model if place.is_new else place.model / str(place.version)
    source = folder / place.name if place.is_new else folder / place.name / str(place.version)
    _make_readable(source)
    try:
        if os.path.lexists(target):
            raise CommandFailed(f"{target} exists: another process has written it")
        source.rename(target)
    except OSError as error:
        raise CommandFailed(f"{target} cannot be written: {error.strerror}") from error


def _make_readable(folder: Path) -> None:
    """Gives files and folders the permissions of the user's umask; temporary folders are private."""
    mask = os.umask(0)
    os.umask(mask)
    for path in (folder, *folder.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def config_text(config: ModelConfig, max_batch_size: int, labels: str | None, remark: str) -> str:
    """The text of a config.pbtxt for a completed configuration.

    Args:
        config: The configuration.
        max_batch_size: 0: the model is not batched.
        labels: The output with the labels of `LABELS_NAME`; None: there is none.
        remark: The first line, a comment.
    """
    lines = [f"# {' '.join(remark.split())}", f'backend: "{config.backend}"']
    if config.model_filename and "/" in config.model_filename:
        lines.append(f'default_model_filename: "{config.model_filename.rpartition("/")[0]}"')
    lines.append(f"max_batch_size: {max_batch_size}")
    if max_batch_size > 1:
        lines.append("dynamic_batching { }")
        lines.append('parameters { key: "split_oversized_requests" value { string_value: "true" } }')
    lines += [_tensor_text("input", spec) for spec in config.signature.inputs]
    lines += [_tensor_text("output", spec, labels=spec.name == labels) for spec in config.signature.outputs]
    return "\n".join(lines) + "\n"


def _tensor_text(side: str, spec: TensorSpec, *, labels: bool = False) -> str:
    parts = [f'name: "{_escaped(spec.name)}"', f"data_type: {spec.datatype.config_name}", f"dims: {_sizes(spec.dims)}"]
    if spec.reshape is not None:
        parts.append(f"reshape {{ shape: {_sizes(spec.reshape)} }}")
    if spec.optional:
        parts.append("optional: true")
    if labels:
        parts.append(f'label_filename: "{LABELS_NAME}"')
    return f"{side} {{ {' '.join(parts)} }}"


def _sizes(dims: Sequence[int]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
