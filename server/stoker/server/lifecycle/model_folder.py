"""Reads one model folder: its configuration, its versions, and model files that lie in the wrong folder.

Error texts contain only paths relative to the repository, because clients receive them.

Nothing here blocks on a FIFO, reads without a bound, or follows a link unless links are allowed.
"""

import contextlib
import errno
import itertools
import os
import re
import shlex
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path, PurePosixPath

from stoker.backends.api.errors import ModelLoadError
from stoker.server.config.ensemble import reject_namespaces
from stoker.server.config.model_formats import conversion, ir_files, is_model_file, is_served, served_name
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.pbtxt import empty_config, parse_pbtxt
from stoker.server.config.report import problem_lines
from stoker.server.core.model_config import BatchingDefaults
from stoker.server.lifecycle.folder import (
    LINKS_HINT,
    EntryKind,
    Folder,
    LinkRejected,
    TreeEntry,
    entry_of,
    fingerprint,
    kind_of,
    list_tree,
    open_root,
)
from stoker.server.lifecycle.listing import ModelListing, VersionListing
from stoker.server.lifecycle.settings import (
    MAX_COMPANIONS,
    MAX_CONFIG_BYTES,
    MAX_FOLDER_ENTRIES,
    MAX_VERSIONS,
    is_model_name,
    parse_version,
    shown,
)

#: Bound on the files named in one text.
_MOST_FILES = 10


def model_files(names: Collection[str]) -> list[str]:
    """The model files among `names`, and the weight files beside them, sorted."""
    models = {name for name in names if is_model_file(name)}
    beside = {name for name in names if any(name.startswith((f"{model}.", f"{model}_", f"{_stem(model)}.data")) for model in models)}
    return sorted(models | beside | set(ir_files(names)))


#: The file of a model written in Python.
PYTHON_MODEL = "model.py"
#: Names of folders that were meant as versions: `v1`, `version-2`, `01`, `1.0`.
_MEANT_VERSION = re.compile(r"(?:v|ver|version)?[-_. ]?0*([1-9][0-9]{0,17})(?:\.[0-9]+)*", re.IGNORECASE)


def files_to_place(names: Collection[str]) -> set[str]:
    """The model files among `names`, with the config.json that makes weights a Hugging Face model."""
    found = set(model_files(names))
    return found | ({"config.json"} & set(names)) if found else found


def misplaced_root_files(names: Mapping[str, bool]) -> Mapping[str, str]:
    """Describes model files beside the model folders, with the command that moves them.

    Args:
        names: File names; the value states whether the file is a link.

    Returns:
        The descriptions, by the name that the model gets.
    """
    by_model: dict[str, list[str]] = {}
    for file in model_files(names):
        by_model.setdefault(model_name(file), []).append(file)
    return {
        model: f"{_files(files)} in the repository itself; a model is a folder with version folders in it. {_cure(model, files, names)}"
        for model, files in sorted(by_model.items())
    }


def misplaced_model_files(model: str, names: Mapping[str, bool]) -> str | None:
    """Describes the error of the folder `model`, which has no version folder and holds `names`; None: none of them is a model file.

    The values of `names` state whether the files are links.
    """
    files = model_files(names)
    if PYTHON_MODEL in names:
        files = sorted({*files, PYTHON_MODEL})
    if not files:
        return None
    return f"{_files(files)} in the model folder, which has no version folder such as '1'. {_cure(model, files, names, folder=f'{model}/')}"


def misnamed_versions(model: str, folders: Mapping[str, Collection[str]]) -> str | None:
    """Describes folders of the model `model` that were meant as versions, with the commands that rename them; None: there are none.

    Args:
        model: The name of its folder, which has no version folder.
        folders: The names of the files in each folder.
    """
    meant: dict[str, str] = {}
    for folder in sorted(folders):
        match = _MEANT_VERSION.fullmatch(folder)
        if match is not None and match[1] not in meant and (model_files(folders[folder]) or PYTHON_MODEL in folders[folder]):
            meant[match[1]] = folder
    if not meant:
        return None
    lies = [f"{shown((model_files(folders[folder]) or [PYTHON_MODEL])[0])} lies in folder {shown(folder)}" for folder in meant.values()]
    moves = [f"mv {_argument(f'{model}/{folder}')} {_argument(f'{model}/{version}')}" for version, folder in meant.items()]
    return f"{', '.join(lies)}; a version folder is a number from 1 without sign or leading zeros. In the repository: {' && '.join(moves)}"


def _cure(model: str, files: Collection[str], links: Mapping[str, bool], *, folder: str = "") -> str:
    """The shell commands that make `files`, which are in `folder`, version 1 of `model`."""
    version = f"{model}/1"
    served = PYTHON_MODEL in files or any(is_served(file) for file in files) or ir_files(files)
    # With a config.json, weights are a Hugging Face model.
    if not served and (step := conversion({*files, *(folder + name for name in links if name == "config.json")})) is not None:
        where = f"; the result belongs in {version}/" if "stoker add" not in step else ""
        return f"Move such files out of the repository. {step[:1].upper()}{step[1:]}{where}"
    # A relative link would be broken in another folder.
    moves = [
        f"{'cp -L' if links[file] else 'mv'} {_argument(folder + file)} {_argument(f'{version}/{_target(file, files)}')}"
        for file in sorted(files)
    ]
    return f"In the repository: mkdir -p {_argument(version)} && {' && '.join(moves)}"


def _argument(path: str) -> str:
    """The path as a shell argument that no command reads as an option."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def _target(file: str, files: Collection[str]) -> str:
    """The name of `file` in its version folder: the name that the backend expects for a model, else the same name."""
    if file in ir_files(files):
        return f"model{PurePosixPath(file).suffix}"
    models = [each for each in files if is_served(each)]
    return served_name(file) if models == [file] else file


def model_name(file: str, *, whole: bool = False) -> str:
    """The name of the model that a file or, with `whole`, a folder of that name becomes."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+" if whole else r"[^A-Za-z0-9_-]+", "_", file if whole else _stem(file)).strip("_.")
    return stem if is_model_name(stem) else "model"


def companion_files(model: str, names: Collection[str]) -> list[str]:
    """The files among `names` that belong to the model file `model`: its weights, and the other file of OpenVINO IR or PaddlePaddle."""
    starts = (f"{model}.", f"{model}_", f"{_stem(model)}.data")
    halves = {
        f"{PurePosixPath(model).stem}{suffix}" for own, suffix in ((".xml", ".bin"), (".pdmodel", ".pdiparams")) if model.endswith(own)
    }
    return sorted(name for name in names if name != model and not is_served(name) and (name.startswith(starts) or name in halves))


def _stem(file: str) -> str:
    """The name without its suffixes, and without the number of a part of one model's weights (`-00001-of-00002`)."""
    return re.sub(r"-[0-9]{5}-of-[0-9]{5}\Z", "", file.partition(".")[0])


def _files(files: Collection[str]) -> str:
    named = ", ".join(shown(file) for file in sorted(files)[:_MOST_FILES])
    more = len(files) - _MOST_FILES
    return f"{named}{f' and {more} more' if more > 0 else ''} {'lies' if len(files) == 1 else 'lie'}"


CONFIG_NAME = "config.pbtxt"
#: Folders of data for a load next to the version folders: warm-up data, and initial states of sequences.
DATA_DIRS = frozenset({"warmup", "initial_state"})
#: Folder of configurations that are selected by name, as in Triton.
CONFIGS_DIR = "configs"


def entries(folder: int) -> set[str]:
    """The names in a folder.

    Raises:
        OSError: it cannot be read, or holds more than the bound.
    """
    names: set[str] = set()
    with os.scandir(folder) as found:
        for item in found:
            names.add(item.name)
            if len(names) > MAX_FOLDER_ENTRIES:
                raise OSError(errno.EFBIG, f"more than {MAX_FOLDER_ENTRIES} entries in one folder")
    return names


def plain_files(folder: Folder, names: Iterable[str]) -> dict[str, bool]:
    """The plain files among `names`, and the links to plain files; the values state whether they are links."""
    found: dict[str, bool] = {}
    for name in names:
        with contextlib.suppress(OSError):
            # `stat` follows the link but opens no target.
            if stat.S_ISREG(os.stat(name, dir_fd=folder.descriptor).st_mode):
                found[name] = stat.S_ISLNK(os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False).st_mode)
    return found


def read_version(model: Folder, directory: Path, version: int) -> VersionListing | None:
    """The version's folder as it is now; None if `name` is not a folder."""
    name = str(version)
    listing = VersionListing(version=version, directory=directory / name, fingerprint="")
    try:
        kind = kind_of(model.status(name).st_mode)
        if kind is EntryKind.LINK:
            error = f"the version folder is a symbolic link; it must be a real folder{LINKS_HINT}"
            return replace(listing, fingerprint=error, error=error)
        if kind is not EntryKind.FOLDER:
            return None
        with model.folder(name) as folder:
            return replace(listing, fingerprint=fingerprint(list_tree(folder)))
    except FileNotFoundError:
        return None
    except OSError as error:
        return replace(listing, fingerprint=f"{error.errno}", error=f"the version folder cannot be read: {error.strerror}")
    except ModelLoadError as error:
        return replace(listing, fingerprint=error.message, error=f"the version folder cannot be read: {error.message}")


def passed_over(folder: int, model: str, names: set[str]) -> Iterator[str]:
    """Notes on folders, and links to folders, that are not version folders."""
    for name in sorted(names):
        if name.startswith(".") or name in (*DATA_DIRS, CONFIGS_DIR) or parse_version(name) is not None:
            continue
        try:
            # `stat` follows the link but opens no target.
            is_folder = stat.S_ISDIR(os.stat(name, dir_fd=folder).st_mode)
        except OSError:
            continue
        if is_folder:
            yield f"model '{model}': folder {shown(name)} is passed over: a version is a number from 1 without sign or leading zeros"


def companions(folder: Folder, names: set[str]) -> Iterator[TreeEntry]:
    """Files beside the version folders that a load may read: labels, warm-up data and initial states."""
    count = 0
    for name in sorted(names):
        if name == CONFIG_NAME or name.startswith(".") or name.endswith("~") or parse_version(name) is not None:
            continue
        count += 1
        if count > MAX_COMPANIONS:
            raise ModelLoadError(f"more than {MAX_COMPANIONS} files lie next to the version folders")
        try:
            entry = entry_of(name.encode(errors="backslashreplace").decode(), _status_of_companion(folder, name))
            if entry.kind is EntryKind.FILE or (entry.kind is EntryKind.LINK and folder.root is not None):
                yield entry
            elif entry.kind is EntryKind.FOLDER and name in DATA_DIRS:
                with folder.folder(name) as data:
                    yield from list_tree(data)
        except FileNotFoundError:
            continue


def _status_of_companion(folder: Folder, name: str) -> os.stat_result:
    """The status of a file or of its link target; of the link itself if it may not be followed, so that a load that needs it reports the
    error.
    """
    try:
        return folder.status(name)
    except LinkRejected:
        return os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)


def read_config(folder: Folder, path: str = CONFIG_NAME) -> bytes:
    """The content of config.pbtxt, or of another configuration below the folder.

    Raises:
        ModelLoadError: it, or a folder around it, is a link that is not followed; it is not a plain file, too large, or unreadable.
    """
    try:
        with folder.file(path) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ModelLoadError(f"{path} is not a plain file")
            content = b""
            while chunk := os.read(descriptor, MAX_CONFIG_BYTES + 1 - len(content)):
                content += chunk
    except OSError as error:
        reason = f"it is a symbolic link{LINKS_HINT}" if error.errno == errno.ELOOP else error.strerror
        raise ModelLoadError(f"{path} cannot be read: {reason}") from error
    if len(content) > MAX_CONFIG_BYTES:
        raise ModelLoadError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes")
    return content


def has_file(folder: int, path: str) -> bool:
    """Whether any entry exists at `path`; links are not followed."""
    try:
        os.stat(path, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def content_digest(content: bytes | None) -> str:
    """A short text that is equal for equal content; None stands for a missing file."""
    return "none" if content is None else blake2b(content, digest_size=16).hexdigest()


#: Bound on the files named in one text.
_MOST_NAMED = 10


class ModelReader:
    """Reads model folders; a configuration that has not changed is parsed once. Confined to: one caller at a time."""

    def __init__(
        self,
        batching_defaults: BatchingDefaults | None = None,
        config_name: str | None = None,
        *,
        follows_links: bool = False,
        has_namespaces: bool = False,
    ) -> None:
        """Makes a reader; no folder is read yet.

        Args:
            batching_defaults: Batching of models that do not configure it.
            config_name: configs/<config_name>.pbtxt is read instead of config.pbtxt if the model has that file.
            follows_links: Whether links are followed; in a folder without `parent`, to targets below that folder.
            has_namespaces: Whether the step of an ensemble may name a namespace.
        """
        self._has_namespaces = has_namespaces
        self._follows_links = follows_links
        self._defaults = batching_defaults or BatchingDefaults()
        self._config_path = None if config_name is None else f"{CONFIGS_DIR}/{config_name}.pbtxt"
        self._parsed: dict[tuple[Path, str], tuple[bytes, ParsedConfig | ModelLoadError]] = {}

    def read(
        self, index: int, directory: Path, name: str, notes: list[str], *, parent: Folder | None = None, is_named_elsewhere: bool = False
    ) -> ModelListing | None:
        """Reads the model `name`; None if the folder has neither a configuration nor versions, or does not exist.

        Args:
            index: Index of the root that holds the folder.
            directory: The model folder.
            name: The model's name.
            notes: Receives the notes on skipped folders.
            parent: The opened parent folder, through which the model folder is opened; None: it is opened by its path.
            is_named_elsewhere: Whether the folder's name, and therefore the name in config.pbtxt, may differ from the model's.
        """
        names: set[str] = set()
        versions: dict[int, VersionListing] = {}
        opening = open_root(directory, follows_links=self._follows_links) if parent is None else parent.folder(directory.name)
        try:
            with opening as folder:
                names = entries(folder.descriptor)
                numbers = sorted(number for entry in names if (number := parse_version(entry)) is not None)
                versions = {v: listing for v in numbers[-MAX_VERSIONS:] if (listing := read_version(folder, directory, v)) is not None}
                if len(numbers) > MAX_VERSIONS:
                    notes.append(f"model '{name}': only the highest {MAX_VERSIONS} of {len(numbers)} versions are taken")
                misplaced = None if versions else self._misplaced(folder, directory, names, is_listed=parent is None)
                if CONFIG_NAME not in names and not versions:
                    return None if misplaced is None else broken_listing(index, directory, name, misplaced)
                notes.extend(passed_over(folder.descriptor, name, names))
                beside = fingerprint(companions(folder, names))
                path = self._chosen(folder.descriptor)
                content = read_config(folder, path) if path != CONFIG_NAME or CONFIG_NAME in names else None
        except FileNotFoundError:
            return None
        except OSError as error:
            return broken_listing(index, directory, name, f"the model folder cannot be read: {error.strerror}")
        except ModelLoadError as error:
            found = broken_listing(index, directory, name, error.message)
            return replace(found, versions=versions, has_config_file=CONFIG_NAME in names)
        parsed = self._parse(directory, name, path, content, is_named_elsewhere=is_named_elsewhere)
        problems = () if isinstance(parsed, ParsedConfig) else problem_lines(parsed)
        reasons = () if isinstance(parsed, ParsedConfig) else (parsed.message,)
        if misplaced is not None:
            problems, reasons = (*problems, misplaced), (*reasons, misplaced)
        return ModelListing(
            name=name,
            directory=directory,
            root_index=index,
            config=parsed if isinstance(parsed, ParsedConfig) and not reasons else None,
            error="; ".join(reasons) or None,
            problems=problems,
            fingerprint=f"{content_digest(content)} {beside}",
            versions=versions,
            has_config_file=content is not None,
            links_root=None if not self._follows_links else directory if parent is None else directory.parent,
        )

    def forget_all_but(self, directories: Iterable[Path]) -> None:
        """Drops the cached configurations of all other folders."""
        kept = set(directories)
        self._parsed = {key: parsed for key, parsed in self._parsed.items() if key[0] in kept}

    def _misplaced(self, folder: Folder, directory: Path, names: Iterable[str], *, is_listed: bool) -> str | None:
        files = plain_files(folder, files_to_place(set(names)) | ({PYTHON_MODEL} & set(names)))
        if files and is_listed and parse_version(directory.name) is not None:
            named = ", ".join(map(shown, sorted(files)[:_MOST_NAMED]))
            return f"its base_path is a version folder, which holds {named}; give the folder around it"
        found = misplaced_model_files(directory.name, files)
        return found if found is not None or is_listed else misnamed_versions(directory.name, self._meant_versions(folder, names))

    def _meant_versions(self, folder: Folder, names: Iterable[str]) -> dict[str, set[str]]:
        """The names of the files in the folders that were meant as versions, at most `_MOST_NAMED`."""
        found: dict[str, set[str]] = {}
        for name in itertools.islice((name for name in sorted(names) if _MEANT_VERSION.fullmatch(name)), _MOST_NAMED):
            with contextlib.suppress(OSError, ModelLoadError), folder.folder(name) as version:
                found[name] = set(plain_files(version, entries(version.descriptor)))
        return found

    def config_of(self, folder: Folder) -> bytes | None:
        """The content of the configuration in `folder`; None: there is none.

        Raises:
            ModelLoadError: as `read_config`.
        """
        path = self._chosen(folder.descriptor)
        return read_config(folder, path) if has_file(folder.descriptor, path) else None

    def parsed(self, directory: Path, name: str, content: bytes | None) -> ParsedConfig | ModelLoadError:
        """The configuration `content` of the model `name`, in a folder that may have another name; None: an empty one."""
        return self._parse(directory, name, CONFIG_NAME, content, is_named_elsewhere=True)

    def _chosen(self, folder: int) -> str:
        return self._config_path if self._config_path is not None and has_file(folder, self._config_path) else CONFIG_NAME

    def _parse(
        self, directory: Path, name: str, path: str, content: bytes | None, *, is_named_elsewhere: bool
    ) -> ParsedConfig | ModelLoadError:
        if content is None:
            return replace(empty_config(name), batching_defaults=self._defaults)
        known = self._parsed.get((directory, name))
        if known is not None and known[0] == content:
            return known[1]
        result: ParsedConfig | ModelLoadError
        try:
            parsed = parse_pbtxt(content.decode(), source=f"{name}/{path}", model_name=name, is_named_elsewhere=is_named_elsewhere)
            if not self._has_namespaces:
                reject_namespaces(parsed)
            result = replace(parsed, batching_defaults=self._defaults)
        except UnicodeDecodeError as error:
            result = ModelLoadError(f"{name}/{path}: not UTF-8 at byte {error.start}")
        except ModelLoadError as error:
            result = error
        self._parsed[directory, name] = (content, result)
        return result


def broken_listing(index: int, directory: Path, name: str, error: str) -> ModelListing:
    """The listing of a model with nothing but an error."""
    return ModelListing(
        name=name,
        directory=directory,
        root_index=index,
        config=None,
        error=error,
        problems=(error,),
        fingerprint=error,
        versions={},
    )
