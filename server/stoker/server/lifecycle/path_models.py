"""`PathModels`: models named by paths on the command line: a file, a folder of model files, a model's folder. No repository is needed.

A path is resolved once, at the start, because the operator named it. Links inside it are treated as in a repository.
"""

import enum
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.registry import BackendRegistry
from stoker.server.config.model_formats import conversion, is_certain
from stoker.server.core.model_config import BatchingDefaults
from stoker.server.lifecycle.folder import entry_at, fingerprint, list_tree, open_root
from stoker.server.lifecycle.listing import ModelListing, RepositorySnapshot, VersionListing
from stoker.server.lifecycle.model_folder import CONFIG_NAME, ModelReader, broken_listing, companion_files, entries, model_name, plain_files
from stoker.server.lifecycle.repository import ModelRepository, RepositoryUnreadable, holds_models
from stoker.server.lifecycle.settings import MAX_MODELS, parse_version, shown

#: The only version of a model that is a file, or a folder without version folders.
VERSION = 1


@dataclass(frozen=True, slots=True)
class ModelFileNames:
    """The file names by which backends find a model.

    Attributes:
        names: File names, without folders.
        marks: Further paths that make a folder a model, such as `saved_model.pb`.
    """

    names: tuple[str, ...]
    marks: frozenset[str] = frozenset()

    @classmethod
    def of(cls, registry: BackendRegistry) -> "ModelFileNames":
        """The file names of the installed backends, except test backends."""
        backends = [backend for backend in registry.all() if not backend.is_for_tests]
        marks = {mark for backend in backends for mark in backend.folder_marks}
        own = [name for backend in backends for name in (backend.default_model_filename, *backend.further_model_filenames)]
        return cls(tuple(dict.fromkeys(name for name in own if "/" not in name and name not in marks)), frozenset(marks))

    def served_as(self, file: str, beside: Collection[str]) -> str | None:
        """The name under which a backend finds `file`; None: no backend serves files of its suffix.

        `beside` are the names of the files in its folder: an `.xml` file is a model only with its `.bin` file.
        """
        path = PurePosixPath(file.lower())
        if path.suffix == ".xml" and f"{file[: -len('.xml')]}.bin" not in beside:
            return None
        if file in self.names:
            return file
        return next((name for name in self.names if PurePosixPath(name).suffix == path.suffix != ".json"), None)

    def in_folder(self, files: Collection[str]) -> list[str]:
        """The model files among `files`. Files whose suffix has other uses too, such as `.py`, count by their full name only."""
        return sorted(name for name in files if name in self.names or (is_certain(name, files) and self.served_as(name, files) is not None))


class PathKind(enum.Enum):
    """The kinds of paths on the command line."""

    FILE = "model file"
    MODEL = "folder of one model with version folders"
    UNVERSIONED = "folder of one model's files"
    FILES = "folder of model files"


def is_repository(path: Path) -> bool:
    """Whether the path is a folder that `ModelRepository` reads: one with model folders, or without any file of a model."""
    if not path.is_dir():
        return False
    files, folders = _listed(path)
    if any(parse_version(name) is not None for name in folders):
        return False
    return holds_models(path) or not (CONFIG_NAME in files or any(is_certain(name, files) or name.endswith(".py") for name in files))


class PathModels:
    """A `ModelSource` of paths, beside a repository. Calls block and are serialised by a lock, so that they may come from threads."""

    def __init__(
        self,
        paths: Sequence[Path],
        file_names: ModelFileNames,
        repository: ModelRepository | None = None,
        *,
        name: str | None = None,
        batching_defaults: BatchingDefaults | None = None,
        config_name: str | None = None,
        follows_links: bool = False,
    ) -> None:
        """Makes a source; nothing is read yet.

        Args:
            paths: Files and folders, none of which `is_repository` accepts.
            file_names: The file names of the backends.
            repository: Further models.
            name: The name of the only path's model; None: names are those of the files and folders.
            batching_defaults: As `ModelReader`.
            config_name: As `ModelReader`.
            follows_links: As `ModelReader`.
        """
        self._given = tuple(dict.fromkeys(paths))
        self._paths = {path: path.resolve() for path in self._given}
        self._file_names = file_names
        self._repository = repository
        self._name = name
        self._follows_links = follows_links
        self._reader = ModelReader(batching_defaults, config_name, follows_links=follows_links)
        self._lock = threading.Lock()

    @property
    def roots(self) -> tuple[Path, ...]:
        return (*(self._repository.roots if self._repository is not None else ()), *self._paths.values())

    def check_roots(self) -> None:
        if self._repository is not None:
            self._repository.check_roots()
        for given, path in self._paths.items():
            try:
                path.stat()
            except OSError as error:
                raise RepositoryUnreadable(f"'{given}' cannot be read: {error.strerror}") from error
        if self._repository is not None:
            return
        found = self.scan().models.values()
        # A model with a faulty configuration has versions: the server starts, and follows its correction.
        if not any(listing.versions for listing in found):
            raise RepositoryUnreadable("; ".join(dict.fromkeys(listing.error for listing in found if listing.error is not None)))

    def scan(self) -> RepositorySnapshot:
        found = RepositorySnapshot() if self._repository is None else self._repository.scan()
        notes = list(found.notes)
        with self._lock:
            by_name: dict[str, list[ModelListing]] = {name: [listing] for name, listing in found.models.items()}
            for given in self._given:
                for listing in self._listings(given, notes):
                    by_name.setdefault(listing.name, []).append(listing)
            self._reader.forget_all_but(self._paths.values())
        models = {name: listings[0] if len(listings) == 1 else _ambiguous(listings) for name, listings in sorted(by_name.items())}
        return RepositorySnapshot(dict(list(models.items())[:MAX_MODELS]), tuple(notes))

    def find(self, name: str) -> ModelListing | None:
        return self.scan().models.get(name)

    def _listings(self, given: Path, notes: list[str]) -> list[ModelListing]:
        path = self._paths[given]
        try:
            kind, files = self._kind(path)
            if kind is PathKind.FILE:
                return [self._file(self._name or model_name(given.name), path.parent, path.name, files)]
            if kind is PathKind.FILES:
                models = self._file_names.in_folder(files) or [name for name in sorted(files) if is_certain(name, files)]
                if not models:
                    raise ModelLoadError(
                        f"the folder {shown(given.name)} has no model file; models are {', '.join(self._file_names.names)}"
                    )
                if self._name is not None and len(models) > 1:
                    raise ModelLoadError(f"--model-name names one model, and {shown(given.name)} holds {len(models)}")
                for other in sorted(name for name in files if is_certain(name, files) and name not in models):
                    if self._file_names.served_as(other, files) is None:
                        notes.append(f"file {shown(other)} is passed over: {conversion([other]) or 'no backend serves it'}")
                return [self._file(self._name or model_name(file), path, file, files) for file in models]
            name = self._name or model_name(path.name, whole=True)
            if kind is PathKind.UNVERSIONED:
                return [self._unversioned(name, path)]
            found = self._reader.read(0, path, name, notes, is_named_elsewhere=True)
            return [found or broken_listing(0, path, name, "its folder has no version folder such as '1' any more")]
        except OSError as error:
            return [self._broken(given, f"it cannot be read: {error.strerror}")]
        except ModelLoadError as error:
            return [self._broken(given, error.message)]

    def _broken(self, given: Path, error: str) -> ModelListing:
        path = self._paths[given]
        return broken_listing(0, path, self._name or model_name(given.name or path.name), error)

    def _kind(self, path: Path) -> tuple[PathKind, set[str]]:
        """The kind of the path, and the names of the plain files in its folder."""
        is_file = path.is_file()
        with open_root(path.parent if is_file else path) as folder:
            names = entries(folder.descriptor)
            files = set(plain_files(folder, names))
        if is_file:
            return PathKind.FILE, files
        if any(parse_version(name) is not None and (path / name).is_dir() for name in names):
            return PathKind.MODEL, files
        models = self._file_names.in_folder(files)
        has_own_name = any(name in self._file_names.names for name in models) and all(name in self._file_names.names for name in models)
        is_marked = bool(self._file_names.marks & files) or (path / "model.savedmodel").is_dir()
        return PathKind.UNVERSIONED if CONFIG_NAME in files or is_marked or has_own_name else PathKind.FILES, files

    def _file(self, name: str, directory: Path, file: str, beside: Collection[str]) -> ModelListing:
        """A model whose only version is `file` of `directory`, with the files that belong to it."""
        served = self._file_names.served_as(file, beside)
        if served is None:
            step = conversion([file])
            return broken_listing(0, directory / file, name, f"no backend serves {shown(file)}" + (f": {step}" if step else ""))
        selected = {served: file}
        for other in companion_files(file, beside):
            suffix = PurePosixPath(other).suffix
            is_half = suffix in (".bin", ".pdiparams") and PurePosixPath(other).stem == PurePosixPath(file).stem
            selected[f"{PurePosixPath(served).stem}{suffix}" if is_half else other] = other
        with open_root(directory, follows_links=self._follows_links) as folder:
            mark = fingerprint(replace(entry_at(folder, path), path=kept) for kept, path in sorted(selected.items()))
        version = VersionListing(version=VERSION, directory=directory, fingerprint=mark, files=selected)
        return self._listing(name, directory, version, None)

    def _unversioned(self, name: str, directory: Path) -> ModelListing:
        """A model whose only version is the folder `directory`, beside its configuration if it has one."""
        with open_root(directory, follows_links=self._follows_links) as folder:
            mark = fingerprint(list_tree(folder))
            content = self._reader.config_of(folder)
        version = VersionListing(version=VERSION, directory=directory, fingerprint=mark)
        return self._listing(name, directory, version, content)

    def _listing(self, name: str, directory: Path, version: VersionListing, content: bytes | None) -> ModelListing:
        found = self._reader.parsed(directory, name, content)
        config, error = (None, found.message) if isinstance(found, ModelLoadError) else (found, None)
        return ModelListing(
            name=name,
            directory=directory,
            root_index=0,
            config=config,
            error=error,
            problems=() if error is None else (error,),
            fingerprint=version.fingerprint,
            versions={VERSION: version},
            has_config_file=content is not None,
            links_root=directory if self._follows_links else None,
        )


def _ambiguous(found: Sequence[ModelListing]) -> ModelListing:
    where = " and ".join(dict.fromkeys(shown(listing.directory.name) for listing in found))
    error = f"several paths give a model of this name ({where}); rename one, or serve it alone with --model-name"
    return replace(found[0], config=None, error=error, problems=(error,), fingerprint="\n".join(each.fingerprint for each in found))


def _listed(path: Path) -> tuple[set[str], set[str]]:
    """The names of the files and of the folders in `path`; links count as their targets."""
    files: set[str] = set()
    folders: set[str] = set()
    for entry in path.iterdir():
        (folders if entry.is_dir() else files).add(entry.name)
    return files, folders
