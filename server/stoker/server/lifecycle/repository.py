"""`ModelRepository`: scans root folders for models, and explains a root that is not a repository.

`<root>/<model>/config.pbtxt` and `<root>/<model>/<version>/...`, below one or several roots. A scan reads configurations and looks at files
without opening them; it never fails as a whole because of one model: a broken model is an entry with an error.
"""

import contextlib
import itertools
import logging
import os
import re
import shlex
import stat
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stoker.server.config.model_formats import is_model_file, is_served, served_name
from stoker.server.core.model_config import BatchingDefaults
from stoker.server.core.model_key import model_key, name_of, repository_of
from stoker.server.lifecycle.folder import LINKS_HINT, Folder, LinkRejected, open_root
from stoker.server.lifecycle.listing import ModelListing, RepositorySnapshot
from stoker.server.lifecycle.model_folder import (
    CONFIG_NAME,
    ModelReader,
    broken_listing,
    entries,
    files_to_place,
    misplaced_root_files,
    plain_files,
)
from stoker.server.lifecycle.namespaces import with_namespace
from stoker.server.lifecycle.settings import MAX_FOLDER_ENTRIES, MAX_MODELS, MODEL_NAME_RULE, is_model_name, parse_version, shown

#: A location that is no folder of this host, such as `s3://bucket/models`; `Path` has merged its slashes.
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+:/")
#: The former separator of several repositories in one value (each has its own flag or line now): PATH's separator on POSIX.
_OLD_SEPARATOR = ":"


def unreadable_root(root: Path, error: OSError) -> str:
    """Why the repository `root` cannot be read."""
    reason = f"model repository '{root}' cannot be read: {error.strerror or error}"
    if isinstance(error, NotADirectoryError) and root.is_file():
        return reason + _if_file(root)
    return reason + _if_missing(str(root)) if isinstance(error, FileNotFoundError) else reason


def _if_missing(root: str) -> str:
    parts = [part for part in root.split(_OLD_SEPARATOR) if part]
    if len(parts) > 1 and all(Path(part).is_dir() for part in parts):
        flags = " ".join(f"--model-repository={shlex.quote(part)}" for part in parts)
        return (
            f"; a '{_OLD_SEPARATOR}' is part of the path: repeat the flag for several repositories ({flags}), "
            "or give one per line in the environment"
        )
    if _REMOTE.match(root):
        return "; a folder of this host is expected: models are not fetched from elsewhere"
    return ""


def _if_file(file: Path) -> str:
    text = "; a repository is a folder that holds a folder per model, and that a folder per version"
    if not is_served(file.name):
        return text
    version = f"models/{file.name.partition('.')[0] or 'model'}/1"
    move = f"mkdir -p {shlex.quote(version)} && cp {shlex.quote(str(file))} {shlex.quote(f'{version}/{served_name(file.name)}')}"
    return f"{text}: {move}, then serve --model-repository=models; or serve the file itself: serve {shlex.quote(str(file))}"


def not_a_repository(root: Path) -> str | None:
    """Why the folder `root` is no repository but a model or a version; None: it may be a repository."""
    there = Path(os.path.abspath(root))  # noqa: PTH100 - as the operator wrote it, links not resolved: that is what is to be changed
    files, folders = _listed(there)
    if holds_models(there):
        return None
    if parse_version(there.name) is not None and not folders and any(is_model_file(name) for name in files):
        return (
            f"'{root}' holds model files, so it is a version of a model; the repository is the folder that holds the model folders: "
            f"{shlex.quote(str(there.parent.parent))}"
        )
    if any(parse_version(name) is not None and _is_version(there / name) for name in folders):
        return (
            f"'{root}' holds version folders, so it is a model; the repository is the folder that holds the model folders: "
            f"{shlex.quote(str(there.parent))} (serve --model-name={shlex.quote(there.name)} serves the model alone)"
        )
    return None


def holds_models(folder: Path, most: int | None = None) -> bool:
    """Whether one of its first `most` folders (None: of all) is a model, so that it is a repository."""
    return any(_is_model(folder / name) for name in _listed(folder)[1][:most])


def _is_model(folder: Path) -> bool:
    return any(parse_version(name) is not None for name in _listed(folder)[1])


def _is_version(folder: Path) -> bool:
    return any(is_model_file(name) for name in _listed(folder)[0])


def _listed(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the files and of the folders in `folder`, without links; empty if it cannot be read."""
    files: list[str] = []
    folders: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in itertools.islice(found, MAX_FOLDER_ENTRIES):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                files.append(entry.name)
    return files, folders


log = logging.getLogger("stoker.lifecycle")

#: Entries of a root that are never models.
_IGNORED = frozenset({"lost+found"})
#: Bound on the subfolders of a folder without a model that each scan opens to find out whether the folder is a repository.
_MOST_LOOKED_INTO = 16


class RepositoryUnreadable(Exception):
    """A root cannot be used. The message is for the operator and contains the path."""


class ModelRepository:
    """Reads one or several root folders.

    Calls block and are serialised by a lock, so that they may come from threads.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        batching_defaults: BatchingDefaults | None = None,
        config_name: str | None = None,
        follows_links: bool = False,
        has_namespaces: bool = False,
    ) -> None:
        """Makes a repository; no root is read yet.

        Args:
            roots: The folders that hold the model folders.
            batching_defaults: As `ModelReader`.
            config_name: As `ModelReader`.
            follows_links: Whether links below a root are followed to targets below it.
            has_namespaces: Whether each root is a namespace of its own; see `namespaces.py`.
        """
        # A folder given twice is one root; its models do not conflict with themselves.
        self.roots = tuple({root.resolve(): root for root in reversed(roots)}.values())[::-1]
        self._lock = threading.Lock()
        self._kept: dict[int, Mapping[str, ModelListing]] = {}
        self._misplaced: dict[int, Mapping[str, ModelListing]] = {}
        self._unreadable: set[int] = set()
        self._follows_links = follows_links
        self.has_namespaces = has_namespaces
        self._reader = ModelReader(batching_defaults, config_name, follows_links=follows_links, has_namespaces=has_namespaces)

    def check_roots(self) -> None:
        """Checks that the roots can be read, without a scan of their models.

        Raises:
            RepositoryUnreadable: a root cannot be read.
        """
        for root in self.roots:
            try:
                os.scandir(root).close()
            except OSError as error:
                raise RepositoryUnreadable(unreadable_root(root, error)) from error

    def scan(self) -> RepositorySnapshot:
        """Scans all models. A root that has become unreadable counts as last scanned.

        Raises:
            RepositoryUnreadable: a root that was never read cannot be read.
        """
        with self._lock:
            notes: list[str] = []
            by_root = [self._scan_root(index, notes) for index in range(len(self.roots))]
            models = self._in_namespaces(by_root) if self.has_namespaces else self._by_name(by_root)
            models = dict(sorted(models.items()))
            if len(models) > MAX_MODELS:
                notes.append(f"only the first {MAX_MODELS} of {len(models)} models are taken")
                models = dict(list(models.items())[:MAX_MODELS])
            self._reader.forget_all_but(listing.directory for listing in models.values())
            return RepositorySnapshot(models, tuple(notes))

    def find(self, name: str) -> ModelListing | None:
        """Scans the model of the key `name`; None if no root has it."""
        key, name = name, name_of(name)
        if not is_model_name(name) or name.startswith(".") or name in _IGNORED:
            return None
        with self._lock:
            if self.has_namespaces:
                index = repository_of(key)
                listing = None if index is None else self._find_in(index, name) or self._find_stray(index, name)
                return None if listing is None else with_namespace(listing, self.roots, self._holders)
            found = [listing for index in range(len(self.roots)) if (listing := self._find_in(index, name)) is not None]
            if not found:
                return next((listing for index in range(len(self.roots)) if (listing := self._find_stray(index, name)) is not None), None)
            return found[0] if len(found) == 1 else self._ambiguous(found)

    def keys(self, name: str) -> list[str]:
        """The keys of the models `name`, one for each root that has one. REQUIRES: the roots are namespaces."""
        with self._lock:
            return [model_key(name, index) for index in self._holders(name)]

    def in_namespace(self, listing: ModelListing) -> ModelListing:
        """`listing`, which a load request has changed, as a scan returns it. REQUIRES: the roots are namespaces."""
        with self._lock:
            return with_namespace(listing, self.roots, self._holders)

    def _holders(self, name: str) -> list[int]:
        return [index for index in range(len(self.roots)) if (self._find_in(index, name) or self._find_stray(index, name)) is not None]

    def _by_name(self, by_root: Sequence[Mapping[str, ModelListing]]) -> dict[str, ModelListing]:
        models: dict[str, ModelListing] = {}
        for name in sorted({name for listings in by_root for name in listings}):
            found = [listings[name] for listings in by_root if name in listings]
            models[name] = found[0] if len(found) == 1 else self._ambiguous(found)
        for listings in self._misplaced.values():
            models = {**listings, **models}
        return models

    def _in_namespaces(self, by_root: Sequence[Mapping[str, ModelListing]]) -> dict[str, ModelListing]:
        every = [{**self._misplaced.get(index, {}), **listings} for index, listings in enumerate(by_root)]

        def holders(name: str) -> list[int]:
            return [index for index, listings in enumerate(every) if name in listings]

        found = [with_namespace(listing, self.roots, holders) for listings in every for listing in listings.values()]
        return {listing.key: listing for listing in found}

    def _scan_root(self, index: int, notes: list[str]) -> Mapping[str, ModelListing]:
        root = self.roots[index]
        try:
            with open_root(root, follows_links=self._follows_links) as folder:
                names = entries(folder.descriptor)
                if CONFIG_NAME in names and index not in self._kept:
                    raise RepositoryUnreadable(
                        f"'{root}' holds a {CONFIG_NAME}, so it is a model; give the folder that holds the model folders"
                    )
                if index not in self._kept and (reason := not_a_repository(root)) is not None:
                    raise RepositoryUnreadable(reason)
                listings = {name: listing for name in sorted(names) if (listing := self._candidate(index, folder, name, notes)) is not None}
                self._misplaced[index] = self._find_misplaced(index, folder, names)
        except OSError as error:
            return self._last_seen(index, error)
        if index in self._unreadable:
            self._unreadable.discard(index)
            log.info("model repository %d ('%s') is readable again", index + 1, root.name)
        self._kept[index] = listings
        return listings

    def _last_seen(self, index: int, error: OSError) -> Mapping[str, ModelListing]:
        root = self.roots[index]
        if index not in self._kept:
            raise RepositoryUnreadable(unreadable_root(root, error)) from error
        if index not in self._unreadable:
            self._unreadable.add(index)
            log.error(
                "model repository %d ('%s') cannot be read any more (%s); what it held goes on serving",
                index + 1,
                root.name,
                error.strerror,
            )
        return self._kept[index]

    def _candidate(self, index: int, folder: Folder, name: str, notes: list[str]) -> ModelListing | None:
        """The entry `name` of a root as a model; None if it is none."""
        if name.startswith(".") or name in _IGNORED:
            return None
        try:
            mode = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False).st_mode
            is_linked_folder = stat.S_ISLNK(mode) and stat.S_ISDIR(os.stat(name, dir_fd=folder.descriptor).st_mode)
        except OSError:
            return None
        if not stat.S_ISDIR(mode) and not is_linked_folder:
            return None
        if not is_model_name(name):
            notes.append(f"folder {shown(name)} is passed over: a model name is {MODEL_NAME_RULE}")
            return None
        if is_linked_folder and not self._follows_links:
            return self._broken(index, name, f"the model folder is a symbolic link; it must be a real folder{LINKS_HINT}")
        if is_linked_folder:
            try:
                folder.resolve(name)
            except LinkRejected as error:
                return self._broken(index, name, f"the model folder cannot be read: {error.message}")
        listing = self._reader.read(index, self.roots[index] / name, name, notes, parent=folder)
        if listing is None:
            hint = self._passed_over_hint(index, name)
            notes.append(f"folder '{name}' is passed over: it has neither a {CONFIG_NAME} nor a version folder such as '1'{hint}")
        return listing

    def _find_in(self, index: int, name: str) -> ModelListing | None:
        try:
            with open_root(self.roots[index], follows_links=self._follows_links) as folder:
                return self._candidate(index, folder, name, [])
        except OSError as error:
            return self._broken(index, name, f"model repository {index + 1} cannot be read: {error.strerror}")

    def _passed_over_hint(self, index: int, name: str) -> str:
        """A hint at the flag to use for a folder that is no model."""
        if parse_version(name) is not None:
            return "; if it is a version, serve the folder around it with --model_name"
        if holds_models(self.roots[index] / name, _MOST_LOOKED_INTO):
            return f"; it holds model folders: give it as a repository (--model-repository={shlex.quote(str(self.roots[index] / name))})"
        return ""

    def _find_stray(self, index: int, name: str) -> ModelListing | None:
        try:
            with open_root(self.roots[index], follows_links=self._follows_links) as folder:
                return self._find_misplaced(index, folder, entries(folder.descriptor)).get(name)
        except OSError:
            return None

    def _find_misplaced(self, index: int, folder: Folder, names: set[str]) -> Mapping[str, ModelListing]:
        """The models with a file beside the model folders. They are listed with an error unless a folder has the name."""
        files = plain_files(folder, files_to_place({name for name in names if not name.startswith(".")}))
        return {model: self._broken(index, model, error) for model, error in misplaced_root_files(files).items()}

    def _broken(self, index: int, name: str, error: str) -> ModelListing:
        return broken_listing(index, self.roots[index] / name, name, error)

    def _ambiguous(self, found: Sequence[ModelListing]) -> ModelListing:
        where = " and ".join(f"{listing.root_index + 1} ('{self.roots[listing.root_index].name}')" for listing in found)
        error = f"the name is taken in model repositories {where}; it must be in one only, or start with --model-namespacing=true"
        return replace(
            found[0],
            config=None,
            error=error,
            problems=(error,),
            fingerprint="\n".join(listing.fingerprint for listing in found),
        )
