"""`ListedModels`: the models of a list, each with a folder of its own that may be called otherwise than the model."""

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stoker.backends.api.errors import Forbidden, InvalidRequest
from stoker.server.config.listed import as_listed
from stoker.server.core.model_list import BatchingDefaults, ListedModel
from stoker.server.lifecycle.bounds import MAX_MODELS
from stoker.server.lifecycle.listing import ModelListing, RepositorySnapshot
from stoker.server.lifecycle.model_reader import ModelReader, broken_listing
from stoker.server.lifecycle.names import MODEL_NAME_RULE, is_model_name, shown
from stoker.server.lifecycle.repository import RepositoryUnreadable
from stoker.server.lifecycle.version_policy import desired_versions


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
