"""Starts with TensorFlow Serving's flags: a list of models instead of a repository, batching, monitoring."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker.backends.api.registry import BackendRegistry
from stoker.server.config.serving_files import DEFAULT_MAX_BATCH_SIZE, read_batching, read_monitoring
from stoker.server.core.model_config import BatchingDefaults, ListedModel
from stoker.server.lifecycle.listing import ModelSource
from stoker.server.lifecycle.model_list import ListedModels, ModelListFile, read_text_file
from stoker.server.lifecycle.path_models import ModelFileNames, PathModels
from stoker.server.lifecycle.repository import ModelRepository
from stoker.server.protocols.settings import METRICS_PATH
from stoker.server.server_config import ServingStart

log = logging.getLogger("stoker.server")


@dataclass(frozen=True, slots=True)
class ModelLocations:
    """The source of a server's models.

    Attributes:
        source: The models.
        file: The file that lists the models; None: there is none.
    """

    source: ModelSource
    file: ModelListFile | None = None


def model_locations(
    start: ServingStart,
    repositories: tuple[Path, ...],
    config_name: str | None = None,
    *,
    follows_links: bool = False,
    has_namespaces: bool = False,
    paths: tuple[Path, ...] = (),
    backends: Callable[[], BackendRegistry] = BackendRegistry,
) -> ModelLocations:
    """The source of the models that `start` selects; `config_name` and `follows_links` are passed to its readers.

    `has_namespaces`: whether each of `repositories` is a namespace; see `namespaces.py`.

    `paths` are model files and folders to serve beside `repositories`; `backends` gives the names of model files.

    Raises:
        ConfigError: a file has errors. OSError: it cannot be read. InvalidRequest: a model's name is invalid.
    """
    defaults = _batching(start)
    listed = partial(
        ListedModels, reload_root=start.reload_root, batching_defaults=defaults, config_name=config_name, follows_links=follows_links
    )
    if start.model_config_file is not None:
        file = ModelListFile(start.model_config_file)
        return ModelLocations(listed(file.read()), file)
    if start.model_name is not None and not paths:
        model = ListedModel(name=start.model_name, base_path=repositories[0].absolute())
        return ModelLocations(listed([model]))
    batching = defaults if start.enable_batching else None
    repository = ModelRepository(
        repositories, batching_defaults=batching, config_name=config_name, follows_links=follows_links, has_namespaces=has_namespaces
    )
    if not paths:
        return ModelLocations(repository)
    return ModelLocations(
        PathModels(
            paths,
            ModelFileNames.of(backends()),
            repository if repositories else None,
            name=start.model_name,
            batching_defaults=batching,
            config_name=config_name,
            follows_links=follows_links,
        )
    )


def metrics_path(start: ServingStart) -> str | None:
    """The path of the metrics under TensorFlow Serving's names; None: they are not served.

    Raises:
        ConfigError: the monitoring file has errors. OSError: it cannot be read.
    """
    if start.monitoring_file is None:
        return METRICS_PATH
    return read_monitoring(read_text_file(start.monitoring_file), source=start.monitoring_file.name, path=METRICS_PATH)


def _batching(start: ServingStart) -> BatchingDefaults:
    """Batching of models without their own. TensorFlow's models accept batches of any size, even without --enable_batching."""
    if not start.enable_batching or start.batching_file is None:
        return BatchingDefaults(max_batch_size=DEFAULT_MAX_BATCH_SIZE)
    batching = read_batching(read_text_file(start.batching_file), source=start.batching_file.name)
    for remark in batching.remarks:
        log.info("%s", remark)
    return batching.defaults
