"""Flags of models, of loading them, and of serving: bounds, threads, backends."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from stoker.server.core.limits import Limits
from stoker.server.core.network import is_loopback
from stoker.server.flags.declare import FlagError, Switch, flag, number, one_of, option, path, time
from stoker.server.lifecycle.bounds import MODEL_NAME_RULE, is_model_name
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.observability.settings import LEAST_S, LoopWatchSettings
from stoker.server.server_config import ServerConfig
from stoker.server.tuning.constants import BUSY_POLL_US

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


#: Older names of bounds.
_LIMIT_ALIASES = {"grpc_unread_bytes": "grpc_unflushed_bytes"}


def limits(assignments: Sequence[str], http_max_input_size: int | None) -> Limits:
    """The bounds of the frontends, with those that `--limit` sets.

    Raises:
        FlagError: an unknown bound, or a value that is no number above 0.
    """
    kinds = {field.name: float if isinstance(getattr(Limits(), field.name), float) else int for field in dataclasses.fields(Limits)}
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.replace("-", "_")
        name = _LIMIT_ALIASES.get(name, name)
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


def backend_settings(assignments: Sequence[str]) -> dict[str, dict[str, str]]:
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


_MODELS = "Models"
_LINKS_NOTICE = (
    "--allow-links=within-root: links in the repository are followed to whatever lies below its root, hidden folders included; "
    "whoever may write there chooses among these files"
)


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """The panel "Models"."""

    model_base_path: Annotated[
        list[Path] | None, path("model-base-path", panel=_MODELS, text="Model repository; may be repeated (environment: one per line).")
    ] = None
    model_control_mode: Annotated[
        ControlChoice | None,
        one_of(
            "model-control-mode",
            ControlChoice,
            panel=_MODELS,
            text="none: load all once. poll (default): follow the repository. explicit: load by --load-model and API only.",
        ),
    ] = None
    loading_method: Annotated[
        LoadingMethod | None,
        one_of("loading-method", LoadingMethod, panel=_MODELS, text="Adlik's form: automatic = poll, manual = load all once, then by API."),
    ] = None
    load_model: Annotated[
        list[str] | None,
        option("load-model", panel=_MODELS, text="Load this model at start (explicit mode); may be repeated; '*' = all."),
    ] = None
    repository_poll_secs: Annotated[float, time("repository-poll-secs", 0.05, 86400, panel=_MODELS, text="Time between scans.")] = 15.0
    settle_secs: Annotated[
        float, time("settle-secs", 0, 3600, panel=_MODELS, text="A version is taken once it has not changed for this long.")
    ] = 1.0
    model_load_thread_count: Annotated[int, number("model-load-thread-count", 1, 256, panel=_MODELS, text="Models loading at once.")] = 4
    model_load_timeout_secs: Annotated[
        float,
        time("model-load-timeout-secs", 0, 86400, panel=_MODELS, text="How long loading one version may take; it fails then; 0: no bound."),
    ] = 600.0
    model_load_retry_count: Annotated[
        int, number("model-load-retry-count", 0, 100, panel=_MODELS, text="Further attempts after a failed load.")
    ] = 0
    snapshot_dir: Annotated[
        Path | None, path("snapshot-dir", panel=_MODELS, text="Where private copies of model files are made (default: temporary folder).")
    ] = None
    allow_links: Annotated[
        AllowedLinks,
        one_of(
            "allow-links",
            AllowedLinks,
            panel=_MODELS,
            text="none: refuse links in the repository. within-root: follow those that lead below its root.",
        ),
    ] = AllowedLinks.NONE
    exit_on_error: Annotated[Switch, flag("exit-on-error", panel=_MODELS, text="End if a model fails to load at start.")] = False
    strict_readiness: Annotated[
        Switch, flag("strict-readiness", panel=_MODELS, text="Ready needs a READY version of every desired model.")
    ] = True

    model_config_name: Annotated[
        str | None,
        option(
            "model-config-name",
            metavar="NAME",
            panel=_MODELS,
            text="Instead of config.pbtxt, read configs/NAME.pbtxt of models that have it.",
        ),
    ] = None
    disable_auto_complete_config: Annotated[
        Switch,
        flag("disable-auto-complete-config", panel=_MODELS, text="Refuse configurations that leave backend, inputs or outputs open."),
    ] = False

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: flags that exclude each other, or a name that is no file's.
        """
        if self.model_config_name is not None and not is_model_name(self.model_config_name):
            raise FlagError(f"--model-config-name={self.model_config_name}: expected {MODEL_NAME_RULE}")
        mode, models = control(self.model_control_mode, self.loading_method, tuple(self.load_model or ()))
        return {
            "repositories": tuple(self.model_base_path or ()),
            "control_mode": mode,
            "load_models": models,
            "poll_interval_s": self.repository_poll_secs,
            "settle_s": self.settle_secs,
            "exit_on_error": self.exit_on_error,
            "strict_readiness": self.strict_readiness,
            "load_concurrency": self.model_load_thread_count,
            "load_timeout_s": self.model_load_timeout_secs,
            "load_retries": self.model_load_retry_count,
            "snapshot_dir": self.snapshot_dir,
            "config_name": self.model_config_name,
            "follows_links": self.allow_links is AllowedLinks.WITHIN_ROOT,
            "notices": (_LINKS_NOTICE,) if self.allow_links is AllowedLinks.WITHIN_ROOT else (),
            "complete_configs": not self.disable_auto_complete_config,
        }


_SERVING = "Serving"


class TuningMode(StrEnum):
    """Whether the controllers of `stoker.server.tuning` adapt to what they measure."""

    AUTO = "auto"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class ServingFlags:
    """The panel "Serving"."""

    server_id: Annotated[str, option("id", panel=_SERVING, text="The server's name towards clients.")] = "stoker"
    shutdown_delay_secs: Annotated[
        float,
        time("shutdown-delay-secs", 0, 3600, panel=_SERVING, text="After SIGTERM, serve on this long while not ready, then drain."),
    ] = 0.0
    exit_timeout_secs: Annotated[
        float, time("exit-timeout-secs", 0, 86400, panel=_SERVING, text="How long in-flight work may take after SIGTERM.")
    ] = 30.0
    loop_block_secs: Annotated[
        float,
        time("loop-block-secs", 0, 3600, panel=_SERVING, text="Log all stacks when the event loop is blocked for so long; 0: never."),
    ] = 1.0
    loop_abort_secs: Annotated[
        float,
        time("loop-abort-secs", 0, 86400, panel=_SERVING, text="Abort the process when the event loop is blocked for so long; 0: never."),
    ] = 0.0
    max_queue_size: Annotated[
        int, number("max-queue-size", 1, 10_000_000, panel=_SERVING, text="Requests that may wait for one model version.")
    ] = 1024
    cpu_threads: Annotated[
        int | None, number("cpu-threads", 1, 4096, panel=_SERVING, text="CPU cores shared out among instances (default: the usable ones).")
    ] = None
    tuning: Annotated[
        TuningMode,
        one_of(
            "tuning",
            TuningMode,
            panel=_SERVING,
            text="auto: adapt to the measured load (busy polling, inline execution and others). off: fixed behaviour.",
        ),
    ] = TuningMode.AUTO
    busy_poll_us: Annotated[
        int,
        number(
            "busy-poll-us",
            0,
            10_000,
            panel=_SERVING,
            text="How long the event loop polls for the next request of a client that sends one at a time, in microseconds; 0: off.",
        ),
    ] = BUSY_POLL_US
    http_max_input_size: Annotated[
        int | None,
        number(
            "http-max-input-size",
            1,
            panel=_SERVING,
            text=f"Largest HTTP body in bytes, also once decompressed (default: {Limits().http_body_bytes}).",
        ),
    ] = None
    limit: Annotated[
        list[str] | None,
        option("limit", metavar="NAME=N", panel=_SERVING, text="Set any other bound of the frontends, such as json_depth=64."),
    ] = None
    backend_config: Annotated[
        list[str] | None,
        option("backend-config", metavar="BACKEND,NAME=VALUE", panel=_SERVING, text="A setting of a backend; may be repeated."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: an unknown bound, a time that is too short, or a setting that is malformed or given twice.
        """
        for name, value in (("loop-block-secs", self.loop_block_secs), ("loop-abort-secs", self.loop_abort_secs)):
            if 0 < value < LEAST_S:
                raise FlagError(f"--{name}={value:g}: expected 0, or seconds from {LEAST_S:g} up")
        backends = backend_settings(self.backend_config or [])
        if self.tuning is TuningMode.OFF:
            backends.setdefault("onnxruntime", {}).setdefault("tuning", "off")
        return {
            "server_id": self.server_id,
            "shutdown_delay_s": self.shutdown_delay_secs,
            "exit_timeout_s": self.exit_timeout_secs,
            "loop_watch": LoopWatchSettings(block_s=self.loop_block_secs, abort_s=self.loop_abort_secs),
            "max_queue_size": self.max_queue_size,
            "cpu_threads": self.cpu_threads,
            "is_tuned": self.tuning is TuningMode.AUTO,
            "busy_poll_us": self.busy_poll_us,
            "limits": limits(self.limit or [], self.http_max_input_size),
            "backend_settings": backends,
        }
