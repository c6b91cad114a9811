"""The command line of `serve`: flags and environment to a `ServerConfig`.

Every flag has one name here, spelled with dashes; `spell` makes all other accepted spellings into it before typer sees them: `_` for `-`,
booleans bare or with a value in the next word, Triton's and Adlik's names for the same things. Each flag is also read from `STOKER_<NAME>`.
"""

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from server.flag_rules import ControlChoice, LoadingMethod, backend_settings, check_model_operate, check_ports, control, limits, split_roots
from server.flag_values import FALSE, TRUE, FlagError, boolean, choice, seconds, whole_number
from server.frontends.adlik.settings import RestV1
from server.frontends.limits import Limits
from server.observability.logs import LogSettings
from server.server_config import ServerConfig

#: A boolean that takes a value; typer would give a parameter annotated `bool` none.
Switch = Any

#: Further names of a flag, by its own name.
ALIASES: dict[str, tuple[str, ...]] = {
    "model-base-path": ("model-repository", "model-store"),
    "repository-poll-secs": ("fs-poll-wait-seconds",),
    "http-port": ("rest-api-port",),
}
_PRIMARY = {alias: name for name, aliases in ALIASES.items() for alias in aliases}


class LogFormat(StrEnum):
    """Forms of the log; `default` and `ISO8601` are Triton's names for the human-readable one."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    DEFAULT = "default"
    ISO8601 = "ISO8601"


_FORMATS: dict[LogFormat, Literal["auto", "text", "json"]] = {
    LogFormat.AUTO: "auto",
    LogFormat.TEXT: "text",
    LogFormat.JSON: "json",
    LogFormat.DEFAULT: "text",
    LogFormat.ISO8601: "text",
}


#: Boolean flags, by primary name: `spell` needs to know them to let a bare flag stand for `=true`.
BOOLEANS = frozenset(
    {"exit-on-error", "strict-readiness", "allow-grpc", "allow-http", "allow-metrics", "grpc-reflection"}
    | {"prefer-adlik", "allow-model-operate"}
    | {"log-info", "log-warning", "log-error"}
)


#: Flags that are words by themselves.
_BARE = frozenset({"help", "version"})
#: Of no use to anybody: what `spell` makes of a word that belongs to no flag.
_STRAY = "--unexpected-argument"


def spell(arguments: Sequence[str]) -> list[str]:
    """Arguments with every flag by its own name, in its dashed spelling, and every boolean flag with its value attached.

    A word that is neither a flag nor the value of one becomes the value of `_STRAY`, which refuses it by name.
    """
    spelled: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*spelled, word, *rest]
        if not word.startswith("-"):
            spelled.append(f"{_STRAY}={word}")
            continue
        if not word.startswith("--"):
            spelled.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("_", "-")
        name = _PRIMARY.get(name, name)
        if not equals and name in BOOLEANS:
            value = rest.pop(0) if rest and rest[0].lower() in TRUE | FALSE else "true"
            equals = "="
        if equals and not value and name == "model-base-path":
            raise FlagError(f"--{name} is empty: give the folder that holds the models")
        spelled.append(f"--{name}{equals}{value}")
        if not equals and name not in _BARE:
            spelled.extend(rest[:1])
            del rest[:1]
    return spelled


def _option(name: str, *, text: str, panel: str, metavar: str = "TEXT", **settings: Any) -> Any:
    also = ", ".join(f"--{alias}" for alias in ALIASES.get(name, ()))
    text = f"{text} (also {also})" if also else text
    environment = [f"STOKER_{each.replace('-', '_').upper()}" for each in (name, *ALIASES.get(name, ()))]
    return typer.Option(f"--{name}", help=text, rich_help_panel=panel, envvar=environment, show_envvar=False, metavar=metavar, **settings)


def _flag(name: str, *, text: str, panel: str) -> Any:
    return _option(name, text=text, panel=panel, metavar="BOOL", parser=boolean)


def _number(name: str, low: int, high: int | None = None, *, text: str, panel: str) -> Any:
    return _option(name, text=text, panel=panel, metavar="N", parser=whole_number(low, high))


def _time(name: str, low: float, high: float, *, text: str, panel: str) -> Any:
    return _option(name, text=text, panel=panel, metavar="SECONDS", parser=seconds(low, high))


def _choice(name: str, kind: type[StrEnum], *, text: str, panel: str) -> Any:
    return _option(name, text=text, panel=panel, metavar="NAME", parser=choice(kind))


def _path(name: str, *, text: str, panel: str) -> Any:
    return _option(name, text=text, panel=panel, metavar="PATH")


def _refuse_stray(words: list[str] | None) -> None:
    """Eager, so that a missing flag is not complained about first: the stray word may well be its value."""
    for word in words or []:
        is_folder = os.sep in word or Path(word).is_dir()
        raise FlagError(f"unexpected argument '{word}': " + (f"use --model_base_path={word}" if is_folder else "flags are --name=value"))


def _print_help(context: typer.Context, is_asked: bool) -> None:
    if is_asked:
        typer.echo(context.get_help())
        raise typer.Exit


_REPO, _NET, _LIFE, _LOG = "Models", "Network", "Serving", "Logging"


def command(run: Callable[[ServerConfig], None]) -> Callable[..., None]:
    """The typer command that builds a `ServerConfig` and passes it to `run`."""

    def serve(
        model_base_path: Annotated[list[Path], _path("model-base-path", panel=_REPO, text="Model repository; may be given several times.")],
        model_control_mode: Annotated[
            ControlChoice | None,
            _choice(
                "model-control-mode",
                ControlChoice,
                panel=_REPO,
                text="none: load all once. poll (default): follow the repository. explicit: load by --load-model and API only.",
            ),
        ] = None,
        loading_method: Annotated[
            LoadingMethod | None,
            _choice(
                "loading-method", LoadingMethod, panel=_REPO, text="Adlik's form: automatic = poll, manual = load all once, then by API."
            ),
        ] = None,
        load_model: Annotated[
            list[str] | None,
            _option("load-model", panel=_REPO, text="Load this model at start (explicit mode); may be repeated; '*' = all."),
        ] = None,
        repository_poll_secs: Annotated[float, _time("repository-poll-secs", 0.05, 86400, panel=_REPO, text="Time between scans.")] = 15.0,
        settle_secs: Annotated[
            float, _time("settle-secs", 0, 3600, panel=_REPO, text="A version is taken once it has not changed for this long.")
        ] = 1.0,
        model_load_thread_count: Annotated[
            int, _number("model-load-thread-count", 1, 256, panel=_REPO, text="Models loading at once.")
        ] = 4,
        model_load_retry_count: Annotated[
            int, _number("model-load-retry-count", 0, 100, panel=_REPO, text="Further attempts after a failed load.")
        ] = 0,
        snapshot_dir: Annotated[
            Path | None,
            _path("snapshot-dir", panel=_REPO, text="Where private copies of model files are made (default: temporary folder)."),
        ] = None,
        exit_on_error: Annotated[Switch, _flag("exit-on-error", panel=_REPO, text="End if a model fails to load at start.")] = False,
        strict_readiness: Annotated[
            Switch, _flag("strict-readiness", panel=_REPO, text="Ready needs a READY version of every wanted model.")
        ] = True,
        address: Annotated[str, _option("address", panel=_NET, text="Address that all ports bind.")] = "127.0.0.1",
        grpc_port: Annotated[int, _number("grpc-port", 0, 65535, panel=_NET, text="gRPC port; 0 = any free one.")] = 8500,
        http_port: Annotated[int, _number("http-port", 0, 65535, panel=_NET, text="HTTP port; 0 = any free one.")] = 8501,
        metrics_port: Annotated[
            int | None, _number("metrics-port", 0, 65535, panel=_NET, text="A port of its own for /metrics, besides the HTTP port.")
        ] = None,
        grpc_address: Annotated[str | None, _option("grpc-address", panel=_NET, text="Instead of --address for gRPC.")] = None,
        http_address: Annotated[str | None, _option("http-address", panel=_NET, text="Instead of --address for HTTP.")] = None,
        metrics_address: Annotated[str | None, _option("metrics-address", panel=_NET, text="Instead of --address for metrics.")] = None,
        allow_grpc: Annotated[Switch, _flag("allow-grpc", panel=_NET, text="Serve gRPC.")] = True,
        allow_http: Annotated[Switch, _flag("allow-http", panel=_NET, text="Serve HTTP.")] = True,
        allow_metrics: Annotated[Switch, _flag("allow-metrics", panel=_NET, text="Serve /metrics.")] = True,
        grpc_reflection: Annotated[Switch, _flag("grpc-reflection", panel=_NET, text="Offer gRPC server reflection.")] = False,
        rest_v1: Annotated[
            RestV1,
            _choice("rest-v1", RestV1, panel=_NET, text="Whose REST protocol /v1 speaks: auto (told by each request), adlik or tfs."),
        ] = RestV1.AUTO,
        prefer_adlik: Annotated[
            Switch, _flag("prefer-adlik", panel=_NET, text="Under --rest-v1=auto, /v1 metadata is Adlik's for every model.")
        ] = False,
        allow_model_operate: Annotated[
            Switch, _flag("allow-model-operate", panel=_NET, text="Let Adlik's ModelOperateService change the repository.")
        ] = False,
        model_operate_root: Annotated[
            Path | None,
            _path("model-operate-root", panel=_NET, text="Folder below which the paths lie that ModelOperateService may be given."),
        ] = None,
        ready_file: Annotated[
            Path | None, _path("ready-file", panel=_NET, text="Write the real addresses there, as JSON, once ready.")
        ] = None,
        server_id: Annotated[str, _option("id", panel=_LIFE, text="The server's name towards clients.")] = "stoker",
        exit_timeout_secs: Annotated[
            float, _time("exit-timeout-secs", 0, 86400, panel=_LIFE, text="How long in-flight work may take after SIGTERM.")
        ] = 30.0,
        max_queue_size: Annotated[
            int, _number("max-queue-size", 1, 10_000_000, panel=_LIFE, text="Requests that may wait for one model version.")
        ] = 1024,
        cpu_threads: Annotated[
            int | None,
            _number("cpu-threads", 1, 4096, panel=_LIFE, text="CPU cores shared out among instances (default: the usable ones)."),
        ] = None,
        http_max_input_size: Annotated[
            int | None,
            _number(
                "http-max-input-size",
                1,
                panel=_LIFE,
                text=f"Largest HTTP body in bytes, also once decompressed (default: {Limits().http_body_bytes}).",
            ),
        ] = None,
        limit: Annotated[
            list[str] | None,
            _option("limit", metavar="NAME=N", panel=_LIFE, text="Set any other bound of the fronts, such as json_depth=64."),
        ] = None,
        backend_config: Annotated[
            list[str] | None,
            _option("backend-config", metavar="BACKEND,NAME=VALUE", panel=_LIFE, text="A setting of a backend; may be repeated."),
        ] = None,
        log_format: Annotated[
            LogFormat,
            _choice(
                "log-format", LogFormat, panel=_LOG, text="text (also default, ISO8601), json, or auto: text on a terminal, else JSON."
            ),
        ] = LogFormat.AUTO,
        log_file: Annotated[Path | None, _path("log-file", panel=_LOG, text="Log there instead of to stderr.")] = None,
        log_verbose: Annotated[int, _number("log-verbose", 0, 9, panel=_LOG, text="0 = off; 1 and up: ever more detail.")] = 0,
        log_info: Annotated[Switch, _flag("log-info", panel=_LOG, text="Log information.")] = True,
        log_warning: Annotated[Switch, _flag("log-warning", panel=_LOG, text="Log warnings.")] = True,
        log_error: Annotated[Switch, _flag("log-error", panel=_LOG, text="Log errors.")] = True,
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_show_version, metavar="", help="Print the version.")
        ] = False,
        asked_help: Annotated[
            bool, typer.Option("--help", is_eager=True, callback=_print_help, metavar="", help="Show this and exit.")
        ] = False,
        stray: Annotated[list[str] | None, typer.Option(_STRAY, hidden=True, is_eager=True, callback=_refuse_stray)] = None,
    ) -> None:
        """Serves a model repository over gRPC and REST.

        Flags may be spelled with - or _, as --name=value or --name value, and set by environment as STOKER_NAME.
        """
        mode, models = control(model_control_mode, loading_method, tuple(load_model or ()))
        check_model_operate(is_allowed=allow_model_operate, root=model_operate_root)
        if not (allow_grpc or allow_http):
            raise FlagError("--allow-grpc=false and --allow-http=false leave nothing to serve: switch one of them on")
        config = ServerConfig(
            repositories=tuple(root for given in model_base_path for root in split_roots(given)),
            control_mode=mode,
            load_models=models,
            poll_interval_s=repository_poll_secs,
            settle_s=settle_secs,
            exit_on_error=exit_on_error,
            strict_readiness=strict_readiness,
            load_concurrency=model_load_thread_count,
            load_retries=model_load_retry_count,
            server_id=server_id,
            grpc_address=grpc_address or address,
            http_address=http_address or address,
            metrics_address=metrics_address or address,
            grpc_port=grpc_port if allow_grpc else None,
            http_port=http_port if allow_http else None,
            metrics_port=metrics_port if allow_metrics else None,
            metrics_on_http=allow_metrics,
            grpc_reflection=grpc_reflection,
            rest_v1=rest_v1,
            prefer_adlik=prefer_adlik,
            allow_model_operate=allow_model_operate,
            model_operate_root=model_operate_root,
            ready_file=ready_file,
            exit_timeout_s=exit_timeout_secs,
            max_queue_size=max_queue_size,
            cpu_threads=cpu_threads,
            snapshot_dir=snapshot_dir,
            limits=limits(limit or [], http_max_input_size),
            backend_settings=backend_settings(backend_config or []),
            logs=LogSettings(
                verbose=log_verbose,
                info=log_info,
                warning=log_warning,
                error=log_error,
                format=_FORMATS[log_format],
                file=log_file,
            ),
        )
        check_ports(config)
        run(config)

    return serve


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"stoker {version('stoker')}")
        raise typer.Exit
