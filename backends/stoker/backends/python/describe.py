"""`describe`: runs in a process of its own, and completes a configuration by the model's code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.python.auto_complete import ModelConfig
from stoker.backends.python.importing import ModelImport, load_failure
from stoker.backends.python.triton_model import CLASS_NAME
from stoker.backends.python.typed_model import TypedModel
from stoker.backends.python.utils_module import make_utils_module


def describe(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Completes a configuration.

    Args:
        payload: `folder` and `filename` of the model's file, perhaps `model_dir` (its folder in the repository), `model_name`, `version`,
            and `config`, the configuration as written, in Triton's JSON form.

    Returns:
        `config`: the completed configuration, the same one if the model completes nothing.

    Raises:
        ModelLoadError: the file cannot be imported, an annotation is wrong, or `auto_complete_config` raised; the message names the line.
    """
    folder, filename = Path(payload["folder"]), str(payload["filename"])
    config: dict[str, Any] = payload["config"]
    utils = make_utils_module(model_name=payload["model_name"], version=payload["version"], version_dir=folder, calls=None)
    model_dir = payload.get("model_dir")
    model_import = ModelImport(folder, utils, model_dir=None if model_dir is None else Path(model_dir))
    with model_import.active():
        module = model_import.module(filename)
        try:
            model_class = getattr(module, CLASS_NAME, None)
            if model_class is None:
                return {"config": _typed(config, TypedModel.of(module, filename))}
            return {"config": _auto_completed(config, model_class, model_import)}
        finally:
            model_import.forget(module)


def _auto_completed(config: dict[str, Any], model_class: Any, model_import: ModelImport) -> dict[str, Any]:
    complete = getattr(model_class, "auto_complete_config", None)
    if complete is None:
        return config
    try:
        completed = complete(ModelConfig(json.dumps(config)))
    except BaseException as error:
        raise load_failure(error, model_import.root, f"{CLASS_NAME}.auto_complete_config") from error
    if not isinstance(completed, ModelConfig):
        raise ModelLoadError(
            f"{CLASS_NAME}.auto_complete_config returned {type(completed).__name__}, expected the ModelConfig it was given"
        )
    return completed.as_dict()


def _typed(config: dict[str, Any], model: TypedModel) -> dict[str, Any]:
    """`config` completed by the annotations; written fields have precedence, and the tensors of a side count as one field."""
    found = model.signature.config()
    completed = dict(config)
    for side in ("input", "output"):
        if not config.get(side):
            completed[side] = found[side]
    if not config.get("max_batch_size"):
        completed["max_batch_size"] = found["max_batch_size"]
    schedulers = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
    if "dynamic_batching" in found and not any(name in config for name in schedulers):
        completed["dynamic_batching"] = found["dynamic_batching"]
    if "model_transaction_policy" in found:
        completed.setdefault("model_transaction_policy", found["model_transaction_policy"])
    return completed
