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

    A label that is given to another version moves there once that version is READY; until then it means what it meant before, so that a
    request by label never meets a version that is still being loaded.
    """

    def __init__(self) -> None:
        self._desired: dict[str, Mapping[str, int]] = {}
        self._settled: dict[str, dict[str, int | None]] = {}

    def replace(self, labels: Mapping[str, Mapping[str, int]], ready: Callable[[str], Collection[int]]) -> None:
        """Takes `labels`, by model, in place of all labels there were; `ready` tells the versions of a model that serve now."""
        meant = {name: {label: self.version(name, label, ready(name)) for label in desired} for name, desired in self._desired.items()}
        self._settled = {
            name: {label: version for label, version in meant.get(name, {}).items() if label in desired and version in ready(name)}
            for name, desired in labels.items()
        }
        self._desired = {name: dict(desired) for name, desired in labels.items()}

    def labels(self, name: str) -> Mapping[str, int]:
        """The labels of model `name`, and the versions that they belong to."""
        return self._desired.get(name, {})

    def put_back(self, name: str, labels: Mapping[str, int]) -> None:
        """Takes `labels`, which were those of model `name` before the last `replace`, in place of its own."""
        self._desired[name] = dict(labels)
        self._settled[name] = {label: version for label, version in self._settled.get(name, {}).items() if labels.get(label) == version}

    def version(self, name: str, label: str, ready: Collection[int]) -> int | None:
        """The version of model `name` that `label` means while `ready` ones serve; None: there is no such label."""
        desired = self._desired.get(name, {}).get(label)
        if desired is None:
            return None
        settled = self._settled.setdefault(name, {})
        if desired in ready:
            settled[label] = desired
        return settled.get(label, desired)

    def pending(self, name: str, ready: Collection[int]) -> dict[str, int]:
        """Labels of model `name` that belong to versions which are not READY, by label."""
        return {label: version for label, version in self._desired.get(name, {}).items() if version not in ready}

    def is_new(self, name: str, label: str) -> bool:
        """Whether `label` never meant a READY version."""
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
        """The models of the file as it is now. Blocks.

        Raises:
            ConfigError: something is wrong with it. OSError: it cannot be read.
        """
        content = read_text_file(self._path)
        self._content = content.encode()
        return read_model_list(content, source=self._path.name, folder=self._path.parent.absolute())

    async def follow(self, replace: Replace, period_s: float, *, wait: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Reads the file every `period_s` until cancelled, and passes it to `replace` whenever its content has changed.

        A file that cannot be used is logged, once for each trouble, and what is served goes on.
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
    """The text of a file that the operator names. Blocks.

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
        """Starts with `models`, whose folders are the operator's word.

        Args:
            models: The list.
            reload_root: Below which further folders may lie that a client's list names.
            batching_defaults: For models that leave their batching open.
            config_name: Which of its configurations each model is served by, as for `ModelReader`.
            follows_links: Whether links in a model's folder are followed, as far as they lead to what is below it.

        Raises:
            InvalidRequest: a name cannot be a model's, or is there twice.
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
        """The list as it is now."""
        return tuple(self._models.values())

    def admit(self, models: Sequence[ListedModel], *, is_trusted: bool = True) -> None:
        """Judges a list that is to be served.

        Args:
            models: The new list.
            is_trusted: Whether it comes from the operator; a client's may name no folders but those of the operator's lists and what lies
                below the reload root.

        Raises:
            InvalidRequest: a name cannot be a model's, or is there twice. Forbidden: a folder is not allowed.
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
        """The versions that would serve if `models` were the list, by model; None: its configuration is wrong, so they are unknown."""
        with self._lock:
            listings = {model.name: self._listing(model, []) for model in models}
        return {
            name: None if found.config is None else desired_versions(found.config.version_policy, found.versions) & found.versions.keys()
            for name, found in listings.items()
        }

    def replace(self, models: Sequence[ListedModel]) -> None:
        """Takes `models`, which have been admitted, in place of the list there was."""
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
    """The part of the manager that the list uses.

    Attributes:
        begin: Looks at the listed folders, and begins what follows for every model.
        failures: Waits until nothing of the models named is being loaded any more, and says what failed of them, one text each.
        ready: The READY versions of a model.
    """

    begin: Callable[[], Awaitable[None]]
    failures: Callable[[Iterable[str]], Awaitable[list[str]]]
    ready: Callable[[str], Collection[int]]


class ModelList:
    """The list of models that a manager follows. Confined to: the event loop."""

    def __init__(self, source: ListedModels, follower: ListFollower, *, labels_for_unavailable: bool) -> None:
        """`labels_for_unavailable`: whether a label that never meant anything may be given to a version that does not serve."""
        self._source = source
        self._follower = follower
        self._labels_for_unavailable = labels_for_unavailable
        self._labels = VersionLabels()
        self._label(source.models)
        self._changing = asyncio.Lock()

    def labelled_version(self, name: str, label: str) -> int | None:
        """The version of a model that `label` means now; None: there is no such label."""
        return self._labels.version(name, label, self._follower.ready(name))

    async def replace(self, models: Sequence[ListedModel], *, is_trusted: bool) -> None:
        """Takes `models` in place of the list; returns when what is new of them serves.

        The operator's list (`is_trusted`) says what is to be, so that all of it counts that can. A client's is a request: where a label
        cannot be effective nothing changes, and a model that does not load keeps its labels.

        Raises:
            InvalidRequest, Forbidden: see `ListedModels.admit`; nothing has changed then.
            ModelLoadError: a label of a client's list belongs to a version that would not serve; nothing has changed then. Or a model does
                not load, or a label belongs to a version that does not serve; the rest of the list counts.
        """
        async with self._changing:
            await in_daemon_thread("admit", lambda: self._source.admit(models, is_trusted=is_trusted))
            if not is_trusted:
                self._reject_misplaced(models, await in_daemon_thread("list", lambda: self._source.desired(models)))
            before = {model.name: self._labels.labels(model.name) for model in models}
            # Labels first: from the list on, an old version may go at any moment, and no label may mean it then.
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
        """Rejects labels of `models` on versions that would not serve by that list."""
        wrong: list[str] = []
        for model in models:
            ready, serving = self._follower.ready(model.name), desired[model.name]
            for label, version in model.version_labels.items():
                if serving is None or version in serving:
                    continue
                self._labels.version(model.name, label, ready)  # a label that has meant something is not new
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
    """TensorFlow Serving's words."""
    return f"Request to assign label to version {version} of model {name}, which is not currently available for inference"
