"""Lists of models (TensorFlow Serving's `model_config_list`): the file, the folders, replacement while serving, version labels."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from stoker.backends.api.errors import Forbidden, InvalidRequest, ModelLoadError, ServingError
from stoker.server.config.parsed import as_listed
from stoker.server.config.report import ConfigError, Problem
from stoker.server.config.serving_files import read_model_list
from stoker.server.core.model_config import BatchingDefaults, ListedModel
from stoker.server.core.tasks import in_daemon_thread
from stoker.server.lifecycle.listing import ModelListing, RepositorySnapshot
from stoker.server.lifecycle.model_folder import ModelReader, broken_listing
from stoker.server.lifecycle.reconcile import desired_versions
from stoker.server.lifecycle.repository import RepositoryUnreadable
from stoker.server.lifecycle.settings import MAX_MODELS, MODEL_NAME_RULE, is_model_name, shown


class VersionLabels:
    """The operator's labels of all models. Confined to: the event loop.

    A label moves to another version once that version is READY. Until then it keeps its old version, so that a request by label never
    reaches a version that still loads.
    """

    def __init__(self) -> None:
        self._desired: dict[str, Mapping[str, int]] = {}
        self._settled: dict[str, dict[str, int | None]] = {}

    def replace(self, labels: Mapping[str, Mapping[str, int]], ready: Callable[[str], Collection[int]]) -> None:
        """Replaces all labels by `labels`, which are by model; `ready` returns the READY versions of a model."""
        meant = {name: {label: self.version(name, label, ready(name)) for label in desired} for name, desired in self._desired.items()}
        self._settled = {
            name: {label: version for label, version in meant.get(name, {}).items() if label in desired and version in ready(name)}
            for name, desired in labels.items()
        }
        self._desired = {name: dict(desired) for name, desired in labels.items()}

    def labels(self, name: str) -> Mapping[str, int]:
        """The labels of model `name` with their versions."""
        return self._desired.get(name, {})

    def put_back(self, name: str, labels: Mapping[str, int]) -> None:
        """Restores `labels` as the labels of model `name`: those from before the last `replace`."""
        self._desired[name] = dict(labels)
        self._settled[name] = {label: version for label, version in self._settled.get(name, {}).items() if labels.get(label) == version}

    def version(self, name: str, label: str, ready: Collection[int]) -> int | None:
        """The version of model `name` with the label `label` while the versions `ready` serve; None: there is no such label."""
        desired = self._desired.get(name, {}).get(label)
        if desired is None:
            return None
        settled = self._settled.setdefault(name, {})
        if desired in ready:
            settled[label] = desired
        return settled.get(label, desired)

    def pending(self, name: str, ready: Collection[int]) -> dict[str, int]:
        """The labels of model `name` whose versions are not READY, with these versions."""
        return {label: version for label, version in self._desired.get(name, {}).items() if version not in ready}

    def is_new(self, name: str, label: str) -> bool:
        """Whether `label` never belonged to a READY version."""
        return label not in self._settled.get(name, {})


log = logging.getLogger("stoker.lifecycle")

MAX_FILE_BYTES: Final = 4 << 20
Replace = Callable[[Sequence[ListedModel]], Awaitable[None]]


class ModelListFile:
    """A ModelServerConfig in text format. Confined to: one caller at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: bytes | None = None
        self._trouble = ""

    def read(self) -> tuple[ListedModel, ...]:
        """Reads the models from the file. Blocks.

        Raises:
            ConfigError: the file has errors. OSError: it cannot be read.
        """
        content = read_text_file(self._path)
        self._content = content.encode()
        return read_model_list(content, source=self._path.name, folder=self._path.parent.absolute())

    async def follow(self, replace: Replace, period_s: float, *, wait: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Reads the file every `period_s` seconds until cancelled, and calls `replace` when its content has changed.

        An unusable file is logged, once for each error, and the served models stay as they are.
        """
        while True:
            await wait(period_s)
            before = self._content
            try:
                models = await in_daemon_thread("model-list", self.read)
                if self._content != before:
                    log.info("%s has changed: following it", self._path.name)
                    await replace(models)
                self._trouble = ""
            except (ServingError, OSError) as error:
                self._say(error)

    def _say(self, error: Exception) -> None:
        text = f"{self._path.name} cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        if text != self._trouble:
            log.error("%s (what is served goes on serving)", text)
        self._trouble = text


def read_text_file(path: Path) -> str:
    """The text of a file that the operator has named. Blocks.

    Raises:
        ConfigError: it is too large, or not UTF-8. OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError([Problem(path.name, None, "(file)", f"larger than {MAX_FILE_BYTES} bytes")])
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(path.name, None, "(file)", f"not UTF-8 at byte {error.start}")]) from None


class ListedModels:
    """A `ModelSource` of listed models. Calls block and are serialised by a lock, so that they may come from threads."""

    def __init__(
        self,
        models: Sequence[ListedModel],
        *,
        reload_root: Path | None = None,
        batching_defaults: BatchingDefaults | None = None,
        config_name: str | None = None,
        follows_links: bool = False,
    ) -> None:
        """Starts with `models`, whose folders the operator has chosen.

        Args:
            models: The list.
            reload_root: The folder below which a client's list may name further folders.
            batching_defaults: Batching of models that do not configure it.
            config_name: The name of the configuration that each model is served by, as for `ModelReader`.
            follows_links: Whether links in a model's folder are followed to targets below that folder.

        Raises:
            InvalidRequest: a name is no valid model name, or occurs twice.
        """
        self._lock = threading.Lock()
        self._reader = ModelReader(batching_defaults, config_name, follows_links=follows_links)
        self._reload_root = reload_root
        self._allowed: set[Path] = set()
        self._models: dict[str, ListedModel] = {}
        self.admit(models)
        self.replace(models)

    @property
    def roots(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(model.base_path for model in self._models.values() if model.base_path.is_dir()))

    @property
    def models(self) -> tuple[ListedModel, ...]:
        """The current list."""
        return tuple(self._models.values())

    def admit(self, models: Sequence[ListedModel], *, is_trusted: bool = True) -> None:
        """Checks a new list.

        Args:
            models: The new list.
            is_trusted: Whether the list comes from the operator. A client's list may only name the folders of the operator's lists and
                folders below the reload root.

        Raises:
            InvalidRequest: a name is no valid model name, or occurs twice. Forbidden: a folder is not allowed.
        """
        if len(models) > MAX_MODELS:
            raise InvalidRequest(f"the list has {len(models)} models, more than the {MAX_MODELS} allowed")
        names: set[str] = set()
        for model in models:
            if not is_model_name(model.name):
                raise InvalidRequest(f"{shown(model.name)} is not a model name: expected {MODEL_NAME_RULE}")
            if model.name in names:
                raise InvalidRequest(f"Illegal to list model {model.name} multiple times in config list")
            names.add(model.name)
        if is_trusted:
            self._allowed |= {model.base_path.resolve() for model in models}
        else:
            self._check(models)

    def desired(self, models: Sequence[ListedModel]) -> dict[str, frozenset[int] | None]:
        """By model, the versions that would serve if `models` were the list; None: its configuration is wrong, so they are unknown."""
        with self._lock:
            listings = {model.name: self._listing(model, []) for model in models}
        return {
            name: None if found.config is None else desired_versions(found.config.version_policy, found.versions) & found.versions.keys()
            for name, found in listings.items()
        }

    def replace(self, models: Sequence[ListedModel]) -> None:
        """Replaces the list by `models`, which `admit` has accepted."""
        with self._lock:
            self._models = {model.name: model for model in models}

    def check_roots(self) -> None:
        for model in self._models.values():
            try:
                os.scandir(model.base_path).close()
            except OSError as error:
                wrong = f"the folder of model '{model.name}', '{model.base_path}', cannot be read: {error.strerror or error}"
            else:
                return
        if self._models:
            raise RepositoryUnreadable(wrong)

    def scan(self) -> RepositorySnapshot:
        with self._lock:
            notes: list[str] = []
            models = {name: self._listing(self._models[name], notes) for name in sorted(self._models)}
            self._reader.forget_all_but(model.base_path for model in self._models.values())
            return RepositorySnapshot(models, tuple(notes))

    def find(self, name: str) -> ModelListing | None:
        with self._lock:
            model = self._models.get(name)
            return None if model is None else self._listing(model, [])

    def _check(self, models: Sequence[ListedModel]) -> None:
        root = None if self._reload_root is None else self._reload_root.resolve()
        for model in models:
            folder = model.base_path.resolve()
            if folder not in self._allowed and (root is None or not folder.is_relative_to(root)):
                raise Forbidden(
                    f"base_path of model {model.name} is not allowed: expected one that the operator has listed, "
                    "or one below the server's --model_reload_root"
                )

    def _listing(self, model: ListedModel, notes: list[str]) -> ModelListing:
        found = self._reader.read(0, model.base_path, model.name, notes, is_named_elsewhere=True)
        if found is None:
            return broken_listing(0, model.base_path, model.name, "its base_path is missing, or has no version folder such as '1'")
        if found.config is None:
            return found
        config = as_listed(found.config, model)
        return replace(found, config=config, policy=repr(config.version_policy), fingerprint=f"{found.fingerprint} {model.platform}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFollower:
    """The interface of the manager that the list uses.

    Attributes:
        begin: Scans the listed folders, and begins the resulting loads and unloads of every model.
        failures: Waits until no load of the named models runs any more, and returns one text for each failure.
        ready: The READY versions of a model.
    """

    begin: Callable[[], Awaitable[None]]
    failures: Callable[[Iterable[str]], Awaitable[list[str]]]
    ready: Callable[[str], Collection[int]]


class ModelList:
    """The list of models that a manager follows. Confined to: the event loop."""

    def __init__(self, source: ListedModels, follower: ListFollower, *, labels_for_unavailable: bool) -> None:
        """`labels_for_unavailable`: whether a new label may belong to a version that does not serve."""
        self._source = source
        self._follower = follower
        self._labels_for_unavailable = labels_for_unavailable
        self._labels = VersionLabels()
        self._label(source.models)
        self._changing = asyncio.Lock()

    def labelled_version(self, name: str, label: str) -> int | None:
        """The version of a model with the label `label`; None: there is no such label."""
        return self._labels.version(name, label, self._follower.ready(name))

    async def replace(self, models: Sequence[ListedModel], *, is_trusted: bool) -> None:
        """Replaces the list by `models`; returns when the new models serve.

        The operator's list (`is_trusted`) is the desired state: each valid part of it takes effect. A client's list is a request: if a
        label cannot take effect, nothing changes, and a model that does not load keeps its labels.

        Raises:
            InvalidRequest, Forbidden: see `ListedModels.admit`; nothing has changed.
            ModelLoadError: a label of a client's list belongs to a version that would not serve; nothing has changed. Or a model does not
                load, or a label belongs to a version that does not serve; the rest of the list takes effect.
        """
        async with self._changing:
            await in_daemon_thread("admit", lambda: self._source.admit(models, is_trusted=is_trusted))
            if not is_trusted:
                self._reject_misplaced(models, await in_daemon_thread("list", lambda: self._source.desired(models)))
            before = {model.name: self._labels.labels(model.name) for model in models}
            # Labels first: with the new list, an old version may be unloaded at any moment, and no label may point to it then.
            self._label(models)
            await in_daemon_thread("list", lambda: self._source.replace(models))
            await self._follower.begin()
            failures: list[str] = []
            for model in models:
                failed = [*await self._follower.failures([model.name]), *self._misplaced(model.name)]
                if failed and not is_trusted:
                    self._labels.put_back(model.name, before[model.name])
                failures += failed
        if failures:
            raise ModelLoadError("; ".join(failures))

    def _label(self, models: Sequence[ListedModel]) -> None:
        self._labels.replace({model.name: model.version_labels for model in models}, self._follower.ready)

    def _reject_misplaced(self, models: Sequence[ListedModel], desired: Mapping[str, frozenset[int] | None]) -> None:
        """Rejects labels of `models` on versions that the list would not serve."""
        wrong: list[str] = []
        for model in models:
            ready, serving = self._follower.ready(model.name), desired[model.name]
            for label, version in model.version_labels.items():
                if serving is None or version in serving:
                    continue
                self._labels.version(model.name, label, ready)  # a label that has belonged to a READY version is not new
                if not self._may_wait(model.name, label):
                    wrong.append(_not_available(model.name, version))
        if wrong:
            raise ModelLoadError("; ".join(wrong))

    def _misplaced(self, name: str) -> list[str]:
        """Describes the error in the labels of a model."""
        pending = self._labels.pending(name, self._follower.ready(name))
        return [_not_available(name, version) for label, version in pending.items() if not self._may_wait(name, label)]

    def _may_wait(self, name: str, label: str) -> bool:
        return self._labels_for_unavailable and self._labels.is_new(name, label)


def _not_available(name: str, version: int) -> str:
    """TensorFlow Serving's text."""
    return f"Request to assign label to version {version} of model {name}, which is not currently available for inference"
