"""Flags of models, of metrics, and of serving (bounds, tuning, backends) that set more or less than one field."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from stoker.server.core.flag import BadValue, FlagError, Panel, boolean, number, one_of, option, path
from stoker.server.core.limits import Limits
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.net.settings import is_loopback
from stoker.server.observability.settings import MetricsSettings
from stoker.server.server_config import ServerConfig

#: Triton's setting for all backends, and the only such setting that is accepted.
DEFAULT_BATCH_SIZE, COMPLETING_BACKEND = "default-max-batch-size", "onnxruntime"


class LoadingMethod(StrEnum):
    """Adlik's flag for the selection of models to load."""

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
    """The control mode, and the models to load at start."""
    if choice is not None and method is not None:
        raise FlagError("--model-control-mode and --loading-method say the same thing: give one of them")
    if method is LoadingMethod.MANUAL:
        return ControlMode.EXPLICIT, load_models or ("*",)
    mode = ControlMode(choice.value) if choice is not None else ControlMode.POLL
    if load_models and mode is not ControlMode.EXPLICIT:
        raise FlagError("--load-model needs --model-control-mode=explicit")
    return mode, load_models


def check_ports(config: ServerConfig) -> None:
    """Rejects two frontends on one port."""
    taken: dict[tuple[str, int], str] = {}
    for name in ("grpc", "http", "metrics"):
        address, port = getattr(config, f"{name}_address"), getattr(config, f"{name}_port")
        if port and (other := taken.setdefault((address, port), name)) != name:
            raise FlagError(f"--{other}-port and --{name}-port are both {port}: each needs a port of its own")


def has_plain_public_port(config: ServerConfig) -> bool:
    """Whether a port other than loopback listens without TLS."""
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
    """Rejects a start without models, or with two flags for their location."""
    start, count = config.serving_start, len(config.repositories)
    if start.model_config_file is not None and config.paths:
        raise FlagError("--model-config-file and the paths of models say both what is served: give one of them")
    if start.model_config_file is not None and count:
        raise FlagError("--model-config-file and --model-base-path say both what is served: give one of them")
    if start.model_config_file is None and not count and not config.paths:
        raise FlagError("Missing option '--model-base-path', or the path of a model file or folder.")
    if start.model_name is not None and count + len(config.paths) > 1:
        raise FlagError(f"--model-name serves one model, but the command line gives {count + len(config.paths)} paths")
    if config.has_namespaces and (start.model_config_file is not None or start.model_name is not None or config.paths):
        raise FlagError("--model-namespacing makes each model repository a namespace: give all models by --model-repository")
    if config.has_namespaces and config.adlik.allow_operate:
        raise FlagError("--allow-model-operate changes a model by its name, which several repositories may have with --model-namespacing")
    if start.model_config_file is not None and config.adlik.allow_operate:
        raise FlagError("--allow-model-operate changes a model repository, and there is none with --model-config-file")
    if config.adlik.allow_operate and not count:
        raise FlagError("--allow-model-operate changes a model repository: give one with --model-base-path")


#: Former names of bounds.
_LIMIT_ALIASES = {"grpc_unread_bytes": "grpc_unflushed_bytes"}


def limits(assignments: Sequence[str], http_max_input_size: int | None) -> Limits:
    """The bounds of the frontends, with the values of `--limit`.

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
    """The values of the flag (such as `poplar,sim_num_IPUs=4`), as backend -> setting -> value.

    Triton's only setting without a backend, `default-max-batch-size=N`, is passed to the backend that uses it.
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


_LINKS_NOTICE = (
    "--allow-links=within-root: links in the repository are followed to whatever lies below its root, hidden folders included; "
    "whoever may write there chooses among these files"
)


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """The panel "Models"."""

    model_base_path: Annotated[
        list[Path] | None,
        path(
            "model-base-path",
            panel=Panel.MODELS,
            text="Model repository; may be repeated (environment: one per line).",
            aliases=("model-repository", "model-store"),
        ),
    ] = None
    model_path: Annotated[
        list[Path] | None,
        path(
            "model-path",
            panel=Panel.MODELS,
            text="Model file, folder of model files, or model folder to serve without a repository; also given without a flag.",
        ),
    ] = None
    model_control_mode: Annotated[
        ControlChoice | None,
        one_of(
            "model-control-mode",
            ControlChoice,
            panel=Panel.MODELS,
            text="none: load all models once. poll (default): follow changes of the repository. explicit: --load-model and API only.",
        ),
    ] = None
    loading_method: Annotated[
        LoadingMethod | None,
        one_of(
            "loading-method",
            LoadingMethod,
            panel=Panel.MODELS,
            text="Adlik's names: automatic = poll, manual = load all models once, then by API.",
        ),
    ] = None
    load_model: Annotated[
        list[str] | None,
        option("load-model", panel=Panel.MODELS, text="Load this model at start (explicit mode); may be repeated; '*' = all."),
    ] = None
    allow_links: Annotated[
        AllowedLinks,
        one_of(
            "allow-links",
            AllowedLinks,
            panel=Panel.MODELS,
            text="none: reject links in the repository. within-root: follow links to targets below its root.",
        ),
    ] = AllowedLinks.NONE

    def settings(self) -> dict[str, Any]:
        """The settings by their path from `ServerConfig`.

        Raises:
            FlagError: flags that exclude each other.
        """
        mode, models = control(self.model_control_mode, self.loading_method, tuple(self.load_model or ()))
        follows_links = self.allow_links is AllowedLinks.WITHIN_ROOT
        repositories = list(self.model_base_path or ())
        paths: list[Path] = []
        if self.model_path:
            from stoker.server.lifecycle.path_models import is_repository

            for each in self.model_path:
                (repositories if is_repository(each) else paths).append(each)
        return {
            "repositories": tuple(repositories),
            "paths": tuple(paths),
            "lifecycle.control_mode": mode,
            "lifecycle.load_models": models,
            "follows_links": follows_links,
            "notices": (_LINKS_NOTICE,) if follows_links else (),
        }


class TuningMode(StrEnum):
    """Whether the controllers of `stoker.server.tuning` adapt to measurements."""

    AUTO = "auto"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class ServingFlags:
    """The panel "Serving"."""

    config: Annotated[
        Path | None,
        path("config", panel=Panel.SERVING, text="YAML file that sets flags: 'grpc-port: 8500'. Flags and variables override it."),
    ] = None
    tuning: Annotated[
        TuningMode,
        one_of(
            "tuning",
            TuningMode,
            panel=Panel.SERVING,
            text="auto: adapt to the measured load (busy polling, inline execution and others). off: fixed behaviour.",
        ),
    ] = TuningMode.AUTO
    http_max_input_size: Annotated[
        int | None,
        number(
            "http-max-input-size",
            1,
            panel=Panel.SERVING,
            text=f"Largest HTTP body in bytes, compressed or not (default: {Limits().http_body_bytes}).",
        ),
    ] = None
    limit: Annotated[
        list[str] | None,
        option("limit", metavar="NAME=N", panel=Panel.SERVING, text="Set any other bound of the frontends, such as json_depth=64."),
    ] = None
    backend_config: Annotated[
        list[str] | None,
        option("backend-config", metavar="BACKEND,NAME=VALUE", panel=Panel.SERVING, text="A setting of a backend; may be repeated."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """The settings by their path from `ServerConfig`.

        Raises:
            FlagError: an unknown bound, or a setting that is malformed or given twice.
        """
        backends = backend_settings(self.backend_config or [])
        if self.tuning is TuningMode.OFF:
            backends.setdefault(COMPLETING_BACKEND, {}).setdefault("tuning", "off")
        return {
            "tuning.is_on": self.tuning is TuningMode.AUTO,
            "limits": limits(self.limit or [], self.http_max_input_size),
            "backend_settings": backends,
        }


_SWITCHES = ("counter_latencies", "histogram_latencies", "summary_latencies")
_QUANTILES = "summary_quantiles"
_MOST_QUANTILES = 32


@dataclass(frozen=True, kw_only=True)
class MetricsFlags:
    """Triton's optional metrics."""

    metrics_config: Annotated[
        list[str] | None,
        option(
            "metrics-config", metavar="NAME=V", panel=Panel.NETWORK, text="Triton's optional metrics: summary_latencies=true and others."
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """The settings by their path from `ServerConfig`.

        Raises:
            FlagError: a value has another form.
        """
        return {"metrics": metrics_config(self.metrics_config or [])}


def metrics_config(pieces: Sequence[str]) -> MetricsSettings:
    """Combines the values of the flag, `NAME=VALUE` each.

    Raises:
        FlagError: a value has another form.
    """
    found: dict[str, Any] = {}
    for piece in pieces:
        name, _, value = piece.partition("=")
        if name in _SWITCHES:
            try:
                found[name] = boolean(value)
            except BadValue as error:
                raise FlagError(f"--metrics-config {piece}: expected {error.expected}") from None
        elif name == _QUANTILES:
            found[name] = _quantiles(piece, value)
        else:
            raise FlagError(f"--metrics-config {piece}: expected NAME=VALUE with one of {', '.join((*_SWITCHES, _QUANTILES))}")
    return MetricsSettings(**found)


def _quantiles(piece: str, text: str) -> tuple[float, ...]:
    """Quantiles in Triton's form, each with its allowed error (`0.5:0.05`); here the error is the same for all."""
    try:
        ranks = tuple(float(part.partition(":")[0]) for part in text.split(","))
    except ValueError:
        ranks = ()
    if not 0 < len(ranks) <= _MOST_QUANTILES or not all(0 <= rank <= 1 for rank in ranks):
        raise FlagError(f"--metrics-config {piece}: expected up to {_MOST_QUANTILES} numbers from 0 to 1, such as 0.5:0.05,0.99:0.001")
    return ranks
