"""What `serve`'s flags mean together: flags that say the same thing, exclude each other, or set one thing in several pieces."""

import dataclasses
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from stoker.server.core.limits import Limits
from stoker.server.core.loopback import is_loopback
from stoker.server.flags.values import FlagError
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.server_config import ServerConfig

#: Triton's setting for all backends, and the only one here that takes it.
DEFAULT_BATCH_SIZE, COMPLETING_BACKEND = "default-max-batch-size", "onnxruntime"


class LoadingMethod(StrEnum):
    """Adlik's name for who decides what is loaded."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"


class ControlChoice(StrEnum):
    """Triton's model control modes."""

    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"


class AllowedLinks(StrEnum):
    """Which links in a model repository are followed."""

    NONE = "none"
    WITHIN_ROOT = "within-root"


def control(
    choice: ControlChoice | None, method: LoadingMethod | None, load_models: tuple[str, ...]
) -> tuple[ControlMode, tuple[str, ...]]:
    """Who decides what is loaded, and what is loaded at start."""
    if choice is not None and method is not None:
        raise FlagError("--model-control-mode and --loading-method say the same thing: give one of them")
    if method is LoadingMethod.MANUAL:
        return ControlMode.EXPLICIT, load_models or ("*",)
    mode = ControlMode(choice.value) if choice is not None else ControlMode.POLL
    if load_models and mode is not ControlMode.EXPLICIT:
        raise FlagError("--load-model needs --model-control-mode=explicit")
    return mode, load_models


def check_ports(config: ServerConfig) -> None:
    """Refuses two fronts on one port."""
    taken: dict[tuple[str, int], str] = {}
    for name in ("grpc", "http", "metrics"):
        address, port = getattr(config, f"{name}_address"), getattr(config, f"{name}_port")
        if port and (other := taken.setdefault((address, port), name)) != name:
            raise FlagError(f"--{other}-port and --{name}-port are both {port}: each needs a port of its own")


def has_plain_public_port(config: ServerConfig) -> bool:
    """Whether a port listens beyond this machine without TLS."""
    if not config.sockets.allow_tcp:
        return False
    is_encrypted = {
        "grpc": config.tls.grpc is not None,
        "http": config.tls.http is not None,
        "metrics": config.tls.http is not None and config.tls.has_metrics,
    }
    return any(
        getattr(config, f"{name}_port") is not None and not encrypted and not is_loopback(getattr(config, f"{name}_address"))
        for name, encrypted in is_encrypted.items()
    )


def check_models(config: ServerConfig) -> None:
    """Refuses a start without models, or with two words for where they are."""
    start, count = config.serving_start, len(config.repositories)
    if start.model_config_file is not None and count:
        raise FlagError("--model-config-file and --model-base-path say both what is served: give one of them")
    if start.model_config_file is None and not count:
        raise FlagError("Missing option '--model-base-path'.")
    if start.model_name is not None and count > 1:
        raise FlagError(f"--model-name serves one folder, but --model-base-path gives {count}")
    if start.model_config_file is not None and config.allow_model_operate:
        raise FlagError("--allow-model-operate changes a model repository, and there is none with --model-config-file")


def check_model_operate(*, is_allowed: bool, root: Path | None) -> None:
    """Refuses a root for model operations that is no folder, or that nothing uses."""
    if root is None:
        return
    if not is_allowed:
        raise FlagError("--model-operate-root has no effect without --allow-model-operate")
    if not root.is_dir():
        raise FlagError(f"--model-operate-root={root}: expected an existing folder")


def limits(assignments: Sequence[str], http_max_input_size: int | None) -> Limits:
    """The bounds of the fronts, with what was set of them."""
    kinds = {field.name: float if isinstance(getattr(Limits(), field.name), float) else int for field in dataclasses.fields(Limits)}
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.replace("-", "_")
        if name not in kinds or not equals:
            raise FlagError(f"--limit {assignment}: expected NAME=VALUE with one of {', '.join(sorted(kinds))}")
        try:
            values[name] = kinds[name](text)
        except ValueError:
            raise FlagError(f"--limit {assignment}: '{text}' is not a number") from None
        if values[name] <= 0:
            raise FlagError(f"--limit {assignment}: must be above 0")
    if http_max_input_size is not None:
        values["http_body_bytes"] = http_max_input_size
    return Limits(**values)


def backend_settings(assignments: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """`poplar,sim_num_IPUs=4`, as often as given, as backend -> setting -> value.

    Triton's one setting without a backend, `default-max-batch-size=N`, goes to the backend that completes configurations by it.
    """
    settings: dict[str, dict[str, str]] = {}
    for assignment in assignments:
        whole = f"{COMPLETING_BACKEND},{assignment}" if assignment.startswith(f"{DEFAULT_BATCH_SIZE}=") else assignment
        backend, comma, rest = whole.partition(",")
        name, equals, value = rest.partition("=")
        if not (backend and comma and name and equals):
            raise FlagError(f"--backend-config {assignment}: expected BACKEND,NAME=VALUE")
        if name in settings.setdefault(backend, {}):
            raise FlagError(f"--backend-config {assignment}: {backend},{name} is given twice")
        settings[backend][name] = value
    return settings
